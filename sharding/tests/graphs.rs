//! Random graphs of ops: the search against brute force, and execution on simulated devices against the interpreter.

use of_ir::{DType, Func, Graph, Rewriter, Type, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Exp, Mul};
use of_ops::movement::Transpose;
use of_ops::reduction::ReduceSum;
use of_ops::sample::Rng;
use of_ops::structural::{Alternatives, Constant, Return};
use of_ops::{OpSpec, Value, interpret};
use of_sharding::decide::{Decision, decide, prepare, select_alternatives, write};
use of_sharding::overlapped_step::{decide_overlapped, overlapped_seconds};
use of_sharding::search::Effort;
use of_sharding::{MeshSpec, Meshes, Model, alternatives, execute, lower};

/// A function of up to eight ops on matrices of 8 by 8.
fn random(seed: u64) -> Func {
    let mut rng = Rng::new(seed);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let ty = Type::fixed(DType::F32, &[8, 8]);
    let mut values: Vec<ValueId> = (0..rng.int(1, 3)).map(|_| rw.add_arg(entry, ty.clone(), None)).collect();
    for _ in 0..rng.int(1, 8) {
        let (a, b) = (rng.pick(&values), rng.pick(&values));
        let v = match rng.int(0, 5) {
            0 | 1 => rw.create_one(MatMul {}, &[a, b]),
            2 => rw.create_one(Add {}, &[a, b]),
            3 => rw.create_one(Mul {}, &[a, b]),
            4 => rw.create_one(Transpose { perm: None }, &[a]),
            _ => {
                let axes = Constant::ints(&mut rw, &[rng.int(0, 1)]).unwrap();
                let sum = rw.create_one(ReduceSum { keepdims: true }, &[a, axes]).unwrap();
                rw.create_one(Add {}, &[sum, b])
            }
        };
        values.push(v.unwrap());
    }
    let last = values[values.len() - 1];
    let used = rw.create_one(Exp {}, &[last]).unwrap();
    rw.create(Return {}, &[used]).unwrap();
    Func::numbered(graph)
}

/// A mesh on which arithmetic and transfers of small tensors weigh about the same.
fn mesh(shape: &str, seed: u64) -> MeshSpec {
    let mut m = MeshSpec::named(&format!("cpu[{shape}]")).unwrap();
    let mut rng = Rng::new(seed);
    m.flops.values_mut().for_each(|f| *f = 1e9);
    m.bandwidth = 1e9;
    for a in &mut m.axes {
        a.bandwidth = rng.float(1e8, 4e9);
        a.latency = rng.float(0.0, 2e-7);
    }
    m
}

/// Minimal cost by brute force. Shared nodes are minimized last, each on its own. Branches above `enough` are cut off.
fn brute(model: &Model<'_>, enough: f64) -> f64 {
    use of_sharding::model::NodeKind;
    let p = &model.problem;
    let n = p.nodes.len();
    let shared: Vec<bool> = model.node_kinds.iter().map(|s| matches!(s, NodeKind::Shared(_))).collect();
    // Depth first over the others, a partial sum at a time.
    let order: Vec<usize> = (0..n).filter(|i| !shared[*i]).collect();
    struct Search<'a, 'b> {
        model: &'a Model<'b>,
        shared: &'a [bool],
        order: &'a [usize],
        labels: Vec<usize>,
        set: Vec<bool>,
        best: f64,
        /// The least that the nodes from each position on cost.
        rest: Vec<f64>,
    }
    impl Search<'_, '_> {
        fn run(&mut self, k: usize, cost: f64) {
            if cost + self.rest[k] >= self.best {
                return;
            }
            let p = &self.model.problem;
            let Some(node) = self.order.get(k).copied() else {
                let mut total = cost;
                for s in (0..self.shared.len()).filter(|s| self.shared[*s]) {
                    let of = |x: usize| {
                        let edges = p.edges.iter().filter(|e| e.a == s || e.b == s);
                        edges
                            .map(|e| {
                                let (a, b) = if e.a == s { (x, self.labels[e.b]) } else { (self.labels[e.a], x) };
                                p.edge_cost(e, a, b)
                            })
                            .sum::<f64>()
                    };
                    let labels = self.model.choices[s].candidates.len();
                    total += (0..labels).map(of).fold(f64::INFINITY, f64::min);
                }
                self.best = self.best.min(total);
                return;
            };
            for x in 0..self.model.choices[node].candidates.len() {
                self.labels[node] = x;
                self.set[node] = true;
                let mut more = self.model.choices[node].seconds[x];
                for e in p.edges.iter().filter(|e| (e.a == node && self.set[e.b]) || (e.b == node && self.set[e.a])) {
                    more += p.edge_cost(e, self.labels[e.a], self.labels[e.b]);
                }
                self.run(k + 1, cost + more);
            }
            self.set[node] = false;
        }
    }
    let least = |i: &usize| model.choices[*i].seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let rest = (0..=order.len()).map(|k| order[k..].iter().map(least).sum()).collect();
    let mut s =
        Search { model, shared: &shared, order: &order, labels: vec![0; n], set: vec![false; n], best: enough, rest };
    s.run(0, 0.0);
    s.best
}

