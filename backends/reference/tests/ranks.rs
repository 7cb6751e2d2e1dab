//! Ranks as threads of one process against the interpreter: every transfer, and models under known strategies.

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::{CompileOptions, MeshFuncs, Target, compile_meshes, rewrite};
use of_diag::Diagnostic;
use of_frontend::gpt::{Gpt, training};
use of_ir::{DType, Func, Graph, Module, NdSbp, NewOp, PartialKind, Rewriter, Sbp, Tensor, TensorType, Type, ValueId};
use of_ops::boxing::ShardingConstraint;
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Gelu, Mul, Tanh};
use of_ops::movement::{Gather, Reshape, Transpose};
use of_ops::nn::LayerNorm;
use of_ops::reduction::{ReduceMax, Softmax};
use of_ops::sample::Rng;
use of_ops::structural::{Constant, Return};
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_passes::sharding::{InsertBoxing, MeshOptions, Shard, ShardOptions};
use of_plan::{Exec, PlanFile};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{MeshSession, Options, RunError, Session, SessionError};
use of_sharding::search::Effort;
use of_sharding::{Layout, MeshSpec, Meshes, layout, spmd, stages};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans as support;

fn sbp(axes: &[Sbp]) -> Option<NdSbp> {
    Some(NdSbp { mesh: "mesh".into(), axes: axes.iter().copied().collect() })
}

const B: Sbp = Sbp::Broadcast;

fn split(dim: usize) -> Sbp {
    layout::split(dim)
}

/// A tensor type with this layout; any layout if `axes` is empty.
fn tensor_of(dims: &[usize], axes: &[Sbp]) -> Type {
    let sbp = if axes.is_empty() { None } else { sbp(axes) };
    Type::Tensor(TensorType { sbp, ..TensorType::fixed(DType::F32, dims) })
}

/// A function under construction, whose tensors are on a mesh that the module gets later.
struct Builder {
    graph: Graph,
    inputs: Vec<String>,
}

impl Builder {
    fn new() -> Self {
        Builder { graph: Graph::new(), inputs: Vec::new() }
    }

    fn input(&mut self, name: &str, ty: Type) -> ValueId {
        let entry = self.graph.entry();
        self.inputs.push(name.into());
        Rewriter::new(&mut self.graph, "test").add_arg(entry, ty, None)
    }

    fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> Result<ValueId, Diagnostic> {
        let entry = self.graph.entry();
        let mut rw = Rewriter::new(&mut self.graph, "test");
        rw.at_end(entry);
        rw.create_one(op, operands)
    }

    fn finish(mut self, outputs: &[(&str, ValueId)]) -> Result<Module, Diagnostic> {
        let entry = self.graph.entry();
        let values: Vec<ValueId> = outputs.iter().map(|(_, v)| *v).collect();
        let mut rw = Rewriter::new(&mut self.graph, "test");
        rw.at_end(entry);
        rw.create(Return {}, &values)?;
        let outputs = outputs.iter().map(|(n, _)| (*n).to_string()).collect();
        let func = Func { inputs: self.inputs, outputs, ..Func::numbered(self.graph) };
        let mut module = Module::default();
        module.funcs.insert("main".into(), func);
        Ok(module)
    }
}

/// The plan of the ranks of a mesh.
fn plan(module: &Module, mesh: &str) -> Arc<PlanFile> {
    let mut module = module.clone();
    module.meshes.insert("mesh".into(), MeshSpec::named(mesh).unwrap().ir());
    plan_of(module, ShardOptions { mesh: mesh.into(), ..ShardOptions::default() })
}

