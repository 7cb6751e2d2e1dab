//! Decisions: the search's choice for a function, and the function with it written into its types.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Func, NdSbp, OpId, Rewriter, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::Place;
use of_ops::structural::Alternatives;

use crate::candidates::Candidate;
use crate::layout::Layout;
use crate::memory::{Device, Lying, Whole};
use crate::model::{Model, Subject, is_alias};
use crate::search::{Effort, Limit, Problem, solve_within};

/// How everything lies.
pub struct Decision {
    /// The label of each node of the model.
    pub labels: Vec<usize>,
    /// What that means for the values.
    pub lying: Lying,
    /// Seconds of one execution.
    pub cost: f64,
    /// No choice within the memory takes less.
    pub bound: f64,
    /// Bytes of a device's memory that are taken when most are.
    pub memory: f64,
    /// What one byte more would save at most, in seconds.
    pub price: f64,
    /// Nodes of the problem, and how many were left after exact reduction.
    pub nodes: (usize, usize),
}

/// Rounds in which limits are brought to bear where most memory is taken.
const ROUNDS: usize = 12;

/// Searches the choice that takes least time with `memory` bytes on each device.
///
/// # Errors
/// When nothing fits.
pub fn decide(model: &Model<'_>, memory: f64, effort: &Effort) -> Result<Decision, Diagnostic> {
    decide_within(model, &model.problem, &[&Whole], memory, effort).map_err(|e| too_large(model, memory, e.least))
}

/// What [`decide_within`] says where it finds nothing.
pub(crate) struct TooMuch {
    /// The kind of device of which too much is asked.
    pub device: usize,
    /// The bytes that it would need.
    pub least: f64,
    /// Nothing that fits takes less; infinite where it is certain that nothing does.
    pub bound: f64,
}

/// Searches the labels of `problem`, which is that of `model` or a part of it, that cost least where several kinds of
/// devices have `memory` bytes each.
///
/// The limit holds at every op; the search knows it at some, first at that where a device takes most while nothing is
/// split. Where a choice takes too much elsewhere, it is searched again with a limit there too.
///
/// # Errors
/// When nothing fits.
pub(crate) fn decide_within(
    model: &Model<'_>,
    problem: &Problem,
    devices: &[&dyn Device],
    memory: f64,
    effort: &Effort,
) -> Result<Decision, TooMuch> {
    let everywhere = Lying::everywhere(model);
    // Limits, and for each the device and the op at which it holds.
    let (mut limits, mut of): (Vec<Limit>, Vec<(usize, usize)>) = (Vec::new(), Vec::new());
    for (device, kind) in devices.iter().enumerate() {
        let at = model.peak(&everywhere, *kind).0;
        limits.push(Limit { usage: model.memory(at, *kind), most: memory - model.fixed(*kind) });
        of.push((device, at));
    }
    let (mut bound, mut exact) = (0.0f64, true);
    let mut worst = (0, f64::INFINITY);
    for _ in 0..ROUNDS {
        let found = solve_within(problem, &limits, effort).map_err(|e| TooMuch {
            device: of[e.limit].0,
            least: e.least + (memory - limits[e.limit].most),
            bound: if exact { bound.max(e.bound) } else { bound },
        })?;
        let s = found.solution;
        if exact {
            bound = bound.max(s.bound);
        }
        let lying = Lying::of(model, &s.labels);
        let peaks: Vec<(usize, f64)> = devices.iter().map(|kind| model.peak(&lying, *kind)).collect();
        if peaks.iter().all(|(_, taken)| *taken <= memory) {
            return Ok(Decision {
                memory: peaks.into_iter().map(|(_, taken)| taken).fold(0.0, f64::max),
                lying,
                cost: s.cost,
                bound: bound.min(s.cost),
                price: found.prices.iter().sum(),
                nodes: (model.subjects.len(), s.core),
                labels: s.labels,
            });
        }
        for (device, (at, taken)) in peaks.into_iter().enumerate().filter(|(_, (_, taken))| *taken > memory) {
            worst = (device, taken);
            match of.iter().position(|known| *known == (device, at)) {
                // What is not counted needs room too.
                Some(known) => {
                    limits[known].most -= taken - memory;
                    exact = false;
                }
                None => {
                    let (usage, fixed) = (model.memory(at, devices[device]), model.fixed(devices[device]));
                    limits.push(Limit { usage, most: memory - fixed });
                    of.push((device, at));
                }
            }
        }
    }
    Err(TooMuch { device: worst.0, least: worst.1, bound })
}

/// The error where no choice is found.
pub(crate) fn nothing(func: &Func) -> Diagnostic {
    Diagnostic::error(Code::SBP, func.loc.clone(), "no choice of stages fits into the memory of a device")
}

