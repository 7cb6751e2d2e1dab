//! Explanations of a solution: the chosen layouts, the runner-up of each, transfers, and pipelines.

use of_ir::IdMap;
use std::fmt::Write;

use of_ir::OpId;

use crate::alternatives::ChosenAlternatives;
use crate::boxing::Step;
use crate::decide::{Decision, bytes, seconds, transfers};
use crate::layout::{self, Layout};
use crate::liveness::WholeFunction;
use crate::model::{Model, NodeKind};
use crate::stages::{Pipeline, Pipelines};
use crate::value_names::value_names;

/// The chosen layout of one value.
#[derive(Clone, PartialEq, Debug)]
pub struct ValueExplanation {
    /// Its name, or the op that makes it with the op's number.
    pub value: String,
    /// The layout; empty where the value is not made.
    pub layout: Layout,
    /// The best layout that was not chosen, with all other choices fixed.
    pub runner_up: Option<RunnerUp>,
}

/// A layout that was not chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct RunnerUp {
    /// The layout.
    pub layout: Layout,
    /// Additional seconds.
    pub seconds: f64,
    /// The factor on link speed at which both layouts take equally long, where one exists. Faster links favour layouts
    /// that compute less and move more; slower links favour the opposite.
    pub links: Option<f64>,
    /// Additional bytes that all devices send.
    pub sent: f64,
    /// Additional bytes of memory per device.
    pub memory: f64,
}

/// Explains every value that a node of the model decides, in order.
pub fn explain(model: &Model<'_>, d: &Decision) -> Vec<ValueExplanation> {
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); model.node_kinds.len()];
    for (i, e) in model.problem.edges.iter().enumerate() {
        edges[e.a].push(i);
        edges[e.b].push(i);
    }
    let names = value_names(model.func);
    let memory = model.memory(model.peak(&d.assignment, &WholeFunction).0, &WholeFunction).nodes;
    let mut out = Vec::new();
    for (node, kind_of_node) in model.node_kinds.iter().enumerate() {
        let value = match kind_of_node {
            NodeKind::Argument(v) => *v,
            NodeKind::Op(op) => match model.func.graph.op(*op).results.first() {
                Some(v) if model.transfers(*v).is_some() => *v,
                _ => continue,
            },
            NodeKind::Shared(_) | NodeKind::Output(_) => continue,
        };
        let choices = &model.choices[node];
        let own = d.labels[node];
        let layout = choices.candidates[own].results[0].clone();
        // Transfer time and total cost with another label; memory counts at its shadow price.
        let moving = |x: usize| {
            let edge = |i: &usize| {
                let e = &model.problem.edges[*i];
                let a = if e.a == node { x } else { d.labels[e.a] };
                let b = if e.b == node { x } else { d.labels[e.b] };
                let weight = if model.overlaps(*i) { d.weights.overlapped } else { 1.0 };
                model.problem.edge_cost(e, a, b) * weight
            };
            edges[node].iter().map(edge).sum::<f64>()
        };
        let weight = if model.is_heavy(node) { d.weights.heavy } else { d.weights.light };
        let computing = |x: usize| choices.seconds[x] * weight;
        let total = |x: usize| computing(x) + d.price * memory[node][x] + moving(x);
        let others = (0..choices.candidates.len()).filter(|x| choices.candidates[*x].results[0] != layout);
        let best = others.min_by(|a, b| total(*a).total_cmp(&total(*b))).filter(|x| total(*x).is_finite());
        let runner_up = best.map(|x| RunnerUp {
            layout: choices.candidates[x].results[0].clone(),
            seconds: total(x) - total(own) - d.price * (memory[node][x] - memory[node][own]),
            links: Some((moving(x) - moving(own)) / (computing(own) - computing(x)))
                .filter(|f| f.is_finite() && *f > 0.0),
            sent: sent(model, d, node, x, &edges[node]) - sent(model, d, node, own, &edges[node]),
            memory: memory[node][x] - memory[node][own],
        });
        out.push(ValueExplanation { value: names[value.index()].clone(), layout, runner_up });
    }
    out
}