fn plan_of(mut module: Module, how: ShardOptions) -> Arc<PlanFile> {
    let mesh = how.mesh.clone();
    let mut manager = Manager::default();
    manager.add::<Shard>(how);
    manager.add::<InsertBoxing>(MeshOptions { mesh: mesh.clone() });
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    let meshes = Meshes::of(&module, &MeshSpec::named(&mesh).unwrap()).unwrap();
    let spec = meshes.ranks();
    let whole = module.main().unwrap();
    let rank = |rank: usize| {
        let mut part = Module { meshes: module.meshes.clone(), ..Module::default() };
        let own = spmd::rank_function(whole, &meshes, rank).unwrap_or_else(|d| panic!("{d}"));
        part.funcs.insert("main".into(), own);
        support::after_passes(part)
    };
    let funcs: Vec<Func> = (0..spec.devices()).map(rank).collect();
    let funcs: Vec<_> =
        funcs.iter().map(|f| rewrite::for_isa(f, Isa::host()).unwrap_or_else(|d| panic!("{d}"))).collect();
    let options = CompileOptions::new(Target::new(Isa::host(), &[&Reference]), support::cache());
    let (funcs, ranks) = (funcs.iter().map(|f| &**f).collect(), (0..spec.devices()).collect());
    let mesh = MeshFuncs {
        name: "main".into(),
        shape: spec.shape(),
        module: &module,
        whole,
        funcs,
        ranks,
        fused_bytes: spec.latency_bytes() as u64,
    };
    let compiled = compile_meshes(std::slice::from_ref(&mesh), &options).unwrap_or_else(|d| panic!("{d}"));
    Arc::new(compiled.open().unwrap_or_else(|d| panic!("{d}")))
}

fn session(plan: &Arc<PlanFile>) -> MeshSession {
    MeshSession::new(
        Arc::clone(plan),
        0,
        Options { threads: 1, profile: false, ..Default::default() },
        &[Arc::new(Reference)],
    )
    .unwrap()
}

/// A value of this type: floats from `least` to 1, integers from 0 to 3.
fn random(ty: &Type, least: f64, rng: &mut Rng) -> Value {
    let tensor = ty.as_tensor().unwrap();
    let dims = tensor.fixed_dims().unwrap();
    if !tensor.dtype.is_float() {
        return rng.tensor(tensor.dtype, &dims, 0.0, 4.0).into();
    }
    let data: Vec<f32> = (0..dims.iter().product()).map(|_| rng.float(least, 1.0) as f32).collect();
    Tensor::from_slice(&dims, &data).unwrap().into()
}

/// Runs a module on a mesh and compares with the interpreter, twice; returns the plan.
fn check(what: &str, module: &Module, mesh: &str) -> Arc<PlanFile> {
    let plan = plan(module, mesh);
    compare(&format!("{what} on {mesh}"), module, &plan);
    plan
}

