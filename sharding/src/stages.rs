//! Pipelines: the layers of a function in stages, each on its own part of the mesh, with a step cut into microbatches.
//!
//! A mesh axis of n devices makes S stages, for any S that divides n; each stage has a mesh of its own, on which layouts are
//! searched as ever. Where M microbatches pass through, a step takes (M + S - 1) / M times what the slowest stage takes for
//! all of them: S - 1 of its turns are spent filling and draining (Huang et al., "GPipe", 2019). Forward and backward turns
//! alternate, so that stage s holds what min(S - s, M) microbatches keep for their backward ops (Narayanan et al.,
//! "PipeDream", 2019).
//!
//! All stages together take no less than the search's bound for the whole function on a mesh of that size, so the slowest
//! takes no less than its S-th part: that is the bound of each choice, and the least of them that of all.

use of_diag::Diagnostic;
use of_ir::{Func, Graph, OpId, ValueDef, ValueId};

use crate::MeshSpec;
use crate::cuts;
use crate::decide::{self, Decision};
use crate::layout;
use crate::memory::Alive;
use crate::model::{Model, Subject};
use crate::search::Effort;

/// Stages and microbatches, and what comes of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Pipeline {
    /// The mesh axis that is cut.
    pub axis: usize,
    /// Stages; 1 for none.
    pub stages: usize,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// The mesh of a stage.
    pub mesh: MeshSpec,
    /// For each stage its last forward op; the last one has the rest.
    pub last: Vec<OpId>,
    /// For each stage the seconds that it takes for a step.
    pub seconds: Vec<f64>,
    /// Seconds of a step.
    pub cost: f64,
    /// No cut and no layouts with so many stages and microbatches take less.
    pub bound: f64,
    /// Bytes of a device's memory, where most are taken.
    pub memory: f64,
}

/// Every choice of stages and microbatches that fits, in order; the first has none of either.
///
/// Functions whose types say how something lies are not cut: their layouts are of the whole mesh.
///
/// # Errors
/// When nothing fits.
pub fn pipelines(
    func: &Func,
    mesh: &MeshSpec,
    microbatches: &[usize],
    effort: &Effort,
) -> Result<Vec<Pipeline>, Diagnostic> {
    let first = |d: of_diag::Diagnostics| d.0.into_iter().next().unwrap_or_else(|| decide::nothing(func));
    let mut out = Vec::new();
    let mut why = None;
    let whole = Model::new(func, mesh).map_err(first)?;
    match decide::decide(&whole, mesh.memory, effort) {
        Ok(d) => out.push(Pipeline {
            axis: 0,
            stages: 1,
            microbatches: 1,
            mesh: mesh.clone(),
            last: Vec::new(),
            seconds: vec![d.cost],
            cost: d.cost,
            bound: d.bound,
            memory: d.memory,
        }),
        Err(e) => why = Some(e),
    }
    let levels = Levels::of(&func.graph);
    for (axis, a) in mesh.axes.iter().enumerate().filter(|_| !placed(&func.graph)) {
        for stages in (2..=a.devices).filter(|s| a.devices % s == 0 && *s <= levels.cuts.len() + 1) {
            let mut own = mesh.clone();
            own.axes[axis].devices /= stages;
            if own.axes[axis].devices == 1 && own.axes.len() > 1 {
                own.axes.remove(axis);
            }
            let model = Model::new(func, &own).map_err(first)?;
            for m in microbatches.iter().copied().filter(|m| *m > 1) {
                let link = &mesh.axes[axis];
                let p =
                    Cut { levels: &levels, stages, microbatches: m, bandwidth: link.bandwidth, latency: link.latency };
                if let Ok(found) = p.search(&model, effort) {
                    out.push(Pipeline { axis, mesh: own.clone(), ..found });
                }
            }
        }
    }
    if out.is_empty() { Err(why.unwrap_or_else(|| decide::nothing(func))) } else { Ok(out) }
}