pub(crate) fn too_large(model: &Model<'_>, memory: f64, least: f64) -> Diagnostic {
    let (has, least) = (bytes(memory), bytes(least));
    let what = format!("no choice was found for {has} of memory a device, {least} are needed");
    Diagnostic::error(Code::SBP, model.func.loc.clone(), what).hint("take more devices, or devices of more memory")
}

/// The choice that takes each op as it comes: the way that needs the least transfer of operands that lie as they do,
/// and of those the fastest. Arguments that say nothing lie everywhere.
///
/// # Errors
/// None in practice: a model has a choice for every op.
pub fn propagate(model: &Model<'_>) -> Decision {
    let broadcast = model.broadcast();
    let mut labels = vec![0; model.subjects.len()];
    for (node, subject) in model.subjects.iter().enumerate() {
        let choices = &model.choices[node];
        let incoming = || model.problem.edges.iter().filter(move |e| e.b == node && e.a < node);
        let whole = |c: &Candidate| usize::from(c.results.first() != Some(&broadcast));
        let key = |x: usize| {
            let moved: f64 = incoming().map(|e| model.problem.edge_cost(e, labels[e.a], x)).sum();
            let own = match subject {
                Subject::Argument(_) => whole(&choices.candidates[x]) as f64,
                _ => choices.seconds[x],
            };
            (moved, own)
        };
        let keys: Vec<(f64, f64)> = (0..choices.candidates.len()).map(key).collect();
        labels[node] = (0..keys.len())
            .filter(|x| !choices.candidates[*x].is_nothing())
            .min_by(|a, b| keys[*a].0.total_cmp(&keys[*b].0).then(keys[*a].1.total_cmp(&keys[*b].1)))
            .unwrap_or(0);
    }
    let lying = Lying::of(model, &labels);
    let cost = Problem::cost(&model.problem, &labels);
    Decision {
        memory: model.peak(&lying, &Whole).1,
        lying,
        cost,
        bound: 0.0,
        price: 0.0,
        nodes: (model.subjects.len(), 0),
        labels,
    }
}

/// Transfers that a decision makes: what `reader` reads is brought from one layout to another first.
#[derive(Clone, PartialEq, Debug)]
pub struct Transfer {
    /// The value.
    pub value: ValueId,
    /// Who reads it in the other layout; `None` where several do.
    pub reader: Option<(OpId, usize)>,
    /// How it lies, and how it is read.
    pub from: Layout,
    /// How it is read.
    pub to: Layout,
}

/// Every transfer, in order of the ops.
pub fn transfers(model: &Model<'_>, d: &Decision) -> Vec<Transfer> {
    let g = &model.func.graph;
    let mut out = Vec::new();
    for (node, subject) in model.subjects.iter().enumerate() {
        let chosen = &model.choices[node].candidates[d.labels[node]];
        match subject {
            Subject::Shared(v) => {
                let from = d.lying.layouts[v.index()].clone().unwrap_or_else(|| model.broadcast());
                if from != chosen.results[0] && !chosen.is_nothing() {
                    out.push(Transfer { value: *v, reader: None, from, to: chosen.results[0].clone() });
                }
            }
            Subject::Op(op) => {
                for (i, v) in g.op(*op).operands.iter().enumerate() {
                    let Some(asked) = chosen.operands.get(i) else { continue };
                    if g.ty(*v).as_tensor().is_none() || asked.is_empty() {
                        continue;
                    }
                    let made = || d.lying.layouts[v.index()].clone().unwrap_or_else(|| model.broadcast());
                    let from = if is_alias(g.op(*op).name()) { made() } else { seen_as(model, d, *v) };
                    if from != *asked {
                        out.push(Transfer { value: *v, reader: Some((*op, i)), from, to: asked.clone() });
                    }
                }
            }
            Subject::Argument(_) | Subject::Output(_) => {}
        }
    }
    out
}

/// How the readers of a value see it.
pub fn seen_as(model: &Model<'_>, d: &Decision, v: ValueId) -> Layout {
    match model.shared_by[v.index()] {
        Some(node) => model.choices[node].candidates[d.labels[node]].results[0].clone(),
        None => d.lying.layouts[v.index()].clone().unwrap_or_else(|| model.broadcast()),
    }
}

/// What [`write`] needs of a decision, free of the function that the model borrows.
pub struct Written {
    layouts: Vec<Option<Layout>>,
    pub(crate) taken: Vec<usize>,
    transfers: Vec<Transfer>,
    outputs: Vec<Layout>,
    broadcast: Layout,
}

