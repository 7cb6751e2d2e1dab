//! Contractions of few columns, as dot products along the terms.
//!
//! A vector of columns would be mostly empty. Instead, each pair of a row and a column of a tile accumulates in a vector along its
//! terms, as many pairs as a vector has lanes, and one transposition adds up all of them.

use crate::isa::Isa;
use crate::kernel::contraction::{Contraction, Element, RhsLayout, Tile};

/// Whether dot products take fewer cycles than vectors of columns, by far.
pub fn pays(c: &Contraction, isa: &Isa) -> bool {
    /// Instructions of the epilogue of a row.
    const EPILOGUE: f64 = 5.0;
    /// Loads that cross a cache line take two cycles.
    const UNALIGNED: f64 = 1.5;
    let (Some(columns), Some(k_inner)) = (c.columns.number(), c.k_inner.number()) else { return false };
    let fits = c.element == Element::F32F32 && c.rhs == RhsLayout::Packed && (1..=isa.lanes / 2).contains(&columns);
    if !fits || k_inner == 0 {
        return false;
    }
    let taps = c.taps.iter().map(|t| t.0).product::<usize>() as f64;
    let rows = tile(c, isa).rows as f64;
    let step = (rows * columns as f64).max(UNALIGNED * rows + columns as f64) / 2.0;
    let products = taps * k_inner.div_ceil(isa.lanes) as f64 * step;
    let dot_products = (products + 1.5 * isa.lanes as f64) / rows + EPILOGUE;
    let by_columns = taps * k_inner as f64 * 0.5 + EPILOGUE;
    dot_products < 0.7 * by_columns
}

/// Packs `b` (row-major `[K, columns]`) as `[columns, K]`.
pub fn pack(b: &[f32], k: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..k).map(move |term| b[term * columns + column])).collect()
}

/// The tile of a contraction of few columns: as many pairs of a row and a column as a vector has lanes.
pub(crate) fn tile(c: &Contraction, isa: &Isa) -> Tile {
    let rows = (isa.lanes / c.columns.size_hint().max(1)).max(1);
    Tile { rows: c.inner.0.number().map_or(rows, |inner| rows.min(inner.max(1))), vectors: 1 }
}
