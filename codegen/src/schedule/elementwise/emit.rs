//! The loops of an elementwise box: vectors along the innermost dimension, or squares where an input runs along
//! another one.

use super::super::error::ScheduleError;
use super::super::view::{load, store};
use super::space::Space;
use super::{Piece, View};
use crate::cpu::Isa;
use crate::kernel::{Affine, Builder, Compare, Expr, Mem, Param, Ty, Var};

/// Elements of an iteration whose function is trivial: small enough to spread over workers, large enough to be worth
/// a call.
const ITERATION: usize = 16384;

/// A box with its loops chosen.
pub(super) struct Part<'a> {
    space: Space,
    piece: &'a Piece,
    lanes: usize,
    /// The dimension along which some inputs are contiguous, if that is not the innermost.
    across: Option<usize>,
    /// Dimensions of the iterations, and how many indices of the last of them an iteration takes.
    prefix: usize,
    chunk: usize,
    pub iterations: usize,
}

impl<'a> Part<'a> {
    pub fn new(mut space: Space, piece: &'a Piece, params: &[Param], isa: Isa) -> Result<Self, ScheduleError> {
        let types = piece.dag.types()?;
        let memory = space.outputs.iter().chain(space.inputs.iter().flatten()).map(|v| params[v.param].elem);
        let lanes = isa.lanes(types.into_iter().chain(memory));
        let inner = space.dims.len() - 1;
        let across = across(&space, params, lanes);
        // The dimension that squares run across comes second to last.
        let across = across.map(|axis| {
            space.move_axis(axis, inner - 1);
            inner - 1
        });
        let budget = (ITERATION / (1 + piece.dag.flops() as usize / 4)).max(2048);
        let rest = |from: usize| space.dims[from..].iter().product::<usize>();
        let last = across.unwrap_or(inner);
        let prefix = (0..=last).find(|p| rest(p + 1) <= budget).unwrap_or(last);
        let unit = if prefix == last { lanes } else { 1 };
        let chunk = (budget / rest(prefix + 1).max(1)).max(1).next_multiple_of(unit);
        let iterations = space.dims[..prefix].iter().product::<usize>() * space.dims[prefix].div_ceil(chunk);
        Ok(Self { space, piece, lanes, across, prefix, chunk, iterations })
    }

    /// Emits iteration `at`.
    pub fn emit(&self, b: &mut Builder, at: Affine) {
        let mut dims = self.space.dims[..self.prefix].to_vec();
        dims.push(self.space.dims[self.prefix].div_ceil(self.chunk));
        let mut point = b.unflatten(at, &dims);
        let chunk = point.pop().unwrap_or_default() * self.chunk as i64;
        let end = b.min(chunk.clone() + self.chunk, self.space.dims[self.prefix]);
        self.nest(b, point, chunk, end);
    }

    /// The loops of the dimensions after `point`, the first of which runs over `begin..end`.
    fn nest(&self, b: &mut Builder, point: Vec<Affine>, begin: Affine, end: Affine) {
        let axis = point.len();
        if self.across == Some(axis) {
            return self.squares(b, &point, begin, end);
        }
        if axis + 1 == self.space.dims.len() {
            return self.vectors(b, &point, begin, end);
        }
        b.for_(begin, end, 1, 1, |b, i| {
            let mut point = point;
            point.push(i);
            self.nest(b, point, 0i64.into(), self.space.dims[axis + 1].into());
        });
    }

    fn vectors(&self, b: &mut Builder, point: &[Affine], begin: Affine, end: Affine) {
        let inner = self.space.dims.len() - 1;
        let (n, lanes) = (self.space.dims[inner], self.lanes);
        // What does not change along the vectors is read once.
        let shared: Vec<Option<Expr>> = self.space.inputs.iter().map(|v| {
            v.as_ref().filter(|v| v.strides[inner] == 0).map(|v| {
                let value = load(b, v.mem(), v.at(point), lanes, 0, lanes);
                Expr::Var(b.let_(value))
            })
        }).collect();
        let whole = n / lanes * lanes;
        let limit = if whole == n { end.clone() } else { b.min(end.clone(), whole) };
        let unroll = if self.piece.dag.flops() <= 4 { 4 } else { 1 };
        b.for_(begin, limit, lanes as i64, unroll, |b, i| self.vector(b, point, i, lanes, &shared));
        if whole < n {
            b.if_(Affine::from(whole), Compare::Lt, end, |b| self.vector(b, point, whole.into(), n - whole, &shared), |_| {});
        }
    }

