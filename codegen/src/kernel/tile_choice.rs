//! The choice of the register tile of a contraction by a model of its cycles.

use crate::isa::{Isa, L2_BYTES};
use crate::kernel::contraction::{
    Contraction, RhsLayout, Tile, covers_whole_lines, k_extent, known_outer_rows, row_tile_cycles,
};
use crate::kernel::extent::Extent;
use crate::kernel::{few_columns, matrix_tiles};

/// The tile with the fewest modelled cycles: as many multiplications as the registers allow, few partly filled tiles.
pub fn choose_tile(c: &Contraction, isa: &Isa) -> Tile {
    if c.rhs == RhsLayout::FewColumns {
        return few_columns::tile(c, isa);
    }
    fewest_cycles(modelled_tiles(c, isa)).unwrap_or(Tile { rows: 1, vectors: 1 })
}

/// As [`choose_tile`], of the tiles whose panels the columns fill; `None` if there is none.
pub fn choose_filled_tile(c: &Contraction, isa: &Isa) -> Option<Tile> {
    let mut tiles = modelled_tiles(c, isa);
    tiles.retain(|(_, tile)| c.columns.is_multiple_of(tile.vectors * isa.lanes));
    fewest_cycles(tiles)
}

/// Modelled cycles of a contraction whose extents are numbers, with the best tile; `None` where they are not.
pub fn modelled_cycles(c: &Contraction, isa: &Isa) -> Option<f64> {
    let outer_rows = (c.batch.iter().product::<Extent>() * &c.outer.0).number()?;
    let terms = k_extent(c).number()?;
    c.inner.0.number()?;
    let best = modelled_tiles(c, isa).into_iter().map(|(cycles, _)| cycles).min_by(f64::total_cmp)?;
    Some(best * (outer_rows * terms) as f64)
}

/// The tile of the fewest cycles; of about as many, the first.
pub(crate) fn fewest_cycles(tiles: Vec<(f64, Tile)>) -> Option<Tile> {
    let mut best: Option<(f64, Tile)> = None;
    for (cycles, tile) in tiles {
        if best.is_none_or(|best| cycles < best.0 * 0.995) {
            best = Some((cycles, tile));
        }
    }
    best.map(|best| best.1)
}

/// Candidate tiles: [`choose_tile`] first, then those with few more modelled cycles.
pub fn candidate_tiles(c: &Contraction, isa: &Isa) -> Vec<Tile> {
    const MAX_CANDIDATES: usize = 8;
    let first = choose_tile(c, isa);
    if c.rhs == RhsLayout::FewColumns {
        return vec![first];
    }
    let mut all = modelled_tiles(c, isa);
    of_ir::sort::by(&mut all, |a, b| a.0.total_cmp(&b.0));
    let few = all.first().map_or(0.0, |best| best.0 * 1.3);
    let others = all.into_iter().filter(|(cycles, tile)| *tile != first && *cycles <= few);
    std::iter::once(first).chain(others.map(|(_, tile)| tile)).take(MAX_CANDIDATES).collect()
}

/// Every tile that fits the registers, with its modelled cycles.
pub(crate) fn modelled_tiles(c: &Contraction, isa: &Isa) -> Vec<(f64, Tile)> {
    if let Some(depth) = matrix_tiles::depth(c, isa) {
        return matrix_tiles::modelled_tiles(c, isa, depth);
    }
    let bytes = c.element.is_exact();
    // Latency in cycles of adding products.
    let corrected = c.rhs == RhsLayout::Corrected;
    let latency = if corrected { 1.0 } else { [4.0, 6.0, 5.0][c.element.k_group() / 2] };
    let columns = c.columns.size_hint();
    let outer = known_outer_rows(c);
    let k = k_extent(c).size_hint();
    let mut out = Vec::new();
    for vectors in 1..=4usize {
        for rows in 1..=14usize {
            // Registers for accumulators, one vector of b each, and one broadcast of a; bytes without a dot product need more.
            let others = match bytes && !isa.has_byte_dot_product() {
                true if corrected => vectors + 3,
                true => 2 * vectors + 4,
                false => vectors + 1,
            };
            if rows * vectors + others > isa.registers
                || !covers_whole_lines(c, rows)
                || l1_set_conflicts(rows, c) > MAX_L1_SET_CONFLICTS
            {
                continue;
            }
            let from_memory = outer > 1 && c.element.size() * k * vectors * isa.lanes > L2_BYTES;
            let read = if from_memory { (4 * isa.lanes * vectors) as f64 / MEMORY_BYTES_PER_CYCLE } else { 0.0 };
            let cycles = |r: usize| {
                let multiplications = if corrected { 2 * r * vectors } else { r * vectors };
                let (fma, loads) = (multiplications as f64 / 2.0, (r + vectors) as f64 / 2.0);
                // A chain of dependent additions costs its latency a step; loop overhead and L1 misses cost about one more
                // cycle.
                fma.max(loads).max(latency).max(read) + 1.0
            };
            let panels = columns.div_ceil(vectors * isa.lanes) as f64;
            out.push((row_tile_cycles(c, rows, &cycles) * panels, Tile { rows, vectors }));
        }
    }
    out
}

/// Bytes that a core reads from memory in a cycle.
pub const MEMORY_BYTES_PER_CYCLE: f64 = 5.0;

/// Usable ways of an L1 cache set, leaving some to the right operand. Addresses 4096 bytes apart share a set.
const MAX_L1_SET_CONFLICTS: usize = 8;

/// Lines of the left operand that a tile of `rows` rows maps to the fullest L1 set; 1 where the row stride is unknown.
fn l1_set_conflicts(rows: usize, c: &Contraction) -> usize {
    let size = c.element.size();
    let offsets: Option<Vec<usize>> = (0..rows).map(|row| c.row_offset(row).number()).collect();
    let Some(offsets) = offsets else { return 1 };
    let mut lines: Vec<usize> = offsets.into_iter().map(|offset| offset * size / 64).collect();
    lines.dedup();
    lines.iter().map(|a| lines.iter().filter(|b| *b % 64 == a % 64).count()).max().unwrap_or(0)
}
