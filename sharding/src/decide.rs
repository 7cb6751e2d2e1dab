//! Decisions: solves the layout problem of a function, and writes the solution into its types.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Attr, Func, Graph, IdMap, NdSbp, OpId, Rewriter, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::ShardingConstraint;
use of_ops::structural::Alternatives;

use crate::assignment::Assignment;
use crate::candidates::{self, Candidate};
use crate::layout::Layout;
use crate::liveness::{Device, WholeFunction};
use crate::model::{Model, NodeKind, is_alias};
use crate::regions;
use crate::search::{Effort, Limit, Problem, solve_within};
use crate::weights::Weights;

/// A solution of the layout problem.
pub struct Decision {
    /// The label of each node of the model.
    pub labels: Vec<usize>,
    /// The layouts that the labels denote.
    pub assignment: Assignment,
    /// Seconds of one execution.
    pub cost: f64,
    /// Lower bound over all solutions within the memory.
    pub bound: f64,
    /// Peak memory of a device in bytes.
    pub memory: f64,
    /// Shadow price of memory: seconds that one more byte saves at most.
    pub price: f64,
    /// Nodes of the problem, and of the core that exact reduction leaves.
    pub nodes: (usize, usize),
    /// What computation and transfers count, so that a change of labels changes the cost as their sum does.
    pub weights: Weights,
}

impl Decision {
    /// Lowers the bound to one over more solutions, of the sum of all times. What takes place at the same time takes at least half of
    /// that.
    pub fn limit_bound(&mut self, of_sum: f64) {
        let least = if self.weights == Weights::ALL { 1.0 } else { 0.5 };
        self.bound = self.bound.min(of_sum * least);
    }
}

/// Rounds that add memory limits at the ops of peak memory.
const ROUNDS: usize = 12;

/// Finds the fastest layouts with `memory` bytes on each device.
///
/// # Errors
/// When nothing fits.
pub fn decide(model: &Model<'_>, memory: f64, effort: &Effort) -> Result<Decision, Diagnostic> {
    decide_within(model, &model.problem, &[&WholeFunction], memory, effort)
        .map_err(|e| memory_error(model, memory, e.least))
}

/// The error of [`decide_within`].
pub(crate) struct OverMemory {
    /// The kind of device that is short of memory.
    pub device: usize,
    /// Bytes that it needs at least, as far as that is proven.
    pub least: f64,
    /// Lower bound of the cost; infinite where no solution exists.
    pub bound: f64,
}

/// Finds the cheapest labels of `problem`, which is that of `model` or a part of it, where each kind of device has
/// `memory` bytes.
///
/// The memory limit holds at every op, but the search knows it only at some ops. It begins with the op of peak memory
/// of the replicated assignment. Where a solution exceeds the memory at another op, a limit is added there and the
/// search is repeated.
///
/// # Errors
/// When nothing fits.
pub(crate) fn decide_within(
    model: &Model<'_>,
    problem: &Problem,
    devices: &[&dyn Device],
    memory: f64,
    effort: &Effort,
) -> Result<Decision, OverMemory> {
    let everywhere = Assignment::replicated(model);
    // The limits, and the device and op of each.
    let (mut limits, mut of): (Vec<Limit>, Vec<(usize, usize)>) = (Vec::new(), Vec::new());
    for (device, kind) in devices.iter().enumerate() {
        let at = model.peak(&everywhere, *kind).0;
        limits.push(Limit { usage: model.memory(at, *kind), capacity: memory - model.fixed(*kind) });
        of.push((device, at));
    }
    let (mut bound, mut exact) = (0.0f64, true);
    let mut worst = 0;
    for _ in 0..ROUNDS {
        let found = solve_within(problem, &limits, effort).map_err(|e| OverMemory {
            device: of[e.limit].0,
            least: e.least + (memory - limits[e.limit].capacity),
            bound: if exact { bound.max(e.bound) } else { bound },
        })?;
        let s = found.solution;
        if exact {
            bound = bound.max(s.bound);
        }
        let assignment = Assignment::from_labels(model, &s.labels);
        let peaks: Vec<(usize, f64)> = devices.iter().map(|kind| model.peak(&assignment, *kind)).collect();
        if peaks.iter().all(|(_, taken)| *taken <= memory) {
            return Ok(Decision {
                memory: peaks.into_iter().map(|(_, taken)| taken).fold(0.0, f64::max),
                assignment,
                cost: s.cost,
                bound: bound.min(s.cost),
                price: found.prices.iter().sum(),
                nodes: (model.node_kinds.len(), s.core),
                labels: s.labels,
                weights: Weights::ALL,
            });
        }
        for (device, (at, taken)) in peaks.into_iter().enumerate().filter(|(_, (_, taken))| *taken > memory) {
            worst = device;
            match of.iter().position(|known| *known == (device, at)) {
                // Memory that the limit does not count needs room too.
                Some(known) => {
                    limits[known].capacity -= taken - memory;
                    exact = false;
                }
                None => {
                    let (usage, fixed) = (model.memory(at, devices[device]), model.fixed(devices[device]));
                    limits.push(Limit { usage, capacity: memory - fixed });
                    of.push((device, at));
                }
            }
        }
    }
    Err(OverMemory { device: worst, least: 0.0, bound })
}

