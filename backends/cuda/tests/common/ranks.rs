//! What the tests of ranks on GPUs share.

use std::sync::Arc;

use of_codegen::native::Isa;
use of_codegen::{Backend, CompileOptions, MeshFuncs, Pin, Request, Target, compile_mesh, place};
use of_cuda::Device;
use of_ir::{DType, Func, Graph, Module};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_passes::sharding::{InsertBoxing, MeshOptions, Shard, ShardOptions};
use of_plan::{Exec, PlanFile, Task};
use of_runtime::{MeshSession, Options, SessionError};
use of_sharding::{MeshSpec, Meshes, local};

use super::{after_passes, cache, to_runtime};

/// A module for a mesh `@m` of this shape.
pub fn module(mesh: &str, body: &str) -> Module {
    let shape = mesh.trim_start_matches("cpu[").trim_end_matches(']').replace('x', ", ");
    let text = format!("of.mesh @m {{devices = \"cpu\", shape = [{shape}]}}\n{body}");
    of_ir::text::parse_module(&text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}\n{text}"))
}

/// The plan of what the ranks of a mesh run, whose ops this backend gets wherever it takes them.
pub fn plan(module: &Module, mesh: &str, stages: (i64, i64), backend: &dyn Backend, pins: &[Pin]) -> Arc<PlanFile> {
    let (known, wanted) = ([backend], [backend.name().to_string()]);
    let request = Request { known: &known, wanted: &wanted, pins, min_region: 0 };
    planned(module, mesh, stages, backend, |funcs| {
        place::place_all(funcs, &request).unwrap_or_else(|d| panic!("{d}"));
    })
}

/// The plan of ranks that leave nothing to the host.
pub fn whole(module: &Module, mesh: &str, backend: &dyn Backend) -> Arc<PlanFile> {
    let plan = planned(module, mesh, (1, 1), backend, |funcs| {
        place::entirely(funcs, backend).unwrap_or_else(|d| panic!("{d}"));
    });
    for program in &plan.plan().programs {
        let on_device = |t: &&Task| matches!(t.exec, Some(Exec::Backend(_)));
        let passes = |t: &Task| matches!(t.exec, None | Some(Exec::Feed(_) | Exec::Fetch(_)));
        assert_eq!(program.tasks.iter().filter(on_device).count(), 1);
        assert!(program.tasks.iter().all(|t| on_device(&t) || passes(t)), "{:?}", program.tasks);
    }
    plan
}

/// The plan of what the ranks of a mesh run, once their ops are placed.
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
        part.funcs.insert("main".into(), local::function(whole, &meshes, rank).unwrap_or_else(|d| panic!("{d}")));
        after_passes(part)
    };
    let spec = meshes.ranks();
    let mut funcs: Vec<Func> = (0..spec.devices()).map(rank).collect();
    place(&mut funcs.iter_mut().collect::<Vec<_>>());
    let known = [backend];
    let options = CompileOptions::new(Target::new(Isa::host(), &known), cache());
    let (funcs, ranks) = (funcs.iter().collect(), (0..spec.devices()).collect());
    let mesh = MeshFuncs { name: "main".into(), shape: spec.shape(), module: &module, whole, funcs, ranks };
    let compiled = compile_mesh(&mesh, &options).unwrap_or_else(|d| panic!("{d}"));
    Arc::new(compiled.open().unwrap_or_else(|d| panic!("{d}")))
}

pub fn session(plan: &Arc<PlanFile>) -> Result<MeshSession, SessionError> {
    let options = Options { threads: 1, profile: false };
    MeshSession::new(Arc::clone(plan), 0, options, &[Arc::new(Device::default())])
}

/// Inputs of a function, other ones for each seed.
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

/// That numbers lie as near as rounding of the largest of them has it.
pub fn close(what: &str, got: &[f64], want: &[f64]) {
    let far = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let largest = want.iter().map(|x| x.abs()).fold(1.0, f64::max);
    assert!(far <= 1e-5 * largest && got.len() == want.len(), "{what}: {far} of {largest}");
}

/// Runs a plan of a module on several inputs, and compares with the interpreter.
pub fn compare(what: &str, module: &Module, plan: &Arc<PlanFile>) {
    let graph = &module.main().unwrap().graph;
    let mut session = session(plan).unwrap_or_else(|e| panic!("{what}: {e}"));
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
    let inside = tasks().map(|t| if let Some(Exec::Backend(e)) = &t.exec { e.meetings.len() } else { 0 }).sum();
    (inside, tasks().filter(|t| matches!(t.exec, Some(Exec::Boxing(_)))).count())
}
