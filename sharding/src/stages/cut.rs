//! The search for the cuts into a given number of stages.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use of_diag::Diagnostic;
use of_ir::{OpId, ValueId};

use super::Pipeline;
use super::device::Stage;
use super::levels::Levels;
use crate::MeshSpec;
use crate::decide::{self, Decision, TooMuch};
use crate::layout;
use crate::memory::{Device, Lying};
use crate::microbatches::Spread;
use crate::model::{Model, Subject};
use crate::search::{Effort, Limit, Matrix, Problem, Table, solve_within};

/// One choice of stages and microbatches.
pub(super) struct Cut<'a> {
    pub(super) levels: &'a Levels,
    spread: &'a [Spread],
    axis: usize,
    stages: usize,
    microbatches: usize,
    bandwidth: f64,
    latency: f64,
}

/// Cuts that are tried.
const TRIES: usize = 12;
/// Nodes of all problems that are solved for a bound: some seconds.
const MOST_SOLVED: usize = 30_000;
/// Weights that are tried for what stages take, in a function of few nodes.
const WEIGHTS: usize = 6;
const FEW: usize = 2000;
/// What is searched where memory is short counts so many times.
const LIMITED: usize = 10;

/// The least that stages of some levels take where so many microbatches are in flight.
type Runs = HashMap<(usize, Range<usize>), f64>;

/// Stages that were searched together.
struct Tried {
    seconds: Vec<f64>,
    last: Vec<usize>,
    decision: Decision,
}

impl Tried {
    fn slowest(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }
}

/// A cut with its layouts and the levels before each next stage.
pub(super) type Found = (Pipeline, Decision, Vec<usize>);

/// What stages take at least, each searched without the others, and whether their devices are short of memory: by what they
/// run. Functions that differ in few ops have most stages in common.
pub(super) type Alone = RefCell<HashMap<Vec<usize>, (f64, bool)>>;

/// What was found out about stages, by their position and their levels.
#[derive(Default)]
struct Known {
    took: HashMap<(usize, Range<usize>), f64>,
    /// Those that do not fit: no stage that has these levels and as many stages behind it does.
    too_large: Vec<(usize, Range<usize>)>,
}

impl Known {
    fn seconds(&self, stage: usize, levels: &Range<usize>) -> Option<f64> {
        let holds = |(k, l): &(usize, Range<usize>)| stage <= *k && levels.start <= l.start && l.end <= levels.end;
        if self.too_large.iter().any(holds) {
            return Some(f64::INFINITY);
        }
        self.took.get(&(stage, levels.clone())).copied()
    }
}

impl<'a> Cut<'a> {
    pub(super) fn new(
        levels: &'a Levels,
        spread: &'a [Spread],
        (stages, microbatches): (usize, usize),
        mesh: &MeshSpec,
        axis: usize,
    ) -> Self {
        let link = &mesh.axes[axis];
        Cut { levels, spread, axis, stages, microbatches, bandwidth: link.bandwidth, latency: link.latency }
    }

