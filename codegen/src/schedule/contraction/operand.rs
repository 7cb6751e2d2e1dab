//! The two operands as the innermost loops see them: in place, copied or packed.

use super::super::view::widen;
use super::normal::{Normal, NormalPrologue, Right};
use super::pad::{convert, copy, each};
use super::tile::Tiling;
use crate::kernel::{Affine, Builder, Compare, Expr, Mem};

/// A: an affine map from row, column and k.
pub(super) struct Left {
    pub mem: Mem,
    base: Affine,
    row: i64,
    col: i64,
    pub k: Vec<i64>,
}

impl Left {
    /// The element of a row and column plus constants, for k = 0.
    pub fn at(&self, row: &Affine, col: &Affine, r: usize, c: usize) -> Affine {
        self.base.clone() + (row.clone() + r) * self.row + (col.clone() + c) * self.col
    }
}

/// B: an affine map from panel, k and column.
pub(super) struct Rhs {
    pub mem: Mem,
    base: Affine,
    panel: i64,
    pub k: Vec<i64>,
    pub n: i64,
    /// Whether columns beyond the last exist in memory.
    pub padded: bool,
}

impl Rhs {
    /// The first element of a panel.
    pub fn panel(&self, index: &Affine) -> Affine {
        self.base.clone() + index.clone() * self.panel
    }
}

/// The first column of a column tile, where tiles of two widths follow one another.
pub(super) fn first_column(b: &mut Builder, t: &Tiling, tile: &Affine) -> Affine {
    let wider = if t.wider > 0 { b.min(tile.clone(), t.wider) } else { 0i64.into() };
    tile.clone() * t.wide as i64 + wider
}

/// Runs `prepare` unless the iteration before it in this call did so for the same `key`.
fn once(b: &mut Builder, key: Option<Affine>, prepare: impl FnOnce(&mut Builder)) {
    let Some(key) = key else { return prepare(b) };
    let done = b.state(-1);
    b.if_(
        done,
        Compare::Ne,
        key.clone(),
        |b| {
            prepare(b);
            b.set(done, Expr::Index(key));
        },
        |_| {},
    );
}

/// The key under which `repeats` consecutive iterations share a preparation.
fn key(b: &mut Builder, repeats: usize) -> Option<Affine> {
    let outer = b.outer();
    (repeats > 1).then(|| b.div(outer, repeats as i64))
}

/// A for the block of rows (or column tiles) `begin..end`.
pub(super) fn left(b: &mut Builder, p: &Normal, t: &Tiling, batch: &[Affine], begin: &Affine, end: &Affine, repeats: usize) -> Left {
    let param = Mem::Param(p.a_param);
    let start = Affine::from(p.a_offset);
    let base = batch.iter().zip(&p.a_batch).fold(start, |sum, (i, s)| sum + i.clone() * *s);
    let key = key(b, repeats);
    if let Some(pad) = &p.pad {
        let rows = if p.rows > 1 { t.m_block } else { 1 };
        let plane = if pad.depth.kernel > 1 { pad.plane_stride() } else { pad.plane(rows) };
        let mem = b.scratch(p.acc, pad.depth.kernel * plane);
        let first = if p.rows > 1 { begin.clone() } else { 0i64.into() };
        // Outputs beyond the last row see rows that the block's own outputs do not: they are not copied.
        let depth = batch.get(pad.depth_batch).cloned().unwrap_or_default();
        once(b, key, |b| pad.emit(b, param, &base, &depth, &first, rows, mem, p.acc, t.lanes));
        return Left { mem, base: first * -p.a_row, row: p.a_row, col: p.a_col, k: p.a_k.clone() };
    }
    if !wants_copy(p, t) {
        return Left { mem: param, base, row: p.a_row, col: p.a_col, k: p.a_k.clone() };
    }
    // A copy of the block with rows that do not fall on each other in the cache.
    let k = p.k[0];
    let pitch = k.next_multiple_of(16) + 16;
    let (rows, cols) = if p.rows > 1 { (t.m_block, p.cols) } else { (1, t.m_block * (t.wide + 1)) };
    let mem = b.scratch(p.acc, rows * cols * pitch);
    let (row_stride, col_stride) = ((cols * pitch) as i64, pitch as i64);
    let (first_row, last_row, first_col, last_col) = if p.rows > 1 {
        (begin.clone(), end.clone(), Affine::from(0i64), Affine::from(p.cols))
    } else {
        let (from, to) = (first_column(b, t, begin), first_column(b, t, end));
        (0i64.into(), 1i64.into(), from, to)
    };
    once(b, key, |b| {
        b.for_(first_row.clone(), last_row, 1, 1, |b, row| {
            b.for_(first_col.clone(), last_col, 1, 1, |b, col| {
                let source = base.clone() + row.clone() * p.a_row + col.clone() * p.a_col;
                let target = (row.clone() - &first_row) * row_stride + (col.clone() - &first_col) * col_stride;
                match &p.prologue {
                    Some(f) => changed(b, p, f, t, batch, &row, &col, &source, mem, &target),
                    None if p.a_k[0] == 1 => copy(b, param, &source, mem, &target, k, p.acc, t.lanes),
                    None => each(b, k, t.lanes, |b, i, lanes, active| {
                        let value = b.load_strided(param, source.clone() + i.clone() * p.a_k[0], lanes, p.a_k[0], active);
                        let value = convert(b, value, p.acc);
                        b.store(mem, target.clone() + i, value, active);
                    }),
                }
            });
        });
    });
    let base = first_row * -row_stride - first_col * col_stride;
    Left { mem, base, row: row_stride, col: col_stride, k: vec![1] }
}