/// Runs a plan of a module and compares with the interpreter, twice.
fn compare(what: &str, module: &Module, plan: &Arc<PlanFile>) {
    let func = module.main().unwrap();
    let mut rng = Rng::new(1);
    // The mean of squares of Adam is not negative.
    let least = |name: &str| if name.ends_with(".h") { 0.0 } else { -1.0 };
    let types = func.input_types();
    let inputs: Vec<Value> =
        types.iter().zip(&func.inputs).map(|(ty, name)| random(ty, least(name), &mut rng)).collect();
    let want = interpret::run_graph(&func.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
    let mut session = session(plan);
    let given: Vec<_> = inputs.iter().map(|v| to_runtime(v).unwrap()).collect();
    for _ in 0..2 {
        let got = session.run(&given).unwrap_or_else(|e| panic!("{what}: {e}"));
        let got: Vec<Value> = got.iter().map(|v| from_runtime(v).unwrap()).collect();
        assert_close(what, &got, &want, Tolerance { absolute: 2e-6, ..Tolerance::of_largest(2e-6) });
    }
}

/// The total number of transfers in the templates.
fn transfers(plan: &PlanFile) -> usize {
    let tasks = plan.plan().programs.iter().flat_map(|p| &p.tasks);
    tasks.filter(|t| matches!(t.exec, Some(Exec::Boxing(_)))).count()
}

#[test]
fn every_pair_of_layouts() {
    for (mesh, shape, dims) in
        [("cpu[2]", vec![2], [3, 5]), ("cpu[4]", vec![4], [6, 5]), ("cpu[2x2]", vec![2, 2], [7, 5])]
    {
        let all: Vec<Layout> = layout::all(2, shape.len(), &[PartialKind::Sum]);
        for from in all.iter().filter(|l| layout::fits(l, &shape, &dims)) {
            let mut b = Builder::new();
            let x = b.input("x", tensor_of(&dims, from));
            let mut outputs = Vec::new();
            for to in all.iter().filter(|l| layout::fits(l, &shape, &dims)) {
                let y = b.op(ShardingConstraint { sharding: sbp(to).unwrap() }, &[x]).unwrap();
                outputs.push((layout::show(to), y));
            }
            let named: Vec<(&str, ValueId)> = outputs.iter().map(|(n, v)| (n.as_str(), *v)).collect();
            let module = b.finish(&named).unwrap();
            check(&layout::show(from), &module, mesh);
        }
    }
}

/// `y = tanh(x w1) w2`, with these weight layouts; constants if requested.
fn mlp(rows: usize, hidden: usize, [x, w1, w2, y]: [&[Sbp]; 4], constants: bool) -> Module {
    let mut b = Builder::new();
    let mut rng = Rng::new(5);
    let input = b.input("x", tensor_of(&[rows, 24], x));
    let mut weight = |b: &mut Builder, name: &str, dims: [usize; 2], axes: &[Sbp]| {
        if !constants {
            return b.input(name, tensor_of(&dims, axes));
        }
        let Value::Tensor(value) = random(&tensor_of(&dims, &[]), -1.0, &mut rng) else { unreachable!() };
        let v = b.op(Constant { value }, &[]).unwrap();
        b.op(ShardingConstraint { sharding: sbp(axes).unwrap() }, &[v]).unwrap()
    };
    let first = weight(&mut b, "w1", [24, hidden], w1);
    let second = weight(&mut b, "w2", [hidden, 40], w2);
    let h = b.op(MatMul {}, &[input, first]).unwrap();
    let a = b.op(Tanh {}, &[h]).unwrap();
    let out = b.op(MatMul {}, &[a, second]).unwrap();
    let out = b.op(ShardingConstraint { sharding: sbp(y).unwrap() }, &[out]).unwrap();
    b.finish(&[("y", out)]).unwrap()
}

#[test]
fn a_network_by_columns_and_rows_by_batch_and_both() {
    for constants in [false, true] {
        // Megatron's split: one all-reduce, at the end. 30 columns on 4 ranks are 8, 8, 7 and 7.
        let tensor = |hidden| mlp(12, hidden, [&[B], &[split(1)], &[split(0)], &[B]], constants);
        for (mesh, hidden) in [("cpu[2]", 32), ("cpu[4]", 32), ("cpu[4]", 30), ("cpu[3]", 32)] {
            check("tensor parallel", &tensor(hidden), mesh);
        }
        // Rows are split: 7 on 2 ranks are 4 and 3.
        let data = |rows| mlp(rows, 32, [&[split(0)], &[B], &[B], &[split(0)]], constants);
        for (mesh, rows) in [("cpu[2]", 12), ("cpu[2]", 7), ("cpu[4]", 9)] {
            check("data parallel", &data(rows), mesh);
        }
        let both = mlp(9, 34, [&[split(0), B], &[B, split(1)], &[B, split(0)], &[split(0), B]], constants);
        check("both", &both, "cpu[2x2]");
    }
}

#[test]
fn ranks_with_equal_shapes_share_a_template() {
    let even = check("even", &mlp(12, 32, [&[B], &[split(1)], &[split(0)], &[B]], false), "cpu[4]");
    assert_eq!(even.plan().programs.len(), 1);
    assert_eq!(transfers(&even), 1);
    // Two kinds of parts: 8 columns, and 7.
    let uneven = check("uneven", &mlp(12, 30, [&[B], &[split(1)], &[split(0)], &[B]], false), "cpu[4]");
    assert_eq!(uneven.plan().programs.len(), 2);
    assert_eq!(uneven.plan().environment.ranks, 4);
    let alone = Session::new(Arc::clone(&even), 0, Options::default(), &[Arc::new(Reference)]);
    assert!(matches!(alone, Err(SessionError::Ranks { ranks: 4 })));
}

#[test]
fn long_sums_take_two_steps() {
    // Elements that the ranks divide, and elements that they do not.
    for (dims, steps) in [([10, 9], 1), ([600, 40], 2), ([201, 100], 2), ([603, 67], 2)] {
        let mut b = Builder::new();
        let x = b.input("x", tensor_of(&dims, &[Sbp::Partial(PartialKind::Sum)]));
        let y = b.op(ShardingConstraint { sharding: sbp(&[B]).unwrap() }, &[x]).unwrap();
        let module = b.finish(&[("y", y)]).unwrap();
        for mesh in ["cpu[3]", "cpu[4]"] {
            let plan = check("long", &module, mesh);
            assert_eq!((plan.plan().programs.len(), transfers(&plan)), (1, steps), "{dims:?}");
        }
        assert_eq!(transfers(&check("long", &module, "cpu[2]")), 1);
    }
}

#[test]
fn constants_are_sharded() {
    let mut b = Builder::new();
    let x = b.input("x", tensor_of(&[8, 6], &[split(0)]));
    let mut rng = Rng::new(3);
    let Value::Tensor(value) = random(&tensor_of(&[8, 6], &[]), -1.0, &mut rng) else { unreachable!() };
    let c = b.op(Constant { value }, &[]).unwrap();
    let y = b.op(Mul {}, &[x, c]).unwrap();
    let mut module = b.finish(&[("y", y)]).unwrap();
    // Its producer splits it by rows.
    let func = module.funcs.get_mut("main").unwrap();
    let of = func.graph.region_ops(func.graph.entry()).next().unwrap();
    let v = func.graph.op(of).results[0];
    Rewriter::new(&mut func.graph, "test").set_type(v, tensor_of(&[8, 6], &[split(0)]));
    let plan = check("constant", &module, "cpu[4]");
    assert_eq!(plan.plan().programs.len(), 1);
    let own: Vec<usize> = plan.plan().meshes[0].ranks.iter().map(|r| r.weight_overrides.len()).collect();
    assert_eq!(own, [0, 1, 1, 1]);
}

#[test]
fn all_reduce_max_of_partial_maxima() {
    let mut b = Builder::new();
    let x = b.input("x", tensor_of(&[6, 10], &[split(1)]));
    let axes = b.op(Constant { value: Tensor::from_i64s(&[1]) }, &[]).unwrap();
    let y = b.op(ReduceMax { keepdims: true }, &[x, axes]).unwrap();
    let y = b.op(ShardingConstraint { sharding: sbp(&[B]).unwrap() }, &[y]).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    for mesh in ["cpu[2]", "cpu[4]"] {
        check("maxima", &module, mesh);
    }
}

/// Mixture of experts with sharded weights: tokens go to their expert's rank, and back.
#[test]
fn a_layer_of_experts() {
    let mut b = Builder::new();
    let x = b.input("x", tensor_of(&[4, 4, 6, 16], &[split(0)]));
    let up = b.input("up", tensor_of(&[4, 16, 24], &[split(0)]));
    let down = b.input("down", tensor_of(&[4, 24, 16], &[split(0)]));
    let shape = |b: &mut Builder, dims: &[i64]| b.op(Constant { value: Tensor::from_i64s(dims) }, &[]).unwrap();
    let t = b.op(Transpose { perm: Some(vec![1, 0, 2, 3]) }, &[x]).unwrap();
    let flat = shape(&mut b, &[4, 24, 16]);
    let d = b.op(Reshape { allowzero: true }, &[t, flat]).unwrap();
    let h = b.op(MatMul {}, &[d, up]).unwrap();
    let a = b.op(Tanh {}, &[h]).unwrap();
    let e = b.op(MatMul {}, &[a, down]).unwrap();
    let four = shape(&mut b, &[4, 4, 6, 16]);
    let u = b.op(Reshape { allowzero: true }, &[e, four]).unwrap();
    let y = b.op(Transpose { perm: Some(vec![1, 0, 2, 3]) }, &[u]).unwrap();
    let y = b.op(ShardingConstraint { sharding: sbp(&[split(0)]).unwrap() }, &[y]).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    for mesh in ["cpu[2]", "cpu[4]"] {
        let plan = check("experts", &module, mesh);
        assert!(transfers(&plan) >= 2);
    }
}

/// A transformer block: `column` and `row` are the layouts of the column-parallel and row-parallel weights.
fn block(x: &[Sbp], column: &[Sbp], row: &[Sbp], bias: &[Sbp], whole: &[Sbp]) -> Result<Module, Diagnostic> {
    const HIDDEN: usize = 32;
    let mut b = Builder::new();
    let reshape = |b: &mut Builder, v: ValueId, dims: &[i64]| {
        let dims = b.op(Constant { value: Tensor::from_i64s(dims) }, &[])?;
        b.op(Reshape { allowzero: true }, &[v, dims])
    };
    let norm = |b: &mut Builder, name: &str, v: ValueId| {
        let scale = b.input(&format!("{name}.scale"), tensor_of(&[HIDDEN], whole));
        let bias = b.input(&format!("{name}.bias"), tensor_of(&[HIDDEN], whole));
        b.op(LayerNorm { axis: -1, epsilon: 1e-5, return_stats: false }, &[v, scale, bias])
    };
    let input = b.input("x", tensor_of(&[4, 6, HIDDEN], x));
    let n = norm(&mut b, "norm1", input)?;
    let mut heads = Vec::new();
    for (name, perm) in [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])] {
        let w = b.input(name, tensor_of(&[HIDDEN, HIDDEN], column));
        let c = b.input(&format!("{name}.bias"), tensor_of(&[HIDDEN], bias));
        let y = b.op(MatMul {}, &[n, w])?;
        let y = b.op(Add {}, &[y, c])?;
        let y = reshape(&mut b, y, &[4, 6, 4, 8])?;
        heads.push(b.op(Transpose { perm: Some(perm.to_vec()) }, &[y])?);
    }
    let scores = b.op(MatMul {}, &[heads[0], heads[1]])?;
    let shares = b.op(Softmax { axis: -1 }, &[scores])?;
    let mixed = b.op(MatMul {}, &[shares, heads[2]])?;
    let mixed = b.op(Transpose { perm: Some(vec![0, 2, 1, 3]) }, &[mixed])?;
    let mixed = reshape(&mut b, mixed, &[4, 6, HIDDEN as i64])?;
    let w = b.input("out", tensor_of(&[HIDDEN, HIDDEN], row));
    let y = b.op(MatMul {}, &[mixed, w])?;
    let x1 = b.op(Add {}, &[input, y])?;
    let n = norm(&mut b, "norm2", x1)?;
    let w = b.input("up", tensor_of(&[HIDDEN, 4 * HIDDEN], column));
    let h = b.op(MatMul {}, &[n, w])?;
    let h = b.op(Gelu { tanh: true }, &[h])?;
    let w = b.input("down", tensor_of(&[4 * HIDDEN, HIDDEN], row));
    let y = b.op(MatMul {}, &[h, w])?;
    let y = b.op(Add {}, &[x1, y])?;
    let y = b.op(ShardingConstraint { sharding: sbp(x).unwrap() }, &[y])?;
    Ok(b.finish(&[("y", y)]).unwrap())
}

