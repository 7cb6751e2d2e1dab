//! Modules on meshes with their plans and sessions, for tests of backends whose ranks exchange tensors.

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::{Backend, CompileOptions, MeshFuncs, Pin, Request, Target, compile_meshes, place, rewrite};
use of_ir::{DType, Func, Graph, Module, PartialKind};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_passes::sharding::{InsertBoxing, MeshOptions, Shard, ShardOptions};
use of_plan::{Exec, PlanFile};
use of_runtime::{Loader, MeshSession, Options, RunError, SessionError};
use of_sharding::{Layout, MeshSpec, Meshes, layout, spmd};

use crate::compare::{Tolerance, assert_numbers_close};
use crate::plans::{after_passes, cache, to_runtime};

/// A module for a mesh `@m` of this shape.
pub fn module(mesh: &str, body: &str) -> Module {
    let shape = mesh.trim_start_matches("cpu[").trim_end_matches(']').replace('x', ", ");
    let text = format!("of.mesh @m {{devices = \"cpu\", shape = [{shape}]}}\n{body}");
    of_ir::text::parse_module(&text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}\n{text}"))
}

/// The plan of the ranks of a mesh, with ops assigned to this backend wherever it claims them.
pub fn plan(module: &Module, mesh: &str, stages: (i64, i64), backend: &dyn Backend, pins: &[Pin]) -> Arc<PlanFile> {
    let (known, wanted) = ([backend], [backend.name().to_string()]);
    let request = Request { known: &known, wanted: &wanted, pins, min_subgraph_size: 0 };
    planned(module, mesh, stages, backend, |funcs| {
        place::place_all(funcs, &request).unwrap_or_else(|d| panic!("{d}"));
    })
}

