//! Writes pipeline stages and microbatches into a function: an `of.sharding_constraint` for each value that passes between stages,
//! and the ops of [`of_ops::time`] where values enter and leave the microbatches.
//!
//! Ops on split or partial values run in each microbatch; other ops run once. Split inputs and outputs become stacks of
//! microbatches, and partial values are accumulated. When each stage runs what, the code generator derives from the stages.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic};
use of_ir::{
    Attr, Blob, Dim, Func, Graph, IdMap, NdSbp, OpId, PartialKind, Rewriter, Sbp, Tensor, TensorType, Type, ValueId,
};
use of_ops::OpSpec;
use of_ops::boxing::{MICROBATCH_INPUTS, MICROBATCH_OUTPUTS, ShardingConstraint};
use of_ops::structural::Constant;
use of_ops::time::{Accumulate, OVERLAPPED_PIPELINE, PIPELINE, Pack, Unpack};
use of_ops::training::CARRIED;

use super::StagedFunction;
use crate::cut_points::Phases;
use crate::decide;
use crate::microbatches::{self, Microbatches};
use crate::parts::{self, Parts, localize_shape_operand, slice_constant};

/// Writes stages and microbatches into `func`. `names` has the mesh of each stage.
///
/// # Errors
/// When microbatches depend on one another other than by partial values, or an op cannot be split.
pub fn write(
    func: &mut Func,
    staged: &StagedFunction,
    microbatches: &Microbatches,
    names: &[String],
) -> Result<(), of_diag::Diagnostics> {
    let mesh = names.first().map_or("mesh", String::as_str);
    decide::write(func, &staged.written, mesh)?;
    *func = Writer::new(func, staged, microbatches, names)?.run()?;
    Ok(())
}

/// Which of its values an op reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Instance {
    /// The one that is made once.
    Once,
    /// That of the microbatch.
    Microbatch,
    /// The combination of all microbatches.
    Total,
}

/// A value, its instance, and the stage that reads it.
type Key = (ValueId, Instance, usize);

struct Writer<'a> {
    func: &'a Func,
    g: &'a Graph,
    microbatches: &'a Microbatches,
    names: &'a [String],
    /// Whether transfers between stages overlap with computation.
    overlapped: bool,
    /// Stages by position in the arena.
    stage_of_op: Vec<usize>,
    stage_of_value: Vec<usize>,
    /// Layouts of values along the microbatch axis.
    layouts: Vec<Sbp>,
    reads_as: IdMap<(OpId, usize), Sbp>,
    made: HashMap<Key, ValueId>,
    /// Constants of microbatches, by the axis that is cut.
    slices: HashMap<(ValueId, u8, usize), ValueId>,
}

/// The values of one stage in one microbatch.
struct StageParts<'w, 'a> {
    writer: &'w Writer<'a>,
    stage: usize,
}

impl Parts for StageParts<'_, '_> {
    fn ty(&self, v: ValueId) -> Type {
        self.writer.ty(v, self.stage)
    }

    fn dims(&self, v: ValueId) -> Option<Vec<Dim>> {
        Some(self.writer.part(v)?.into_iter().map(Dim::from).collect())
    }
}

impl<'a> Writer<'a> {
    fn new(
        func: &'a Func,
        staged: &StagedFunction,
        microbatches: &'a Microbatches,
        names: &'a [String],
    ) -> Result<Self, Diagnostic> {
        let g = &func.graph;
        let mut b = Writer {
            func,
            g,
            microbatches,
            names,
            overlapped: staged.pipeline.overlapped,
            stage_of_op: vec![0; g.op_slots()],
            stage_of_value: vec![0; g.value_slots()],
            layouts: vec![Sbp::Broadcast; g.value_slots()],
            reads_as: microbatches.reads_as.clone(),
            made: HashMap::default(),
            slices: HashMap::default(),
        };
        for v in g.args() {
            b.stage_of_value[v.index()] = staged.values[v.index()];
            b.layouts[v.index()] = microbatches.value(*v);
        }
        for op in g.region_ops(g.entry()) {
            let data = g.op(op);
            // An inserted `of.sharding_constraint` belongs to the stage of its operand.
            let known = staged.ops.get(op.index()).copied().filter(|_| !inserted(g, microbatches, staged, op));
            let stage = known.unwrap_or_else(|| data.operands.first().map_or(0, |v| b.stage_of_value[v.index()]));
            b.stage_of_op[op.index()] = stage;
            for v in &data.results {
                b.stage_of_value[v.index()] = stage;
                b.layouts[v.index()] = match known {
                    Some(_) => microbatches.value(*v),
                    None => b.placed(*v, data.operands[0], op),
                };
            }
            for v in microbatches::inside(g, op) {
                b.layouts[v.index()] = microbatches.value(v);
            }
        }
        microbatches::check(g, &|v| b.layouts[v.index()], &b.reads_as)?;
        Ok(b)
    }

