//! Packs right operands into panels, as kernels read them.
//!
//! Constant operands are packed when the plan is made (weight prepacking).

use rayon::prelude::*;

use crate::kernel::contraction::{Contraction, Element, k_extent, panel_elements, panel_header_bytes};
use crate::kernel::zero_filled::ZeroFilled;

/// Packs `b` (row-major `[K, columns]`) into panels `[columns / width][K][width]`, padded with zero columns.
pub fn pack(b: &[f32], k: usize, columns: usize, width: usize) -> ZeroFilled<f32> {
    let panels = columns.div_ceil(width);
    let mut out = ZeroFilled::new(panels * k * width);
    out.par_chunks_exact_mut((k * width).max(1)).enumerate().for_each(|(p, panel)| {
        let n = width.min(columns - p * width);
        for (row, to) in panel.chunks_exact_mut(width).enumerate() {
            to[..n].copy_from_slice(&b[row * columns + p * width..][..n]);
        }
    });
    out
}

/// Packs bytes `b` (row-major `[K, columns]`) for `c` into panels of `width` columns: initial accumulators if the left operand
/// is signed, then groups `[width][4]`. `None` where an extent is unknown.
pub fn pack_bytes(b: &[i8], c: &Contraction, width: usize) -> Option<Vec<u8>> {
    let (columns, depth, size) = (c.columns.number()?, k_extent(c).number()?, panel_elements(c, width).number()?);
    let mut out = vec![0u8; columns.div_ceil(width) * size];
    into_groups(bytemuck::cast_slice(b), c, width, panel_header_bytes(c, width), &mut out)?;
    let signed = c.element == Element::S8S8;
    for (p, panel) in out.chunks_exact_mut(size.max(1)).enumerate().filter(|_| signed) {
        for column in 0..width.min(columns - p * width) {
            let sum: i32 = (0..depth).map(|k| i32::from(b[k * columns + p * width + column])).sum();
            panel[4 * column..][..4].copy_from_slice(&(-128 * sum).to_le_bytes());
        }
    }
    Some(out)
}

/// Packs 16-bit floats `b` (row-major `[K, columns]`) for `c` into panels of `width` columns: groups `[width][2]`. `None` where
/// an extent is unknown.
pub fn pack_half_floats<T: Copy + Default + Send + Sync>(b: &[T], c: &Contraction, width: usize) -> Option<Vec<T>> {
    let (columns, size) = (c.columns.number()?, panel_elements(c, width).number()?);
    let mut out = vec![T::default(); columns.div_ceil(width) * size];
    into_groups(b, c, width, 0, &mut out)?;
    Some(out)
}

/// Fills panels, each after a header of `header` elements, with the groups of their columns.
fn into_groups<T: Copy + Send + Sync>(
    b: &[T],
    c: &Contraction,
    width: usize,
    header: usize,
    out: &mut [T],
) -> Option<()> {
    let (k_inner, columns, size) = (c.k_inner.number()?, c.columns.number()?, panel_elements(c, width).number()?);
    let many = c.element.k_group();
    let groups = k_inner.div_ceil(many);
    out.par_chunks_exact_mut(size.max(1)).enumerate().for_each(|(p, panel)| {
        let count = width.min(columns - p * width);
        for (g, group) in panel[header..].chunks_exact_mut(many * width).enumerate() {
            let (tap, first) = (g / groups, g % groups * many);
            // The last group of a byte run overlaps the previous one; elements of that group get weight 0.
            let from =
                if c.element.is_exact() && first + many > k_inner && k_inner >= many { k_inner - many } else { first };
            for i in (0..many).filter(|i| (first..k_inner).contains(&(from + i))) {
                let row = &b[(tap * k_inner + from + i) * columns + p * width..][..count];
                row.iter().enumerate().for_each(|(column, x)| group[many * column + i] = *x);
            }
        }
    });
    Some(())
}