/// Whether A is copied: to be changed, to lie contiguously along k, or because its rows are a multiple of 4096 bytes
/// apart and would push each other out of the first-level cache.
fn wants_copy(p: &Normal, t: &Tiling) -> bool {
    let bytes = p.a_elem().bits().unwrap_or(32) as i64 / 8;
    let panels = p.n.div_ceil(t.nr());
    p.prologue.is_some()
        || (p.k.len() == 1
            && (p.a_k[0] != 1
                || (p.a_elem() != p.acc && panels > 1)
                || ((p.a_col * bytes) % 4096 == 0 && p.a_col != 0 && t.wide > 6 && panels > 1 && p.k[0] >= 64)))
}

/// Copies one row of A through the prologue.
#[allow(clippy::too_many_arguments)] // the coordinates of a row
fn changed(b: &mut Builder, p: &Normal, f: &NormalPrologue, t: &Tiling, batch: &[Affine], row: &Affine, col: &Affine, source: &Affine, to: Mem, target: &Affine) {
    each(b, p.k[0], t.lanes, |b, i, lanes, active| {
        let results = f.dag.emit(b, lanes, &mut |b, at| {
            let (mem, index, stride) = match at.checked_sub(1) {
                None => (Mem::Param(p.a_param), source.clone() + i.clone() * p.a_k[0], p.a_k[0]),
                Some(at) => {
                    let v = &f.inputs[at];
                    let start = Affine::from(v.offset) + row.clone() * v.row + col.clone() * v.col + i.clone() * v.n;
                    let index = batch.iter().zip(&v.batch).fold(start, |sum, (x, s)| sum + x.clone() * *s);
                    (Mem::Param(v.param), index, v.n)
                }
            };
            let value = b.load_strided(mem, index, lanes, stride, active);
            let elem = b.elem_of(mem);
            widen(value, elem)
        });
        if let Some(value) = results.into_iter().next() {
            let value = convert(b, value, p.acc);
            b.store(to, target.clone() + i, value, active);
        }
    });
}