#[test]
fn a_transformer_block() {
    let tensor = block(&[B], &[split(1)], &[split(0)], &[split(0)], &[B]).unwrap();
    let data = block(&[split(0)], &[B], &[B], &[B], &[B]).unwrap();
    for mesh in ["cpu[2]", "cpu[4]"] {
        let plan = check("tensor parallel block", &tensor, mesh);
        assert!(transfers(&plan) >= 2);
        check("data parallel block", &data, mesh);
    }
    let both = block(&[split(0), B], &[B, split(1)], &[B, split(0)], &[B, split(0)], &[B, B]).unwrap();
    check("block of both", &both, "cpu[2x2]");
}

#[test]
fn more_ranks_than_cores() {
    check("many", &mlp(20, 64, [&[B], &[split(1)], &[split(0)], &[B]], false), "cpu[16]");
    check("many", &mlp(37, 64, [&[split(0), B], &[B, split(1)], &[B, split(0)], &[B, B]], false), "cpu[3x5]");
}

#[test]
fn a_rank_that_fails_stops_all_with_one_error() {
    // Only the rank that has the last index reads row 9 of 8.
    let mut b = Builder::new();
    let table = b.input("table", tensor_of(&[8, 6], &[B]));
    let sbp0 = sbp(&[split(0)]);
    let index = b.input("index", Type::Tensor(TensorType { sbp: sbp0, ..TensorType::fixed(DType::I64, &[4]) }));
    let y = b.op(Gather { axis: 0 }, &[table, index]).unwrap();
    let y = b.op(ShardingConstraint { sharding: sbp(&[B]).unwrap() }, &[y]).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    let plan = plan(&module, "cpu[4]");
    let mut session = session(&plan);
    let table = Tensor::from_slice(&[8, 6], &(0..48).map(|x| x as f32).collect::<Vec<_>>()).unwrap();
    let given = |index: [i64; 4]| -> Vec<_> {
        let all: [Value; 2] = [table.clone().into(), Tensor::from_i64s(&index).into()];
        all.iter().map(|v| to_runtime(v).unwrap()).collect()
    };
    for _ in 0..20 {
        let error = session.run(&given([0, 1, 2, 9])).unwrap_err();
        assert!(matches!(error, RunError::Rank { rank: 3, .. }), "{error}");
        assert!(error.to_string().contains("rank 3") && error.to_string().contains("out of range"), "{error}");
        // The session remains usable.
        let got = session.run(&given([3, 1, 2, 7])).unwrap();
        let got = from_runtime(&got[0]).unwrap();
        let Value::Tensor(got) = got else { panic!("no tensor") };
        assert_eq!(got.to_f64s().unwrap()[0], 18.0);
    }
    let short = session.run(&given([0; 4])[..1]).unwrap_err();
    assert!(matches!(short, RunError::InputCount { expected: 2, got: 1, .. }));
}

