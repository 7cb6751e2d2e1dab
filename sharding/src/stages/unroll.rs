//! Writes pipeline stages and microbatches into a function: one copy of an op per microbatch, and an `of.sharding_constraint` between
//! stages.
//!
//! Ops on split or partial values are repeated per microbatch; other ops run once. Partial values are accumulated
//! microbatch by microbatch. The order of the ops is the schedule: each rank runs its ops in graph order. Forward and
//! backward microbatches alternate as [`super::schedule`] says, and a send is right before the microbatch that
//! needs it. Ranks enter each rendezvous in the order of the graph, so that no order can deadlock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use of_diag::Code;
use of_diag::Diagnostic;
use of_ir::{Attr, Func, Graph, IdMap, NdSbp, OpId, PartialKind, Rewriter, Sbp, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::{MICROBATCH_INPUTS, MICROBATCH_OUTPUTS, ShardingConstraint};
use of_ops::elementwise::{Add, Max, Min, Mul};
use of_ops::structural::Constant;
use of_ops::training::CARRIED;

use super::StagedFunction;
use super::schedule::schedule;
use crate::cut_points::Phases;
use crate::decide;
use crate::microbatches::{self, Microbatches};
use crate::spmd::{localize_shape_operand, slice_constant};

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
    *func = Unroller::new(func, staged, microbatches, names)?.run()?;
    Ok(())
}

/// Instance number of values made once, and of the accumulated total of all microbatches.
const ONCE: usize = 0;
const TOTAL: usize = usize::MAX;

/// A value, its instance (a microbatch, [`ONCE`] or [`TOTAL`]), and the stage that reads it.
type Key = (ValueId, usize, usize);

/// A node of the unrolled graph: an op in a microbatch, or a value sent to another stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Node {
    Op(OpId, usize),
    Send(Key),
}

struct Unroller<'a> {
    func: &'a Func,
    g: &'a Graph,
    microbatches: &'a Microbatches,
    names: &'a [String],
    /// Stages by position in the arena.
    stage_of_op: Vec<usize>,
    stage_of_value: Vec<usize>,
    /// Layouts of values along the microbatch axis.
    layouts: Vec<Sbp>,
    reads_as: IdMap<(OpId, usize), Sbp>,
    made: HashMap<Key, ValueId>,
    /// For each partial value the number of terms accumulated so far, and their sum.
    sums: IdMap<ValueId, (usize, Option<ValueId>)>,
}

impl<'a> Unroller<'a> {
    fn new(
        func: &'a Func,
        staged: &StagedFunction,
        microbatches: &'a Microbatches,
        names: &'a [String],
    ) -> Result<Self, Diagnostic> {
        let g = &func.graph;
        let mut b = Unroller {
            func,
            g,
            microbatches,
            names,
            stage_of_op: vec![0; g.op_slots()],
            stage_of_value: vec![0; g.value_slots()],
            layouts: vec![Sbp::Broadcast; g.value_slots()],
            reads_as: microbatches.reads_as.clone(),
            made: HashMap::default(),
            sums: HashMap::default(),
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
        }
        microbatches::check(g, &|v| b.layouts[v.index()], &b.reads_as)?;
        Ok(b)
    }