    /// The microbatch layout of the result of an inserted `of.sharding_constraint`: accumulated where all readers need the total,
    /// and that of the readers where they read parts or terms of a constant.
    fn placed(&mut self, result: ValueId, operand: ValueId, op: OpId) -> Sbp {
        let made = self.layouts[operand.index()];
        let mut asked = self.g.uses(result).iter().map(|u| self.read_layout(u.op, u.operand as usize, made));
        let how = match made {
            Sbp::Partial(_) if asked.all(|ask| ask == Sbp::Broadcast) => Sbp::Broadcast,
            Sbp::Broadcast if self.is_constant(operand) => match asked.next() {
                Some(first) if microbatches::has_parts(self.g, operand, first) && asked.all(|ask| ask == first) => {
                    first
                }
                _ => made,
            },
            other => other,
        };
        self.reads_as.insert((op, 0), how);
        how
    }

    /// The microbatch layout in which `op` reads an operand of layout `made`.
    fn read_layout(&self, op: OpId, operand: usize, made: Sbp) -> Sbp {
        microbatches::read_layout(self.g, &self.reads_as, op, operand, made)
    }

    fn is_constant(&self, v: ValueId) -> bool {
        self.g.def_op(v).is_some_and(|op| self.g.op(op).def.traits().constant)
    }

    fn layout(&self, v: ValueId) -> Sbp {
        self.layouts[v.index()]
    }

    fn stage(&self, v: ValueId) -> usize {
        self.stage_of_value[v.index()]
    }

    /// The instance of a value that `op` reads.
    fn instance(&self, op: OpId, operand: usize, v: ValueId) -> Instance {
        let made = self.layout(v);
        match (made, self.read_layout(op, operand, made)) {
            (Sbp::Broadcast, _) => Instance::Once,
            (Sbp::Partial(_), Sbp::Broadcast) => Instance::Total,
            _ => Instance::Microbatch,
        }
    }

    /// The type of a value on a stage, in one microbatch.
    fn ty(&self, v: ValueId, stage: usize) -> Type {
        let Type::Tensor(t) = self.g.ty(v) else { return self.g.ty(v).clone() };
        let mesh = self.names[stage].as_str();
        let sbp = t.sbp.as_ref().map(|s| NdSbp { mesh: mesh.into(), axes: s.axes.clone() });
        match (self.part(v), t.fixed_dims()) {
            (Some(part), Some(whole)) if part != whole => {
                Type::Tensor(TensorType { sbp, ..TensorType::fixed(t.dtype, &part) })
            }
            _ => Type::Tensor(TensorType { sbp, ..t.clone() }),
        }
    }

    /// The type of the microbatches of a value on a stage, stacked.
    fn stack(&self, v: ValueId, stage: usize) -> Type {
        let Type::Tensor(t) = self.ty(v, stage) else { return self.g.ty(v).clone() };
        let count = Dim::from(self.microbatches.count as i64);
        let shape = t.shape.map(|dims| std::iter::once(count).chain(dims).collect());
        let inner = |s: Sbp| if let Sbp::Split(d) = s { Sbp::Split(d.saturating_add(1)) } else { s };
        let sbp = t.sbp.map(|s| NdSbp { axes: s.axes.into_iter().map(inner).collect(), ..s });
        Type::Tensor(TensorType { shape, sbp, ..t })
    }

    /// Extents of a value in one microbatch.
    fn part(&self, v: ValueId) -> Option<Vec<usize>> {
        let mut dims = self.g.ty(v).as_tensor()?.fixed_dims()?;
        if let Sbp::Split(d) = self.layout(v) {
            *dims.get_mut(usize::from(d))? /= self.microbatches.count;
        }
        Some(dims)
    }

