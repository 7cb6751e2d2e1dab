//! Variables of ranks: steps of training in sessions of a mesh, whose whole values are those of the interpreter.

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::{CompileOptions, MeshFuncs, Target, compile_meshes, rewrite};
use of_ir::{Attr, Func, Module, text};
use of_ops::sample::Rng;
use of_ops::training::{INITIAL_VALUES, InitialValue, VARIABLES, variables};
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_passes::sharding::{InsertBoxing, MeshOptions, Shard, ShardOptions};
use of_plan::{FindingKind, PlanFile};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{MeshSession, Options, RunError};
use of_sharding::{MeshSpec, Meshes, spmd};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans as support;

/// A training step of two layers; the weights are variables with initial values.
fn step() -> Module {
    let source = "func @main(%x: tensor<16x12xf32>, %t: tensor<16x8xf32>, %a: tensor<12x16xf32>, %b: tensor<16x8xf32>) -> (tensor<f32>, tensor<12x16xf32>, tensor<16x8xf32>) attributes {of.carried = [-1, 2, 3]} {
  %p = of.matmul %x, %a
  %h = of.tanh %p
  %y = of.matmul %h, %b
  %d = of.sub %y, %t
  %q = of.mul %d, %d
  %none = of.none
  %loss = of.reduce_sum %q, %none {keepdims = false}
  %ga, %gb = of.gradient %loss, %a, %b
  %rate = of.constant {value = dense<0.01> : tensor<f32>} : () -> tensor<f32>
  %sa = of.mul %ga, %rate
  %sb = of.mul %gb, %rate
  %na = of.sub %a, %sa
  %nb = of.sub %b, %sb
  of.return %loss, %na, %nb
}";
    let mut module = text::parse_module(source, "step", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let mut manager = Manager::default();
    manager.append("differentiate,simplify").unwrap();
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    let mut r = Rng::new(11);
    let initial = [[12, 16], [16, 8]].map(|dims| Attr::Tensor(r.tensor(of_ir::DType::F32, &dims, -0.5, 0.5)));
    let func = module.funcs.get_mut("main").unwrap();
    func.attrs.set(VARIABLES, Attr::Ints(vec![2, 3]));
    func.attrs.set(INITIAL_VALUES, Attr::Array(initial.to_vec()));
    module
}

fn plan(mut module: Module, how: ShardOptions) -> Arc<PlanFile> {
    let mesh = how.mesh.clone();
    let mut manager = Manager::default();
    manager.add::<Shard>(how);
    manager.add::<InsertBoxing>(MeshOptions { mesh: mesh.clone() });
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    let meshes = Meshes::of(&module, &MeshSpec::named(&mesh).unwrap()).unwrap();
    let whole = module.main().unwrap();
    let rank = |rank: usize| {
        let mut part = Module { meshes: module.meshes.clone(), ..Module::default() };
        let own = spmd::rank_function(whole, &meshes, rank).unwrap_or_else(|d| panic!("{d}"));
        part.funcs.insert("main".into(), own);
        rewrite::for_isa(&support::after_passes(part), Isa::host()).unwrap().into_owned()
    };
    let shape = meshes.ranks().shape();
    let count = shape.iter().product();
    let funcs: Vec<Func> = (0..count).map(rank).collect();
    let options = CompileOptions::new(Target::new(Isa::host(), &[&Reference]), support::cache());
    let (funcs, ranks) = (funcs.iter().collect(), (0..count).collect());
    let mesh = MeshFuncs { name: "main".into(), shape, module: &module, whole, funcs, ranks, fused_bytes: 0 };
    let compiled = compile_meshes(std::slice::from_ref(&mesh), &options).unwrap_or_else(|d| panic!("{d}"));
    Arc::new(compiled.open().unwrap_or_else(|d| panic!("{d}")))
}

fn session(plan: &Arc<PlanFile>) -> MeshSession {
    let options = Options { threads: 1, profile: false, ..Default::default() };
    MeshSession::new(Arc::clone(plan), 0, options, &[Arc::new(Reference)]).unwrap_or_else(|e| panic!("{e}"))
}