/// B for the panels `begin..end`.
pub(super) fn right(b: &mut Builder, p: &Normal, t: &Tiling, batch: &[Affine], begin: &Affine, end: &Affine, repeats: usize) -> Rhs {
    let (nr, k_total) = (t.nr(), p.k_total());
    let mut k = vec![nr as i64; p.k.len()];
    for i in (1..p.k.len()).rev() {
        k[i - 1] = k[i] * p.k[i] as i64;
    }
    match &p.right {
        Right::Packed { param, group } => {
            let panels = p.n.div_ceil(nr);
            let base = group.map_or_else(Affine::default, |g| batch[g].clone() * (panels * k_total * nr) as i64);
            Rhs { mem: Mem::Param(*param), base, panel: (k_total * nr) as i64, k, n: 1, padded: true }
        }
        Right::View { param, offset, batch: strides, k: k_stride, n } => {
            let mem = Mem::Param(*param);
            let start = Affine::from(*offset);
            let base = batch.iter().zip(strides).fold(start, |sum, (i, s)| sum + i.clone() * *s);
            // Read where it lies if its rows are contiguous and few tiles use it.
            let tiles = if p.rows > 1 { t.m_block.div_ceil(t.row_group) * t.col_tiles() } else { t.m_block };
            if *n == 1 && tiles <= 2 {
                return Rhs { mem, base, panel: nr as i64, k: vec![*k_stride], n: 1, padded: false };
            }
            let elem = p.b_elem;
            let scratch = b.scratch(elem, t.n_block * k_total * nr);
            let key = key(b, repeats);
            once(b, key, |b| pack_view(b, p, t, mem, &base, (*k_stride, *n), begin, end, scratch));
            let panel = (k_total * nr) as i64;
            Rhs { mem: scratch, base: begin.clone() * -panel, panel, k: vec![nr as i64], n: 1, padded: true }
        }
    }
}

/// Packs the panels `begin..end` of a matrix into scratch memory.
#[allow(clippy::too_many_arguments)] // the coordinates of a block
fn pack_view(b: &mut Builder, p: &Normal, t: &Tiling, mem: Mem, base: &Affine, (ks, ns): (i64, i64), begin: &Affine, end: &Affine, to: Mem) {
    let (nr, lanes, k) = (t.nr(), t.lanes, p.k_total());
    let whole = p.n / nr;
    let mut panel = |b: &mut Builder, index: &Affine, columns: usize| {
        let from = base.clone() + index.clone() * (nr as i64 * ns);
        let target = (index.clone() - begin) * (k * nr) as i64;
        for x in 0..t.vectors {
            let active = columns.saturating_sub(x * lanes).min(lanes);
            let (from, target) = (from.clone() + (x * lanes) as i64 * ns, target.clone() + x * lanes);
            if active == 0 {
                continue;
            }
            if ns != 1 && ks == 1 && p.b_elem.bits() == Some(32) && active == lanes {
                pack_transposed(b, mem, &from, ns, to, &target, (k, nr, lanes));
                continue;
            }
            b.for_(0i64, k, 1, 1, |b, i| {
                let value = b.load_strided(mem, from.clone() + i.clone() * ks, lanes, ns, active);
                b.store(to, target.clone() + i * nr as i64, value, lanes);
            });
        }
    };
    let limit = b.min(end.clone(), whole);
    b.for_(begin.clone(), limit, 1, 1, |b, index| panel(b, &index, nr));
    if p.n > whole * nr {
        let last = Affine::from(whole);
        b.if_(last.clone(), Compare::Lt, end.clone(), |b| panel(b, &last, p.n - whole * nr), |_| {});
    }
}

/// Packs `lanes` columns that are contiguous along k, square by square.
fn pack_transposed(b: &mut Builder, mem: Mem, from: &Affine, ns: i64, to: Mem, target: &Affine, (k, nr, lanes): (usize, usize, usize)) {
    each(b, k, lanes, |b, i, _, active| {
        let square: Vec<_> = (0..lanes)
            .map(|c| {
                let value = b.load(mem, from.clone() + i.clone() + ns * c as i64, lanes, active);
                b.mutable(value)
            })
            .collect();
        b.transpose(square.clone());
        for (r, row) in square.iter().enumerate().take(active) {
            b.store(to, target.clone() + (i.clone() + r) * nr as i64, *row, lanes);
        }
    });
}