    fn run(mut self) -> Result<Func, Diagnostic> {
        let mut out = Func {
            graph: Graph::new(),
            inputs: self.func.inputs.clone(),
            outputs: self.func.outputs.clone(),
            attrs: self.func.attrs.clone(),
            loc: self.func.loc.clone(),
        };
        out.graph.continue_rewrites(&self.func.graph);
        let entry = out.graph.entry();
        let mut rw = Rewriter::new(&mut out.graph, "microbatches");
        rw.number_symbols_above(self.g);
        let mut stacks = Vec::new();
        for v in self.g.args() {
            let stage = self.stage(*v);
            let cut = matches!(self.layout(*v), Sbp::Split(_));
            let ty = if cut { self.stack(*v, stage) } else { self.ty(*v, stage) };
            let arg = rw.add_arg(entry, ty, self.g.name(*v).cloned());
            if cut {
                stacks.push((*v, arg));
            } else {
                self.made.insert((*v, Instance::Once, stage), arg);
            }
        }
        rw.set_location(self.func.loc.clone());
        for (v, stack) in stacks {
            let slice = self.unpack(&mut rw, stack, v, self.stage(v))?;
            self.made.insert((v, Instance::Microbatch, self.stage(v)), slice);
        }
        let ops: Vec<OpId> = self.g.region_ops(self.g.entry()).collect();
        for op in ops {
            let traits = self.g.op(op).def.traits();
            if !traits.constant && !traits.terminator {
                self.op(&mut rw, op)?;
            }
        }
        let carried: Vec<i64> = self.func.attrs.typed(CARRIED).unwrap_or_default();
        let mut results = Vec::new();
        for (i, v) in self.g.outputs().iter().enumerate() {
            results.push(self.output(&mut rw, *v, carried.get(i).copied())?);
        }
        rw.create(of_ops::structural::Return {}, &results)?;
        let stages = self.names.len();
        if self.microbatches.count > 1 || stages > 1 {
            let training = !Phases::of(self.func).backward.is_empty();
            out.attrs.set(PIPELINE, Attr::Ints(vec![stages as i64, i64::from(training)]));
            if self.overlapped {
                out.attrs.set(OVERLAPPED_PIPELINE, Attr::Bool(true));
            }
        }
        if self.microbatches.count > 1 {
            out.attrs.set(MICROBATCH_INPUTS, Attr::Ints(self.cuts(self.g.args())));
            out.attrs.set(MICROBATCH_OUTPUTS, Attr::Ints(self.cuts(self.g.outputs())));
        }
        Ok(out)
    }

    /// The number of microbatches and the cut axis of each value.
    fn cuts(&self, values: &[ValueId]) -> Vec<i64> {
        let cut = |v: &ValueId| match self.layout(*v) {
            Sbp::Split(d) if !self.is_constant(*v) => [self.microbatches.count as i64, i64::from(d)],
            _ => [1, 0],
        };
        values.iter().flat_map(cut).collect()
    }

    /// An output. A carried output is on the stage of its input.
    fn output(&mut self, rw: &mut Rewriter<'_>, v: ValueId, carried: Option<i64>) -> Result<ValueId, Diagnostic> {
        let input = carried.and_then(|k| usize::try_from(k).ok()).and_then(|k| self.g.args().get(k));
        let stage = input.map_or(self.stage(v), |a| self.stage(*a));
        let instance = match self.layout(v) {
            _ if self.is_constant(v) => Instance::Once,
            Sbp::Broadcast => Instance::Once,
            Sbp::Partial(_) => Instance::Total,
            Sbp::Split(_) => Instance::Microbatch,
        };
        let made = self.value(rw, (v, instance, stage))?;
        if instance != Instance::Microbatch {
            return Ok(made);
        }
        let pack = rw.create_one(Pack { count: self.microbatches.count as i64 }, &[made])?;
        rw.set_type(pack, self.stack(v, stage));
        Ok(pack)
    }

    fn unpack(&self, rw: &mut Rewriter<'_>, stack: ValueId, v: ValueId, stage: usize) -> Result<ValueId, Diagnostic> {
        let slice = rw.create_one(Unpack {}, &[stack])?;
        rw.set_type(slice, self.ty(v, stage));
        Ok(slice)
    }

    fn error(&self, v: ValueId, what: &str) -> Diagnostic {
        let loc = self.g.def_op(v).map_or_else(|| self.func.loc.clone(), |op| self.g.op(op).loc.clone());
        Diagnostic::error(Code::SBP, loc, format!("{}: {what}", self.g.ty(v)))
    }

