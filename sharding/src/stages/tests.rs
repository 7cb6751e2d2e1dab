//! Pipeline stages against brute force over cuts, layouts and alternatives.

use of_diag::Location;
use of_ir::{DType, Rewriter, Tensor, Type, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Mul, Tanh};
use of_ops::movement::Transpose;
use of_ops::sample::Rng;
use of_ops::structural::{Alternatives, Constant, OptimizationBarrier, Return};

use super::*;
use crate::assignment::Assignment;
use crate::layout;
use crate::search::Usage;

/// A chain of ops on an 8 by 8 matrix, with constant weights. With `training` it has four rows, and gradients follow.
/// They read the results of two elementwise ops in a row, which may both be recomputed.
fn chain(rng: &mut Rng, ops: i64, training: bool) -> Func {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let mut v = rw.add_arg(entry, Type::fixed(DType::F32, &[if training { 4 } else { 8 }, 8]), None);
    let value = Tensor::from_slice(&[8, 8], &[0.5f32; 64]).unwrap();
    let mut made = Vec::new();
    for _ in 0..ops {
        let (kind, x) = (if training { rng.int(1, 2) } else { rng.int(0, 3) }, v);
        let w = rw.create_one(Constant { value: value.clone() }, &[]).unwrap();
        v = match kind {
            0 | 1 => rw.create_one(MatMul {}, &[x, w]),
            2 => rw.create_one(Tanh {}, &[x]),
            _ => rw.create_one(Transpose { perm: None }, &[x]),
        }
        .unwrap();
        let kept = v;
        if training && kind == 2 {
            v = rw.create_one(Tanh {}, &[v]).unwrap();
        }
        made.push((kind, x, w, [kept, v]));
    }
    rw.set_location(Location::derived("differentiate", [&Location::Unknown]));
    for (kind, x, w, kept) in made.into_iter().rev().filter(|_| training) {
        v = match kind {
            0 | 1 => rw.create_one(MatMul {}, &[v, w]).unwrap(),
            2 => {
                let mut again = rw.create_one(OptimizationBarrier {}, &[x]).unwrap();
                let mut read = Vec::new();
                for y in kept {
                    again = rw.create_one(Tanh {}, &[again]).unwrap();
                    read.push(rw.create_one(Alternatives {}, &[y, again]).unwrap());
                }
                read.into_iter().rev().fold(v, |g, y| rw.create_one(Mul {}, &[g, y]).unwrap())
            }
            _ => unreachable!("no gradients of transposes"),
        };
    }
    rw.create(Return {}, &[v]).unwrap();
    Func::numbered(graph)
}

/// The least time of the slower of two stages, over all cuts, layouts and alternatives that fit, where that is less
/// than `best`.
struct Brute<'a> {
    cut: &'a CutSearch<'a>,
    model: &'a Model<'a>,
    layer: Vec<usize>,
    /// For each node its edges to earlier ones.
    edges: Vec<Vec<usize>>,
    /// For each node a lower bound of its cost and that of later nodes, by layer.
    rest: Vec<Vec<f64>>,
    /// For each cut and stage the memory usage of labels, and lower bounds of the usage from each node on.
    room: Vec<(Usage, Vec<f64>)>,
    labels: Vec<usize>,
    best: f64,
    /// Labels that may still be tried.
    left: usize,
}