fn tensor(value: &Value) -> of_runtime::Tensor {
    let of_runtime::Value::Tensor(tensor) = to_runtime(value).unwrap() else { panic!("no tensor") };
    tensor
}

fn tolerance() -> Tolerance {
    Tolerance { absolute: 1e-5, ..Tolerance::elementwise(1e-5) }
}

#[test]
fn variables_of_ranks_are_those_of_one_device() {
    let module = step();
    let func = module.main().unwrap().clone();
    for (mesh, stages, microbatches) in
        [("cpu[2]", 1, 1), ("cpu[4]", 1, 1), ("cpu[2x2]", 1, 1), ("cpu[2]", 1, 4), ("cpu[2]", 2, 2), ("cpu[4]", 2, 4)]
    {
        let what = format!("{stages} stages, {microbatches} microbatches on {mesh}");
        let plan = plan(module.clone(), ShardOptions { mesh: mesh.into(), stages, microbatches, ..Default::default() });
        assert_eq!(plan.plan().meshes[0].variables.len(), 2, "{what}");
        let mut session = session(&plan);
        let mut r = Rng::new(5);
        let listed = variables(&func).unwrap();
        let mut state: Vec<Value> = listed
            .iter()
            .map(|v| match &v.initial {
                Some(InitialValue::Tensor(tensor)) => tensor.clone().into(),
                _ => panic!("no initial value"),
            })
            .collect();
        for run in 0..4 {
            if run == 2 {
                // Whole values are set, of which each rank gets its part.
                for (v, value) in listed.iter().zip(&mut state) {
                    let ty = func.graph.ty(func.graph.args()[v.input]).as_tensor().unwrap().clone();
                    *value = r.tensor(ty.dtype, &ty.fixed_dims().unwrap(), -0.5, 0.5).into();
                    session.variables().unwrap().set(&func.inputs[v.input], &tensor(value)).unwrap();
                }
            }
            let data = [[16, 12], [16, 8]].map(|dims| Value::from(r.tensor(of_ir::DType::F32, &dims, -1.0, 1.0)));
            let all: Vec<Value> = data.iter().chain(&state).cloned().collect();
            let want = interpret::run_graph(&func.graph, &all).unwrap_or_else(|d| panic!("{d}"));
            let given: Vec<_> = data.iter().map(|v| to_runtime(v).unwrap()).collect();
            let got = session.run(&given).unwrap_or_else(|e| panic!("{what}: {e}"));
            let got: Vec<Value> = got.iter().map(|v| from_runtime(v).unwrap()).collect();
            assert_close(&format!("{what}, run {run}"), &got, &want[..1], tolerance());
            state = want[1..].to_vec();
            for (v, value) in listed.iter().zip(&state) {
                let name = &func.inputs[v.input];
                let own = from_runtime(&session.variables().unwrap().get(name).unwrap().into()).unwrap();
                assert_close(
                    &format!("{what}, {name} after run {run}"),
                    &[own],
                    std::slice::from_ref(value),
                    tolerance(),
                );
            }
        }
        session.variables().unwrap().reset();
        let first = session.variables().unwrap().get("a").unwrap();
        let Some(InitialValue::Tensor(initial)) = &listed[0].initial else { panic!("no tensor") };
        assert_eq!(first.bytes().unwrap(), &initial.bytes().unwrap()[..], "{what}");
    }
}

#[test]
fn wrong_values_and_parts_are_refused() {
    let plan = plan(step(), ShardOptions { mesh: "cpu[2]".into(), ..Default::default() });
    let session = session(&plan);
    let own = session.variables().unwrap();
    let of = |result: Result<(), RunError>| result.expect_err("it was accepted").to_string();
    let wrong = of_runtime::Tensor::zeros(of_plan::ElementType::F32, vec![3, 3]).unwrap();
    assert!(of(own.set("a", &wrong)).contains("cannot be set to"), "{}", of(own.set("a", &wrong)));
    assert!(of(own.set("c", &wrong)).contains("does not exist"));
    let mut other = plan.plan().clone();
    other.meshes[0].variables[0].dims[0] += 2;
    let findings = of_plan::verify(&other).expect_err("it was accepted");
    assert!(findings.iter().any(|f| f.kind == FindingKind::Type), "{findings:?}");
}