fn placed(g: &Graph) -> bool {
    (0..g.value_slots()).filter_map(|i| g.value_at(i)).any(|v| g.ty(v).as_tensor().is_some_and(|t| t.sbp.is_some()))
}

/// Between which two cuts everything belongs.
struct Levels {
    forward: Vec<OpId>,
    cuts: Vec<(usize, ValueId)>,
    /// The number of cuts before each op, by its position in the arena.
    ops: Vec<usize>,
    /// The same of each value.
    values: Vec<usize>,
    training: bool,
}

impl Levels {
    fn of(g: &Graph) -> Levels {
        let forward = cuts::forward(g);
        let cuts = cuts::cuts(g, &forward);
        let mut ops: Vec<Option<usize>> = vec![None; g.op_slots()];
        for (i, op) in forward.iter().enumerate() {
            ops[op.index()] = Some(cuts.partition_point(|(at, _)| *at < i));
        }
        // Inputs and constants belong to their first reader.
        let source = |v: ValueId| g.def_op(v).is_none_or(|op| g.op(op).def.traits().constant);
        let first = |v: ValueId, ops: &[Option<usize>]| g.uses(v).iter().filter_map(|u| ops[u.op.index()]).min();
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        let behind = &order[forward.len()..];
        // A backward op belongs to what it reads of the forward ops and of the parameters, or to where its gradients come from.
        for op in behind {
            let known = |v: &&ValueId| !source(**v) || first(**v, &ops).is_some();
            let level = |v: &ValueId, ops: &[Option<usize>]| match g.def_op(*v) {
                Some(d) if !source(*v) => ops[d.index()],
                _ => first(*v, ops),
            };
            let operands = || g.op(*op).operands.iter().filter(known);
            let kept = |v: &&ValueId| source(**v) || g.def_op(**v).is_some_and(|d| !cuts::is_backward(g, d));
            let own = operands().filter(kept).filter_map(|v| level(v, &ops)).max();
            ops[op.index()] = own.or_else(|| operands().filter_map(|v| level(v, &ops)).min());
        }
        // What only later levels read belongs to them: the gradients of parameters.
        for op in behind.iter().rev() {
            let readers = g.op(*op).results.iter().flat_map(|v| g.uses(*v)).filter_map(|u| ops[u.op.index()]);
            ops[op.index()] = ops[op.index()].max(readers.min());
        }
        let ops: Vec<usize> = ops.into_iter().map(|l| l.unwrap_or(0)).collect();
        let live = |v: &ValueId| g.def_op(*v).is_none_or(|op| g.is_live(op));
        let values = (0..g.value_slots())
            .map(|i| match g.value_at(i).filter(live) {
                None => 0,
                Some(v) if source(v) => g.uses(v).iter().map(|u| ops[u.op.index()]).min().unwrap_or(0),
                Some(v) => g.def_op(v).map_or(0, |op| ops[op.index()]),
            })
            .collect();
        Levels { training: !behind.is_empty(), forward, cuts, ops, values }
    }
}

/// One choice of stages and microbatches.
struct Cut<'a> {
    levels: &'a Levels,
    stages: usize,
    microbatches: usize,
    bandwidth: f64,
    latency: f64,
}

/// Times in which the memory of all stages together is lowered until each fits.
const ROUNDS: usize = 6;

