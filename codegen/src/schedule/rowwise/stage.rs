//! The stages of one row: accumulators, values, stores.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::super::dag::compute;
use super::super::view::{load, row_major, store};
use super::shape::{Mode, Shape};
use super::{RowInput, StageKind, View};
use crate::kernel::{Affine, Builder, Expr, LaneOp, Lit, Mem, Ty, Var};

/// A place in a row.
pub(super) struct Cursor {
    pub inner: Vec<Affine>,
    /// Which accumulator or vector of rows.
    pub slot: usize,
    pub active: usize,
}

/// Accumulators of a reduction: one value a slot, and the positions that go with them.
#[derive(Clone, Default)]
struct Accumulator {
    best: Vec<Var>,
    position: Vec<Var>,
}

/// One row, or some vectors of rows, on the way through the stages.
pub(super) struct Rows<'a> {
    pub shape: &'a Shape,
    types: &'a [Vec<DType>],
    row: &'a [Affine],
    pub slots: usize,
    pub active: usize,
    /// Numbers of the row: by stage and output, one a slot.
    numbers: Vec<Vec<Vec<Expr>>>,
    /// Elements that later loops read: by stage and output.
    kept: Vec<Vec<Option<Mem>>>,
    /// Elements of stages of the loop that is open, at its current place.
    live: Vec<Vec<Expr>>,
    accumulators: Vec<Accumulator>,
}

impl<'a> Rows<'a> {
    pub fn new(b: &mut Builder, shape: &'a Shape, types: &'a [Vec<DType>], row: &'a [Affine], slots: usize, active: usize) -> Self {
        let n = shape.stages.len();
        let size = shape.inner.iter().product::<usize>() * if shape.mode == Mode::Rows { slots * shape.lanes } else { 1 };
        // Only what a later stage uses is kept; whether it stands in the same loop is seen when it is read.
        let kept = (0..n).map(|s| {
            let uses = |o: usize| {
                shape.stages[s + 1..].iter().any(|x| x.inputs.contains(&RowInput::Stage { stage: s, output: o }))
            };
            (0..types[s].len()).map(|o| {
                (!shape.stages[s].per_row() && uses(o)).then(|| b.scratch(compute(types[s][o]), size))
            }).collect()
        });
        Self {
            shape,
            types,
            row,
            slots,
            active,
            kept: kept.collect(),
            numbers: vec![Vec::new(); n],
            live: vec![Vec::new(); n],
            accumulators: vec![Accumulator::default(); n],
        }
    }

    fn lanes(&self) -> usize {
        self.shape.lanes
    }

    /// Number of accumulators of a reduction.
    fn width(&self) -> usize {
        if self.shape.mode == Mode::Inner { self.shape.slots } else { self.slots }
    }

    /// Opens a loop: declares its accumulators.
    pub fn begin(&mut self, b: &mut Builder, group: &[usize]) {
        for s in group {
            let stage = &self.shape.stages[*s];
            let Some(op) = reduction(stage.kind) else { continue };
            let elem = self.element_type(*s);
            let ty = Ty::new(elem, self.lanes());
            let mut a = Accumulator::default();
            for _ in 0..self.width() {
                a.best.push(b.mutable(Expr::Const(ty, op.neutral(elem))));
                if stage.is_arg() {
                    a.position.push(b.mutable(Expr::Const(ty.with_elem(DType::I64), Lit::I(0))));
                }
            }
            self.accumulators[*s] = a;
        }
    }

    /// The type that a reduction works in.
    fn element_type(&self, s: usize) -> DType {
        let types = self.shape.stages[s].dag.output_types().unwrap_or_default();
        compute(types.first().copied().unwrap_or(DType::F32))
    }

    /// The body of a loop for one vector.
    pub fn element(&mut self, b: &mut Builder, group: &[usize], at: &Cursor) {
        for s in group {
            let stage = &self.shape.stages[*s];
            let results = stage.dag.emit(b, self.lanes(), &mut |b, i| self.input(b, &stage.inputs[i], group, at));
            match stage.kind {
                StageKind::Map => {
                    for (o, value) in results.iter().enumerate() {
                        if let Some(view) = &stage.stores[o] {
                            let place = self.place(view, at);
                            store(b, view.mem(), place, value.clone(), view.strides[self.axis()], at.active);
                        }
                        // A later loop reads it from scratch memory; loops of this group have it at hand.
                        if let Some(mem) = self.kept[*s][o]
                            && self.read_later(*s, o, group)
                        {
                            let place = self.scratch_place(at);
                            let active = if self.shape.mode == Mode::Rows { self.lanes() } else { at.active };
                            b.store(mem, place, value.clone(), active);
                        }
                    }
                    self.live[*s] = results;
                }
                _ => {
                    if let Some(value) = results.into_iter().next() {
                        self.accumulate(b, *s, value, at);
                    }
                }
            }
        }
    }