/// Prepares a decision for [`write`].
pub fn prepare(model: &Model<'_>, d: &Decision) -> Written {
    let g = &model.func.graph;
    let carried: Vec<i64> = model.func.attrs.typed(of_ops::training::CARRIED).unwrap_or_default();
    let nodes = model.subjects.iter().enumerate();
    let nodes: HashMap<usize, usize> =
        nodes.filter_map(|(node, s)| if let Subject::Output(i) = s { Some((*i, node)) } else { None }).collect();
    let output = |(i, v): (usize, &ValueId)| {
        let node = nodes.get(&i).copied();
        let input = carried.get(i).and_then(|k| usize::try_from(*k).ok()).and_then(|k| g.args().get(k));
        match (node, input) {
            (Some(node), _) => model.choices[node].candidates[d.labels[node]].results[0].clone(),
            (None, Some(a)) => d.lying.layouts[a.index()].clone().unwrap_or_else(|| model.broadcast()),
            (None, None) => d.lying.layouts[v.index()].clone().unwrap_or_else(|| model.broadcast()),
        }
    };
    Written {
        layouts: d.lying.layouts.clone(),
        taken: d.lying.taken.clone(),
        transfers: transfers(model, d),
        outputs: g.outputs().iter().enumerate().map(output).collect(),
        broadcast: model.broadcast(),
    }
}

/// Writes a decision into the types of `func`, with an `of.place` for every transfer.
///
/// # Errors
/// None in practice: placing fits every tensor.
pub fn write(func: &mut Func, written: &Written, mesh: &str) -> Result<(), Diagnostics> {
    let sbp = |l: &Layout| NdSbp { mesh: mesh.into(), axes: l.clone() };
    let outputs = func.graph.outputs().to_vec();
    let terminator = func.graph.terminator(func.graph.entry());
    let order: HashMap<OpId, usize> = func.graph.region_ops(func.graph.entry()).zip(0..).collect();
    let mut rw = Rewriter::new(&mut func.graph, "shard");
    for i in 0..rw.graph().value_slots() {
        let Some(v) = rw.graph().value_at(i) else { continue };
        if let Type::Tensor(t) = rw.graph().ty(v).clone() {
            let l = written.layouts[i].as_ref().unwrap_or(&written.broadcast);
            if l.is_empty() {
                continue;
            }
            rw.set_type(v, Type::Tensor(TensorType { sbp: Some(sbp(l)), ..t }));
        }
    }
    // What several read is placed where it is made, and found again by its readers.
    let mut shared: HashMap<ValueId, ValueId> = HashMap::new();
    for t in &written.transfers {
        let place = Place { to: sbp(&t.to) };
        match t.reader {
            None => {
                let uses = rw.graph().uses(t.value).to_vec();
                let aside = |op: OpId| Some(op) == terminator || is_alias(rw.graph().op(op).name());
                let uses: Vec<_> = uses.into_iter().filter(|u| !aside(u.op)).collect();
                // Before the first reader, so that it is there no longer than it must.
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
            // A transfer that was asked for is one itself.
            Some((op, _)) if rw.graph().op(op).name() == Place::NAME => {}
            Some((op, operand)) => {
                rw.rewrite(op, &[]);
                let from = rw.graph().op(op).operands[operand];
                let placed = rw.create_one(place, &[from])?;
                rw.set_operand(op, operand, placed);
            }
        }
    }
    let Some(terminator) = terminator else { return Ok(()) };
    for (i, (v, to)) in outputs.iter().zip(&written.outputs).enumerate() {
        let from = shared.get(v).copied().unwrap_or(*v);
        let Some(t) = rw.graph().ty(from).as_tensor() else { continue };
        let same = t.sbp.as_ref().is_some_and(|s| s.axes == *to);
        rw.rewrite(terminator, &[]);
        let value = if same { from } else { rw.create_one(Place { to: sbp(to) }, &[from])? };
        rw.set_operand(terminator, i, value);
    }
    take(&mut rw, &written.taken);
    Ok(())
}

/// Every `of.alternatives` becomes the operand that it takes, by its position in the arena, and what was only there for the others
/// goes.
pub fn take(rw: &mut Rewriter<'_>, taken: &[usize]) {
    let alternatives: Vec<OpId> =
        rw.graph().walk().into_iter().filter(|op| rw.graph().op(*op).name() == Alternatives::NAME).collect();
    let mut open: Vec<ValueId> = Vec::new();
    for op in alternatives {
        let operands = rw.graph().op(op).operands.to_vec();
        rw.replace(op, &[operands[taken[op.index()]]]);
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

/// The op of the function's own block that is `op`, or whose regions hold it.
fn outermost(g: &of_ir::Graph, op: OpId) -> OpId {
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