impl Brute<'_> {
    fn run(cut: &CutSearch<'_>, model: &Model<'_>, cutoff: f64) -> Option<f64> {
        let nodes = model.node_kinds.len();
        let mut edges = vec![Vec::new(); nodes];
        model.problem.edges.iter().enumerate().for_each(|(k, e)| edges[e.a.max(e.b)].push(k));
        let layer: Vec<usize> = (0..nodes).map(|node| cut.layer(model, node)).collect();
        let none = vec![0.0; cut.layers.cuts.len() + 1];
        let least = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
        let mut rest = vec![none.clone(); nodes + 1];
        for node in (0..nodes).rev() {
            rest[node] = rest[node + 1].clone();
            rest[node][layer[node]] += least(&model.choices[node].seconds);
        }
        let room = (0..2 * cut.layers.cuts.len()).map(|i| {
            let device = cut.stage(model, &[i / 2], i % 2);
            let usage = model.memory(model.peak(&Assignment::replicated(model), &device).0, &device);
            let mut rest = vec![model.fixed(&device); nodes + 1];
            (0..nodes).rev().for_each(|node| rest[node] = rest[node + 1] + least(&usage.nodes[node]));
            (usage, rest)
        });
        let room: Vec<_> = room.collect();
        let (labels, taken) = (vec![0; nodes], vec![0.0; room.len()]);
        let mut b = Brute { cut, model, layer, edges, rest, room, labels, best: cutoff, left: 60_000 };
        b.from(0, &none, &taken);
        (b.left > 0).then_some(b.best)
    }

    fn from(&mut self, node: usize, own: &[f64], taken: &[f64]) {
        let sums: Vec<f64> = own.iter().zip(&self.rest[node]).map(|(x, y)| x + y).collect();
        let at_best = |at: usize, sent: f64| {
            let first = self.cut.together(sums[..=at].iter().sum(), sent);
            first.max(self.cut.together(sums[at + 1..].iter().sum(), sent))
        };
        let memory = self.model.mesh.memory;
        let may_fit = |at: usize| [2 * at, 2 * at + 1].iter().all(|i| taken[*i] + self.room[*i].1[node] <= memory);
        let cuts: Vec<usize> = (0..own.len() - 1).filter(|at| at_best(*at, 0.0) < self.best && may_fit(*at)).collect();
        if cuts.is_empty() {
            return;
        }
        let (model, cut) = (self.model, self.cut);
        if node == self.labels.len() {
            let assignment = Assignment::from_labels(model, &self.labels);
            for at in cuts {
                let share =
                    |v: ValueId| assignment.layouts[v.index()].as_ref().map_or(1.0, |l| layout::share(l, &model.shape));
                let slowest = at_best(at, cut.send_seconds(model, &cut.layers.cuts[at].1, &share));
                let peak = |k: usize| model.peak(&assignment, &cut.stage(model, &[at], k)).1;
                if slowest < self.best && (0..2).all(|k| peak(k) <= memory) {
                    self.best = slowest;
                }
            }
            return;
        }
        for label in 0..model.choices[node].seconds.len() {
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                return;
            }
            self.labels[node] = label;
            let mut own = own.to_vec();
            own[self.layer[node]] += model.choices[node].seconds[label];
            for k in &self.edges[node] {
                let e = &model.problem.edges[*k];
                own[self.layer[e.b]] += model.problem.edge_cost(e, self.labels[e.a], self.labels[e.b]);
            }
            let taken: Vec<f64> = taken.iter().zip(&self.room).map(|(t, r)| t + r.0.nodes[node][label]).collect();
            self.from(node + 1, &own, &taken);
        }
    }
}

/// A mesh on which arithmetic and transfers of small tensors weigh about the same.
fn small(name: &str, rng: &mut Rng) -> MeshSpec {
    scaled(name, 1.0, rng)
}

/// The same, on which all takes so many times as long.
fn scaled(name: &str, times: f64, rng: &mut Rng) -> MeshSpec {
    let mut mesh = MeshSpec::named(name).unwrap();
    mesh.flops.values_mut().for_each(|f| *f = 1e9 / times);
    mesh.bandwidth = 1e9 / times;
    mesh.caches.clear();
    for a in &mut mesh.axes {
        a.bandwidth = rng.float(1e8, 4e9) / times;
        a.latency = rng.float(0.0, 2e-7) * times;
    }
    mesh
}

fn shape(microbatches: usize, overlapped: bool) -> PipelineShape {
    PipelineShape { stages: 2, microbatches, training: false, overlapped }
}

#[test]
fn stage_bounds_are_lower_bounds() {
    let effort = Effort { gap: 0.0, rounds: 60, choices: 1_000_000 };
    let (mut tried, mut exact, mut off) = (0, 0, 0.0);
    for seed in 0..120u64 {
        let mut rng = Rng::new(seed);
        let two = seed % 3 == 0;
        let ops = rng.int(2, if two { 3 } else { 5 });
        let func = chain(&mut rng, ops, false);
        let overlapped = seed % 2 == 1;
        // Where transfers overlap, each is handed over, which takes longer than these ops.
        let times = if overlapped { 1e4 } else { 1.0 };
        let mesh = scaled(if two { "cpu[2x4]" } else { "cpu[4]" }, times, &mut rng);
        let layers = Layers::of(&func);
        let axis = usize::from(two);
        let own = mesh.submesh(axis, 2).unwrap();
        let model = Model::new(&func, &own).unwrap();
        if layers.cuts.is_empty() || model.choices.iter().map(|c| c.seconds.len()).product::<usize>() > 300_000 {
            continue;
        }
        let microbatches = 1 << rng.int(i64::from(overlapped), 2);
        let kinds = Microbatches::of(&func, microbatches).unwrap().kinds(&func.graph);
        let cut = CutSearch::new(&layers, &kinds, shape(microbatches, overlapped), &mesh, axis);
        let (p, ..) = cut.search(&model, &effort, f64::INFINITY, &StageBoundCache::default()).unwrap();
        let fill_factor = (microbatches as f64 + 1.0) / microbatches as f64;
        let slowest = p.seconds.iter().copied().fold(0.0, f64::max) * fill_factor;
        let Some(want) = Brute::run(&cut, &model, p.cost * (1.0 + 1e-6)).map(|x| x * fill_factor) else { continue };
        assert!(p.bound <= want * (1.0 + 1e-9), "seed {seed}: bound {} of {want}", p.bound);
        assert!(p.cost >= want * (1.0 - 1e-9), "seed {seed}: {} and {want}", p.cost);
        tried += 1;
        exact += usize::from(slowest <= want * (1.0 + 1e-9));
        off += (slowest - p.bound) / slowest;
    }
    println!("{tried} chains, {exact} cut as brute force cuts them, gap {:.1} %", 100.0 * off / tried as f64);
    assert!(tried > 40 && exact * 10 > tried * 8, "{tried} {exact}");
}