    /// The microbatch layout of the result of an inserted `of.sharding_constraint`: accumulated where all readers need the total,
    /// and that of the readers where they read parts of a constant.
    fn placed(&mut self, result: ValueId, operand: ValueId, op: OpId) -> Sbp {
        let made = self.layouts[operand.index()];
        let mut asked = self.g.uses(result).iter().map(|u| self.read_layout(u.op, u.operand as usize, made));
        let how = match made {
            Sbp::Partial(_) if asked.all(|ask| ask == Sbp::Broadcast) => Sbp::Broadcast,
            Sbp::Broadcast if self.is_constant(operand) => match asked.next() {
                Some(first @ Sbp::Split(_)) if asked.all(|ask| ask == first) => first,
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

    /// Whether an op runs once per microbatch.
    fn varies(&self, op: OpId) -> bool {
        let data = self.g.op(op);
        let reads = |(i, v): (usize, &ValueId)| self.read_layout(op, i, self.layouts[v.index()]) != Sbp::Broadcast;
        !data.def.traits().terminator
            && !data.def.traits().constant
            && (data.results.iter().any(|v| self.layouts[v.index()] != Sbp::Broadcast)
                || data.operands.iter().enumerate().any(reads))
    }

    fn stage(&self, v: ValueId) -> usize {
        self.stage_of_value[v.index()]
    }

    /// The instance of a value that `op` reads in microbatch `t`.
    fn instance(&self, op: OpId, operand: usize, v: ValueId, t: usize) -> usize {
        let made = self.layouts[v.index()];
        match (made, self.read_layout(op, operand, made)) {
            (Sbp::Broadcast, _) => ONCE,
            (Sbp::Partial(_), Sbp::Broadcast) => TOTAL,
            _ => t,
        }
    }

    /// The values that `op` reads in microbatch `t` on its stage, without constants.
    fn reads(&self, op: OpId, t: usize) -> Vec<Key> {
        let data = self.g.op(op);
        let own = self.stage_of_op[op.index()];
        let operands = data.operands.iter().enumerate().map(|(i, v)| (*v, self.instance(op, i, *v, t)));
        let inside = self.g.captured(op).into_iter().map(|v| (v, ONCE));
        operands
            .chain(inside)
            .filter(|(v, _)| !self.is_constant(*v))
            .map(|(v, microbatch)| (v, microbatch, own))
            .collect()
    }

    /// The values that the terminator reads. A carried output is on the stage of its input.
    fn outputs(&self) -> Vec<Vec<Key>> {
        let carried: Vec<i64> = self.func.attrs.typed(CARRIED).unwrap_or_default();
        let outputs = self.g.outputs().iter().enumerate().map(|(i, v)| {
            let input = carried.get(i).and_then(|k| usize::try_from(*k).ok()).and_then(|k| self.g.args().get(k));
            let stage = input.map_or(self.stage(*v), |a| self.stage(*a));
            match self.layouts[v.index()] {
                _ if self.is_constant(*v) => vec![(*v, ONCE, stage)],
                Sbp::Broadcast => vec![(*v, ONCE, stage)],
                Sbp::Partial(_) => vec![(*v, TOTAL, stage)],
                Sbp::Split(_) => (0..self.microbatches.count).map(|t| (*v, t, stage)).collect(),
            }
        });
        outputs.collect()
    }

    /// The nodes that make an instance of a value.
    fn makers(&self, v: ValueId, microbatch: usize) -> Vec<Node> {
        let Some(op) = self.g.def_op(v) else { return Vec::new() };
        match microbatch {
            TOTAL => (0..self.microbatches.count).map(|t| Node::Op(op, t)).collect(),
            t => vec![Node::Op(op, t)],
        }
    }

    /// All nodes in schedule order: list scheduling with the 1F1B start times as priorities.
    fn order(&self) -> Vec<Node> {
        let g = self.g;
        let ops: Vec<OpId> = g
            .region_ops(g.entry())
            .filter(|op| !g.op(*op).def.traits().constant && !g.op(*op).def.traits().terminator)
            .collect();
        let behind = Phases::of(self.func).backward;
        let training = !behind.is_empty();
        let (forward, backward, end) = schedule(self.names.len(), self.microbatches.count, training);
        // Ops that run once start at time 0, or at the end if they depend on a microbatch.
        let mut late: IdMap<OpId, bool> = IdMap::default();
        for op in &ops {
            let of = |v: ValueId| g.def_op(v).is_some_and(|d| self.varies(d) || late.get(&d) == Some(&true));
            let is_late = self.reads(*op, ONCE).into_iter().any(|(v, ..)| of(v));
            late.insert(*op, is_late);
        }
        let start = |op: OpId, t: usize| {
            let s = self.stage_of_op[op.index()];
            match (self.varies(op), late[&op]) {
                (true, _) if behind.contains(&op) => backward[s][t],
                (true, _) => forward[s][t],
                (false, true) => end,
                (false, false) => 0,
            }
        };
        let mut nodes: Vec<(Node, (usize, usize, usize, usize))> = Vec::new();
        let mut at: HashMap<Node, usize> = HashMap::new();
        let mut sends: BTreeMap<Key, (usize, usize)> = BTreeMap::new();
        let mut send = |key: Key, when: (usize, usize)| {
            if self.stage(key.0) != key.2 {
                let first = sends.entry(key).or_insert(when);
                *first = (*first).min(when);
            }
        };
        // Visits readers before producers, so that inserted transfers know when they are needed.
        let mut needed: IdMap<(ValueId, usize), usize> = IdMap::default();
        for (position, op) in ops.iter().enumerate().rev() {
            for t in (0..if self.varies(*op) { self.microbatches.count } else { 1 }).rev() {
                let readers = g.op(*op).results.iter().filter_map(|v| {
                    let own = needed.get(&(*v, t)).copied();
                    own.into_iter().chain(needed.get(&(*v, TOTAL)).copied()).min()
                });
                let when = match readers.min() {
                    Some(first) if g.op(*op).name() == ShardingConstraint::NAME => first.max(start(*op, t)),
                    _ => start(*op, t),
                };
                for key in self.reads(*op, t) {
                    let first = needed.entry((key.0, key.1)).or_insert(when);
                    *first = (*first).min(when);
                    send(key, (when, position));
                }
                at.insert(Node::Op(*op, t), nodes.len());
                nodes.push((Node::Op(*op, t), (when, 1, self.stage_of_op[op.index()], position)));
            }
        }
        self.outputs().into_iter().flatten().for_each(|key| send(key, (end, ops.len())));
        for (key, (when, position)) in sends {
            at.insert(Node::Send(key), nodes.len());
            nodes.push((Node::Send(key), (when, 0, key.2, position)));
        }
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        let mut missing = vec![0; nodes.len()];
        for (node, (what, _)) in nodes.iter().enumerate() {
            let read: Vec<Node> = match what {
                Node::Op(op, t) => self
                    .reads(*op, *t)
                    .into_iter()
                    .flat_map(|key| {
                        let sent = self.stage(key.0) != key.2;
                        if sent { vec![Node::Send(key)] } else { self.makers(key.0, key.1) }
                    })
                    .collect(),
                Node::Send((v, t, _)) => self.makers(*v, *t),
            };
            for from in read.iter().filter_map(|w| at.get(w)) {
                readers[*from].push(node);
                missing[node] += 1;
            }
        }
        // Kahn's algorithm with a priority queue: ready nodes in schedule order, ties in graph order.
        let key = |node: usize| Reverse((nodes[node].1, matches!(nodes[node].0, Node::Op(_, t) if t > 0), node));
        let mut ready: BinaryHeap<_> = (0..nodes.len()).filter(|n| missing[*n] == 0).map(key).collect();
        let mut out = Vec::with_capacity(nodes.len());
        while let Some(Reverse((.., node))) = ready.pop() {
            out.push(nodes[node].0);
            for r in &readers[node] {
                missing[*r] -= 1;
                if missing[*r] == 0 {
                    ready.push(key(*r));
                }
            }
        }
        out
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

    /// Extents of a value in one microbatch.
    fn part(&self, v: ValueId) -> Option<Vec<usize>> {
        let mut dims = self.g.ty(v).as_tensor()?.fixed_dims()?;
        if let Sbp::Split(d) = self.layouts[v.index()] {
            *dims.get_mut(usize::from(d))? /= self.microbatches.count;
        }
        Some(dims)
    }

    fn run(mut self) -> Result<Func, Diagnostic> {
        let order = self.order();
        let mut out = Func {
            graph: Graph::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            attrs: self.func.attrs.clone(),
            loc: self.func.loc.clone(),
        };
        let entry = out.graph.entry();
        let mut rw = Rewriter::new(&mut out.graph, "microbatches");
        rw.number_symbols_above(self.g);
        let (mut cuts_in, mut cuts_out) = (Vec::new(), Vec::new());
        let mut first_of_arg = Vec::new();
        for (v, name) in self.g.args().iter().zip(&self.func.inputs) {
            first_of_arg.push(out.inputs.len() as i64);
            let count = self.slices(*v, &mut cuts_in);
            for t in 0..count {
                let arg = rw.add_arg(entry, self.ty(*v, self.stage(*v)), self.g.name(*v).cloned());
                self.made.insert((*v, t, self.stage(*v)), arg);
                out.inputs.push(if count > 1 { format!("{name}/{t}") } else { name.clone() });
            }
        }
        for what in order {
            match what {
                Node::Op(op, t) => self.op(&mut rw, op, t)?,
                Node::Send(key) => {
                    let (v, t, stage) = key;
                    let from = self.value(&mut rw, (v, t, self.stage(v)), None)?;
                    let to = match self.ty(v, stage) {
                        Type::Tensor(TensorType { sbp: Some(to), .. }) => to,
                        _ => return Err(self.error(v, "it has no layout, but another stage reads it")),
                    };
                    let loc = self.g.def_op(v).map_or(&self.func.loc, |op| &self.g.op(op).loc);
                    rw.set_location(loc.clone());
                    let sent = rw.create_one(ShardingConstraint { sharding: to }, &[from])?;
                    self.made.insert(key, sent);
                }
            }
        }
        let carried: Vec<i64> = self.func.attrs.typed(CARRIED).unwrap_or_default();
        let (mut results, mut carried_on) = (Vec::new(), Vec::new());
        for (i, keys) in self.outputs().into_iter().enumerate() {
            self.slices(self.g.outputs()[i], &mut cuts_out);
            let (name, cut) = (&self.func.outputs[i], keys.len() > 1);
            for key in keys {
                results.push(self.value(&mut rw, key, None)?);
                out.outputs.push(if cut { format!("{name}/{}", key.1) } else { name.clone() });
                let input = carried.get(i).and_then(|k| usize::try_from(*k).ok()).and_then(|k| first_of_arg.get(k));
                carried_on.push(input.copied().unwrap_or(-1));
            }
        }
        rw.create(of_ops::structural::Return {}, &results)?;
        if !carried.is_empty() {
            out.attrs.set(CARRIED, Attr::Ints(carried_on));
        }
        if self.microbatches.count > 1 {
            out.attrs.set(MICROBATCH_INPUTS, Attr::Ints(cuts_in));
            out.attrs.set(MICROBATCH_OUTPUTS, Attr::Ints(cuts_out));
        }
        Ok(out)
    }

    /// The number of slices of an input or output, which is recorded with its axis.
    fn slices(&self, v: ValueId, cuts: &mut Vec<i64>) -> usize {
        let (count, axis) = match self.layouts[v.index()] {
            Sbp::Split(d) if !self.is_constant(v) => (self.microbatches.count, d),
            _ => (1, 0),
        };
        cuts.extend([count as i64, i64::from(axis)]);
        count
    }

    fn error(&self, v: ValueId, what: &str) -> Diagnostic {
        let loc = self.g.def_op(v).map_or_else(|| self.func.loc.clone(), |op| self.g.op(op).loc.clone());
        Diagnostic::error(Code::SBP, loc, format!("{}: {what}", self.g.ty(v)))
    }

    /// A value on a stage. Constants are copied to each stage that reads them, and sliced to a microbatch where `cut`
    /// says so.
    fn value(&mut self, rw: &mut Rewriter<'_>, key: Key, cut: Option<(u8, usize)>) -> Result<ValueId, Diagnostic> {
        let (v, microbatch, stage) = key;
        if !self.is_constant(v) {
            return self.made.get(&key).copied().ok_or_else(|| self.error(v, "it is read before it is computed"));
        }
        let key = (v, cut.map_or(microbatch, |(_, t)| t + 1), stage);
        if let Some(made) = self.made.get(&key) {
            return Ok(*made);
        }
        let made = match (cut, self.g.constant(v), self.g.def_op(v)) {
            (Some((axis, t)), Some(value), _) => {
                let mut block: Vec<(usize, usize)> = value.dims().iter().map(|d| (0, *d)).collect();
                let whole = block.get(usize::from(axis)).map_or(0, |b| b.1);
                let n = whole / self.microbatches.count;
                if n * self.microbatches.count != whole || n == 0 {
                    return Err(self.error(v, "a constant cannot be split into equal parts"));
                }
                block[usize::from(axis)] = (t * n, n);
                let part = slice_constant(&value, &block);
                let value = part.ok_or_else(|| self.error(v, "elements smaller than a byte cannot be split"))?;
                let made = rw.create_one(Constant { value }, &[])?;
                if let (Type::Tensor(t), Type::Tensor(of)) = (rw.graph().ty(made).clone(), self.ty(v, stage)) {
                    rw.set_type(made, Type::Tensor(TensorType { sbp: of.sbp, ..t }));
                }
                made
            }
            (_, _, Some(op)) => {
                let copy = rw.clone_op(self.g, op, &mut HashMap::default());
                let made = rw.graph().op(copy).results[0];
                if let (Type::Tensor(whole), Type::Tensor(of)) = (self.g.ty(v).clone(), self.ty(v, stage)) {
                    rw.set_type(made, Type::Tensor(TensorType { sbp: of.sbp, ..whole }));
                }
                made
            }
            _ => return Err(self.error(v, "it is not a constant")),
        };
        self.made.insert(key, made);
        Ok(made)
    }

    fn op(&mut self, rw: &mut Rewriter<'_>, op: OpId, t: usize) -> Result<(), Diagnostic> {
        let g = self.g;
        let data = g.op(op);
        let stage = self.stage_of_op[op.index()];
        rw.set_location(data.loc.clone());
        let mut operands = Vec::with_capacity(data.operands.len());
        for (i, v) in data.operands.iter().enumerate() {
            let made = self.layouts[v.index()];
            let cut = match self.read_layout(op, i, made) {
                Sbp::Split(d) => Some((d, t)),
                _ => None,
            };
            operands.push(self.value(rw, (*v, self.instance(op, i, *v, t), stage), cut)?);
        }
        let results = if !data.regions.is_empty() {
            let mut map = HashMap::default();
            for (v, made) in data.operands.iter().zip(&operands) {
                map.insert(*v, *made);
            }
            for v in g.captured(op) {
                let made = self.value(rw, (v, ONCE, stage), None)?;
                map.insert(v, made);
            }
            let copy = rw.clone_op(g, op, &mut map);
            rw.graph().op(copy).results.to_vec()
        } else if data.name() == ShardingConstraint::NAME {
            let Type::Tensor(TensorType { sbp: Some(to), .. }) = self.ty(data.results[0], stage) else {
                return Err(self.error(data.results[0], "the result of a transfer has no layout"));
            };
            vec![rw.create_one(ShardingConstraint { sharding: to }, &operands)?]
        } else {
            localize_shape_operand(rw, g, op, &mut operands, |v| self.part(v))?;
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
            self.made.insert((*v, t, stage), made);
            if let Sbp::Partial(kind) = self.layouts[v.index()] {
                self.combine(rw, *v, made, kind)?;
            }
        }
        Ok(())
    }

    /// Accumulates the term of a microbatch, where some reader needs the total.
    fn combine(
        &mut self,
        rw: &mut Rewriter<'_>,
        v: ValueId,
        own: ValueId,
        kind: PartialKind,
    ) -> Result<(), Diagnostic> {
        let whole = |u: &of_ir::Use| self.read_layout(u.op, u.operand as usize, Sbp::Partial(kind)) == Sbp::Broadcast;
        if !self.g.uses(v).iter().any(whole) {
            return Ok(());
        }
        let (done, so_far) = self.sums.get(&v).copied().unwrap_or((0, None));
        let sum = match so_far {
            None => own,
            Some(x) => {
                let sum = match kind {
                    PartialKind::Sum => rw.create_one(Add {}, &[x, own])?,
                    PartialKind::Max => rw.create_one(Max {}, &[x, own])?,
                    PartialKind::Min => rw.create_one(Min {}, &[x, own])?,
                    PartialKind::Prod => rw.create_one(Mul {}, &[x, own])?,
                };
                let ty = rw.graph().ty(own).clone();
                rw.set_type(sum, ty);
                sum
            }
        };
        self.sums.insert(v, (done + 1, Some(sum)));
        if done + 1 == self.microbatches.count {
            self.made.insert((v, TOTAL, self.stage(v)), sum);
        }
        Ok(())
    }
}

/// Whether [`decide::write`] inserted the op: an `of.sharding_constraint` that the search did not know.
fn inserted(g: &Graph, microbatches: &Microbatches, staged: &StagedFunction, op: OpId) -> bool {
    g.op(op).name() == ShardingConstraint::NAME
        && (op.index() >= staged.ops.len() || g.op(op).results.iter().any(|v| v.index() >= microbatches.values.len()))
}