    /// Whether each stage that reads a value makes its own: a constant, or no value at all.
    fn is_copied(&self, v: ValueId) -> bool {
        let is_none = |op: OpId| self.g.op(op).operands.is_empty() && self.g.ty(v).as_tensor().is_none();
        self.is_constant(v) || self.g.def_op(v).is_some_and(is_none)
    }

    /// An instance of a value on a stage. Constants are copied to each stage that reads them; other values are sent.
    fn value(&mut self, rw: &mut Rewriter<'_>, key: Key) -> Result<ValueId, Diagnostic> {
        let (v, instance, stage) = key;
        if let Some(made) = self.made.get(&key) {
            return Ok(*made);
        }
        let made = match self.g.def_op(v).filter(|_| self.is_copied(v)) {
            Some(op) => {
                let copy = rw.clone_op(self.g, op, &mut HashMap::default());
                let made = rw.graph().op(copy).results[0];
                if let (Type::Tensor(whole), Type::Tensor(of)) = (self.g.ty(v).clone(), self.ty(v, stage)) {
                    rw.set_type(made, Type::Tensor(TensorType { sbp: of.sbp, ..whole }));
                }
                made
            }
            None => {
                let from = self.made.get(&(v, instance, self.stage(v))).copied();
                let from = from.ok_or_else(|| self.error(v, "it is read before it is computed"))?;
                let Type::Tensor(TensorType { sbp: Some(to), .. }) = self.ty(v, stage) else {
                    return Err(self.error(v, "it has no layout, but another stage reads it"));
                };
                rw.create_one(ShardingConstraint { sharding: to }, &[from])?
            }
        };
        self.made.insert(key, made);
        Ok(made)
    }

    /// The slices of a constant along an axis, one for each microbatch.
    fn slice(&mut self, rw: &mut Rewriter<'_>, v: ValueId, axis: u8, stage: usize) -> Result<ValueId, Diagnostic> {
        if let Some(made) = self.slices.get(&(v, axis, stage)) {
            return Ok(*made);
        }
        let whole = self.g.constant(v).ok_or_else(|| self.error(v, "it is not a constant"))?;
        let count = self.microbatches.count;
        let mut part: Vec<usize> = whole.dims().to_vec();
        let extent = part.get_mut(usize::from(axis)).ok_or_else(|| self.error(v, "it lacks the axis that is cut"))?;
        if !extent.is_multiple_of(count) || *extent == 0 {
            return Err(self.error(v, "a constant cannot be split into equal parts"));
        }
        *extent /= count;
        let mut bytes = Vec::new();
        for t in 0..count {
            let block: Vec<(usize, usize)> =
                part.iter().enumerate().map(|(d, n)| (if d == usize::from(axis) { t * n } else { 0 }, *n)).collect();
            let slice = slice_constant(&whole, &block);
            let slice = slice.ok_or_else(|| self.error(v, "elements smaller than a byte cannot be split"))?;
            bytes.extend_from_slice(slice.bytes().ok_or_else(|| self.error(v, "strings cannot be split"))?);
        }
        let dims: Vec<usize> = std::iter::once(count).chain(part.iter().copied()).collect();
        let value = Tensor::from_bytes(whole.dtype(), dims, Blob::new(bytes));
        let value = value.map_err(|e| self.error(v, &e.to_string()))?;
        let stack = rw.create_one(Constant { value }, &[])?;
        let sbp = match self.ty(v, stage) {
            Type::Tensor(t) => t.sbp,
            _ => None,
        };
        let inner = |s: Sbp| if let Sbp::Split(d) = s { Sbp::Split(d.saturating_add(1)) } else { s };
        let stacked = sbp.clone().map(|s| NdSbp { axes: s.axes.into_iter().map(inner).collect(), ..s });
        let of = |dims: &[usize], sbp| Type::Tensor(TensorType { sbp, ..TensorType::fixed(whole.dtype(), dims) });
        let all: Vec<usize> = std::iter::once(count).chain(part.iter().copied()).collect();
        rw.set_type(stack, of(&all, stacked));
        let slice = rw.create_one(Unpack {}, &[stack])?;
        rw.set_type(slice, of(&part, sbp));
        self.slices.insert((v, axis, stage), slice);
        Ok(slice)
    }

