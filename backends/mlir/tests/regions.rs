//! Regions in plans: placed, compiled, run by a session, beside the interpreter.

mod common;

use std::sync::Arc;

use of_codegen::native::Isa;
use of_codegen::native::cache::Cache;
use of_codegen::{Backend, CompileOptions, Request, Target, compile, place};
use of_ir::{Func, Tensor};
use of_mlir::Mlir;
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_plan::PlanFile;
use of_runtime::{Options, RunError, Session};

use common::difference;

/// The function after the passes, and its plan: everything on MLIR, also where `pin` is not worth a call.
fn planned(text: &str, pin: &str) -> (Func, PlanFile) {
    let mut module =
        of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let mut manager = Manager::default();
    manager.append("cpu").unwrap();
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    let mut func = module.main().unwrap().clone();
    let mlir = Mlir::default();
    let known: [&dyn Backend; 1] = [&mlir];
    let pins = [of_codegen::Pin { op: pin.into(), backend: "mlir".into() }];
    let request = Request { known: &known, wanted: &["mlir".into()], pins: &pins, min_region: 1 };
    let placement = place(&mut func, &request).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!((placement.regions.len(), placement.refused.len()), (1, 0), "{placement:?}");
    let options = CompileOptions {
        model: "test".into(),
        flags: Vec::new(),
        inputs: Vec::new(),
        threads: 1,
        target: Target::new(Isa::host(), &known),
        cache: Cache::none(),
        progress: None,
    };
    let compiled = compile(&[("main".into(), &func)], &options).unwrap_or_else(|d| panic!("{d}"));
    let again = compile(&[("main".into(), &func)], &options).unwrap_or_else(|d| panic!("{d}"));
    let (plan, again) = (compiled.open().unwrap(), again.open().unwrap());
    assert_eq!(of_plan::json(&plan), of_plan::json(&again), "two compilations differ");
    (func.clone(), plan)
}

fn given(inputs: &[Tensor]) -> Vec<of_runtime::Value> {
    let tensor = |t: &Tensor| {
        let dims: Vec<i64> = t.dims().iter().map(|d| *d as i64).collect();
        let dtype = of_codegen::physical::element_type(t.dtype());
        of_runtime::Tensor::from_bytes(dtype, dims, t.bytes().unwrap()).unwrap().into()
    };
    inputs.iter().map(tensor).collect()
}

fn session(plan: PlanFile) -> Session {
    Session::new(Arc::new(plan), 0, Options { threads: 1, profile: false }, &[Arc::new(Mlir::default())]).unwrap()
}

/// Runs the session on inputs, and compares.
fn check(f: &Func, session: &mut Session, inputs: &[Tensor]) {
    let values: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
    let want = interpret::run_graph(&f.graph, &values).unwrap_or_else(|d| panic!("{d}"));
    let got: Vec<Value> = session
        .run(given(inputs))
        .unwrap()
        .iter()
        .map(|v| {
            let t = v.as_tensor().unwrap();
            let dims = t.dims().iter().map(|d| *d as usize).collect();
            let dtype = of_codegen::physical::dtype_of(t.dtype()).unwrap();
            Value::Tensor(Tensor::from_bytes(dtype, dims, of_ir::Blob::new(t.bytes().unwrap().to_vec())).unwrap())
        })
        .collect();
    assert_eq!(difference(&got, &want, 1e-5), None);
}

fn floats(dims: &[usize], seed: u64) -> Tensor {
    of_ops::sample::Rng::new(seed).tensor(of_ir::DType::F32, dims, -1.0, 1.0)
}

/// A product, a softmax and what is between them. The product has tiles, and temporaries have places.
#[test]
fn a_region_is_machine_code_in_the_plan() {
    if !common::compiles() {
        return;
    }
    let (f, plan) = planned(
        r"func @main(%x: tensor<24x40xf32>, %w: tensor<40x96xf32>) -> (tensor<24x96xf32>, tensor<24x1xf32>) {
  %p = of.matmul %x, %w : (tensor<24x40xf32>, tensor<40x96xf32>) -> tensor<24x96xf32>
  %s = of.softmax %p {axis = -1} : (tensor<24x96xf32>) -> tensor<24x96xf32>
  %y = of.add %s, %p : (tensor<24x96xf32>, tensor<24x96xf32>) -> tensor<24x96xf32>
  %axes = of.constant {value = dense<1> : tensor<1xi64>}
  %m = of.reduce_max %y, %axes {keepdims = true}
  of.return %y, %m
}",
        "add",
    );
    check(&f, &mut session(plan), &[floats(&[24, 40], 1), floats(&[40, 96], 2)]);
}

#[test]
fn open_extents_are_those_of_each_run() {
    if !common::compiles() {
        return;
    }
    let (f, plan) = planned(
        r"func @main(%x: tensor<?(N)x8xf32>, %w: tensor<8x4xf32>) -> (tensor<?(N)x4xf32>) {
  %p = of.matmul %x, %w : (tensor<?(N)x8xf32>, tensor<8x4xf32>) -> tensor<?(N)x4xf32>
  %s = of.softmax %p {axis = -1} : (tensor<?(N)x4xf32>) -> tensor<?(N)x4xf32>
  %y = of.add %s, %p : (tensor<?(N)x4xf32>, tensor<?(N)x4xf32>) -> tensor<?(N)x4xf32>
  of.return %y : (tensor<?(N)x4xf32>) -> ()
}",
        "add",
    );
    let mut session = session(plan);
    for n in [3, 5, 3] {
        check(&f, &mut session, &[floats(&[n, 8], n as u64), floats(&[8, 4], 1)]);
    }
}

#[test]
fn an_index_out_of_range_fails_the_run_and_no_other() {
    if !common::compiles() {
        return;
    }
    let (f, plan) = planned(
        r"func @main(%x: tensor<10x3xf32>, %i: tensor<4xi64>) -> (tensor<4x3xf32>) {
  %g = of.gather %x, %i {axis = 0} : (tensor<10x3xf32>, tensor<4xi64>) -> tensor<4x3xf32>
  %y = of.add %g, %g : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  of.return %y : (tensor<4x3xf32>) -> ()
}",
        "add",
    );
    let x = floats(&[10, 3], 1);
    let mut good = session(plan);
    check(&f, &mut good, &[x.clone(), Tensor::from_i64s(&[0, -1, 9, -10])]);
    let bad = good.run(given(&[x, Tensor::from_i64s(&[0, 1, 2, 10])]));
    assert!(
        matches!(&bad, Err(RunError::Task { source: of_runtime::ExecError::Input(what), .. })
        if what == "an index is out of range"),
        "{bad:?}"
    );
}

/// What a build without MLIR says of a region that it is to compile.
#[test]
fn a_build_without_mlir_says_how_to_get_it() {
    if of_mlir::COMPILES {
        return;
    }
    let why = of_mlir::compile::compile("").unwrap_err();
    assert!(why.contains("--features mlir"), "{why}");
}