#[test]
fn uneven_splits_give_parts_of_different_size() {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let x = rw.add_arg(entry, tensor_of(&[4], &[split(0)]), None);
    rw.create(Return {}, &[x]).unwrap();
    let func = Func::numbered(graph);
    // Every rank has its part as it is.
    let meshes = Meshes::from(&MeshSpec::named("cpu[3]").unwrap());
    let part = spmd::rank_function(&func, &meshes, 0).unwrap();
    assert_eq!(part.input_types(), vec![Type::fixed(DType::F32, &[2])]);
    assert_eq!(spmd::rank_classes(&func, &meshes), vec![0, 1, 1]);
}

/// Layers `tanh(x w)` of 16 rows; with a step of their weights where `training`, and with what that reads of the batch.
fn layers(count: usize, training: bool) -> Module {
    layers_of(count, 16, 12, training)
}

/// Layers of this width on so many rows.
fn layers_of(count: usize, rows: usize, width: usize, training: bool) -> Module {
    let (x, w) = (&format!("tensor<{rows}x{width}xf32>"), &format!("tensor<{width}x{width}xf32>"));
    let list = |f: &dyn Fn(usize) -> String| (0..count).map(f).collect::<Vec<_>>().join(", ");
    let mut body = String::new();
    for i in 0..count {
        let before = if i == 0 { "x".into() } else { format!("t{}", i - 1) };
        body += &format!("  %a{i} = of.matmul %{before}, %w{i} : ({x}, {w}) -> {x}\n");
        body += &format!("  %t{i} = of.tanh %a{i} : ({x}) -> {x}\n");
    }
    let last = count - 1;
    let (mut returned, mut types, mut attrs) = (format!("%t{last}"), x.clone(), String::new());
    if training {
        let (g, v) = (list(&|i| format!("%g{i}")), list(&|i| format!("%w{i}")));
        let ws = list(&|_| w.clone());
        body += &format!("  {g} = of.gradient %t{last}, {v} : ({x}, {ws}) -> ({ws})\n");
        for i in 0..count {
            body += &format!("  %n{i} = of.sub %w{i}, %g{i} : ({w}, {w}) -> {w}\n");
        }
        returned = format!("{}, %t{last}", list(&|i| format!("%n{i}")));
        types = format!("{ws}, {x}");
        attrs = format!(" attributes {{of.carried = [{}]}}", list(&|i| (i + 1).to_string()));
    }
    let args = list(&|i| format!("%w{i}: {w}"));
    let text = format!(
        "func @main(%x: {x}, {args}) -> ({types}){attrs} {{\n{body}  of.return {returned} : ({types}) -> ()\n}}\n"
    );
    let mut module =
        of_ir::text::parse_module(&text, "layers", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}\n{text}"));
    let mut manager = Manager::default();
    manager.append("differentiate,simplify").unwrap();
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    module
}

