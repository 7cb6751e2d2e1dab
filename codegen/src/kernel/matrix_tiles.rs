//! Contractions of bytes in matrix registers (AMX): which ones they suit, and the shapes of the registers.
//!
//! A register has up to 16 rows of up to 64 bytes. A product takes rows of the left operand, each with up to 64 terms, and 16
//! columns of a packed panel, four terms of each in a row. A tile has two such registers of rows by two of columns, so four of the
//! eight registers hold sums.
//!
//! Source: Intel's Optimization Reference Manual, chapter "Intel AMX", for cycles and the blocking.

use crate::isa::Isa;
use crate::kernel::contraction::{Contraction, RhsLayout, Tile, covers_whole_lines, k_extent, row_tile_cycles};

/// Rows of a register.
pub const ROWS: usize = 16;

/// Bytes of a row of a register.
pub const ROW_BYTES: usize = 64;

/// Registers of rows, and of columns, of a tile.
const REGISTERS: usize = 2;

/// The least terms of a product that pays.
const MIN_DEPTH: usize = 16;

/// The least rows of a tile that pay.
const MIN_ROWS: usize = 4;

/// Rows of a tile that a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowBlock {
    /// The first one.
    pub first: usize,
    /// Their number.
    pub count: usize,
}

/// Terms of each product of registers, which divide a contiguous run; `None` where vectors are faster or there are no such registers.
pub fn depth(c: &Contraction, isa: &Isa) -> Option<usize> {
    let lines = if c.outer.0.is(1) { 1 } else { REGISTERS };
    let rows = lines * c.inner.0.size_hint();
    if !isa.has_matrix_registers() || !c.element.is_exact() || c.rhs != RhsLayout::Packed || rows < MIN_ROWS {
        return None;
    }
    let (k_inner, group) = (c.k_inner.number()?, c.element.k_group());
    (MIN_DEPTH..=ROW_BYTES).rev().find(|depth| depth.is_multiple_of(group) && k_inner.is_multiple_of(*depth))
}

/// The registers that hold `rows` rows of a tile. Rows of a register are of one line, so that they have one stride.
pub fn row_blocks(c: &Contraction, rows: usize) -> Vec<RowBlock> {
    let line = c.inner.0.number().map_or(rows, |inner| rows.min(inner)).max(1);
    let of_line = |from: usize| {
        let end = rows.min(from + line);
        (from..end).step_by(ROWS).map(move |first| RowBlock { first, count: ROWS.min(end - first) })
    };
    (0..rows).step_by(line).flat_map(of_line).collect()
}

/// Every tile of a contraction with products of `depth` terms, with its modelled cycles for each group of terms.
pub(crate) fn modelled_tiles(c: &Contraction, isa: &Isa, depth: usize) -> Vec<(f64, Tile)> {
    let columns = c.columns.size_hint();
    let groups = (k_extent(c).size_hint() / c.element.k_group()).max(1);
    let mut out = Vec::new();
    for (vectors, rows) in (1..=REGISTERS).flat_map(|v| (1..=REGISTERS * ROWS).map(move |r| (v, r))) {
        if row_blocks(c, rows).len() > REGISTERS || !covers_whole_lines(c, rows) {
            continue;
        }
        let cycles = |rows: usize| {
            // A product takes a cycle a row, a load half a cycle; sums are stored and loaded again.
            let step = depth / c.element.k_group();
            let (products, loads) = ((rows * vectors) as f64, (rows + step * vectors) as f64 / 2.0);
            (products.max(loads) + 4.0) / step as f64 + (2 * rows * vectors) as f64 / groups as f64
        };
        let panels = columns.div_ceil(vectors * isa.lanes) as f64;
        out.push((row_tile_cycles(c, rows, &cycles) * panels, Tile { rows, vectors }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::contraction::Element;
    use crate::kernel::tile_choice::choose_tile;

    fn product(outer: usize, inner: usize, k: usize, columns: usize) -> Contraction {
        Contraction {
            element: Element::U8S8,
            batch: vec![],
            a_batch_strides: vec![],
            b_batch_strides: vec![],
            outer: (outer.into(), (inner * k).into()),
            inner: (inner.into(), k.into()),
            taps: vec![],
            k_inner: k.into(),
            columns: columns.into(),
            rhs: RhsLayout::Packed,
        }
    }

    #[test]
    fn products_divide_runs_evenly_and_tiles_fit_the_registers() {
        let isa = Isa::by_name("avx512amx").unwrap();
        for (k, want) in [(64, Some(64)), (96, Some(48)), (80, Some(40)), (20, Some(20)), (68, None), (21, None)] {
            assert_eq!(depth(&product(1, 100, k, 64), isa), want, "{k}");
        }
        assert_eq!(depth(&product(1, 2, 64, 64), isa), None);
        assert_eq!(depth(&product(1, 100, 64, 64), Isa::by_name("avx512vnni").unwrap()), None);
        for (outer, inner) in [(1, 1000), (7, 7), (14, 14), (56, 56), (3, 17), (1, 5)] {
            let c = product(outer, inner, 64, 64);
            let tile = choose_tile(&c, isa);
            let blocks = row_blocks(&c, tile.rows);
            assert!(blocks.len() <= REGISTERS && tile.vectors <= REGISTERS, "{outer} x {inner}: {tile:?}");
            assert_eq!(blocks.iter().map(|b| b.count).sum::<usize>(), tile.rows);
            assert!(blocks.iter().all(|b| b.first / inner == (b.first + b.count - 1) / inner), "{blocks:?}");
        }
        assert_eq!(choose_tile(&product(1, 64, 64, 64), isa), Tile { rows: 32, vectors: 2 });
    }
}
