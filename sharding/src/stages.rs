//! Pipelines: the layers of a function in stages, each on its own part of the mesh, with a step cut into microbatches.
//!
//! A mesh axis of n devices makes S stages, for any S that divides n; each stage has a mesh of its own, on which layouts are
//! searched as ever. Where M microbatches pass through, a step takes (M + S - 1) / M times what the slowest stage takes for
//! all of them: S - 1 of its turns are spent filling and draining (Huang et al., "GPipe", 2019). Forward and backward turns
//! alternate, so that stage s holds what min(S - s, M) microbatches keep for their backward ops (Narayanan et al.,
//! "PipeDream", 2019).
//!
//! All stages together take no less than the search's bound for the whole function on a mesh of that size, so the slowest
//! takes no less than its S-th part. A stage of given layers takes no less than the search's bound for these alone, whatever
//! lies how beside them; of all cuts, the one whose slowest stage takes least by that measure is a bound too, where there
//! are few enough layers to solve each run of them. The larger one is the bound of each choice, and the least of them that
//! of all.

use std::ops::Range;

use of_diag::{Code, Diagnostic};
use of_ir::{Func, Graph, OpId, ValueDef, ValueId};

use crate::MeshSpec;
use crate::cuts;
use crate::decide::{self, Decision, Written};
use crate::layout;
use crate::memory::Alive;
use crate::model::{Model, Subject};
use crate::search::{Effort, solve};

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
            let Some(own) = mesh.stage(axis, stages) else { continue };
            let model = Model::new(func, &own).map_err(first)?;
            for m in microbatches.iter().copied().filter(|m| *m > 1) {
                if let Ok((found, ..)) = Cut::new(&levels, (stages, m), mesh, axis).search(&model, effort) {
                    out.push(found);
                }
            }
        }
    }
    if out.is_empty() { Err(why.unwrap_or_else(|| decide::nothing(func))) } else { Ok(out) }
}

/// Stages and layouts that were chosen, ready to be written.
pub struct Staged {
    /// What they are.
    pub pipeline: Pipeline,
    /// How everything lies on the mesh of its stage.
    pub written: Written,
    /// The stage of each op, by its position in the arena.
    pub ops: Vec<usize>,
    /// The stage of each value, likewise; of inputs and constants the first that reads them.
    pub values: Vec<usize>,
}