fn exact() -> Effort {
    Effort { gap: 0.0, rounds: 60, choices: usize::MAX }
}

#[test]
fn search_matches_brute_force() {
    let mut ops = 0;
    for seed in 0..500u64 {
        // On two axes an op has about fifty candidates: brute force handles fewer ops.
        let two = seed % 4 == 0;
        let func = (0..).map(|i| random(seed + 1000 * i)).find(|f| !two || f.graph.op_slots() <= 7).unwrap();
        let mesh = mesh(if two { "2x2" } else { "4" }, seed);
        let model = Model::new(&func, &mesh).unwrap();
        let d: Decision = decide(&model, f64::INFINITY, &exact()).unwrap();
        // Choices that cost more than the one that was found are not of interest.
        let want = brute(&model, d.cost * (1.0 + 1e-6));
        assert!((d.cost - want).abs() <= 1e-9 * want, "seed {seed}: {} and {want}\n{func:?}", d.cost);
        assert!((d.bound - want).abs() <= 1e-9 * want, "seed {seed}: bound {} of {want}", d.bound);
        ops += func.graph.op_slots();
    }
    assert!(ops > 1500);
}

/// A training step of one layer, whose parameter is read as it is or transposed.
fn step(transposed: bool) -> Func {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let ty = Type::fixed(DType::F32, &[8, 8]);
    let (x, v, w) =
        (rw.add_arg(entry, ty.clone(), None), rw.add_arg(entry, ty.clone(), None), rw.add_arg(entry, ty, None));
    let h = rw.create_one(MatMul {}, &[x, v]).unwrap();
    let read = if transposed { rw.create_one(Transpose { perm: None }, &[w]).unwrap() } else { w };
    let y = rw.create_one(MatMul {}, &[h, read]).unwrap();
    let gradient = rw.create_one(MatMul {}, &[x, y]).unwrap();
    let next = rw.create_one(Add {}, &[w, gradient]).unwrap();
    rw.create(Return {}, &[y, next]).unwrap();
    let mut func = Func::numbered(graph);
    func.attrs.set(of_ops::training::CARRIED, of_ir::Attr::Ints(vec![-1, 2]));
    func
}

#[test]
fn the_bound_of_overlapped_steps_holds_for_all_layouts() {
    let (mut gains, mut proven) = (0, 0);
    for seed in 0..6u64 {
        let func = step(seed % 2 == 1);
        let mut mesh = mesh("2", seed);
        // Cores would send themselves.
        mesh.device = "cuda".into();
        let model = Model::new(&func, &mesh).unwrap();
        let d = decide_overlapped(&model, f64::INFINITY, &exact()).unwrap();
        assert!((d.cost - overlapped_seconds(&model, &d.labels)).abs() <= 1e-12);
        // All labels, one after another.
        let counts: Vec<usize> = model.choices.iter().map(|c| c.candidates.len()).collect();
        let (mut labels, mut least) = (vec![0; counts.len()], f64::INFINITY);
        'all: loop {
            least = least.min(overlapped_seconds(&model, &labels));
            for (label, count) in labels.iter_mut().zip(&counts) {
                *label += 1;
                if *label < *count {
                    continue 'all;
                }
                *label = 0;
            }
            break;
        }
        assert!(d.bound <= least * (1.0 + 1e-9), "seed {seed}: bound {} of {least}", d.bound);
        assert!(d.cost >= least * (1.0 - 1e-9), "seed {seed}: {} and {least}", d.cost);
        proven += usize::from(d.cost - d.bound <= 0.01 * d.cost);
        let alone = decide(&model, f64::INFINITY, &exact()).unwrap();
        gains += usize::from(d.cost < overlapped_seconds(&model, &alone.labels) * 0.999);
    }
    assert!(gains > 0, "{gains} steps are faster than with the layouts of blocking transfers");
    assert!(proven > 2, "{proven} bounds are within 1 %");
}