/// The plan of the ranks of a mesh, after placement.
pub fn planned(
    module: &Module,
    mesh: &str,
    stages: (i64, i64),
    backend: &dyn Backend,
    place: impl FnOnce(&mut [&mut Func]),
) -> Arc<PlanFile> {
    let mut module = module.clone();
    let mut manager = Manager::default();
    let (stages, microbatches) = stages;
    manager.add::<Shard>(ShardOptions { mesh: mesh.into(), stages, microbatches, ..ShardOptions::default() });
    manager.add::<InsertBoxing>(MeshOptions { mesh: mesh.into() });
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    let meshes = Meshes::of(&module, &MeshSpec::named(mesh).unwrap()).unwrap();
    let whole = module.main().unwrap();
    let rank = |rank: usize| {
        let mut part = Module { meshes: module.meshes.clone(), ..Module::default() };
        part.funcs.insert("main".into(), spmd::rank_function(whole, &meshes, rank).unwrap_or_else(|d| panic!("{d}")));
        after_passes(part)
    };
    let spec = meshes.ranks();
    let mut funcs: Vec<Func> = (0..spec.devices()).map(rank).collect();
    place(&mut funcs.iter_mut().collect::<Vec<_>>());
    let known = [backend];
    let options = CompileOptions::new(Target::new(Isa::host(), &known), cache());
    let funcs: Vec<_> =
        funcs.iter().map(|f| rewrite::for_isa(f, Isa::host()).unwrap_or_else(|d| panic!("{d}"))).collect();
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

/// A session of all ranks of a plan.
pub fn session(plan: &Arc<PlanFile>, loader: &Arc<dyn Loader>) -> Result<MeshSession, SessionError> {
    let options = Options { threads: 1, profile: false, ..Default::default() };
    MeshSession::new(Arc::clone(plan), 0, options, std::slice::from_ref(loader))
}

/// Inputs of a function, different for each seed.
pub fn inputs(g: &Graph, seed: u64) -> Vec<Value> {
    let mut r = Rng::new(seed);
    let of = |v| {
        let t = g.ty(v).as_tensor().unwrap();
        Value::Tensor(r.tensor(t.dtype, &t.fixed_dims().unwrap(), -1.0, 1.0))
    };
    g.args().iter().copied().map(of).collect()
}

/// Numbers of a result.
pub fn numbers(v: &of_runtime::Value, dtype: DType) -> Vec<f64> {
    let tensor = v.as_tensor().unwrap();
    let dims = tensor.dims().iter().map(|d| *d as usize).collect();
    let blob = of_ir::Blob::new(tensor.bytes().unwrap().to_vec());
    of_ir::Tensor::from_bytes(dtype, dims, blob).unwrap().to_f64s().unwrap()
}

/// Fails where numbers differ by more than rounding of the largest of them, or of 1.
///
/// # Panics
/// When they do.
#[track_caller]
pub fn close(what: &str, got: &[f64], want: &[f64]) {
    assert_numbers_close(what, got, want, Tolerance { absolute: 1e-5, ..Tolerance::of_largest(1e-5) });
}

/// Runs a plan of a module on several inputs, and compares with the interpreter.
pub fn compare(what: &str, module: &Module, plan: &Arc<PlanFile>, loader: &Arc<dyn Loader>) {
    let graph = &module.main().unwrap().graph;
    let mut session = session(plan, loader).unwrap_or_else(|e| panic!("{what}: {e}"));
    for seed in [3, 4] {
        let inputs = inputs(graph, seed);
        let want = interpret::run_graph(graph, &inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
        let given: Vec<_> = inputs.iter().map(to_runtime).collect();
        let got = session.run(&given).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let Value::Tensor(want) = want else { panic!("no tensor") };
            close(&format!("{what}, output {i}"), &numbers(got, want.dtype()), &want.to_f64s().unwrap());
        }
    }
}

/// Transfers in executables, and those through the memory of the host.
pub fn transfers(plan: &PlanFile) -> (usize, usize) {
    let tasks = || plan.plan().programs.iter().flat_map(|p| &p.tasks);
    let inside = tasks().map(|t| if let Some(Exec::Backend(e)) = &t.exec { e.rendezvous.len() } else { 0 }).sum();
    (inside, tasks().filter(|t| matches!(t.exec, Some(Exec::Boxing(_)))).count())
}

/// Every layout of a tensor on a mesh to every other one.
pub fn all_pairs(mesh: &str, shape: &[usize], dims: [usize; 2], dtype: &str) -> Vec<(String, Module)> {
    let all: Vec<Layout> = layout::all(2, shape.len(), &[PartialKind::Sum]);
    let all: Vec<Layout> = all.into_iter().filter(|l| layout::fits(l, shape, &dims)).collect();
    let ty = |l: &Layout| format!("tensor<{}x{}x{dtype}, #of.sbp<@m, {}>>", dims[0], dims[1], layout::show(l));
    let of = |from: &Layout| {
        let (mut ops, mut names, mut types) = (String::new(), Vec::new(), Vec::new());
        for (i, to) in all.iter().enumerate() {
            let sbp = format!("#of.sbp<@m, {}>", layout::show(to));
            ops +=
                &format!("  %y{i} = of.sharding_constraint %n {{sharding = {sbp}}} : ({}) -> {}\n", ty(from), ty(to));
            names.push(format!("%y{i}"));
            types.push(ty(to));
        }
        let (from_ty, types) = (ty(from), types.join(", "));
        let body = format!(
            "func @main(%x: {from_ty}) -> ({types}) {{\n  %n = of.neg %x : ({from_ty}) -> {from_ty}\n{ops}  of.return {} : \
             ({types}) -> ()\n}}\n",
            names.join(", ")
        );
        (format!("{} on {mesh}", layout::show(from)), module(mesh, &body))
    };
    all.iter().map(of).collect()
}

/// A value that is converted from one layout to another.
pub fn moved(mesh: &str, dims: &str, from: &str, to: &str) -> Module {
    let (from, to) = (format!("#of.sbp<@m, [{from}]>"), format!("#of.sbp<@m, [{to}]>"));
    let (a, b) = (format!("tensor<{dims}xf32, {from}>"), format!("tensor<{dims}xf32, {to}>"));
    let ops =
        format!("%n = of.neg %x : ({a}) -> {a}\n  %y = of.sharding_constraint %n {{sharding = {to}}} : ({a}) -> {b}");
    module(mesh, &format!("func @main(%x: {a}) -> ({b}) {{\n  {ops}\n  of.return %y : ({b}) -> ()\n}}\n"))
}

/// Types and kinds of partial values, of which every length of an element and value that changes nothing is.
const KINDS: [(&str, &str); 9] = [
    ("f32", "sum"),
    ("f32", "min"),
    ("f16", "prod"),
    ("f64", "sum"),
    ("f64", "max"),
    ("i64", "min"),
    ("i16", "max"),
    ("ui8", "prod"),
    ("i1", "min"),
];

/// Values of this layout that become partial ones, and a product that all ranks have whole.
pub fn embedded(from: &Layout) -> Module {
    let sbp = |l: &str| format!("#of.sbp<@m, {l}>");
    let whole = format!("tensor<16x16xf32, {}>", sbp("[B]"));
    let (mut args, mut ops) =
        (format!("%a: {whole}"), format!("%p = of.matmul %a, %a : ({whole}, {whole}) -> {whole}\n"));
    let (mut names, mut types) = (vec!["%p".to_string()], vec![whole]);
    for (i, (dtype, kind)) in KINDS.iter().enumerate() {
        let to = sbp(&format!("[P({kind})]"));
        let ty = |sbp: &str| format!("tensor<4x3x5x{dtype}, {sbp}>");
        let (before, after) = (ty(&sbp(&layout::show(from).to_string())), ty(&to));
        args += &format!(", %x{i}: {before}");
        ops += &format!("  %y{i} = of.sharding_constraint %x{i} {{sharding = {to}}} : ({before}) -> {after}\n");
        names.push(format!("%y{i}"));
        types.push(after);
    }
    let (names, types) = (names.join(", "), types.join(", "));
    module("cpu[2]", &format!("func @main({args}) -> ({types}) {{\n  {ops}  of.return {names} : ({types}) -> ()\n}}\n"))
}

/// A network of which each rank has columns, then rows; what they have in between is wanted whole too.
pub const NETWORK: &str = r#"
func @main(%x: tensor<32x24xf32, #of.sbp<@m, [B]>>, %w1: tensor<24x64xf32, #of.sbp<@m, [S(1)]>>,
           %w2: tensor<64x32xf32, #of.sbp<@m, [S(0)]>>)
    -> (tensor<32x32xf32, #of.sbp<@m, [B]>>, tensor<32x64xf32, #of.sbp<@m, [B]>>) {
  %a = of.matmul %x, %w1 : (tensor<32x24xf32, #of.sbp<@m, [B]>>, tensor<24x64xf32, #of.sbp<@m, [S(1)]>>) -> tensor<32x64xf32, #of.sbp<@m, [S(1)]>>
  %r = of.relu %a : (tensor<32x64xf32, #of.sbp<@m, [S(1)]>>) -> tensor<32x64xf32, #of.sbp<@m, [S(1)]>>
  %p = of.matmul %r, %w2 : (tensor<32x64xf32, #of.sbp<@m, [S(1)]>>, tensor<64x32xf32, #of.sbp<@m, [S(0)]>>) -> tensor<32x32xf32, #of.sbp<@m, [P(sum)]>>
  %y = of.sharding_constraint %p {sharding = #of.sbp<@m, [B]>} : (tensor<32x32xf32, #of.sbp<@m, [P(sum)]>>) -> tensor<32x32xf32, #of.sbp<@m, [B]>>
  %h = of.sharding_constraint %r {sharding = #of.sbp<@m, [B]>} : (tensor<32x64xf32, #of.sbp<@m, [S(1)]>>) -> tensor<32x64xf32, #of.sbp<@m, [B]>>
  of.return %y, %h : (tensor<32x32xf32, #of.sbp<@m, [B]>>, tensor<32x64xf32, #of.sbp<@m, [B]>>) -> ()
}
"#;

/// Layers in stages, with a batch in parts.
pub fn layers() -> Module {
    let text =
        "func @main(%x: tensor<16x12xf32>, %w0: tensor<12x12xf32>, %w1: tensor<12x12xf32>, %w2: tensor<12x12xf32>) \
                -> (tensor<16x12xf32>) {
      %a = of.matmul %x, %w0\n  %b = of.tanh %a\n  %c = of.matmul %b, %w1\n  %d = of.tanh %c\n  %e = of.matmul %d, %w2
      of.return %e\n}\n";
    of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"))
}

/// Has rank 3 of four ask for row 9 of 8, which fails a run on all ranks and no other.
pub fn rank_3_fails(session: &mut MeshSession) {
    let mut run = |last: i64| {
        let table = Rng::new(1).f32s(&[8, 6]);
        let index: Value = of_ir::Tensor::from_slice(&[4], &[0i64, 1, 2, last]).unwrap().into();
        session.run(&[to_runtime(&table), to_runtime(&index)])
    };
    for _ in 0..3 {
        let error = run(9).unwrap_err();
        assert!(
            matches!(error, RunError::Rank { rank: 3, .. }) && error.to_string().contains("out of range"),
            "{error}"
        );
        run(7).unwrap();
    }
}
