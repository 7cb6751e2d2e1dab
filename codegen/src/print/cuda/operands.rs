//! Offsets of the elements that a contraction reads, as C expressions.

use crate::kernel::contraction::{Contraction, RhsLayout};
use crate::kernel::extent::Extent;
use crate::print::index;

/// C expression of the offset of row `r` of the left operand.
pub fn row_start(spec: &Contraction) -> String {
    match spec.outer.0.is(1) {
        true => format!("r * {}", spec.inner.1),
        false => format!("r / {} * {} + r % {} * {}", spec.inner.0, spec.outer.1, spec.inner.0, spec.inner.1),
    }
}

/// C expression of the offset of term `k` of the left operand in its row.
pub fn term_offset(spec: &Contraction) -> String {
    let (mut dims, mut steps): (Vec<Extent>, Vec<Extent>) =
        spec.taps.iter().map(|(n, step)| (Extent::from(*n), step.clone())).unzip();
    dims.push(spec.k_inner.clone());
    steps.push(1usize.into());
    index::flat_offset(&dims, &steps, "k")
}

/// C expression of the offset of term `k` and column `n` of the right operand.
///
/// # Errors
/// When it is packed in panels.
pub fn right_offset(spec: &Contraction) -> Result<String, String> {
    match &spec.rhs {
        RhsLayout::RowMajor(ld) => Ok(format!("k * {ld} + n")),
        RhsLayout::Transposed(ld) => Ok(format!("n * {ld} + k")),
        RhsLayout::Packed
        | RhsLayout::NarrowPanels(_)
        | RhsLayout::Corrected
        | RhsLayout::PackedHalf(_)
        | RhsLayout::FewColumns => Err("panels are for CPUs".into()),
    }
}
