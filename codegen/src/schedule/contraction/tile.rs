//! Sizes: register tiles, blocks, and how the work is divided.

use super::normal::{Normal, Right};
use crate::cpu::Isa;

/// The sizes of a contraction's loops.
#[derive(Clone, Debug)]
pub(super) struct Tiling {
    /// Lanes of a vector.
    pub lanes: usize,
    /// Vectors of a tile along n.
    pub vectors: usize,
    /// Rows that a tile spans.
    pub row_group: usize,
    /// Column tiles of a row: so many of `wide + 1` … then so many of `wide` columns.
    pub wider: usize,
    /// Number of tiles of `wide` columns.
    pub narrow: usize,
    /// Columns of a narrow tile.
    pub wide: usize,
    /// Rows (or, where there is one row, column tiles) of a block.
    pub m_block: usize,
    /// Panels of a block.
    pub n_block: usize,
    /// Elements of the outermost dimension of k between two stores of the sums.
    pub k_block: usize,
    /// Whether consecutive iterations share rows rather than panels.
    pub m_outer: bool,
}

/// Floating point operations that are worth an iteration of their own: some tens of microseconds.
const GRAIN_FLOPS: f64 = 2.0e6;

/// Bytes that a block of A should not exceed, to stay in the second-level cache beside a panel of B.
const A_BLOCK: usize = 768 << 10;

/// Products of a length up to this are summed in one go.
const K_WHOLE: usize = 2048;

impl Tiling {
    /// Columns of a panel.
    pub const fn nr(&self) -> usize {
        self.lanes * self.vectors
    }

    /// Column tiles of a row.
    pub const fn col_tiles(&self) -> usize {
        self.wider + self.narrow
    }

    /// Chooses the sizes for a contraction.
    pub fn choose(p: &Normal, isa: Isa, lanes: usize) -> Self {
        let registers = isa.registers() * isa.vector_bytes() / (lanes * p.acc.bits().unwrap_or(32) / 8).max(1);
        let registers = registers.clamp(8, isa.registers());
        let total_vectors = p.n.div_ceil(lanes).max(1);
        let mut best: Option<(f64, Self)> = None;
        for vectors in 1..=total_vectors.min(8) {
            let most = ((registers - 1).saturating_sub(vectors) / vectors).min(30);
            if most == 0 {
                continue;
            }
            let t = Self::tiles(p, lanes, vectors, most);
            let cost = t.cycles(p, total_vectors);
            // Equal costs go to the taller tile, which reads less of B.
            if best.as_ref().is_none_or(|(c, _)| cost < *c * 0.999) {
                best = Some((cost, t));
            }
        }
        let mut t = best.map_or_else(|| Self::tiles(p, lanes, 1, 1), |b| b.1);
        t.blocks(p);
        t
    }

    /// Tiles of at most `most` rows and columns together, as equal as they can be.
    fn tiles(p: &Normal, lanes: usize, vectors: usize, most: usize) -> Self {
        let row_group = (most / p.cols).clamp(1, p.rows);
        let count = p.cols.div_ceil(most);
        let (wide, wider) = (p.cols / count, p.cols % count);
        Self {
            lanes,
            vectors,
            row_group,
            wider,
            narrow: count - wider,
            wide,
            m_block: 1,
            n_block: 1,
            k_block: p.k.first().copied().unwrap_or(1),
            m_outer: true,
        }
    }

    /// Estimated cycles of the innermost loops for one step of k.
    fn cycles(&self, p: &Normal, total_vectors: usize) -> f64 {
        let tile = |m: usize, v: usize| {
            let (m, v) = (m as f64, v as f64);
            // Two multiply-adds or two loads a cycle; a sum is ready for the next after four. The rest is what a tile
            // costs outside its loop, spread over k.
            let steady = (m * v / 2.0).max((m + v) / 2.0).max(4.0);
            steady + 0.1 + (12.0 + 1.5 * m * v) / p.k_total().max(1) as f64
        };
        let row = |rows: usize, v: usize| {
            self.wider as f64 * tile(rows * (self.wide + 1), v) + self.narrow as f64 * tile(rows * self.wide, v)
        };
        let all_rows = |v: usize| {
            let rest = p.rows % self.row_group;
            (p.rows / self.row_group) as f64 * row(self.row_group, v) + if rest > 0 { row(rest, v) } else { 0.0 }
        };
        let rest = total_vectors % self.vectors;
        (total_vectors / self.vectors) as f64 * all_rows(self.vectors) + if rest > 0 { all_rows(rest) } else { 0.0 }
    }

    /// Divides the work into blocks: few enough bytes for the caches, many enough blocks for the workers.
    fn blocks(&mut self, p: &Normal) {
        let k = p.k_total().max(1);
        let panels = p.n.div_ceil(self.nr()).max(1);
        // Units of M: groups of rows, or column tiles of the only row.
        let units = if p.rows > 1 { p.rows.div_ceil(self.row_group) } else { self.col_tiles() };
        let m_of_unit = if p.rows > 1 { self.row_group * p.cols } else { self.wide + usize::from(self.wider > 0) };
        let a_size = p.acc.bits().unwrap_or(32) / 8;
        let b_bytes = k * p.n * a_size;
        // A is read once for a panel: strides and overlapping windows make its own bytes fewer than m times k.
        let a_unit = match &p.pad {
            Some(pad) => pad.bytes_of_rows(self.row_group * pad.stride_rows()) * a_size,
            None => m_of_unit * k * a_size,
        };
        let fits = (A_BLOCK / a_unit.max(1)).clamp(1, units);
        let (mut m, mut n) = (fits, panels);
        let batch: usize = p.batch.iter().product::<usize>().max(1);
        let flops = |m: usize, n: usize| 2.0 * (m * m_of_unit) as f64 * (n * self.nr()) as f64 * k as f64;
        let count = |m: usize, n: usize| batch * units.div_ceil(m) * panels.div_ceil(n);
        let a_total = a_unit * units;
        // Splitting n repeats the reading of A, splitting m that of B: the larger operand is read once.
        while count(m, n) < 32 && flops(m, n) > GRAIN_FLOPS {
            let n_first = b_bytes > a_total || m == 1;
            if n_first && n > 1 {
                n = n.div_ceil(2);
            } else if m > 1 {
                m = m.div_ceil(2);
            } else if n > 1 {
                n = n.div_ceil(2);
            } else {
                break;
            }
        }
        // Blocks of equal size.
        m = units.div_ceil(units.div_ceil(m));
        n = panels.div_ceil(panels.div_ceil(n));
        self.m_block = if p.rows > 1 { m * self.row_group } else { m };
        self.n_block = n;
        self.m_outer = p.pad.is_some() || b_bytes < (1 << 20) || a_total > b_bytes;
        if p.k.len() == 1 && k > K_WHOLE && (p.cols * p.rows > 1 || matches!(p.right, Right::View { .. })) {
            let parts = k.div_ceil(K_WHOLE / 2);
            self.k_block = k.div_ceil(parts).next_multiple_of(8).min(k);
        }
    }
}