/// The error where no cut into stages is found.
pub(crate) fn no_stage_fits(func: &Func) -> Diagnostic {
    Diagnostic::error(Code::SBP, func.loc.clone(), "no cut into stages fits into the memory of a device")
}

/// The error where no layout is found; `least` bytes are proven to be needed.
pub(crate) fn memory_error(model: &Model<'_>, memory: f64, least: f64) -> Diagnostic {
    let has = bytes(memory);
    let error = |what: String| Diagnostic::error(Code::SBP, model.func.loc.clone(), what);
    let hint = "use more devices, or devices with more memory";
    if least > memory {
        let what = format!("no layout was found for {has} of memory per device; at least {} are needed", bytes(least));
        return error(what).hint(hint);
    }
    let d =
        error(format!("no layout was found for {has} of memory per device: the search has tried as much as it may"));
    let d = if least > 0.0 {
        d.note(format!("it proves that {} are needed, but not that more are", bytes(least)))
    } else {
        d
    };
    d.hint(hint)
}

/// Propagates layouts from annotations, op by op. Each op takes the candidate with the least transfer time of its
/// operands, then the fastest. Arguments without annotation are replicated.
///
/// # Errors
/// None in practice: a model has a candidate for every op.
pub fn propagate(model: &Model<'_>) -> Decision {
    let broadcast = model.broadcast();
    let mut labels = vec![0; model.node_kinds.len()];
    for (node, kind_of_node) in model.node_kinds.iter().enumerate() {
        let choices = &model.choices[node];
        let incoming = || model.problem.edges.iter().filter(move |e| e.b == node && e.a < node);
        let whole = |c: &Candidate| usize::from(c.results.first() != Some(&broadcast));
        let key = |x: usize| {
            let moved: f64 = incoming().map(|e| model.problem.edge_cost(e, labels[e.a], x)).sum();
            let own = match kind_of_node {
                NodeKind::Argument(_) => whole(&choices.candidates[x]) as f64,
                _ => choices.seconds[x],
            };
            (moved, own)
        };
        let keys: Vec<(f64, f64)> = (0..choices.candidates.len()).map(key).collect();
        labels[node] = (0..keys.len())
            .filter(|x| !choices.candidates[*x].is_left_out())
            .min_by(|a, b| keys[*a].0.total_cmp(&keys[*b].0).then(keys[*a].1.total_cmp(&keys[*b].1)))
            .unwrap_or(0);
    }
    let assignment = Assignment::from_labels(model, &labels);
    let cost = Problem::cost(&model.problem, &labels);
    Decision {
        memory: model.peak(&assignment, &WholeFunction).1,
        assignment,
        cost,
        bound: 0.0,
        price: 0.0,
        nodes: (model.node_kinds.len(), 0),
        labels,
        weights: Weights::ALL,
    }
}

