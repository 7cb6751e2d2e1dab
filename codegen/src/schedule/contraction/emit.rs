//! The loops of a contraction.

use super::super::error::ScheduleError;
use super::super::view::{declare, load, store, volume};
use super::normal::{EpilogueView, Normal};
use super::operand::{self, Left, Rhs};
use super::pack::PackedB;
use super::tile::Tiling;
use super::{Scheduled, normal::Right};
use crate::cpu::Isa;
use crate::kernel::{Affine, Builder, Compare, Expr, Lit, Mem, Ty, Var};

/// The most functions that the epilogue of a tile may have where it is written out for every vector; longer ones run
/// in a loop over the tile, from scratch memory.
const EPILOGUE_UNROLLED: u64 = 100;

/// A contraction while its loops are emitted.
pub(super) struct Emitter<'a> {
    pub p: &'a Normal,
    pub t: &'a Tiling,
    pub batch: Vec<Affine>,
    left: Left,
    right: Rhs,
    /// Sums between blocks of k.
    sums: Option<Mem>,
    /// A tile of sums for an epilogue that is not written out.
    tile: Option<Mem>,
}

/// The columns of n that a tile works on.
#[derive(Clone)]
struct Panel {
    index: Affine,
    vectors: usize,
    /// Columns that exist.
    columns: usize,
}

/// A tile: rows and columns of M.
struct Tile {
    row: Affine,
    col: Affine,
    rows: usize,
    cols: usize,
}

/// Part of the outermost dimension of k.
#[derive(Clone)]
struct Part {
    begin: Affine,
    end: Affine,
    /// Position of the part, and how many there are.
    index: Affine,
    count: usize,
}

pub(super) fn emit(mut p: Normal, isa: Isa) -> Result<Scheduled, ScheduleError> {
    p.join_k();
    p.join_rows();
    p.join_batch();
    p.join_rows();
    p.check()?;
    if [p.rows, p.cols, p.n, p.k_total()].contains(&0) || p.batch.contains(&0) {
        return Err(ScheduleError::spec("a contraction has a dimension of no elements"));
    }
    let elements = volume(&[volume(&p.batch)?, p.rows, p.cols, p.n])?;
    volume(&[elements, p.k_total()])?;
    let types = p.dag.types()?;
    let lanes = isa.lanes(std::iter::once(p.acc).chain(types));
    let t = Tiling::choose(&p, isa, lanes);
    let panels = p.n.div_ceil(t.nr());
    let units = if p.rows > 1 { p.rows } else { t.col_tiles() };
    let (m_blocks, n_blocks) = (units.div_ceil(t.m_block), panels.div_ceil(t.n_block));
    let mut dims = p.batch.clone();
    dims.extend(if t.m_outer { [m_blocks, n_blocks] } else { [n_blocks, m_blocks] });
    let iterations = volume(&dims)?;

    let mut b = Builder::new(p.name.clone());
    declare(&mut b, &p.params);
    let outer = b.outer();
    let mut at = b.unflatten(outer, &dims);
    let last = at.pop().unwrap_or_default();
    let before = at.pop().unwrap_or_default();
    let (m_at, n_at) = if t.m_outer { (before, last) } else { (last, before) };
    let begin = m_at.clone() * t.m_block as i64;
    let end = b.min(begin.clone() + t.m_block, units);
    let n_begin = n_at.clone() * t.n_block as i64;
    let n_end = b.min(n_begin.clone() + t.n_block, panels);

    // What consecutive iterations share is prepared once.
    let (m_repeats, n_repeats) = if t.m_outer { (n_blocks, 1) } else { (1, m_blocks) };
    let left = operand::left(&mut b, &p, &t, &at, &begin, &end, m_repeats);
    let right = operand::right(&mut b, &p, &t, &at, &n_begin, &n_end, n_repeats);
    let sums = (t.k_block < p.k[0]).then(|| {
        let rows = if p.rows > 1 { t.m_block * p.cols } else { t.m_block * (t.wide + 1) };
        b.scratch(p.acc, rows * t.nr())
    });
    let mut e = Emitter { p: &p, t: &t, batch: at, left, right, sums, tile: None };
    e.panels(&mut b, &begin, &end, &n_begin, &n_end);

    let packed = match p.right {
        Right::Packed { group, .. } => {
            let groups = group.map_or(1, |g| p.batch[g]);
            Some(PackedB { dtype: p.b_elem, groups, k: p.k.clone(), n: p.n, nr: t.nr() })
        }
        Right::View { .. } => None,
    };
    Ok(Scheduled { kernel: b.finish(iterations, 1, p.flops, p.bytes), packed })
}