/// What the search says of the memory of a stage against that of the plan: parameters, data and results of the step, activations of
/// the microbatches in flight, and accumulated gradients.
#[test]
fn predicted_memory_of_stages_matches_the_plan() {
    for (layers, rows, width) in [(4, 64, 512), (4, 4096, 128), (6, 1024, 256)] {
        for (count, microbatches) in [(2, 2), (2, 8), (3, 4), (1, 4)] {
            let mesh = format!("cpu[{count}]");
            let module = layers_of(layers, rows, width, true);
            let spec = MeshSpec::named(&mesh).unwrap();
            let main = module.main().unwrap();
            let staged = stages::choose(&mut main.clone(), &spec, count, microbatches, &Effort::default());
            let predicted = staged.unwrap_or_else(|d| panic!("{d}")).pipeline.memory;
            let (stages, microbatches) = (count as i64, microbatches as i64);
            let plan = plan_of(module, ShardOptions { mesh, stages, microbatches, ..ShardOptions::default() });
            let held = plan.plan().programs.iter().map(|p| p.peak_bytes).max().unwrap_or(0) as f64;
            let what = format!("{layers} layers {rows}x{width}, {stages} x {microbatches}: {predicted} of {held}");
            println!("{what}");
            assert!(predicted >= 0.7 * held && predicted <= 1.4 * held, "{what}");
        }
    }
}