/// The fastest cut into so many stages through which so many microbatches pass, along the axis of `mesh` for which it is.
///
/// # Errors
/// When the layers cannot be cut so, no axis of the mesh can, types say already how something lies, or nothing fits.
pub fn choose(
    func: &Func,
    mesh: &MeshSpec,
    stages: usize,
    microbatches: usize,
    effort: &Effort,
) -> Result<Staged, Diagnostic> {
    let error = |what: String| Diagnostic::error(Code::SBP, func.loc.clone(), what);
    if placed(&func.graph) {
        return Err(error("types say how something lies: a function is cut into stages as a whole".into()));
    }
    let levels = Levels::of(&func.graph);
    if stages > levels.cuts.len() + 1 {
        let what = format!("{stages} stages are asked for, there are {} places to cut at", levels.cuts.len());
        return Err(error(what).note("a cut is where all that follows needs one value alone"));
    }
    let mut best: Option<(Pipeline, Written, Vec<usize>)> = None;
    let mut why = None;
    for axis in 0..if stages > 1 { mesh.axes.len() } else { 1 } {
        let Some(own) = mesh.stage(axis, stages) else { continue };
        let model =
            Model::new(func, &own).map_err(|d| d.0.into_iter().next().unwrap_or_else(|| decide::nothing(func)))?;
        match Cut::new(&levels, (stages, microbatches), mesh, axis).search(&model, effort) {
            Ok((p, d, last)) if best.as_ref().is_none_or(|(b, ..)| p.cost < b.cost) => {
                best = Some((p, decide::prepare(&model, &d), last));
            }
            Ok(_) => {}
            Err(e) => why = Some(e),
        }
    }
    let none = || error(format!("no axis of the mesh {:?} is cut into {stages} stages", mesh.shape()));
    let (pipeline, written, last) = best.ok_or_else(|| why.unwrap_or_else(none))?;
    let stage = |level: &usize| last.partition_point(|c| c < level);
    let (ops, values) = (levels.ops.iter().map(stage).collect(), levels.values.iter().map(stage).collect());
    Ok(Staged { pipeline, written, ops, values })
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
        // What is returned says nothing of where it is made.
        let computes = |op: &OpId| !g.op(*op).def.traits().terminator;
        let behind: Vec<OpId> = order[forward.len()..].iter().copied().filter(computes).collect();
        // A backward op belongs to what it reads of the forward ops and of the parameters, or to where its gradients come from.
        for op in &behind {
            // Constants are everywhere: layers that share one have nothing in common.
            let constant = |v: ValueId| g.def_op(v).is_some_and(|d| g.op(d).def.traits().constant);
            let known = |v: &&ValueId| !constant(**v) && (!source(**v) || first(**v, &ops).is_some());
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
    axis: usize,
    stages: usize,
    microbatches: usize,
    bandwidth: f64,
    latency: f64,
}

/// Times in which the memory of all stages together is lowered until each fits.
const ROUNDS: usize = 6;
/// Nodes of all problems that are solved for a bound: some seconds.
const MOST_SOLVED: usize = 30_000;

impl<'a> Cut<'a> {
    fn new(levels: &'a Levels, (stages, microbatches): (usize, usize), mesh: &MeshSpec, axis: usize) -> Self {
        let link = &mesh.axes[axis];
        Cut { levels, axis, stages, microbatches, bandwidth: link.bandwidth, latency: link.latency }
    }

    /// The fastest that fits, with its layouts and its cuts.
    fn search(&self, model: &Model<'_>, effort: &Effort) -> Result<(Pipeline, Decision, Vec<usize>), Diagnostic> {
        let (s, m) = (self.stages as f64, self.microbatches as f64);
        let turns = (m + s - 1.0) / m;
        let memory = model.mesh.memory;
        // Every stage holds one microbatch at least.
        let mut limit = memory * s;
        let mut bound = None;
        for _ in 0..ROUNDS {
            let d = decide::decide_alive(model, limit, Alive { share: 1.0 / m, whole: false }, effort)?;
            let (last, seconds) = self.balance(model, &d);
            let slowest = seconds.iter().copied().fold(0.0, f64::max);
            let bound =
                *bound.get_or_insert_with(|| turns * self.least(model, slowest, effort).max(d.bound / s).min(slowest));
            let taken = self.memory(model, &d, &last);
            if taken <= memory {
                let cost = slowest * turns;
                let ops = last.iter().map(|c| self.levels.forward[self.levels.cuts[*c].0]).collect();
                let (axis, stages, microbatches) = (self.axis, self.stages, self.microbatches);
                let mesh = model.mesh.clone();
                let p = Pipeline { axis, stages, microbatches, mesh, last: ops, seconds, cost, bound, memory: taken };
                return Ok((p, d, last));
            }
            limit *= 0.98 * memory / taken;
        }
        Err(decide::nothing(model.func))
    }

    /// The level of a node of the model.
    fn level(&self, model: &Model<'_>, node: usize) -> usize {
        match model.subjects[node] {
            Subject::Argument(v) | Subject::Shared(v) => self.levels.values[v.index()],
            Subject::Op(op) => self.levels.ops[op.index()],
            Subject::Output(i) => self.levels.values[model.func.graph.outputs()[i].index()],
        }
    }

    /// Seconds for what crosses a cut to go on to the next stage, and for its gradient to come back, where a device has
    /// this share of it.
    fn sent(&self, model: &Model<'_>, v: ValueId, share: f64) -> f64 {
        let ways = if self.levels.training { 2.0 } else { 1.0 };
        let bytes = model.transfers(v).map_or(0.0, |t| t.bytes * share);
        ways * (bytes / self.bandwidth + self.latency * self.microbatches as f64)
    }

    /// No cut has a slowest stage that takes less, with any layouts; 0 where that takes too long to say. Stages that take
    /// longer than `enough` are of no interest.
    fn least(&self, model: &Model<'_>, enough: f64, effort: &Effort) -> f64 {
        let n = self.levels.cuts.len() + 1;
        let mut left = MOST_SOLVED / model.subjects.len().max(1);
        let level: Vec<usize> = (0..model.subjects.len()).map(|node| self.level(model, node)).collect();
        let smallest = 1.0 / model.mesh.devices() as f64;
        let mut best = vec![f64::INFINITY; n + 1];
        best[0] = 0.0;
        let mut known: Vec<Vec<f64>> = vec![Vec::new(); n];
        for _ in 0..self.stages {
            let mut next = vec![f64::INFINITY; n + 1];
            for from in (0..n).filter(|from| best[*from] < f64::INFINITY) {
                for to in from + 1..=n {
                    if known[from].len() < to - from {
                        if left == 0 {
                            return 0.0;
                        }
                        left -= 1;
                        let crossing = self.levels.cuts.get(to - 1).filter(|_| to < n);
                        let sent = crossing.map_or(0.0, |(_, v)| self.sent(model, *v, smallest));
                        known[from].push(self.alone(model, &level, from..to, effort) + sent);
                    }
                    let own = known[from][to - from - 1];
                    next[to] = next[to].min(best[from].max(own));
                    // More layers take no less, but for what they send.
                    if own > enough * 1.5 && to < n {
                        break;
                    }
                }
            }
            best = next;
        }
        best[n].min(enough)
    }

    /// The search's bound for some levels without the rest.
    fn alone(&self, model: &Model<'_>, level: &[usize], levels: Range<usize>, effort: &Effort) -> f64 {
        let mut p = model.problem.clone();
        for (node, at) in level.iter().enumerate() {
            if !levels.contains(at) {
                let free = vec![0.0; model.choices[node].seconds.len()];
                p.nodes[node] = p.tables.add_costs(free);
            }
        }
        p.edges.retain(|e| levels.contains(&level[e.b]));
        solve(&p, effort).bound
    }

    /// The cuts whose slowest stage is the fastest, and the seconds of each stage.
    fn balance(&self, model: &Model<'_>, d: &Decision) -> (Vec<usize>, Vec<f64>) {
        let levels = self.levels;
        let mut own = vec![0.0; levels.cuts.len() + 1];
        let level = |node: usize| self.level(model, node);
        for node in 0..model.subjects.len() {
            own[level(node)] += model.choices[node].seconds[d.labels[node]];
        }
        for e in &model.problem.edges {
            own[level(e.b)] += model.problem.edge_cost(e, d.labels[e.a], d.labels[e.b]);
        }
        let share = |v: ValueId| d.lying.layouts[v.index()].as_ref().map_or(1.0, |l| layout::share(l, &model.shape));
        let sent: Vec<f64> = levels.cuts.iter().map(|(_, v)| self.sent(model, *v, share(*v))).collect();
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

#[cfg(test)]
mod tests {
    use of_ir::{DType, Rewriter, Tensor, Type};
    use of_ops::contraction::MatMul;
    use of_ops::elementwise::Tanh;
    use of_ops::movement::Transpose;
    use of_ops::sample::Rng;
    use of_ops::structural::{Constant, Return};

    use super::*;

    /// A chain of ops on a matrix of 8 by 8, with known weights.
    fn chain(rng: &mut Rng, ops: i64) -> Func {
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let mut v = rw.add_arg(entry, Type::fixed(DType::F32, &[8, 8]), None);
        let value = Tensor::from_slice(&[8, 8], &[0.5f32; 64]).unwrap();
        for _ in 0..ops {
            let w = rw.create_one(Constant { value: value.clone() }, &[]).unwrap();
            v = match rng.int(0, 3) {
                0 | 1 => rw.create_one(MatMul {}, &[v, w]),
                2 => rw.create_one(Tanh {}, &[v]),
                _ => rw.create_one(Transpose { perm: None }, &[v]),
            }
            .unwrap();
        }
        rw.create(Return {}, &[v]).unwrap();
        Func::numbered(graph)
    }

    /// The least that the slowest stage takes, over all cuts and layouts.
    fn brute(cut: &Cut<'_>, model: &Model<'_>) -> f64 {
        let levels = cut.levels;
        let n = levels.cuts.len() + 1;
        let level: Vec<usize> = (0..model.subjects.len()).map(|node| cut.level(model, node)).collect();
        let sizes: Vec<usize> = model.choices.iter().map(|c| c.seconds.len()).collect();
        let mut best = f64::INFINITY;
        of_ops::shape::for_each_index(&sizes, |labels| {
            let mut own = vec![0.0; n];
            for (node, label) in labels.iter().enumerate() {
                own[level[node]] += model.choices[node].seconds[*label];
            }
            for e in &model.problem.edges {
                own[level[e.b]] += model.problem.edge_cost(e, labels[e.a], labels[e.b]);
            }
            let sent = |at: usize| {
                let (_, v) = levels.cuts[at];
                let (node, result) = model.made_by[v.index()].unwrap();
                let l = &model.choices[node].candidates[labels[node]].results[result];
                cut.sent(model, v, layout::share(l, &model.shape))
            };
            // Two stages: every place to cut at.
            for at in 0..n - 1 {
                let first: f64 = own[..=at].iter().sum::<f64>() + sent(at);
                best = best.min(first.max(own[at + 1..].iter().sum()));
            }
        });
        best
    }

    #[test]
    fn bounds_of_stages_hold() {
        let effort = Effort { gap: 0.0, rounds: 60, choices: usize::MAX };
        let (mut tried, mut exact, mut off) = (0, 0, 0.0);
        for seed in 0..120u64 {
            let mut rng = Rng::new(seed);
            let two = seed % 3 == 0;
            let ops = rng.int(2, if two { 3 } else { 5 });
            let func = chain(&mut rng, ops);
            let mut mesh = MeshSpec::named(if two { "cpu[2x4]" } else { "cpu[4]" }).unwrap();
            mesh.flops.values_mut().for_each(|f| *f = 1e9);
            mesh.bandwidth = 1e9;
            mesh.cache_bandwidth = None;
            for a in &mut mesh.axes {
                a.bandwidth = rng.float(1e8, 4e9);
                a.latency = rng.float(0.0, 2e-7);
            }
            let levels = Levels::of(&func.graph);
            let axis = usize::from(two);
            let own = mesh.stage(axis, 2).unwrap();
            let model = Model::new(&func, &own).unwrap();
            if levels.cuts.is_empty() || model.choices.iter().map(|c| c.seconds.len()).product::<usize>() > 300_000 {
                continue;
            }
            let microbatches = rng.int(1, 4) as usize;
            let cut = Cut::new(&levels, (2, microbatches), &mesh, axis);
            let (p, ..) = cut.search(&model, &effort).unwrap();
            let turns = (microbatches as f64 + 1.0) / microbatches as f64;
            let want = brute(&cut, &model) * turns;
            assert!(p.bound <= want * (1.0 + 1e-9), "seed {seed}: bound {} of {want}", p.bound);
            assert!(p.cost >= want * (1.0 - 1e-9), "seed {seed}: {} and {want}", p.cost);
            tried += 1;
            exact += usize::from(p.cost <= want * (1.0 + 1e-9));
            off += (p.cost - p.bound) / p.cost;
        }
        println!("{tried} chains, {exact} cut as brute force cuts them, gap {:.1} %", 100.0 * off / tried as f64);
        assert!(tried > 40 && exact * 10 > tried * 8, "{tried} {exact}");
    }
}
