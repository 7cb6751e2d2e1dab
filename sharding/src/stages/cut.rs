//! The search for the cut into a given number of stages: stage bounds, dynamic programming, and joint layout search.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use of_diag::Diagnostic;
use of_ir::{IdSet, OpId, ValueId};
use of_ops::time::schedule::PipelineShape;

use super::Pipeline;
use super::device::StageDevice;
use super::layers::Layers;
use crate::MeshSpec;
use crate::assignment::Assignment;
use crate::decide::{self, Decision, OverMemory};
use crate::layout;
use crate::liveness::Device;
use crate::microbatches::MicrobatchKind;
use crate::model::{Model, NodeKind};
use crate::overlapped_step::exposed;
use crate::search::{Effort, Limit, Matrix, MatrixId, Problem, solve_within};

/// The search for one number of stages and microbatches along one axis.
pub(super) struct CutSearch<'a> {
    pub(super) layers: &'a Layers,
    kinds: &'a [MicrobatchKind],
    axis: usize,
    shape: PipelineShape,
    bandwidth: f64,
    latency: f64,
    /// The part of overlapped transfers that a step takes longer all the same.
    exposed: f64,
}

/// A rank takes so long to hand a transfer to the thread that executes it, and to learn of its end, in seconds.
const HANDOFF: f64 = 20e-6;

/// Cuts whose layouts are searched.
const MAX_CUTS_TRIED: usize = 12;
/// Total nodes of the problems solved for stage bounds: some seconds.
const MAX_NODES_SOLVED: usize = 30_000;
/// Rounds of stage weights, for functions of few nodes.
const REWEIGHT_ROUNDS: usize = 6;
const MAX_REWEIGHTED_NODES: usize = 2000;
/// A problem that is short of memory counts this many times.
const MEMORY_LIMITED_WEIGHT: usize = 10;

/// Lower bounds of stages, by microbatches in flight and layers.
type StageBounds = HashMap<(usize, Range<usize>), f64>;

/// A cut whose layouts were searched.
struct Attempt {
    seconds: Vec<f64>,
    /// Seconds that all stages send and receive in a step.
    sent: f64,
    last: Vec<usize>,
    decision: Decision,
}

impl Attempt {
    fn slowest(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }
}

/// A pipeline, its layouts, and the last layer of each stage but the last.
pub(super) type FoundCut = (Pipeline, Decision, Vec<usize>);

/// Stage bounds, and whether the stage is short of memory, by [`CutSearch::key`]. Functions with few different ops
/// share most stages.
pub(super) type StageBoundCache = RefCell<HashMap<Vec<usize>, (f64, bool)>>;

/// Results for stages, by their number and layers.
#[derive(Default)]
struct KnownStages {
    took: HashMap<(usize, Range<usize>), f64>,
    /// Stages that do not fit. A stage of these layers or more, with as many stages after it, does not fit either.
    too_large: Vec<(usize, Range<usize>)>,
}

impl KnownStages {
    fn seconds(&self, stage: usize, layers: &Range<usize>) -> Option<f64> {
        let holds = |(k, l): &(usize, Range<usize>)| stage <= *k && layers.start <= l.start && l.end <= layers.end;
        if self.too_large.iter().any(holds) {
            return Some(f64::INFINITY);
        }
        self.took.get(&(stage, layers.clone())).copied()
    }
}

impl<'a> CutSearch<'a> {
    pub(super) fn new(
        layers: &'a Layers,
        kinds: &'a [MicrobatchKind],
        shape: PipelineShape,
        mesh: &MeshSpec,
        axis: usize,
    ) -> Self {
        let (link, exposed) = (&mesh.axes[axis], exposed(mesh));
        CutSearch { layers, kinds, axis, shape, bandwidth: link.bandwidth, latency: link.latency, exposed }
    }