    /// The fastest that fits, if a step takes less than `enough` seconds; `alone` remembers stages between searches.
    ///
    /// # Errors
    /// When none is found: the reason, and what none takes less than, which is infinite where it is certain that there is
    /// none.
    pub(super) fn search(
        &self,
        model: &Model<'_>,
        effort: &Effort,
        enough: f64,
        alone: &Alone,
    ) -> Result<Found, (Diagnostic, f64)> {
        let (s, m) = (self.stages as f64, self.microbatches as f64);
        let turns = (m + s - 1.0) / m;
        let enough = enough / turns;
        let memory = model.mesh.memory;
        let level: Vec<usize> = (0..model.subjects.len()).map(|node| self.level(model, node)).collect();
        let mut known = Known::default();
        let mut best: Option<Tried> = None;
        let mut why = None;
        let mut tried: Vec<Vec<usize>> = Vec::new();
        // Where it has to be faster than something, bounds of stages say first whether it can be.
        let mut runs = if enough.is_finite() { self.runs(model, enough, effort, alone) } else { None };
        let (mut labels, mut bound) = (Vec::new(), 0.0);
        if runs.is_none() {
            // All stages together: each holds one microbatch at least, and none what is read no more.
            let device = Stage { turn: 0, ..self.devices(model, 0..self.levels.cuts.len() + 1, 1) };
            let at = model.peak(&Lying::everywhere(model), &device).0;
            let all = Limit { usage: model.memory(at, &device), most: memory * s - model.fixed(&device) };
            let together = solve_within(&model.problem, &[all], effort)
                .map_err(|e| (decide::too_large(model, memory, e.least / s), turns * e.bound / s))?;
            (labels, bound) = (together.solution.labels, together.solution.bound / s);
        }
        for round in 0..=TRIES {
            if round == 1 && runs.is_none() {
                let enough = best.as_ref().map_or(enough, Tried::slowest);
                runs = self.runs(model, enough, effort, alone);
            }
            // Where no bound says what others promise, the first that fits is taken.
            if round > 0 && runs.is_none() && best.is_some() {
                break;
            }
            let of_labels = runs.is_none().then(|| self.of_labels(model, &labels));
            let expected = |stage: usize, levels: Range<usize>| {
                let guess = || match (&runs, &of_labels) {
                    (Some(r), _) => self.least(r, stage, &levels),
                    (None, Some(of)) => of(levels.clone()),
                    (None, None) => 0.0,
                };
                known.seconds(stage, &levels).unwrap_or_else(guess)
            };
            let (slowest, last) = self.fastest(&expected);
            // A guess says nothing of what is possible.
            let most = best.as_ref().map_or(if runs.is_some() { enough } else { f64::INFINITY }, Tried::slowest);
            if slowest.is_infinite() || slowest >= most || tried.contains(&last) {
                break;
            }
            tried.push(last.clone());
            match self.within(model, &last, most, effort) {
                Ok(t) => {
                    for (k, seconds) in t.seconds.iter().enumerate() {
                        known.took.insert((k, self.run(&last, k)), *seconds);
                    }
                    labels.clone_from(&t.decision.labels);
                    if best.as_ref().is_none_or(|b| t.slowest() < b.slowest()) {
                        best = Some(t);
                    }
                }
                Err(e) => {
                    // Where it is certain that a stage does not fit, none of more layers does.
                    let stages = (0..self.stages).map(|k| (k, self.run(&last, k)));
                    let large = |(k, l): &(usize, Range<usize>)| {
                        self.alone(model, &level, l.clone(), self.in_flight(*k), effort, alone).0.is_infinite()
                    };
                    let certain: Vec<(usize, Range<usize>)> = stages.filter(large).collect();
                    if certain.is_empty() {
                        known.took.insert((e.device, self.run(&last, e.device)), f64::INFINITY);
                    }
                    known.too_large.extend(certain);
                    why = Some(decide::too_large(model, memory, e.least).note(format!(
                        "stage {} of {} needs them, with what it keeps of {} microbatches",
                        e.device + 1,
                        self.stages,
                        self.in_flight(e.device)
                    )));
                }
            }
        }
        let least = |stage: usize, levels: Range<usize>| runs.as_ref().map_or(0.0, |r| self.least(r, stage, &levels));
        bound = self.fastest(&least).0.max(bound);
        let Some(t) = best else {
            return Err((why.unwrap_or_else(|| decide::nothing(model.func)), turns * bound));
        };
        let slowest = t.slowest();
        let p = Pipeline {
            axis: self.axis,
            stages: self.stages,
            microbatches: self.microbatches,
            mesh: model.mesh.clone(),
            last: t.last.iter().map(|c| self.levels.forward[self.levels.cuts[*c].0]).collect(),
            seconds: t.seconds,
            cost: slowest * turns,
            bound: bound.min(slowest) * turns,
            memory: t.decision.memory,
        };
        Ok((p, t.decision, t.last))
    }

    /// What a stage takes at least; those that are not known take too long.
    fn least(&self, runs: &Runs, stage: usize, levels: &Range<usize>) -> f64 {
        runs.get(&(self.in_flight(stage), levels.clone())).copied().unwrap_or(f64::INFINITY)
    }