#[test]
fn sharded_functions_match_the_interpreter_on_simulated_devices() {
    let mut sent = 0.0;
    for seed in 0..60u64 {
        let mut func = random(seed);
        let mesh = mesh(["4", "2x2", "3", "2x3"][seed as usize % 4], seed);
        let mut rng = Rng::new(seed);
        let inputs: Vec<Value> = func.graph.args().iter().map(|_| rng.f32s(&[8, 8])).collect();
        let inputs: Vec<Value> = inputs
            .into_iter()
            .map(|v| match v {
                // Small enough that sums of products stay small.
                Value::Tensor(t) => {
                    let x = t.to_f64s().unwrap().iter().map(|x| x * 0.1).collect();
                    of_ir::Tensor::from_elements(DType::F32, vec![8, 8], of_ir::Elements::Float(x)).unwrap().into()
                }
                other => other,
            })
            .collect();
        let want = interpret::run_graph(&func.graph, &inputs).unwrap();
        let written = {
            let model = Model::new(&func, &mesh).unwrap();
            let d = decide(&model, f64::INFINITY, &Effort::default()).unwrap();
            prepare(&model, &d)
        };
        write(&mut func, &written, "mesh").unwrap();
        lower::insert_boxing(&mut func, &Meshes::from(&mesh)).unwrap();
        let got = execute::execute(&func.graph, &mesh.shape(), &inputs)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{func:?}"));
        sent += got.sent;
        for (g, w) in got.outputs.iter().zip(&want) {
            let (Value::Tensor(g), Value::Tensor(w)) = (g, w) else { panic!("seed {seed}") };
            for (x, y) in g.to_f64s().unwrap().iter().zip(w.to_f64s().unwrap()) {
                assert!((x - y).abs() <= 1e-4 * (1.0 + y.abs()), "seed {seed}: {x} and {y}\n{func:?}");
            }
        }
    }
    assert!(sent > 0.0);
}

/// The joint minimum equals the minimum over functions with the alternatives fixed.
#[test]
fn alternatives_and_layouts_are_chosen_jointly() {
    let (mut several, mut chosen, mut proven) = (0, [0, 0], 0);
    let effort = Effort { gap: 0.0, rounds: 60, choices: 100_000 };
    for seed in 0..100u64 {
        let func = with_alternatives(seed);
        let mesh = mesh(if seed % 4 == 0 { "2x2" } else { "4" }, seed);
        let ops: Vec<_> =
            func.graph.walk().into_iter().filter(|op| func.graph.op(*op).name() == Alternatives::NAME).collect();
        let cost = |func: &Func| {
            let model = Model::new(func, &mesh).unwrap();
            decide(&model, f64::INFINITY, &effort).unwrap().cost
        };
        let mut settled = func.clone();
        let s = alternatives::choose(&mut settled, &mesh, f64::INFINITY, &effort).unwrap().unwrap();
        let (got, bound) = (cost(&settled), s.bound);
        let mut want = f64::INFINITY;
        for choice in 0..1usize << ops.len() {
            let mut one = func.clone();
            let mut taken = vec![0; one.graph.op_slots()];
            ops.iter().enumerate().for_each(|(i, op)| taken[op.index()] = choice >> i & 1);
            select_alternatives(&mut Rewriter::new(&mut one.graph, "test"), &taken);
            want = want.min(cost(&one));
        }
        assert!(bound <= want * (1.0 + 1e-9), "seed {seed}: bound {bound} of {want}\n{func:?}");
        assert!((got - want).abs() <= 1e-9 * want, "seed {seed}: {got} and {want}\n{func:?}");
        proven += usize::from(got - bound <= 1e-9 * got);
        s.choices.iter().for_each(|w| chosen[w.operand] += 1);
        several += ops.len();
    }
    assert!(several > 100 && chosen.iter().all(|n| *n > 20) && proven > 50, "{several} {chosen:?} {proven}");
}

/// A random function with some `of.alternatives`, whose operands need not be equal.
fn with_alternatives(seed: u64) -> Func {
    let mut rng = Rng::new(seed);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let ty = Type::fixed(DType::F32, &[8, 8]);
    let mut values: Vec<ValueId> = (0..2).map(|_| rw.add_arg(entry, ty.clone(), None)).collect();
    for _ in 0..rng.int(1, 2) {
        let mut operands = Vec::new();
        for _ in 0..2 {
            let mut v = rng.pick(&values);
            for _ in 0..rng.int(1, 3) {
                let other = rng.pick(&values);
                v = match rng.int(0, 3) {
                    0 | 1 => rw.create_one(MatMul {}, &[v, other]),
                    2 => rw.create_one(Add {}, &[v, other]),
                    _ => rw.create_one(Transpose { perm: None }, &[v]),
                }
                .unwrap();
                if rng.int(0, 2) == 0 {
                    values.push(v);
                }
            }
            operands.push(v);
        }
        values.push(rw.create_one(Alternatives {}, &operands).unwrap());
    }
    let used = rw.create_one(Exp {}, &values[values.len() - 1..]).unwrap();
    rw.create(Return {}, &[used]).unwrap();
    Func::numbered(graph)
}