/// Who reads the result of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// All readers of the value.
    All,
    /// An op, as its operand of this number.
    Operand(OpId, usize),
    /// The regions of an op.
    Regions(OpId),
}

/// A resharding: `reader` reads the value in another layout.
#[derive(Clone, PartialEq, Debug)]
pub struct Transfer {
    /// The value.
    pub value: ValueId,
    /// Who reads it.
    pub reader: Reader,
    /// The layout of the value.
    pub from: Layout,
    /// The layout in which it is read.
    pub to: Layout,
}

/// Every transfer, in order of the ops.
pub fn transfers(model: &Model<'_>, d: &Decision) -> Vec<Transfer> {
    let g = &model.func.graph;
    let mut out = Vec::new();
    for (node, kind_of_node) in model.node_kinds.iter().enumerate() {
        let chosen = &model.choices[node].candidates[d.labels[node]];
        match kind_of_node {
            NodeKind::Shared(v) => {
                let from = d.assignment.layouts[v.index()].clone().unwrap_or_else(|| model.broadcast());
                if from != chosen.results[0] && !chosen.is_left_out() {
                    out.push(Transfer { value: *v, reader: Reader::All, from, to: chosen.results[0].clone() });
                }
            }
            NodeKind::Op(op) => {
                for (i, v) in g.op(*op).operands.iter().enumerate() {
                    let Some(asked) = chosen.operands.get(i) else { continue };
                    if g.ty(*v).as_tensor().is_none() || asked.is_empty() {
                        continue;
                    }
                    let made = || d.assignment.layouts[v.index()].clone().unwrap_or_else(|| model.broadcast());
                    let from = if is_alias(g.op(*op).name()) { made() } else { layout_for_readers(model, d, *v) };
                    if from != *asked {
                        out.push(Transfer { value: *v, reader: Reader::Operand(*op, i), from, to: asked.clone() });
                    }
                }
                // Regions read whole values.
                for v in g.captured(*op).into_iter().filter(|v| g.ty(*v).as_tensor().is_some()) {
                    let (from, to) = (layout_for_readers(model, d, v), model.broadcast());
                    if from != to && !from.is_empty() && !chosen.is_left_out() {
                        out.push(Transfer { value: v, reader: Reader::Regions(*op), from, to });
                    }
                }
            }
            NodeKind::Argument(_) | NodeKind::Output(_) => {}
        }
    }
    out
}

/// The layout in which the readers of a value see it.
pub fn layout_for_readers(model: &Model<'_>, d: &Decision, v: ValueId) -> Layout {
    match model.shared_by[v.index()] {
        Some(node) => model.choices[node].candidates[d.labels[node]].results[0].clone(),
        None => d.assignment.layouts[v.index()].clone().unwrap_or_else(|| model.broadcast()),
    }
}

/// The parts of a decision that [`write`] needs, without a borrow of the function.
pub struct PreparedDecision {
    layouts: Vec<Option<Layout>>,
    pub(crate) selected: Vec<usize>,
    transfers: Vec<Transfer>,
    outputs: Vec<Layout>,
    broadcast: Layout,
}