    /// One vector at index `i` of the innermost dimension.
    fn vector(&self, b: &mut Builder, point: &[Affine], i: Affine, active: usize, shared: &[Option<Expr>]) {
        let mut point = point.to_vec();
        point.push(i);
        let inner = self.space.dims.len() - 1;
        self.compute(b, &point, active, &mut |b, at, view| match &shared[at] {
            Some(value) => value.clone(),
            None => load(b, view.mem(), view.at(&point), self.lanes, view.strides[inner], active),
        });
    }

    /// The function at a point, and its stores.
    fn compute(&self, b: &mut Builder, point: &[Affine], active: usize, input: &mut dyn FnMut(&mut Builder, usize, &View) -> Expr) {
        let inner = self.space.dims.len() - 1;
        let results = self.piece.dag.emit(b, self.lanes, &mut |b, at| match &self.space.inputs[at] {
            Some(view) => input(b, at, view),
            None => {
                let source = &self.piece.inputs[at];
                let elem = super::super::dag::compute(b.elem_of(Mem::Param(source.view.param)));
                Expr::Const(Ty::new(elem, self.lanes), source.fill)
            }
        });
        for (value, view) in results.into_iter().zip(&self.space.outputs) {
            store(b, view.mem(), view.at(point), value, view.strides[inner], active);
        }
    }

    fn squares(&self, b: &mut Builder, point: &[Affine], begin: Affine, end: Affine) {
        let inner = self.space.dims.len() - 1;
        let (lanes, n, m) = (self.lanes, self.space.dims[inner], self.space.dims[inner - 1]);
        let (whole_n, whole_m) = (n / lanes * lanes, m / lanes * lanes);
        let row = |b: &mut Builder, t: Affine, height: usize| {
            b.for_(0i64, whole_n, lanes as i64, 1, |b, i| self.square(b, point, &t, &i, height, lanes));
            if whole_n < n {
                self.square(b, point, &t, &whole_n.into(), height, n - whole_n);
            }
        };
        let limit = if whole_m == m { end.clone() } else { b.min(end.clone(), whole_m) };
        b.for_(begin, limit, lanes as i64, 1, |b, t| row(b, t, lanes));
        if whole_m < m {
            b.if_(Affine::from(whole_m), Compare::Lt, end, |b| row(b, whole_m.into(), m - whole_m), |_| {});
        }
    }

    /// A square of `height` by `width` elements at `t`, `i` of the last two dimensions.
    fn square(&self, b: &mut Builder, point: &[Affine], t: &Affine, i: &Affine, height: usize, width: usize) {
        let inner = self.space.dims.len() - 1;
        let at = |t: Affine, i: Affine| {
            let mut p = point.to_vec();
            p.extend([t, i]);
            p
        };
        let squares: Vec<Option<Vec<Var>>> = self.space.inputs.iter().map(|v| {
            let v = v.as_ref().filter(|v| runs_across(v, inner))?;
            let rows: Vec<Var> = (0..self.lanes).map(|r| {
                // Rows that are not there repeat the first: their lanes are not stored.
                let r = if r < width { r } else { 0 };
                let value = b.load(v.mem(), v.at(&at(t.clone(), i.clone() + r)), self.lanes, height);
                b.mutable(value)
            }).collect();
            b.transpose(rows.clone());
            Some(rows)
        }).collect();
        for r in 0..height {
            let point = at(t.clone() + r, i.clone());
            self.compute(b, &point, width, &mut |b, input, view| match &squares[input] {
                Some(rows) => Expr::Var(rows[r]),
                None => load(b, view.mem(), view.at(&point), self.lanes, view.strides[inner], width),
            });
        }
    }
}

/// Whether a view is strided along the innermost dimension and contiguous along the one before.
fn runs_across(v: &View, inner: usize) -> bool {
    !matches!(v.strides[inner], 0 | 1) && v.strides[inner - 1] == 1
}

/// The dimension along which strided inputs are contiguous, if squares serve them: 32-bit elements, and outputs that
/// are contiguous.
fn across(space: &Space, params: &[Param], lanes: usize) -> Option<usize> {
    let inner = space.dims.len().checked_sub(1)?;
    if space.dims[inner] < 4 || space.outputs.iter().any(|v| v.strides[inner] != 1) {
        return None;
    }
    let strided = space.inputs.iter().flatten().find(|v| !matches!(v.strides[inner], 0 | 1))?;
    let axis = (0..inner).find(|a| strided.strides[*a] == 1 && space.dims[*a] >= 2)?;
    let square = |v: &&View| !matches!(v.strides[inner], 0 | 1) && v.strides[axis] == 1;
    let elem = |v: &View| params[v.param].elem;
    let fits = |v: &View| elem(v).bits() == Some(32) && lanes <= 16;
    space.inputs.iter().flatten().filter(square).all(fits).then_some(axis)
}