/// Bytes that the transfers at a node send when it has label `x`.
fn sent(model: &Model<'_>, d: &Decision, node: usize, x: usize, edges: &[usize]) -> f64 {
    let mut sum = 0.0;
    for i in edges {
        let e = &model.problem.edges[*i];
        let (a, b) = (if e.a == node { x } else { d.labels[e.a] }, if e.b == node { x } else { d.labels[e.b] });
        let t = &model.problem.interner;
        let Some(transfer) = model.of_edge(*i) else { continue };
        // Values that are not made or not read are not sent.
        let at = |p: u32| transfer.router.layouts.get(p as usize).cloned();
        let (Some(from), Some(to)) = (at(t.indices(e.row)[a]), at(t.indices(e.col)[b])) else { continue };
        let path = transfer.router.path(&from, &to, transfer.bytes, &transfer.usable);
        sum += path.iter().flatten().map(|s| s.bytes).sum::<f64>();
    }
    sum
}

/// One line: cost, bound, gap and memory.
pub fn summary(model: &Model<'_>, d: &Decision) -> String {
    let gap = if d.cost > 0.0 { (d.cost - d.bound) / d.cost * 100.0 } else { 0.0 };
    format!(
        "{} per step, bound {} (gap {gap:.2} %), {} of {} per device; {} nodes, {} after reduction",
        seconds(d.cost),
        seconds(d.bound),
        bytes(d.memory),
        bytes(model.mesh.memory),
        d.nodes.0,
        d.nodes.1
    )
}

fn show_layout(layout: &Layout) -> String {
    if layout.is_empty() { "left out".into() } else { layout::show(layout) }
}

/// The selected operand of each `of.alternatives`, and the cost of the best other operand.
pub fn alternatives(chosen: &ChosenAlternatives) -> String {
    let mut out = String::from("alternatives\n");
    for w in &chosen.choices {
        let _ = write!(out, "  {}  selects operand {}", w.value, w.operand);
        match w.penalty {
            Some(more) => {
                let _ = writeln!(out, ", {:+.3} us with the next best", more * 1e6);
            }
            None => out.push('\n'),
        }
    }
    out
}

/// The feasible numbers of stages and microbatches, fastest first; the stages of the fastest; and the infeasible
/// numbers.
pub fn pipelines(func: &of_ir::Func, all: &Pipelines) -> String {
    let mut order: Vec<&Pipeline> = all.feasible.iter().collect();
    of_ir::sort::by(&mut order, |a, b| a.cost.total_cmp(&b.cost));
    let bound = all.feasible.iter().map(|p| p.bound).fold(f64::INFINITY, f64::min);
    let Some(best) = order.first() else { return String::new() };
    let gap = (best.cost - bound) / best.cost.max(1e-30) * 100.0;
    let mut out = format!("{} per step, bound {} (gap {gap:.2} %)\n\n", seconds(best.cost), seconds(bound));
    out.push_str("  stages  axis  microbatches        step       bound      memory\n");
    for p in &order {
        let axis = if p.stages > 1 { p.axis.to_string() } else { "-".into() };
        let _ = writeln!(
            out,
            "{:8}{axis:>6}{:14}{:>12}{:>12}{:>12}{}",
            p.stages,
            p.microbatches,
            seconds(p.cost),
            seconds(p.bound),
            bytes(p.memory),
            if p.overlapped { "  transfers overlap" } else { "" }
        );
    }
    if best.stages > 1 {
        let order: IdMap<OpId, usize> = func.graph.walk().into_iter().zip(0..).collect();
        let _ = writeln!(out, "\nstages of the fastest, each on a mesh of {:?}", best.mesh.shape());
        for (i, took) in best.seconds.iter().enumerate() {
            let until = match best.last.get(i) {
                Some(op) => format!("up to {} {}", func.graph.op(*op).name(), order[op]),
                None => "the rest".into(),
            };
            let _ = writeln!(out, "{i:8}  {:>12}  {until}", seconds(*took));
        }
    }
    let mut unfit: Vec<(&str, Vec<String>)> = Vec::new();
    for (stages, microbatches, why) in &all.infeasible {
        let choice = format!("{stages}x{microbatches}");
        match unfit.iter_mut().find(|(message, _)| *message == why.message) {
            Some((_, choices)) => choices.push(choice),
            None => unfit.push((&why.message, vec![choice])),
        }
    }
    if !unfit.is_empty() {
        out.push_str("\nstages x microbatches that do not fit\n");
    }
    for (why, choices) in unfit {
        let _ = writeln!(out, "  {}: {why}", choices.join(", "));
    }
    out
}