    fn op(&mut self, rw: &mut Rewriter<'_>, op: OpId) -> Result<(), Diagnostic> {
        let g = self.g;
        let data = g.op(op);
        let stage = self.stage_of_op[op.index()];
        rw.set_location(data.loc.clone());
        let mut operands = Vec::with_capacity(data.operands.len());
        for (i, v) in data.operands.iter().enumerate() {
            // A constraint is itself the transfer from another stage.
            let moves = data.name() == ShardingConstraint::NAME && !self.is_constant(*v);
            let at = if moves { self.stage(*v) } else { stage };
            operands.push(match self.read_layout(op, i, self.layout(*v)) {
                Sbp::Split(axis) if self.is_constant(*v) => self.slice(rw, *v, axis, stage)?,
                _ => self.value(rw, (*v, self.instance(op, i, *v), at))?,
            });
        }
        let results = if !data.regions.is_empty() {
            let mut map = HashMap::default();
            for (v, made) in data.operands.iter().zip(&operands) {
                map.insert(*v, *made);
            }
            for v in g.captured(op) {
                let instance = if self.layout(v) == Sbp::Broadcast { Instance::Once } else { Instance::Total };
                let made = self.value(rw, (v, instance, stage))?;
                map.insert(v, made);
            }
            let own = StageParts { writer: self, stage };
            let copy = parts::copy_parts(rw, g, op, &own, &mut map)?;
            rw.graph().op(copy).results.to_vec()
        } else if data.name() == ShardingConstraint::NAME {
            let Type::Tensor(TensorType { sbp: Some(to), .. }) = self.ty(data.results[0], stage) else {
                return Err(self.error(data.results[0], "the result of a transfer has no layout"));
            };
            vec![rw.create_one(ShardingConstraint { sharding: to }, &operands)?]
        } else {
            localize_shape_operand(rw, g, op, &mut operands, |v| {
                self.part(v).map(|part| part.into_iter().map(Dim::from).collect())
            })?;
            let made = rw.create((data.def, data.attrs.clone()), &operands)?;
            rw.graph().op(made).results.to_vec()
        };
        for (v, made) in data.results.iter().zip(results) {
            let ty = self.ty(*v, stage);
            let fixed = |t: &Type| t.as_tensor().and_then(TensorType::fixed_dims);
            if let (Some(a), Some(b)) = (fixed(rw.graph().ty(made)), fixed(&ty))
                && a != b
            {
                let what = format!("'{}' makes {a:?} in a microbatch, but its part is {b:?}", data.name());
                return Err(self.error(*v, &what));
            }
            rw.set_type(made, ty);
            if let Some(name) = g.name(*v) {
                rw.set_name(made, name.clone());
            }
            match self.layout(*v) {
                Sbp::Broadcast => self.made.insert((*v, Instance::Once, stage), made),
                _ => self.made.insert((*v, Instance::Microbatch, stage), made),
            };
            if let Sbp::Partial(kind) = self.layout(*v) {
                self.accumulate(rw, *v, made, kind)?;
            }
        }
        Ok(())
    }

    /// Combines the terms of all microbatches, where some reader needs the total.
    fn accumulate(
        &mut self,
        rw: &mut Rewriter<'_>,
        v: ValueId,
        own: ValueId,
        kind: PartialKind,
    ) -> Result<(), Diagnostic> {
        let whole = |u: &of_ir::Use| self.read_layout(u.op, u.operand as usize, Sbp::Partial(kind)) == Sbp::Broadcast;
        let output = self.g.outputs().contains(&v);
        if !output && !self.g.uses(v).iter().any(whole) {
            return Ok(());
        }
        let count = self.microbatches.count as i64;
        let sum = rw.create_one(Accumulate { count, kind: kind.name().into() }, &[own])?;
        let ty = rw.graph().ty(own).clone();
        rw.set_type(sum, ty);
        self.made.insert((v, Instance::Total, self.stage(v)), sum);
        Ok(())
    }
}

/// Whether [`decide::write`] inserted the op: an `of.sharding_constraint` that the search did not know.
fn inserted(g: &Graph, microbatches: &Microbatches, staged: &StagedFunction, op: OpId) -> bool {
    g.op(op).name() == ShardingConstraint::NAME
        && (op.index() >= staged.ops.len() || g.op(op).results.iter().any(|v| v.index() >= microbatches.values.len()))
}