    /// Microbatches of which a stage keeps what their backward ops need.
    fn in_flight(&self, stage: usize) -> usize {
        (self.stages - stage).min(self.microbatches)
    }

    /// The levels of a stage.
    fn run(&self, last: &[usize], stage: usize) -> Range<usize> {
        let from = if stage == 0 { 0 } else { last[stage - 1] + 1 };
        from..last.get(stage).map_or(self.levels.cuts.len() + 1, |c| c + 1)
    }

    /// The devices that run these levels with so many microbatches in flight.
    fn devices<'m>(&'m self, model: &'m Model<'_>, own: Range<usize>, in_flight: usize) -> Stage<'m> {
        let (graph, levels, spread, microbatches) = (&model.func.graph, self.levels, self.spread, self.microbatches);
        let mut s = Stage { graph, levels, spread, own, turn: 0, microbatches, in_flight };
        let varies = |op: OpId| {
            let mut results = graph.op(op).results.iter();
            s.runs(op) && results.any(|v| matches!(spread[v.index()], Spread::Cut | Spread::Summed))
        };
        let order = graph.region_ops(graph.entry()).enumerate();
        s.turn = order.filter(|(_, op)| varies(*op)).map(|(at, _)| at).last().unwrap_or(0);
        s
    }

    /// The devices of a stage.
    pub(super) fn stage<'m>(&'m self, model: &'m Model<'_>, last: &[usize], stage: usize) -> Stage<'m> {
        self.devices(model, self.run(last, stage), self.in_flight(stage))
    }

    /// Searches the layouts of stages that are cut so: those that take least together, and from there those whose slowest
    /// stage takes less, as what slow stages take weighs more; as long as it may take less than `most`.
    fn within(&self, model: &Model<'_>, last: &[usize], most: f64, effort: &Effort) -> Result<Tried, TooMuch> {
        let stages: Vec<Stage<'_>> = (0..self.stages).map(|k| self.stage(model, last, k)).collect();
        let devices: Vec<&dyn Device> = stages.iter().map(|s| s as &dyn Device).collect();
        let mut weights = vec![1.0; self.stages];
        let mut best: Option<Tried> = None;
        for _ in 0..if model.subjects.len() <= FEW { WEIGHTS } else { 1 } {
            let problem = self.weighed(model, last, &weights);
            let decision = match decide::decide_within(model, &problem, &devices, model.mesh.memory, effort) {
                Ok(d) => d,
                Err(e) => return best.ok_or(e),
            };
            // No layouts of this cut take less.
            let least = decision.bound / weights.iter().sum::<f64>();
            let stage = self.of_labels(model, &decision.labels);
            let seconds: Vec<f64> = (0..self.stages).map(|k| stage(self.run(last, k))).collect();
            let t = Tried { seconds, last: last.to_vec(), decision };
            let slowest = t.slowest();
            weights.iter_mut().zip(&t.seconds).for_each(|(w, s)| *w *= (s / slowest).max(0.1));
            if best.as_ref().is_none_or(|b| slowest < b.slowest()) {
                best = Some(t);
            }
            if best.as_ref().is_some_and(|b| least >= b.slowest().min(most) * (1.0 - effort.gap)) {
                break;
            }
        }
        best.ok_or(TooMuch { device: 0, least: f64::INFINITY, bound: 0.0 })
    }

    /// The problem in which what stages take has these weights.
    fn weighed(&self, model: &Model<'_>, last: &[usize], weights: &[f64]) -> Problem {
        let mut p = model.problem.clone();
        if weights.iter().all(|w| *w == 1.0) {
            return p;
        }
        let stage: Vec<usize> =
            (0..p.nodes.len()).map(|node| last.partition_point(|c| *c < self.level(model, node))).collect();
        for (n, k) in p.nodes.iter_mut().zip(&stage) {
            let costs = p.tables.costs(*n).iter().map(|c| c * weights[*k]).collect();
            *n = p.tables.add_costs(costs);
        }
        let mut known: HashMap<(Table, usize), Table> = HashMap::new();
        for e in &mut p.edges {
            let k = stage[e.b];
            e.matrix = *known.entry((e.matrix, k)).or_insert_with(|| {
                let Matrix { rows, cols, .. } = *p.tables.matrix(e.matrix);
                let data = p.tables.matrix(e.matrix).data.iter().map(|x| x * weights[k]).collect();
                p.tables.add_matrix(Matrix { rows, cols, data })
            });
        }
        p
    }

    /// The level of a node of the model.
    pub(super) fn level(&self, model: &Model<'_>, node: usize) -> usize {
        match model.subjects[node] {
            Subject::Argument(v) | Subject::Shared(v) => self.levels.values[v.index()],
            Subject::Op(op) => self.levels.ops[op.index()],
            Subject::Output(i) => self.levels.values[model.func.graph.outputs()[i].index()],
        }
    }

    /// Seconds for what crosses a cut to go on to the next stage, and for its gradient to come back, where a device has
    /// this share of it.
    pub(super) fn sent(&self, model: &Model<'_>, v: ValueId, share: f64) -> f64 {
        let ways = if self.levels.training { 2.0 } else { 1.0 };
        let bytes = model.transfers(v).map_or(0.0, |t| t.bytes * share);
        ways * (bytes / self.bandwidth + self.latency * self.microbatches as f64)
    }

    /// What stages of all runs of levels take at least, each alone in the memory of its devices; `None` where that takes too
    /// long to say. Stages that take longer than `enough` are of no interest.
    fn runs(&self, model: &Model<'_>, enough: f64, effort: &Effort, alone: &Alone) -> Option<Runs> {
        let n = self.levels.cuts.len() + 1;
        let mut left = MOST_SOLVED / model.subjects.len().max(1);
        let level: Vec<usize> = (0..model.subjects.len()).map(|node| self.level(model, node)).collect();
        let smallest = 1.0 / model.mesh.devices() as f64;
        let mut out = Runs::new();
        for from in 0..n {
            for to in from + 1..=n {
                let crossing = self.levels.cuts.get(to - 1).filter(|_| to < n);
                let sent = crossing.map_or(0.0, |(_, v)| self.sent(model, *v, smallest));
                // Where most is in flight fits, less does too.
                let mut free = None;
                let mut least = f64::INFINITY;
                for in_flight in (1..=self.in_flight(0)).rev() {
                    let own = match free {
                        Some(own) => own,
                        None => {
                            let before = alone.borrow().len();
                            let (own, limited) = self.alone(model, &level, from..to, in_flight, effort, alone);
                            if alone.borrow().len() > before {
                                left = left.checked_sub(if limited { LIMITED } else { 1 })?;
                            }
                            free = Some(own).filter(|_| !limited);
                            own
                        }
                    };
                    out.insert((in_flight, from..to), own + sent);
                    least = least.min(own);
                }
                // More layers take no less, but for what they send.
                if least > enough * 1.5 {
                    break;
                }
            }
        }
        Some(out)
    }

    /// The search's bound for some levels without the rest, and whether their devices are short of memory.
    fn alone(
        &self,
        model: &Model<'_>,
        level: &[usize],
        levels: Range<usize>,
        in_flight: usize,
        effort: &Effort,
        known: &Alone,
    ) -> (f64, bool) {
        let key = self.key(model, &levels, in_flight);
        if let Some(found) = known.borrow().get(&key) {
            return *found;
        }
        let mut p = model.problem.clone();
        for (node, at) in level.iter().enumerate() {
            if !levels.contains(at) {
                let free = vec![0.0; model.choices[node].seconds.len()];
                p.nodes[node] = p.tables.add_costs(free);
            }
        }
        let mut nothing: HashMap<(usize, usize), Table> = HashMap::new();
        for e in p.edges.iter_mut().filter(|e| !levels.contains(&level[e.b])) {
            let Matrix { rows, cols, .. } = *p.tables.matrix(e.matrix);
            let free = || p.tables.add_matrix(Matrix { rows, cols, data: vec![0.0; rows * cols] });
            e.matrix = *nothing.entry((rows, cols)).or_insert_with(free);
        }
        let device = self.devices(model, levels, in_flight);
        let found = match decide::decide_within(model, &p, &[&device], model.mesh.memory, effort) {
            Ok(d) => (d.bound, d.price > 0.0),
            Err(e) => (e.bound, true),
        };
        known.borrow_mut().insert(key, found);
        found
    }

    /// All that [`Cut::alone`] depends on where functions differ in the ways that were taken: which ops of the arena there
    /// are, what they read, how many read that, and until when others wait for what is made.
    fn key(&self, model: &Model<'_>, levels: &Range<usize>, in_flight: usize) -> Vec<usize> {
        let g = &model.func.graph;
        let device = self.devices(model, levels.clone(), in_flight);
        let value = |v: ValueId| [v.index(), g.uses(v).len(), self.spread[v.index()] as usize];
        let own = |v: &&ValueId| levels.contains(&self.levels.values[v.index()]);
        let mut key = vec![in_flight];
        g.args().iter().filter(own).for_each(|v| key.extend(value(*v)));
        g.outputs().iter().filter(own).for_each(|v| key.extend(value(*v)));
        // What is sent, and to whom; these stand between the own ops after which they read it.
        let mut sent: HashSet<ValueId> = HashSet::new();
        for op in g.region_ops(g.entry()) {
            let data = g.op(op);
            let runs = device.runs(op);
            if runs {
                key.extend([op.index(), usize::from(model.may_be_left_out(op)), data.operands.len()]);
                data.operands.iter().chain(&data.results).for_each(|v| key.extend(value(*v)));
                sent.extend(&data.results);
            } else if data.operands.iter().any(|v| sent.contains(v)) {
                key.extend([usize::MAX, op.index(), usize::from(model.may_be_left_out(op))]);
            }
        }
        key
    }

    /// The cuts whose slowest stage is the fastest, and what that takes, where `stage` says what a stage takes by its position
    /// and its levels.
    fn fastest(&self, stage: &dyn Fn(usize, Range<usize>) -> f64) -> (f64, Vec<usize>) {
        let n = self.levels.cuts.len() + 1;
        let mut best = vec![vec![(f64::INFINITY, 0); n + 1]; self.stages + 1];
        best[0][0] = (0.0, 0);
        for k in 1..=self.stages {
            for to in k..=n {
                for from in k - 1..to {
                    let before = best[k - 1][from].0;
                    if before < best[k][to].0 {
                        let slowest = before.max(stage(k - 1, from..to));
                        if slowest < best[k][to].0 {
                            best[k][to] = (slowest, from);
                        }
                    }
                }
            }
        }
        let (mut last, mut to) = (Vec::new(), n);
        for k in (1..=self.stages).rev() {
            to = best[k][to].1;
            if to > 0 {
                last.push(to - 1);
            }
        }
        last.reverse();
        (best[self.stages][n].0, last)
    }

    /// What a stage of some levels takes with these labels.
    fn of_labels(&self, model: &Model<'_>, labels: &[usize]) -> impl Fn(Range<usize>) -> f64 + use<> {
        let levels = self.levels;
        let mut own = vec![0.0; levels.cuts.len() + 1];
        let level = |node: usize| self.level(model, node);
        for node in 0..model.subjects.len() {
            own[level(node)] += model.choices[node].seconds[labels[node]];
        }
        for e in &model.problem.edges {
            own[level(e.b)] += model.problem.edge_cost(e, labels[e.a], labels[e.b]);
        }
        let lying = Lying::of(model, labels);
        let share = |v: ValueId| lying.layouts[v.index()].as_ref().map_or(1.0, |l| layout::share(l, &model.shape));
        let mut sent: Vec<f64> = levels.cuts.iter().map(|(_, v)| self.sent(model, *v, share(*v))).collect();
        sent.push(0.0);
        let mut sums = vec![0.0];
        own.iter().for_each(|x| sums.push(sums[sums.len() - 1] + x));
        move |levels| sums[levels.end] - sums[levels.start] + sent[levels.end - 1]
    }
}