/// One line about a pipeline with given numbers of stages and microbatches.
pub fn pipeline_summary(p: &Pipeline) -> String {
    let gap = 100.0 * (1.0 - p.bound / p.cost.max(1e-300));
    let stages: Vec<String> = p.seconds.iter().map(|s| seconds(*s)).collect();
    format!(
        "{} per step, bound {} for this number of stages (gap {:.2} %); {}, {} microbatches{}; {} memory",
        seconds(p.cost),
        seconds(p.bound),
        gap.max(0.0),
        match p.stages {
            1 => format!("one stage on {:?}", p.mesh.shape()),
            n => format!("{n} stages on {:?} along axis {}, which take {}", p.mesh.shape(), p.axis, stages.join(", ")),
        },
        p.microbatches,
        if p.overlapped { ", transfers overlap" } else { "" },
        bytes(p.memory)
    )
}

/// The whole explanation as text.
pub fn text(model: &Model<'_>, d: &Decision) -> String {
    let mut out = summary(model, d);
    if d.price > 0.0 {
        let _ = write!(out, "\nmemory is short: one more GB saves at most {}", seconds(d.price * 1e9));
    }
    out.push_str("\n\ntransfers\n");
    let names = value_names(model.func);
    for t in transfers(model, d) {
        let Some(transfer) = model.transfers(t.value) else { continue };
        let path = transfer.router.path(&t.from, &t.to, transfer.bytes, &transfer.usable).unwrap_or_default();
        let steps: Vec<String> = path.iter().map(|s: &Step| format!("{}{:?}", s.collective.name(), s.axes)).collect();
        let (time, sent) = (path.iter().map(|s| s.seconds).sum(), path.iter().map(|s| s.bytes).sum());
        let _ = writeln!(
            out,
            "  {}  {} -> {}  {}  {}, {}",
            names[t.value.index()],
            layout::show(&t.from),
            layout::show(&t.to),
            steps.join(", "),
            seconds(time),
            bytes(sent)
        );
    }
    out.push_str("\nvalues\n");
    for e in explain(model, d) {
        let _ = write!(out, "  {}  {}", e.value, show_layout(&e.layout));
        if let Some(r) = e.runner_up {
            let signed = |x: f64, text: String| if x < 0.0 { format!("-{text}") } else { format!("+{text}") };
            let _ = write!(
                out,
                "  runner-up {}: {:+.3} us, {} sent, {} memory",
                show_layout(&r.layout),
                r.seconds * 1e6,
                signed(r.sent, bytes(r.sent.abs())),
                signed(r.memory, bytes(r.memory.abs()))
            );
            if let Some(f) = r.links {
                let _ = write!(out, "; equally fast with links of {f:.2} times the speed");
            }
            if r.memory < 0.0 && r.seconds > 0.0 {
                let _ = write!(out, "; chosen where a GB is worth {}", seconds(r.seconds / -r.memory * 1e9));
            }
        }
        out.push('\n');
    }
    out
}