impl Cut<'_> {
    fn search(&self, model: &Model<'_>, effort: &Effort) -> Result<Pipeline, Diagnostic> {
        let (s, m) = (self.stages as f64, self.microbatches as f64);
        let turns = (m + s - 1.0) / m;
        let memory = model.mesh.memory;
        // Every stage holds one microbatch at least.
        let mut limit = memory * s;
        let mut bound = None;
        for _ in 0..ROUNDS {
            let d = decide::decide_alive(model, limit, Alive { share: 1.0 / m, whole: false }, effort)?;
            let bound = *bound.get_or_insert(d.bound * turns / s);
            let (last, seconds) = self.balance(model, &d);
            let taken = self.memory(model, &d, &last);
            if taken <= memory {
                let cost = seconds.iter().copied().fold(0.0, f64::max) * turns;
                let last = last.iter().map(|c| self.levels.forward[self.levels.cuts[*c].0]).collect();
                let (stages, microbatches) = (self.stages, self.microbatches);
                let mesh = model.mesh.clone();
                return Ok(Pipeline { axis: 0, stages, microbatches, mesh, last, seconds, cost, bound, memory: taken });
            }
            limit *= 0.98 * memory / taken;
        }
        Err(decide::nothing(model.func))
    }

    /// The cuts whose slowest stage is the fastest, and the seconds of each stage.
    fn balance(&self, model: &Model<'_>, d: &Decision) -> (Vec<usize>, Vec<f64>) {
        let levels = self.levels;
        let mut own = vec![0.0; levels.cuts.len() + 1];
        let level = |node: usize| match model.subjects[node] {
            Subject::Argument(v) | Subject::Shared(v) => levels.values[v.index()],
            Subject::Op(op) => levels.ops[op.index()],
            Subject::Output(i) => levels.values[model.func.graph.outputs()[i].index()],
        };
        for node in 0..model.subjects.len() {
            own[level(node)] += model.choices[node].seconds[d.labels[node]];
        }
        for e in &model.problem.edges {
            own[level(e.b)] += model.problem.edge_cost(e, d.labels[e.a], d.labels[e.b]);
        }
        // What crosses a cut goes on to the next stage, and its gradient comes back.
        let ways = if levels.training { 2.0 } else { 1.0 };
        let sent: Vec<f64> = levels
            .cuts
            .iter()
            .map(|(_, v)| {
                let share = d.lying.layouts[v.index()].as_ref().map_or(1.0, |l| layout::share(l, &model.shape));
                let bytes = model.transfers(*v).map_or(0.0, |t| t.bytes * share);
                ways * (bytes / self.bandwidth + self.latency * self.microbatches as f64)
            })
            .collect();
        let mut sums = vec![0.0];
        own.iter().for_each(|x| sums.push(sums[sums.len() - 1] + x));
        let n = own.len();
        // A stage of the levels from..to sends to the next one.
        let stage = |from: usize, to: usize| sums[to] - sums[from] + if to < n { sent[to - 1] } else { 0.0 };
        let mut best = vec![vec![(f64::INFINITY, 0); n + 1]; self.stages + 1];
        best[0][0] = (0.0, 0);
        for k in 1..=self.stages {
            for to in k..=n {
                for from in k - 1..to {
                    let slowest = best[k - 1][from].0.max(stage(from, to));
                    if slowest < best[k][to].0 {
                        best[k][to] = (slowest, from);
                    }
                }
            }
        }
        let (mut last, mut seconds, mut to) = (Vec::new(), Vec::new(), n);
        for k in (1..=self.stages).rev() {
            let from = best[k][to].1;
            seconds.push(stage(from, to));
            if from > 0 {
                last.push(from - 1);
            }
            to = from;
        }
        last.reverse();
        seconds.reverse();
        (last, seconds)
    }

    /// Bytes of a device of the stage that takes most.
    fn memory(&self, model: &Model<'_>, d: &Decision, last: &[usize]) -> f64 {
        let g = &model.func.graph;
        let stage = |v: ValueId| last.partition_point(|c| *c < self.levels.values[v.index()]);
        let first_backward = self.levels.forward.len();
        (0..self.stages)
            .map(|s| {
                let m = self.microbatches;
                let held = (self.stages - s).min(m) as f64 / m as f64;
                let share = |v: ValueId, span: Option<(usize, usize)>| match (g.def(v), span) {
                    _ if stage(v) != s => 0.0,
                    (ValueDef::Result(..), Some((from, to))) if from < first_backward && to >= first_backward => held,
                    (ValueDef::Result(..), Some(_)) => 1.0 / m as f64,
                    _ => 1.0,
                };
                model.peak_of(&d.lying, &share)
            })
            .fold(0.0, f64::max)
    }
}
