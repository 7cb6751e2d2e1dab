//! Regions in plans: placed, compiled, run by a session, beside the interpreter.

mod common;

use std::sync::Arc;

use of_codegen::native::Isa;
use of_codegen::native::cache::Cache;
use of_codegen::{Backend, CompileOptions, Request, Target, compile, place};
use of_ir::{Func, Tensor};
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_plan::{Exec, PlanFile};
use of_runtime::{LoadContext, Loader, Options, RunError, Session};
use of_xla::{Serialized, Xla};

use common::assert_close;

/// The function after the passes, and its plan: everything on XLA, also where `pin` is not worth a call.
fn planned(text: &str, pin: &str) -> (Func, PlanFile) {
    let mut module =
        of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let mut manager = Manager::default();
    manager.append("cpu").unwrap();
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    let mut func = module.main().unwrap().clone();
    let known: [&dyn Backend; 1] = [&Xla];
    let pins = [of_codegen::Pin { op: pin.into(), backend: "xla".into() }];
    let request = Request { known: &known, wanted: &["xla".into()], pins: &pins, min_region: 1 };
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
    Session::new(Arc::new(plan), 0, Options { threads: 1, profile: false }, &[Arc::new(Xla)]).unwrap()
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
    assert_close("a region", &got, &want, 1e-5);
}

fn floats(dims: &[usize], seed: u64) -> Tensor {
    of_ops::sample::Rng::new(seed).tensor(of_ir::DType::F32, dims, -1.0, 1.0)
}

#[test]
fn open_extents_are_those_of_each_run() {
    if common::client().is_none() {
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

/// Programs in plans are for the plugin that made them; elsewhere they are refused before anything runs.
#[test]
fn plans_may_hold_what_the_plugin_made() {
    if common::client().is_none() {
        return;
    }
    let text = r"func @main(%x: tensor<10x3xf32>, %i: tensor<4xi64>) -> (tensor<4x3xf32>) {
  %g = of.gather %x, %i {axis = 0} : (tensor<10x3xf32>, tensor<4xi64>) -> tensor<4x3xf32>
  %y = of.add %g, %g : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  of.return %y : (tensor<4x3xf32>) -> ()
}";
    let module = of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap();
    let mut f = module.main().unwrap().clone();
    let pins = [of_codegen::Pin { op: "add".into(), backend: "xla+serialized".into() }];
    let wanted = ["xla+serialized".to_string()];
    place(&mut f, &Request { known: &[&Serialized], wanted: &wanted, pins: &pins, min_region: 1 }).unwrap();
    let payload = |f: &Func| {
        let options = CompileOptions {
            model: "test".into(),
            flags: Vec::new(),
            inputs: Vec::new(),
            threads: 1,
            target: Target::new(Isa::host(), &[&Serialized]),
            cache: Cache::none(),
            progress: None,
        };
        compile(&[("main".into(), f)], &options).unwrap_or_else(|d| panic!("{d}")).open().unwrap()
    };
    let open = |plan: PlanFile| {
        Session::new(Arc::new(plan), 0, Options { threads: 1, profile: false }, &[Arc::new(Serialized)])
    };
    let mut session = open(payload(&f)).unwrap();
    let x = floats(&[10, 3], 1);
    check(&f, &mut session, &[x.clone(), Tensor::from_i64s(&[0, -1, 9, -10])]);
    assert!(session.run(given(&[x, Tensor::from_i64s(&[0, 1, 2, 10])])).is_err(), "an index is out of range");
    // Of another build, and damaged.
    let bytes = Serialized.compile(module.main().unwrap()).unwrap();
    let at = bytes.windows(7).position(|w| w == b"(build ").unwrap() + 7;
    let other = [&bytes[..at], b"0000", &bytes[at + 4..]].concat();
    let short = bytes[..bytes.len() / 2].to_vec();
    let plan = payload(&f);
    let program = &plan.plan().programs[0];
    let region = program.tasks.iter().find_map(|t| match &t.exec {
        Some(Exec::Backend(b)) => Some((t, b)),
        _ => None,
    });
    let (task, exec) = region.unwrap();
    for (bytes, words) in [(other, "whose plans are the same everywhere"), (short, "")] {
        let context = LoadContext { program, task, exec, threads: 1, device: 0, seat: None, handles: &[] };
        let error = Serialized.load(&bytes, context).err().expect("it is refused").to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn results_take_over_the_memory_of_inputs_and_never_of_weights() {
    if common::client().is_none() {
        return;
    }
    // The weight is too large for the text, and comes first: it has the type of the first result.
    let n = 16;
    let ty = format!("tensor<{n}x{n}xf32>");
    let weight: Vec<String> = (0..n * n).map(|i| format!("{}.5", i % 7)).collect();
    let (f, plan) = planned(
        &format!(
            "func @main(%x: {ty}, %z: {ty}) -> ({ty}, {ty}) {{
  %w = of.constant {{value = dense<[{}]> : tensor<{}xf32>}} : () -> tensor<{}xf32>
  %s = of.constant {{value = dense<[{n}, {n}]> : tensor<2xi64>}} : () -> tensor<2xi64>
  %m = of.reshape %w, %s {{allowzero = false}} : (tensor<{}xf32>, tensor<2xi64>) -> {ty}
  %y = of.add %m, %x : ({ty}, {ty}) -> {ty}
  %v = of.sub %y, %z : ({ty}, {ty}) -> {ty}
  of.return %y, %v : ({ty}, {ty}) -> ()
}}",
            weight.join(", "),
            n * n,
            n * n,
            n * n
        ),
        "add",
    );
    let mut session = session(plan);
    for seed in 0..4 {
        check(&f, &mut session, &[floats(&[n, n], seed), floats(&[n, n], seed + 9)]);
    }
}

#[test]
fn an_index_out_of_range_fails_the_run_and_no_other() {
    if common::client().is_none() {
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

#[test]
fn loops_and_branches_run_inside_of_a_region() {
    if common::client().is_none() {
        return;
    }
    // The carried sum, and every sum on the way, stacked; a branch on the iteration; a gather whose index is checked.
    let (f, plan) = planned(
        r"func @main(%x: tensor<5x3xf32>, %list: tensor<3xi64>) -> (tensor<3xf32>, tensor<5x3xf32>, tensor<i64>) {
  %n = of.constant {value = dense<5> : tensor<i64>}
  %go = of.constant {value = dense<true> : tensor<i1>}
  %zero = of.constant {value = dense<0.0> : tensor<3xf32>}
  %two = of.constant {value = dense<2> : tensor<i64>}
  %axes = of.constant {value = dense<0> : tensor<1xi64>}
  %least = of.reduce_min %list, %axes {keepdims = false}
  %last, %all = of.loop %n, %go, %zero : (tensor<i64>, tensor<i1>, tensor<3xf32>) -> (tensor<3xf32>, tensor<5x3xf32>) {
  ^(%i: tensor<i64>, %c: tensor<i1>, %s: tensor<3xf32>):
    %row = of.gather %x, %i {axis = 0}
    %small = of.lt %i, %two
    %term = of.if %small : (tensor<i1>) -> tensor<3xf32> {
      %neg = of.neg %row
      of.yield %neg
    }, {
      of.yield %row
    }
    %next = of.add %s, %term
    of.yield %c, %next, %next
  }
  of.return %last, %all, %least
}",
        "loop",
    );
    check(&f, &mut session(plan), &[floats(&[5, 3], 4), Tensor::from_i64s(&[7, 3, 9])]);
}