/// Prepares a decision for [`write`].
pub fn prepare(model: &Model<'_>, d: &Decision) -> PreparedDecision {
    let g = &model.func.graph;
    let carried: Vec<i64> = model.func.attrs.typed(of_ops::training::CARRIED).unwrap_or_default();
    let nodes = model.node_kinds.iter().enumerate();
    let nodes: HashMap<usize, usize> =
        nodes.filter_map(|(node, s)| if let NodeKind::Output(i) = s { Some((*i, node)) } else { None }).collect();
    let output = |(i, v): (usize, &ValueId)| {
        let node = nodes.get(&i).copied();
        let input = carried.get(i).and_then(|k| usize::try_from(*k).ok()).and_then(|k| g.args().get(k));
        match (node, input) {
            (Some(node), _) => model.choices[node].candidates[d.labels[node]].results[0].clone(),
            (None, Some(a)) => d.assignment.layouts[a.index()].clone().unwrap_or_else(|| model.broadcast()),
            (None, None) => d.assignment.layouts[v.index()].clone().unwrap_or_else(|| model.broadcast()),
        }
    };
    PreparedDecision {
        layouts: layouts_with_regions(model, d),
        selected: d.assignment.selected.clone(),
        transfers: transfers(model, d),
        outputs: g.outputs().iter().enumerate().map(output).collect(),
        broadcast: model.broadcast(),
    }
}

/// The layouts of all values by position in the arena, also of those in regions.
pub(crate) fn layouts_with_regions(model: &Model<'_>, d: &Decision) -> Vec<Option<Layout>> {
    let g = &model.func.graph;
    let mut out = d.assignment.layouts.clone();
    for (node, kind_of_node) in model.node_kinds.iter().enumerate() {
        let NodeKind::Op(op) = kind_of_node else { continue };
        let chosen = &model.choices[node].candidates[d.labels[node]];
        if g.op(*op).regions.is_empty() || chosen.is_left_out() {
            continue;
        }
        for (axis, devices) in model.shape.iter().enumerate() {
            let along = |of: &[Layout]| of.iter().map(|l| l[axis]).collect::<Vec<_>>();
            let outside = (&along(&chosen.operands)[..], &along(&chosen.results)[..]);
            let own = regions::layouts(g, *op, *devices, outside, &candidates::signatures);
            for (v, how) in own.into_iter().flatten() {
                out[v.index()].get_or_insert_with(|| model.broadcast())[axis] = how;
            }
        }
    }
    out
}

/// Writes a decision into the types of `func`, with an `of.sharding_constraint` for every transfer.
///
/// # Errors
/// None in practice: `of.sharding_constraint` accepts every tensor.
pub fn write(func: &mut Func, written: &PreparedDecision, mesh: &str) -> Result<(), Diagnostics> {
    let sbp = |l: &Layout| NdSbp { mesh: mesh.into(), axes: l.clone() };
    let outputs = func.graph.outputs().to_vec();
    let terminator = func.graph.terminator(func.graph.entry());
    let order: IdMap<OpId, usize> = func.graph.region_ops(func.graph.entry()).zip(0..).collect();
    let mut rw = Rewriter::new(&mut func.graph, "shard");
    for i in 0..rw.graph().value_slots() {
        let Some(v) = rw.graph().value_at(i) else { continue };
        if let Type::Tensor(t) = rw.graph().ty(v).clone() {
            let l = written.layouts[i].as_ref().unwrap_or(&written.broadcast);
            if l.is_empty() {
                continue;
            }
            rw.set_type(v, Type::Tensor(TensorType { sbp: Some(sbp(l)), ..t }));
            // A constraint that named a mesh alone has a layout now.
            let constraint =
                |op: &OpId| rw.graph().is_live(*op) && rw.graph().op(*op).name() == ShardingConstraint::NAME;
            if let Some(op) = rw.graph().def_op(v).filter(constraint) {
                rw.set_attr(op, "sharding", Attr::Sbp(sbp(l)));
            }
        }
    }
    // A shared transfer is placed once, and all its readers use the result.
    let mut shared: IdMap<ValueId, ValueId> = IdMap::default();
    for t in &written.transfers {
        let place = ShardingConstraint { sharding: sbp(&t.to) };
        match t.reader {
            Reader::All => {
                let uses = rw.graph().uses(t.value).to_vec();
                let aside = |op: OpId| Some(op) == terminator || is_alias(rw.graph().op(op).name());
                let uses: Vec<_> = uses.into_iter().filter(|u| !aside(u.op)).collect();
                // Before the first reader, to keep its live range short.
                let Some(first) = uses.iter().map(|u| outermost(rw.graph(), u.op)).min_by_key(|op| order.get(op))
                else {
                    continue;
                };
                rw.rewrite(first, &[]);
                let placed = rw.create_one(place, &[t.value])?;
                for u in &uses {
                    rw.set_operand(u.op, u.operand as usize, placed);
                }
                shared.insert(t.value, placed);
            }
            // An annotated `of.sharding_constraint` is itself the transfer.
            Reader::Operand(op, _) if rw.graph().op(op).name() == ShardingConstraint::NAME => {}
            Reader::Operand(op, operand) => {
                rw.rewrite(op, &[]);
                let from = rw.graph().op(op).operands[operand];
                let placed = rw.create_one(place, &[from])?;
                rw.set_operand(op, operand, placed);
            }
            Reader::Regions(op) => {
                rw.rewrite(op, &[]);
                let from = shared.get(&t.value).copied().unwrap_or(t.value);
                let placed = rw.create_one(place, &[from])?;
                let inside = |g: &Graph, reader: OpId| {
                    g.op(op).regions.iter().any(|region| g.encloses(*region, g.op(reader).parent))
                };
                let uses = rw.graph().uses(from).to_vec();
                for u in uses.into_iter().filter(|u| inside(rw.graph(), u.op)).collect::<Vec<_>>() {
                    rw.set_operand(u.op, u.operand as usize, placed);
                }
            }
        }
    }
    let Some(terminator) = terminator else { return Ok(()) };
    for (i, (v, to)) in outputs.iter().zip(&written.outputs).enumerate() {
        let from = shared.get(v).copied().unwrap_or(*v);
        let Some(t) = rw.graph().ty(from).as_tensor() else { continue };
        let same = t.sbp.as_ref().is_some_and(|s| s.axes == *to);
        rw.rewrite(terminator, &[]);
        let value = if same { from } else { rw.create_one(ShardingConstraint { sharding: sbp(to) }, &[from])? };
        rw.set_operand(terminator, i, value);
    }
    select_alternatives(&mut rw, &written.selected);
    Ok(())
}