/// A plan has the tasks of one microbatch, however many there are.
#[test]
fn sizes_of_pipelines_do_not_depend_on_the_number_of_microbatches() {
    let tasks = |microbatches: i64| {
        let how = ShardOptions { mesh: "cpu[4]".into(), stages: 4, microbatches, ..ShardOptions::default() };
        let plan = plan_of(layers_of(4, 64, 12, true), how);
        let programs = &plan.plan().programs;
        let schedule = programs.iter().flat_map(|p| &p.schedule).map(|t| t.phases.len());
        (programs.iter().map(|p| p.tasks.len()).sum::<usize>(), schedule.sum::<usize>())
    };
    assert_eq!(tasks(16), tasks(32));
}

/// Stages and microbatches match one device, in the forward pass and in a training step.
#[test]
fn stages_of_a_pipeline() {
    for training in [false, true] {
        let module = layers(4, training);
        for (mesh, stages, microbatches) in [
            ("cpu[2]", 1, 4),
            ("cpu[2]", 2, 1),
            ("cpu[2]", 2, 4),
            ("cpu[4]", 2, 2),
            ("cpu[4]", 4, 8),
            ("cpu[2x2]", 2, 4),
            ("cpu[3]", 3, 2),
        ] {
            let how = ShardOptions { mesh: mesh.into(), stages, microbatches, ..ShardOptions::default() };
            let plan = plan_of(module.clone(), how);
            let what = format!("{stages} stages, {microbatches} microbatches on {mesh}, training {training}");
            compare(&what, &module, &plan);
            let templates = &plan.plan().programs;
            assert!(templates.len() >= stages as usize, "{what}");
            // No rank runs ops of another stage.
            let ranks = &plan.plan().meshes[0].ranks;
            for (rank, own) in ranks.iter().enumerate() {
                for task in &templates[own.program as usize].tasks {
                    if let Some(Exec::Boxing(b)) = &task.exec {
                        let met = b.transfer.participants(&plan.plan().meshes[0].extents(), rank as u32);
                        assert!(met.contains(&(rank as u32)), "{what}: rank {rank}");
                    }
                }
            }
        }
    }
}