    /// Whether transfers between stages may overlap with computation: not where devices of one stage also exchange values in each microbatch.
    /// A rank has one transfer at a time, so these would wait for the other stages. Nor where a library of collectives sends.
    pub(super) fn may_overlap(stage: &MeshSpec, mesh: &MeshSpec, microbatches: usize) -> bool {
        microbatches > 1 && stage.devices() == 1 && mesh.device == "cpu" && exposed(mesh) < 1.0
    }

    /// Seconds of a stage that computes for so long, and sends and receives for so long.
    pub(super) fn together(&self, own: f64, sent: f64) -> f64 {
        if !self.shape.overlapped || sent == 0.0 {
            return own + sent;
        }
        let handoffs = HANDOFF * (self.shape.microbatches * self.directions()) as f64;
        (own + handoffs).max(sent) + self.exposed * sent
    }

    /// How many times a microbatch passes a cut.
    fn directions(&self) -> usize {
        if self.layers.training { 2 } else { 1 }
    }

    /// The fastest cut that fits, if a step takes less than `cutoff` seconds. `bounds` keeps stage bounds between
    /// searches.
    ///
    /// # Errors
    /// When none is found: the reason, and a lower bound, infinite where no cut fits.
    pub(super) fn search(
        &self,
        model: &Model<'_>,
        effort: &Effort,
        cutoff: f64,
        bounds: &StageBoundCache,
    ) -> Result<FoundCut, (Diagnostic, f64)> {
        let fill_factor = self.fill_factor();
        let cutoff = cutoff / fill_factor;
        let mut known = KnownStages::default();
        let mut best: Option<Attempt> = None;
        let mut why = None;
        let mut tried: Vec<Vec<usize>> = Vec::new();
        // With a cutoff, stage bounds first show whether it is feasible.
        let mut runs = if cutoff.is_finite() { self.runs(model, cutoff, effort, bounds) } else { None };
        let (mut labels, mut bound) = (Vec::new(), 0.0);
        if runs.is_none() {
            (labels, bound) = self.solve_all_stages(model, effort)?;
        }
        for round in 0..=MAX_CUTS_TRIED {
            if round == 1 && runs.is_none() {
                let cutoff = best.as_ref().map_or(cutoff, Attempt::slowest);
                runs = self.runs(model, cutoff, effort, bounds);
            }
            // Without stage bounds the first cut that fits is taken.
            if round > 0 && runs.is_none() && best.is_some() {
                break;
            }
            let stage_seconds = runs.is_none().then(|| self.stage_seconds(model, &labels));
            let expected = |stage: usize, layers: Range<usize>| {
                let guess = || match (&runs, &stage_seconds) {
                    (Some(r), _) => self.least(r, stage, &layers),
                    (None, Some(of)) => {
                        let (own, sent) = of(layers.clone());
                        self.together(own, sent)
                    }
                    (None, None) => 0.0,
                };
                known.seconds(stage, &layers).unwrap_or_else(guess)
            };
            let (slowest, last) = self.fastest(&expected);
            // A guess says nothing about feasibility.
            let most = best.as_ref().map_or(if runs.is_some() { cutoff } else { f64::INFINITY }, Attempt::slowest);
            if slowest.is_infinite() || slowest >= most || tried.contains(&last) {
                break;
            }
            tried.push(last.clone());
            match self.search_layouts(model, &last, most, effort) {
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
                    self.exclude(model, &last, e.device, &mut known, (effort, bounds));
                    why = Some(decide::memory_error(model, model.mesh.memory, e.least).note(format!(
                        "stage {} of {} needs this memory, with {} microbatches in flight",
                        e.device + 1,
                        self.shape.stages,
                        self.shape.in_flight(e.device)
                    )));
                }
            }
        }
        let least = |stage: usize, layers: Range<usize>| runs.as_ref().map_or(0.0, |r| self.least(r, stage, &layers));
        bound = self.fastest(&least).0.max(bound);
        let Some(t) = best else {
            return Err((why.unwrap_or_else(|| decide::no_stage_fits(model.func)), fill_factor * bound));
        };
        let slowest = t.slowest();
        // The first microbatch waits for its transfers.
        let first = if self.shape.overlapped { t.sent / 2.0 / self.shape.microbatches as f64 } else { 0.0 };
        let p = Pipeline {
            axis: self.axis,
            stages: self.shape.stages,
            microbatches: self.shape.microbatches,
            overlapped: self.shape.overlapped,
            mesh: model.mesh.clone(),
            last: t.last.iter().map(|c| self.layers.forward[self.layers.cuts[*c].0]).collect(),
            seconds: t.seconds,
            cost: slowest * fill_factor + first,
            bound: bound.min(slowest) * fill_factor,
            memory: t.decision.memory,
        };
        Ok((p, t.decision, t.last))
    }

    /// The time of a step relative to that of its slowest stage alone: stages are idle while the pipeline fills and drains.
    fn fill_factor(&self) -> f64 {
        let (s, m) = (self.shape.stages as f64, self.shape.microbatches as f64);
        (m + s - 1.0) / m
    }

    /// Labels and a lower bound of the slowest stage, where all stages share their memory: each holds at least one microbatch,
    /// and no value after its last reader.
    ///
    /// # Errors
    /// When not even that fits.
    fn solve_all_stages(&self, model: &Model<'_>, effort: &Effort) -> Result<(Vec<usize>, f64), (Diagnostic, f64)> {
        let (s, memory) = (self.shape.stages as f64, model.mesh.memory);
        let device = StageDevice { last_varying: 0, ..self.devices(model, 0..self.layers.cuts.len() + 1, 1) };
        let at = model.peak(&Assignment::replicated(model), &device).0;
        let all = Limit { usage: model.memory(at, &device), capacity: memory * s - model.fixed(&device) };
        let together = solve_within(&model.problem, &[all], effort)
            .map_err(|e| (decide::memory_error(model, memory, e.least / s), self.fill_factor() * e.bound / s))?;
        Ok((together.solution.labels, together.solution.bound / s))
    }

    /// Records which stages of a cut do not fit: those whose lower bound says so, or the stage `large`.
    fn exclude(
        &self,
        model: &Model<'_>,
        last: &[usize],
        large: usize,
        known: &mut KnownStages,
        (effort, bounds): (&Effort, &StageBoundCache),
    ) {
        let layer: Vec<usize> = (0..model.node_kinds.len()).map(|node| self.layer(model, node)).collect();
        let certain = |(k, l): &(usize, Range<usize>)| {
            self.stage_bound(model, &layer, l.clone(), self.shape.in_flight(*k), effort, bounds).0.is_infinite()
        };
        // If a stage certainly does not fit, none with more layers does.
        let certain: Vec<(usize, Range<usize>)> =
            (0..self.shape.stages).map(|k| (k, self.run(last, k))).filter(certain).collect();
        if certain.is_empty() {
            known.took.insert((large, self.run(last, large)), f64::INFINITY);
        }
        known.too_large.extend(certain);
    }

    /// Lower bound of a stage; infinite where it is above the cutoff.
    fn least(&self, runs: &StageBounds, stage: usize, layers: &Range<usize>) -> f64 {
        runs.get(&(self.shape.in_flight(stage), layers.clone())).copied().unwrap_or(f64::INFINITY)
    }

    /// The layers of a stage.
    fn run(&self, last: &[usize], stage: usize) -> Range<usize> {
        let from = if stage == 0 { 0 } else { last[stage - 1] + 1 };
        from..last.get(stage).map_or(self.layers.cuts.len() + 1, |c| c + 1)
    }

    /// The devices that run these layers with this number of microbatches in flight.
    fn devices<'m>(&'m self, model: &'m Model<'_>, layer_range: Range<usize>, in_flight: usize) -> StageDevice<'m> {
        let (graph, layers, kinds, shape) = (&model.func.graph, self.layers, self.kinds, self.shape);
        let mut s = StageDevice { graph, layers, kinds, layer_range, last_varying: 0, shape, in_flight };
        let varies = |op: OpId| {
            let mut results = graph.op(op).results.iter();
            s.runs(op)
                && results.any(|v| matches!(kinds[v.index()], MicrobatchKind::Split | MicrobatchKind::Accumulated))
        };
        let order = graph.region_ops(graph.entry()).enumerate();
        s.last_varying = order.filter(|(_, op)| varies(*op)).map(|(at, _)| at).last().unwrap_or(0);
        s
    }

    /// The devices of a stage.
    pub(super) fn stage<'m>(&'m self, model: &'m Model<'_>, last: &[usize], stage: usize) -> StageDevice<'m> {
        self.devices(model, self.run(last, stage), self.shape.in_flight(stage))
    }

    /// Searches the layouts of a cut. It minimizes the sum of the stage times, then raises the weights of slow stages
    /// to reduce the slowest, while that may take less than `most`.
    fn search_layouts(
        &self,
        model: &Model<'_>,
        last: &[usize],
        most: f64,
        effort: &Effort,
    ) -> Result<Attempt, OverMemory> {
        let stages: Vec<StageDevice<'_>> = (0..self.shape.stages).map(|k| self.stage(model, last, k)).collect();
        let devices: Vec<&dyn Device> = stages.iter().map(|s| s as &dyn Device).collect();
        let mut weights = vec![1.0; self.shape.stages];
        let mut best: Option<Attempt> = None;
        for _ in 0..if model.node_kinds.len() <= MAX_REWEIGHTED_NODES { REWEIGHT_ROUNDS } else { 1 } {
            let problem = self.weighted(model, last, &weights);
            let decision = match decide::decide_within(model, &problem, &devices, model.mesh.memory, effort) {
                Ok(d) => d,
                Err(e) => return best.ok_or(e),
            };
            // Lower bound of the slowest stage of this cut.
            let least = decision.bound / weights.iter().sum::<f64>();
            let stage = self.stage_seconds(model, &decision.labels);
            let parts: Vec<(f64, f64)> = (0..self.shape.stages).map(|k| stage(self.run(last, k))).collect();
            let seconds = parts.iter().map(|(own, sent)| self.together(*own, *sent)).collect();
            let t = Attempt { seconds, sent: parts.iter().map(|(_, sent)| sent).sum(), last: last.to_vec(), decision };
            let slowest = t.slowest();
            weights.iter_mut().zip(&t.seconds).for_each(|(w, s)| *w *= (s / slowest).max(0.1));
            if best.as_ref().is_none_or(|b| slowest < b.slowest()) {
                best = Some(t);
            }
            if best.as_ref().is_some_and(|b| least >= b.slowest().min(most) * (1.0 - effort.gap)) {
                break;
            }
        }
        best.ok_or(OverMemory { device: 0, least: f64::INFINITY, bound: 0.0 })
    }

    /// The problem with a weight on the time of each stage.
    fn weighted(&self, model: &Model<'_>, last: &[usize], weights: &[f64]) -> Problem {
        let mut p = model.problem.clone();
        if weights.iter().all(|w| *w == 1.0) {
            return p;
        }
        let stage: Vec<usize> =
            (0..p.nodes.len()).map(|node| last.partition_point(|c| *c < self.layer(model, node))).collect();
        for (n, k) in p.nodes.iter_mut().zip(&stage) {
            let costs = p.interner.costs(*n).iter().map(|c| c * weights[*k]).collect();
            *n = p.interner.add_costs(costs);
        }
        let mut known: HashMap<(MatrixId, usize), MatrixId> = HashMap::new();
        for e in &mut p.edges {
            let k = stage[e.b];
            e.matrix = *known.entry((e.matrix, k)).or_insert_with(|| {
                let Matrix { rows, cols, .. } = *p.interner.matrix(e.matrix);
                let data = p.interner.matrix(e.matrix).data.iter().map(|x| x * weights[k]).collect();
                p.interner.add_matrix(Matrix { rows, cols, data })
            });
        }
        p
    }

    /// The layer of a node of the model.
    pub(super) fn layer(&self, model: &Model<'_>, node: usize) -> usize {
        match model.node_kinds[node] {
            NodeKind::Argument(v) | NodeKind::Shared(v) => self.layers.values[v.index()],
            NodeKind::Op(op) => self.layers.ops[op.index()],
            NodeKind::Output(i) => self.layers.values[model.func.graph.outputs()[i].index()],
        }
    }

    /// Seconds to send the values at a cut point to the next stage, and their gradients back, where a device has this share
    /// of each. Both stages take part in it for so long.
    pub(super) fn send_seconds(&self, model: &Model<'_>, values: &[ValueId], share: &dyn Fn(ValueId) -> f64) -> f64 {
        let bytes = |v: &ValueId| model.transfers(*v).map_or(0.0, |t| t.bytes * share(*v));
        let one = |v: &ValueId| bytes(v) / self.bandwidth + self.latency * self.shape.microbatches as f64;
        self.directions() as f64 * values.iter().map(one).sum::<f64>()
    }

    /// Lower bounds of stages for all ranges of layers, each within the memory of its devices. `None` where there are
    /// too many. Stages above `cutoff` are skipped.
    fn runs(&self, model: &Model<'_>, cutoff: f64, effort: &Effort, bounds: &StageBoundCache) -> Option<StageBounds> {
        let n = self.layers.cuts.len() + 1;
        let mut left = MAX_NODES_SOLVED / model.node_kinds.len().max(1);
        let layer: Vec<usize> = (0..model.node_kinds.len()).map(|node| self.layer(model, node)).collect();
        let smallest = 1.0 / model.mesh.devices() as f64;
        let mut out = StageBounds::new();
        for from in 0..n {
            for to in from + 1..=n {
                let crossing = |layer: Option<usize>| layer.and_then(|layer| self.layers.cuts.get(layer));
                let both = [crossing(from.checked_sub(1)), crossing(to.checked_sub(1).filter(|_| to < n))];
                let both = both.into_iter().flatten();
                let sent = both.map(|(_, sent)| self.send_seconds(model, sent, &|_| smallest)).sum();
                // If the largest number in flight fits, smaller ones do too.
                let mut free = None;
                let mut least = f64::INFINITY;
                for in_flight in (1..=self.shape.in_flight(0)).rev() {
                    let own = match free {
                        Some(own) => own,
                        None => {
                            let before = bounds.borrow().len();
                            let (own, limited) = self.stage_bound(model, &layer, from..to, in_flight, effort, bounds);
                            if bounds.borrow().len() > before {
                                left = left.checked_sub(if limited { MEMORY_LIMITED_WEIGHT } else { 1 })?;
                            }
                            free = Some(own).filter(|_| !limited);
                            own
                        }
                    };
                    out.insert((in_flight, from..to), self.together(own, sent));
                    least = least.min(own);
                }
                // More layers take no less, except for sends.
                if least > cutoff * 1.5 {
                    break;
                }
            }
        }
        Some(out)
    }

    /// The lower bound of some layers alone, and whether their devices are short of memory.
    fn stage_bound(
        &self,
        model: &Model<'_>,
        layer: &[usize],
        layers: Range<usize>,
        in_flight: usize,
        effort: &Effort,
        known: &StageBoundCache,
    ) -> (f64, bool) {
        let key = self.key(model, &layers, in_flight);
        if let Some(found) = known.borrow().get(&key) {
            return *found;
        }
        let mut p = model.problem.clone();
        for (node, at) in layer.iter().enumerate() {
            if !layers.contains(at) {
                let free = vec![0.0; model.choices[node].seconds.len()];
                p.nodes[node] = p.interner.add_costs(free);
            }
        }
        let mut nothing: HashMap<(usize, usize), MatrixId> = HashMap::new();
        for e in p.edges.iter_mut().filter(|e| !layers.contains(&layer[e.b])) {
            let Matrix { rows, cols, .. } = *p.interner.matrix(e.matrix);
            let free = || p.interner.add_matrix(Matrix { rows, cols, data: vec![0.0; rows * cols] });
            e.matrix = *nothing.entry((rows, cols)).or_insert_with(free);
        }
        let device = self.devices(model, layers, in_flight);
        let found = match decide::decide_within(model, &p, &[&device], model.mesh.memory, effort) {
            Ok(d) => (d.bound, d.price > 0.0),
            Err(e) => (e.bound, true),
        };
        known.borrow_mut().insert(key, found);
        found
    }

    /// Everything that [`CutSearch::stage_bound`] depends on where functions differ in their alternatives: the ops and
    /// their operands, the number of readers, and how long values wait to be sent.
    fn key(&self, model: &Model<'_>, layers: &Range<usize>, in_flight: usize) -> Vec<usize> {
        let g = &model.func.graph;
        let device = self.devices(model, layers.clone(), in_flight);
        let value = |v: ValueId| [v.index(), g.uses(v).len(), self.kinds[v.index()] as usize];
        let own = |v: &&ValueId| layers.contains(&self.layers.values[v.index()]);
        let mut key = vec![in_flight, usize::from(self.shape.overlapped)];
        g.args().iter().filter(own).for_each(|v| key.extend(value(*v)));
        g.outputs().iter().filter(own).for_each(|v| key.extend(value(*v)));
        // Values that are sent, and the foreign ops that read them, in order with the own ops.
        let mut sent: IdSet<ValueId> = IdSet::default();
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

    /// Dynamic programming: the cut whose slowest stage is fastest, and the time of that stage. `stage` gives the time
    /// of a stage by number and layers.
    fn fastest(&self, stage: &dyn Fn(usize, Range<usize>) -> f64) -> (f64, Vec<usize>) {
        let n = self.layers.cuts.len() + 1;
        let mut best = vec![vec![(f64::INFINITY, 0); n + 1]; self.shape.stages + 1];
        best[0][0] = (0.0, 0);
        for k in 1..=self.shape.stages {
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
        for k in (1..=self.shape.stages).rev() {
            to = best[k][to].1;
            if to > 0 {
                last.push(to - 1);
            }
        }
        last.reverse();
        (best[self.shape.stages][n].0, last)
    }

    /// The times of a stage under these labels, by its layers: that of what it computes, and that of what it sends and receives.
    fn stage_seconds(&self, model: &Model<'_>, labels: &[usize]) -> impl Fn(Range<usize>) -> (f64, f64) + use<> {
        let layers = self.layers;
        let mut own = vec![0.0; layers.cuts.len() + 1];
        let layer = |node: usize| self.layer(model, node);
        for node in 0..model.node_kinds.len() {
            own[layer(node)] += model.choices[node].seconds[labels[node]];
        }
        for e in &model.problem.edges {
            own[layer(e.b)] += model.problem.edge_cost(e, labels[e.a], labels[e.b]);
        }
        let assignment = Assignment::from_labels(model, labels);
        let share = |v: ValueId| assignment.layouts[v.index()].as_ref().map_or(1.0, |l| layout::share(l, &model.shape));
        let mut sent: Vec<f64> = layers.cuts.iter().map(|(_, v)| self.send_seconds(model, v, &share)).collect();
        sent.push(0.0);
        let mut sums = vec![0.0];
        own.iter().for_each(|x| sums.push(sums[sums.len() - 1] + x));
        move |layers| {
            let received = layers.start.checked_sub(1).map_or(0.0, |before| sent[before]);
            (sums[layers.end] - sums[layers.start], sent[layers.end - 1] + received)
        }
    }
}