    fn read_later(&self, s: usize, output: usize, group: &[usize]) -> bool {
        let last = group.last().copied().unwrap_or(s);
        self.shape.stages[last + 1..].iter().any(|x| x.inputs.contains(&RowInput::Stage { stage: s, output }))
    }

    fn accumulate(&self, b: &mut Builder, s: usize, value: Expr, at: &Cursor) {
        let stage = &self.shape.stages[s];
        let Some(op) = reduction(stage.kind) else { return };
        let elem = self.element_type(s);
        // Lanes that are not there must not count where lanes are elements of one row.
        let partial = self.shape.mode == Mode::Inner && at.active < self.lanes();
        let value = if partial { Expr::Keep(Box::new(value), at.active, op.neutral(elem)) } else { value };
        let a = &self.accumulators[s];
        let best = a.best[at.slot];
        let Some(position) = a.position.get(at.slot).copied() else {
            b.set(best, Expr::op2(op.scalar(), best, value));
            return;
        };
        let last = matches!(stage.kind, StageKind::ArgMax { last: true } | StageKind::ArgMin { last: true });
        let compare = match (op, last) {
            (LaneOp::Max, false) => ScalarOp::Gt,
            (LaneOp::Max, true) => ScalarOp::Ge,
            (_, false) => ScalarOp::Lt,
            (_, true) => ScalarOp::Le,
        };
        let value = b.let_(value);
        let mut better = Expr::op2(compare, value, best);
        if elem.is_float() {
            // The first NaN wins, or the last.
            let nan = Expr::op1(ScalarOp::IsNan, value);
            let had = Expr::op1(ScalarOp::IsNan, best);
            let wins = if last { nan } else { Expr::op2(ScalarOp::And, nan, Expr::op1(ScalarOp::Not, had)) };
            better = Expr::op2(ScalarOp::Or, better, wins);
        }
        let better = b.let_(better);
        let index = Ty::new(DType::I64, self.lanes());
        let flat = self.flat(at);
        let mut here = Expr::Splat(self.lanes(), Box::new(Expr::Index(flat)));
        if self.shape.mode == Mode::Inner {
            here = Expr::op2(ScalarOp::Add, here, Expr::Iota(index));
            if partial {
                here = Expr::Keep(Box::new(here), at.active, Lit::I(if last { -1 } else { i128::from(i64::MAX) }));
            }
        }
        b.set(position, Expr::select(better, here, position));
        b.set(best, Expr::select(better, value, best));
    }

    /// Closes a loop: its reductions become numbers of the row.
    pub fn end(&mut self, b: &mut Builder, group: &[usize]) {
        for s in group {
            self.live[*s].clear();
            let stage = &self.shape.stages[*s];
            let Some(op) = reduction(stage.kind) else { continue };
            let a = std::mem::take(&mut self.accumulators[*s]);
            let values: Vec<Expr> = match (self.shape.mode, a.position.first()) {
                (Mode::Rows, None) => a.best.iter().map(|v| Expr::Var(*v)).collect(),
                (Mode::Rows, Some(_)) => a.position.iter().map(|v| Expr::Var(*v)).collect(),
                (Mode::Inner, None) => {
                    let mut all: Vec<Expr> = a.best.iter().map(|v| Expr::Var(*v)).collect();
                    while all.len() > 1 {
                        let half = all.len().div_ceil(2);
                        let rest = all.split_off(half);
                        for (x, y) in all.iter_mut().zip(rest) {
                            *x = Expr::op2(op.scalar(), x.clone(), y);
                        }
                    }
                    all.pop().map(|v| Expr::Reduce(op, Box::new(v))).into_iter().collect()
                }
                (Mode::Inner, Some(position)) => vec![self.position(b, *s, op, a.best[0], *position)],
            };
            let values: Vec<Expr> = values.into_iter().map(|v| Expr::Var(b.let_(v))).collect();
            self.numbers[*s] = vec![values];
            self.store_numbers(b, *s);
        }
    }

    /// The position of the best lane: the first or the last of those with the best value.
    fn position(&self, b: &mut Builder, s: usize, op: LaneOp, best: Var, position: Var) -> Expr {
        let last = matches!(self.shape.stages[s].kind, StageKind::ArgMax { last: true } | StageKind::ArgMin { last: true });
        let top = b.let_(Expr::Reduce(op, Box::new(best.into())));
        let mut is_best = Expr::op2(ScalarOp::Eq, best, Expr::Splat(self.lanes(), Box::new(top.into())));
        if self.element_type(s).is_float() {
            is_best = Expr::op2(ScalarOp::Or, is_best, Expr::op1(ScalarOp::IsNan, best));
        }
        let none = if last { -1 } else { i128::from(i64::MAX) };
        let ty = Ty::new(DType::I64, self.lanes());
        let chosen = Expr::select(is_best, position, Expr::Const(ty, Lit::I(none)));
        Expr::Reduce(if last { LaneOp::Max } else { LaneOp::Min }, Box::new(chosen))
    }