/// Training steps as text, with the mean squared weight step of each parameter.
fn training_steps() -> Vec<(&'static str, Module)> {
    let mlp = "func @main(%x: tensor<8x12xf32>, %t: tensor<8x4xf32>, %a: tensor<12x16xf32>, %b: tensor<16x4xf32>) -> (tensor<f32>, tensor<12x16xf32>, tensor<16x4xf32>) attributes {of.carried = [-1, 2, 3]} {
      %p = of.matmul %x, %a
      %h = of.relu %p
      %y = of.matmul %h, %b
      %d = of.sub %y, %t
      %q = of.mul %d, %d
      %loss = of.reduce_sum %q {keepdims = false}
      %ga, %gb = of.gradient %loss, %a, %b
      %na = of.sub %a, %ga
      %nb = of.sub %b, %gb
      of.return %loss, %na, %nb
    }";
    let cross_entropy = |reduction: &str, ignored: &str| {
        format!(
            "func @main(%x: tensor<8x12xf32>, %t: tensor<8xi64>, %a: tensor<12x16xf32>, %b: tensor<16x4xf32>) -> (tensor<f32>, tensor<12x16xf32>, tensor<16x4xf32>) attributes {{of.carried = [-1, 2, 3]}} {{
      %p = of.matmul %x, %a
      %h = of.tanh %p
      %y = of.matmul %h, %b
      %none = of.none
      %loss = of.softmax_cross_entropy_loss %y, %t, %none {{{ignored}reduction = \"{reduction}\", return_log_prob = false}}
      %ga, %gb = of.gradient %loss, %a, %b
      %na = of.sub %a, %ga
      %nb = of.sub %b, %gb
      of.return %loss, %na, %nb
    }}"
        )
    };
    let conv = "func @main(%x: tensor<8x3x8x8xf32>, %t: tensor<8xi64>, %k: tensor<4x3x3x3xf32>, %b: tensor<4x5xf32>) -> (tensor<f32>, tensor<4x3x3x3xf32>, tensor<4x5xf32>) attributes {of.carried = [-1, 2, 3]} {
      %c = of.conv %x, %k {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 1, auto_pad = \"NOTSET\", channels_last = false}
      %r = of.relu %c
      %p = of.global_average_pool %r {channels_last = false}
      %to = of.constant {value = dense<[8, 4]> : tensor<2xi64>}
      %f = of.reshape %p, %to {allowzero = true}
      %y = of.matmul %f, %b
      %none = of.none
      %loss = of.softmax_cross_entropy_loss %y, %t, %none {reduction = \"mean\", return_log_prob = false}
      %gk, %gb = of.gradient %loss, %k, %b
      %nk = of.sub %k, %gk
      %nb = of.sub %b, %gb
      of.return %loss, %nk, %nb
    }";
    let parse = |text: &str| {
        let parsed = of_ir::text::parse_module(text, "step", &of_ops::registry(), None);
        parsed.unwrap_or_else(|d| panic!("{d}\n{text}"))
    };
    let extents = Gpt { layers: 2, batch: 8, sequence: 4, hidden: 8, heads: 2, vocabulary: 16, dtype: DType::F32 };
    let steps = vec![
        ("MLP", parse(mlp)),
        ("cross entropy, mean", parse(&cross_entropy("mean", ""))),
        ("cross entropy, sum", parse(&cross_entropy("sum", ""))),
        ("cross entropy, ignored", parse(&cross_entropy("mean", "ignore_index = 0, "))),
        ("convolution", parse(conv)),
        ("GPT", training(&extents).unwrap()),
    ];
    let prepared = |mut module: Module| {
        let mut manager = Manager::default();
        manager.append("sharding").unwrap();
        manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
        module
    };
    steps.into_iter().map(|(name, module)| (name, prepared(module))).collect()
}

/// What the search calls feasible compiles and has the results of the whole step.
#[test]
fn feasible_pipelines_compile_and_run() {
    for (name, module) in training_steps() {
        for (mesh, microbatches) in [("cpu[2]", 2), ("cpu[2]", 8), ("cpu[4]", 4)] {
            let spec = MeshSpec::named(mesh).unwrap();
            let all = stages::pipelines(module.main().unwrap(), &spec, &[microbatches], &Effort::default());
            let all = all.unwrap_or_else(|d| panic!("{name} on {mesh}: {d}"));
            let why: Vec<String> = all.infeasible.iter().map(|(s, m, d)| format!("{s}x{m}: {}", d.message)).collect();
            assert!(all.feasible.iter().any(|p| p.stages > 1), "{name} on {mesh}: {why:?}");
            for p in all.feasible {
                let (stages, microbatches) = (p.stages as i64, p.microbatches as i64);
                let how = ShardOptions { mesh: mesh.into(), stages, microbatches, ..ShardOptions::default() };
                let plan = plan_of(module.clone(), how);
                compare(&format!("{name}: {stages} stages, {microbatches} microbatches on {mesh}"), &module, &plan);
            }
        }
    }
}

#[test]
fn functions_that_cannot_be_pipelined_are_reported() {
    let says = |module: Module, stages, microbatches, what: &str| {
        let how = ShardOptions { mesh: "cpu[4]".into(), stages, microbatches, ..ShardOptions::default() };
        let mut manager = Manager::default();
        manager.add::<Shard>(how);
        let e = manager.run(&mut module.clone(), &mut |_| ()).unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
    };
    says(layers(4, false), 3, 1, "no axis of the mesh [4] can be cut into 3 stages");
    says(layers(1, false), 4, 1, "4 stages were requested");
    says(layers(2, false), 2, 5, "a batch of 16 cannot be split into 5 equal microbatches");
    says(layers(2, false), 0, 1, "'stages' must be from 1");
    // Rows are compared with each other, so no row is complete before all are available.
    let text = "func @main(%x: tensor<8x4xf32>) -> (tensor<8x4xf32>) {
      %y = of.softmax %x {axis = 0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %z = of.tanh %y : (tensor<8x4xf32>) -> tensor<8x4xf32>
      of.return %z : (tensor<8x4xf32>) -> ()
    }";
    let module = of_ir::text::parse_module(text, "rows", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    says(module, 1, 2, "along the microbatches");
}