/// The least step time over all alternatives, cuts and layouts that fit; `None` where that takes too long.
fn best_over_alternatives(func: &Func, mesh: &MeshSpec, microbatches: usize, cutoff: f64) -> Option<f64> {
    let g = &func.graph;
    let alternatives: Vec<OpId> = g.walk().into_iter().filter(|op| g.op(*op).name() == Alternatives::NAME).collect();
    let fill_factor = (microbatches as f64 + 1.0) / microbatches as f64;
    let own = mesh.submesh(0, 2).unwrap();
    let mut best = cutoff / fill_factor;
    for choice in 0..1usize << alternatives.len() {
        let mut one = func.clone();
        let mut taken = vec![0; g.op_slots()];
        alternatives.iter().enumerate().for_each(|(i, op)| taken[op.index()] = choice >> i & 1);
        decide::select_alternatives(&mut Rewriter::new(&mut one.graph, "test"), &taken);
        let parts = Microbatches::of(&one, microbatches).unwrap();
        let model = Model::for_microbatches(&one, &own, &|v| parts.part(&one.graph, v)).unwrap();
        let layers = Layers::of(&one);
        let kinds = parts.kinds(&one.graph);
        best = Brute::run(&CutSearch::new(&layers, &kinds, shape(microbatches, false), mesh, 0), &model, best)?;
    }
    Some(best * fill_factor)
}

/// Cuts, layouts and recomputation under short memory. Brute force finds nothing below the bound, nothing where the
/// search finds nothing, and the solution fits.
#[test]
fn stage_bounds_hold_with_recomputation() {
    let effort = Effort { gap: 0.0, rounds: 60, choices: 5_000 };
    let (mut tried, mut exact, mut again, mut off, mut nothing, mut long, mut listed) = (0, 0, 0, 0.0, 0, 0, 0);
    for seed in 0..150u64 {
        let mut rng = Rng::new(seed);
        let ops = rng.int(1, 4);
        let func = chain(&mut rng, ops, true);
        let mut mesh = small("cpu[4]", &mut rng);
        let microbatches = 1 << rng.int(0, 2);
        let alternatives =
            func.graph.walk().iter().filter(|op| func.graph.op(**op).name() == Alternatives::NAME).count();
        if alternatives == 0 || Layers::of(&func).cuts.is_empty() {
            continue;
        }
        let staged = |func: &mut Func, mesh: &MeshSpec| choose(func, mesh, 2, microbatches, &effort);
        mesh.memory = staged(&mut func.clone(), &mesh).unwrap().pipeline.memory - rng.float(0.0, 32.0);
        let mut chosen = func.clone();
        let found = staged(&mut chosen, &mesh).map(|s| s.pipeline);
        let cutoff = found.as_ref().map_or(f64::INFINITY, |p| p.cost * (1.0 + 1e-6));
        let Some(want) = best_over_alternatives(&func, &mesh, microbatches, cutoff) else {
            long += 1;
            continue;
        };
        let Ok(p) = found else {
            assert!(want.is_infinite(), "seed {seed}: nothing was found, {want} is possible");
            nothing += 1;
            continue;
        };
        assert!(p.memory <= mesh.memory, "seed {seed}: {} of {}", p.memory, mesh.memory);
        assert!(p.bound <= want * (1.0 + 1e-9), "seed {seed}: bound {} of {want}", p.bound);
        assert!(p.cost >= want * (1.0 - 1e-9), "seed {seed}: {} and {want}", p.cost);
        // The list of all pipelines has it, with the choice chosen for it.
        if seed % 2 == 0 && microbatches > 1 {
            let all = pipelines(&func, &mesh, &[microbatches], &effort).unwrap();
            let same = all.feasible.iter().find(|q| (q.stages, q.microbatches) == (2, microbatches));
            assert_eq!(same.map(|q| (q.cost, q.memory)), Some((p.cost, p.memory)), "seed {seed}");
            listed += 1;
        }
        tried += 1;
        again +=
            usize::from(chosen.graph.walk().iter().any(|op| chosen.graph.op(*op).name() == OptimizationBarrier::NAME));
        exact += usize::from(p.cost <= want * (1.0 + 1e-9));
        off += (p.cost - p.bound) / p.cost;
    }
    let gap = 100.0 * off / tried as f64;
    println!("{tried} chains, {again} with values computed again, {exact} as brute force, gap {gap:.1} %");
    println!("nothing fits {nothing} others, {long} take too long");
    assert!(tried > 30 && again > 3 && listed > 1, "{tried} {again} {listed}");
    assert!(exact * 10 > tried * 8, "{exact} of {tried}");
}