    /// A stage that runs once a row.
    pub fn once(&mut self, b: &mut Builder, s: usize) {
        let stage = &self.shape.stages[s];
        let mut outputs: Vec<Vec<Expr>> = vec![Vec::new(); self.types[s].len()];
        let (lanes, slots) = if self.shape.mode == Mode::Inner { (1, 1) } else { (self.lanes(), self.slots) };
        for slot in 0..slots {
            let active = if slot + 1 == slots { self.active } else { lanes };
            let at = Cursor { inner: vec![0i64.into(); self.shape.inner.len()], slot, active };
            let results = stage.dag.emit(b, lanes, &mut |b, i| match &stage.inputs[i] {
                RowInput::View(v) => {
                    let stride = if lanes == 1 { 0 } else { v.strides[self.axis()] };
                    load(b, v.mem(), self.place(v, &at), lanes, stride, active.min(lanes))
                }
                RowInput::Stage { stage, output } => self.numbers[*stage][*output][slot].clone(),
            });
            for (to, value) in outputs.iter_mut().zip(results) {
                to.push(value);
            }
        }
        self.numbers[s] = outputs;
        self.store_numbers(b, s);
    }

    fn store_numbers(&self, b: &mut Builder, s: usize) {
        for (o, view) in self.shape.stages[s].stores.iter().enumerate() {
            let Some(view) = view else { continue };
            for (slot, value) in self.numbers[s][o].iter().enumerate() {
                let active = if slot + 1 == self.slots { self.active } else { self.lanes() };
                let at = Cursor { inner: vec![0i64.into(); self.shape.inner.len()], slot, active };
                let stride = view.strides[self.axis()];
                store(b, view.mem(), self.place(view, &at), value.clone(), stride, active);
            }
        }
    }

    /// The dimension that vectors run along.
    fn axis(&self) -> usize {
        match self.shape.mode {
            Mode::Inner => self.shape.rows.len() + self.shape.inner.len() - 1,
            Mode::Rows => self.shape.rows.len() - 1,
        }
    }

    /// Element of a view at a place.
    fn place(&self, view: &View, at: &Cursor) -> Affine {
        let mut point = self.row.to_vec();
        if self.shape.mode == Mode::Rows
            && let Some(last) = point.last_mut()
        {
            *last = last.clone() + at.slot * self.lanes();
        }
        point.extend(at.inner.iter().cloned());
        view.at(&point)
    }

    /// Position in the row.
    fn flat(&self, at: &Cursor) -> Affine {
        let strides = row_major(&self.shape.inner);
        at.inner.iter().zip(strides).fold(Affine::default(), |sum, (i, s)| sum + i.clone() * s)
    }

    fn scratch_place(&self, at: &Cursor) -> Affine {
        match self.shape.mode {
            Mode::Inner => self.flat(at),
            Mode::Rows => (self.flat(at) * self.slots as i64 + at.slot) * self.lanes() as i64,
        }
    }

    fn input(&self, b: &mut Builder, input: &RowInput, group: &[usize], at: &Cursor) -> Expr {
        match input {
            RowInput::View(v) => load(b, v.mem(), self.place(v, at), self.lanes(), v.strides[self.axis()], at.active),
            RowInput::Stage { stage, output } if self.shape.stages[*stage].per_row() => {
                let slot = if self.shape.mode == Mode::Inner { 0 } else { at.slot };
                let value = self.numbers[*stage][*output][slot].clone();
                if self.shape.mode == Mode::Inner { Expr::Splat(self.lanes(), Box::new(value)) } else { value }
            }
            RowInput::Stage { stage, output } if group.contains(stage) => self.live[*stage][*output].clone(),
            RowInput::Stage { stage, output } => match self.kept[*stage][*output] {
                Some(mem) => {
                    let active = if self.shape.mode == Mode::Rows { self.lanes() } else { at.active };
                    b.load(mem, self.scratch_place(at), self.lanes(), active)
                }
                // Unreachable for checked specs: what is used is kept.
                None => Expr::Const(Ty::new(compute(self.types[*stage][*output]), self.lanes()), Lit::I(0)),
            },
        }
    }
}

/// How a stage combines its elements.
fn reduction(kind: StageKind) -> Option<LaneOp> {
    match kind {
        StageKind::Reduce(op) => Some(op),
        StageKind::ArgMax { .. } => Some(LaneOp::Max),
        StageKind::ArgMin { .. } => Some(LaneOp::Min),
        StageKind::Map | StageKind::Row => None,
    }
}