impl Emitter<'_> {
    fn panels(&mut self, b: &mut Builder, begin: &Affine, end: &Affine, n_begin: &Affine, n_end: &Affine) {
        let (nr, n) = (self.t.nr(), self.p.n);
        let whole = n / nr;
        let limit = b.min(n_end.clone(), whole);
        b.for_(n_begin.clone(), limit, 1, 1, |b, index| {
            self.panel(b, begin, end, &Panel { index, vectors: self.t.vectors, columns: nr });
        });
        let rest = n - whole * nr;
        if rest > 0 {
            let vectors = rest.div_ceil(self.t.lanes);
            let panel = Panel { index: whole.into(), vectors, columns: rest };
            b.if_(Affine::from(whole), Compare::Lt, n_end.clone(), |b| self.panel(b, begin, end, &panel), |_| {});
        }
    }

    fn panel(&mut self, b: &mut Builder, begin: &Affine, end: &Affine, panel: &Panel) {
        let extent = self.p.k[0];
        let count = extent.div_ceil(self.t.k_block);
        b.for_(0i64, count, 1, 1, |b, index| {
            let from = index.clone() * self.t.k_block as i64;
            let to = b.min(from.clone() + self.t.k_block, extent);
            let part = Part { begin: from, end: to, index, count };
            if self.p.rows > 1 { self.rows(b, begin, end, panel, &part) } else { self.columns(b, begin, end, panel, &part) }
        });
    }

    /// Tiles of several rows.
    fn rows(&mut self, b: &mut Builder, begin: &Affine, end: &Affine, panel: &Panel, part: &Part) {
        let group = self.t.row_group;
        let whole = self.p.rows / group * group;
        let rest = self.p.rows - whole;
        let limit = if rest > 0 { b.min(end.clone(), whole) } else { end.clone() };
        b.for_(begin.clone(), limit, group as i64, 1, |b, row| self.row(b, begin, &row, group, panel, part));
        if rest > 0 {
            let last = Affine::from(whole);
            b.if_(last.clone(), Compare::Lt, end.clone(), |b| self.row(b, begin, &last, rest, panel, part), |_| {});
        }
    }

    fn row(&mut self, b: &mut Builder, begin: &Affine, row: &Affine, rows: usize, panel: &Panel, part: &Part) {
        let (wide, split) = (self.t.wide, self.t.wider * (self.t.wide + 1));
        let ranges = [(0, split, wide + 1), (split, self.p.cols, wide)];
        for (from, to, cols) in ranges {
            b.for_(from, to, cols as i64, 1, |b, col| {
                let local = (row.clone() - begin) * self.p.cols as i64 + col.clone();
                self.tile(b, &Tile { row: row.clone(), col, rows, cols }, &local, panel, part);
            });
        }
    }

    /// Tiles of the only row; `begin` and `end` count tiles.
    fn columns(&mut self, b: &mut Builder, begin: &Affine, end: &Affine, panel: &Panel, part: &Part) {
        let (wide, wider) = (self.t.wide, self.t.wider);
        let first = operand::first_column(b, self.t, begin);
        let mut run = |b: &mut Builder, from: Affine, to: Affine, cols: usize, skip: usize| {
            b.for_(from, to, 1, 1, |b, at| {
                let col = at * cols as i64 + skip;
                let local = col.clone() - &first;
                self.tile(b, &Tile { row: 0i64.into(), col, rows: 1, cols }, &local, panel, part);
            });
        };
        if wider > 0 {
            let limit = b.min(end.clone(), wider);
            run(b, begin.clone(), limit, wide + 1, 0);
        }
        let from = b.max(begin.clone(), wider);
        run(b, from, end.clone(), wide, wider);
    }

    fn tile(&mut self, b: &mut Builder, tile: &Tile, local: &Affine, panel: &Panel, part: &Part) {
        let (m, v, lanes) = (tile.rows * tile.cols, panel.vectors, self.t.lanes);
        let zero = Expr::Const(Ty::new(self.p.acc, lanes), Lit::I(0));
        let acc: Vec<Var> = (0..m * v).map(|_| b.mutable(zero.clone())).collect();
        // Where the sums of this tile wait between blocks of k.
        let nr = self.t.nr() as i64;
        let place = |i: usize| {
            let (r, c, x) = (i / v / tile.cols, i / v % tile.cols, i % v);
            (local.clone() + r * self.p.cols + c) * nr + x * lanes
        };
        if let Some(sums) = self.sums {
            b.if_(part.index.clone(), Compare::Ne, 0i64, |b| {
                for (i, a) in acc.iter().enumerate() {
                    let value = b.load(sums, place(i), lanes, lanes);
                    b.set(*a, value);
                }
            }, |_| {});
        }
        self.products(b, tile, panel, part, &acc);
        match self.sums {
            Some(sums) => {
                let more = part.index.clone() + 1i64;
                b.if_(
                    more,
                    Compare::Lt,
                    part.count,
                    |b| acc.iter().enumerate().for_each(|(i, a)| b.store(sums, place(i), *a, lanes)),
                    |b| self.epilogue(b, tile, panel, &acc),
                );
            }
            None => self.epilogue(b, tile, panel, &acc),
        }
    }

    /// Adds the products of a part of k to the sums.
    fn products(&self, b: &mut Builder, tile: &Tile, panel: &Panel, part: &Part, acc: &[Var]) {
        let lefts: Vec<Affine> = (0..tile.rows * tile.cols)
            .map(|i| self.left.at(&tile.row, &tile.col, i / tile.cols, i % tile.cols))
            .collect();
        let right = self.right.panel(&panel.index);
        self.level(b, 0, lefts, right, panel, part, acc);
    }

    #[allow(clippy::too_many_arguments)] // one level of a loop nest
    fn level(&self, b: &mut Builder, depth: usize, lefts: Vec<Affine>, right: Affine, panel: &Panel, part: &Part, acc: &[Var]) {
        if depth == self.p.k.len() {
            return self.step(b, &lefts, &right, panel, acc);
        }
        let innermost = depth + 1 == self.p.k.len();
        let (begin, end) = if depth == 0 { (part.begin.clone(), part.end.clone()) } else { (0i64.into(), self.p.k[depth].into()) };
        let unroll = match (innermost, acc.len()) {
            (true, 0..=8) => 4,
            (true, 9..=16) => 2,
            _ => 1,
        };
        b.for_(begin, end, 1, unroll, |b, k| {
            let lefts = lefts.into_iter().map(|l| l + k.clone() * self.left.k[depth]).collect();
            self.level(b, depth + 1, lefts, right + k * self.right.k[depth], panel, part, acc);
        });
    }

    /// One step of k.
    fn step(&self, b: &mut Builder, lefts: &[Affine], right: &Affine, panel: &Panel, acc: &[Var]) {
        let (lanes, v) = (self.t.lanes, panel.vectors);
        let columns: Vec<Var> = (0..v)
            .map(|x| {
                let active = if self.right.padded { lanes } else { (panel.columns - x * lanes).min(lanes) };
                let at = right.clone() + (x * lanes) as i64 * self.right.n;
                let value = b.load_strided(self.right.mem, at, lanes, self.right.n, active);
                let value = super::pad::convert(b, value, self.p.acc);
                b.let_(value)
            })
            .collect();
        for (i, left) in lefts.iter().enumerate() {
            let value = b.load(self.left.mem, left.clone(), 1, 1);
            let value = super::pad::convert(b, value, self.p.acc);
            let a = b.let_(Expr::Splat(lanes, Box::new(value)));
            for (x, column) in columns.iter().enumerate() {
                let sum = acc[i * v + x];
                b.set(sum, Expr::mul_add(a, *column, sum));
            }
        }
    }

    fn epilogue(&mut self, b: &mut Builder, tile: &Tile, panel: &Panel, acc: &[Var]) {
        let (v, lanes) = (panel.vectors, self.t.lanes);
        // Operands that are the same for every row of the tile are read once.
        let mut shared: Vec<Vec<Option<Expr>>> = Vec::with_capacity(v);
        for x in 0..v {
            let mut of_vector = Vec::with_capacity(self.p.inputs.len());
            for view in &self.p.inputs {
                of_vector.push((view.row == 0 && view.col == 0).then(|| {
                    let value = self.operand(b, view, &tile.row, &tile.col, panel, x);
                    Expr::Var(b.let_(value))
                }));
            }
            shared.push(of_vector);
        }
        if self.p.dag.flops() * acc.len() as u64 <= EPILOGUE_UNROLLED {
            for (i, a) in acc.iter().enumerate() {
                let row = tile.row.clone() + i / v / tile.cols;
                let col = tile.col.clone() + i / v % tile.cols;
                self.finish(b, Expr::Var(*a), &row, &col, panel, i % v, &shared[i % v]);
            }
            return;
        }
        let most = (self.t.wide + 1) * self.t.row_group * self.t.nr();
        let scratch = *self.tile.get_or_insert_with(|| b.scratch(self.p.acc, most));
        for (i, a) in acc.iter().enumerate() {
            b.store(scratch, i * lanes, *a, lanes);
        }
        b.for_(0i64, tile.rows, 1, 1, |b, r| {
            b.for_(0i64, tile.cols, 1, 1, |b, c| {
                let at = (r.clone() * tile.cols as i64 + c.clone()) * (v * lanes) as i64;
                for (x, shared) in shared.iter().enumerate() {
                    let value = b.load(scratch, at.clone() + x * lanes, lanes, lanes);
                    let (row, col) = (tile.row.clone() + r.clone(), tile.col.clone() + c.clone());
                    self.finish(b, value, &row, &col, panel, x, shared);
                }
            });
        });
    }

    /// The epilogue of one vector of sums.
    #[allow(clippy::too_many_arguments)] // the coordinates of a vector
    fn finish(&self, b: &mut Builder, sum: Expr, row: &Affine, col: &Affine, panel: &Panel, x: usize, shared: &[Option<Expr>]) {
        let results = self.p.dag.emit(b, self.t.lanes, &mut |b, i| match i.checked_sub(1) {
            None => sum.clone(),
            Some(i) => match &shared[i] {
                Some(value) => value.clone(),
                None => self.operand(b, &self.p.inputs[i], row, col, panel, x),
            },
        });
        let active = (panel.columns - x * self.t.lanes).min(self.t.lanes);
        for (value, view) in results.into_iter().zip(&self.p.outputs) {
            let at = self.place(view, row, col, panel, x);
            store(b, Mem::Param(view.param), at, value, view.n, active);
        }
    }

    fn operand(&self, b: &Builder, view: &EpilogueView, row: &Affine, col: &Affine, panel: &Panel, x: usize) -> Expr {
        let active = (panel.columns - x * self.t.lanes).min(self.t.lanes);
        load(b, Mem::Param(view.param), self.place(view, row, col, panel, x), self.t.lanes, view.n, active)
    }

    fn place(&self, view: &EpilogueView, row: &Affine, col: &Affine, panel: &Panel, x: usize) -> Affine {
        let n = panel.index.clone() * self.t.nr() as i64 + x * self.t.lanes;
        let start = Affine::from(view.offset) + row.clone() * view.row + col.clone() * view.col + n * view.n;
        self.batch.iter().zip(&view.batch).fold(start, |sum, (i, s)| sum + i.clone() * *s)
    }
}