/// Replaces every `of.alternatives` by its selected operand, given by position in the arena. Ops that only the other
/// operands need are erased.
pub fn select_alternatives(rw: &mut Rewriter<'_>, selected: &[usize]) {
    let alternatives: Vec<OpId> =
        rw.graph().walk().into_iter().filter(|op| rw.graph().op(*op).name() == Alternatives::NAME).collect();
    let mut open: Vec<ValueId> = Vec::new();
    for op in alternatives {
        let operands = rw.graph().op(op).operands.to_vec();
        rw.replace(op, &[operands[selected[op.index()]]]);
        open.extend(operands);
    }
    while let Some(v) = open.pop() {
        let Some(op) = rw.graph().def_op(v).filter(|op| rw.graph().is_live(*op)) else { continue };
        if rw.graph().op(op).results.iter().all(|v| rw.graph().uses(*v).is_empty()) {
            open.extend(rw.graph().op(op).operands.to_vec());
            rw.erase(op);
        }
    }
}

/// The op of the function's entry block that is `op` or encloses it.
fn outermost(g: &Graph, op: OpId) -> OpId {
    let holds = |o: &OpId| g.op(*o).regions.iter().any(|r| g.encloses(*r, g.op(op).parent));
    if g.op(op).parent == g.entry() { op } else { g.region_ops(g.entry()).find(holds).unwrap_or(op) }
}

/// `1.5 GB`.
pub fn bytes(x: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(u, _)| x >= *u) {
        Some((u, name)) => format!("{:.1} {name}", x / u),
        None => format!("{x:.0} B"),
    }
}

/// `1.5 ms`.
pub fn seconds(x: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")];
    match units.iter().find(|(u, _)| x >= *u) {
        Some((u, name)) => format!("{:.3} {name}", x / u),
        None => format!("{:.1} ns", x * 1e9),
    }
}
