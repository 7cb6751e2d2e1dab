//! Subgraphs in plans: placed, compiled, run by a session, and compared with the interpreter.

mod common;

use std::sync::Arc;

use of_codegen::toolchain::cache::Cache;
use of_codegen::{Backend, Request, place};
use of_ir::{Func, Tensor};
use of_plan::{Exec, PlanFile};
use of_runtime::{LoadContext, Loader, Options, Session};
use of_xla::{Serialized, Xla};

use common::support::{self, check, floats, given, in_one_subgraph, placed, session};

#[test]
fn symbolic_extents_are_compiled_for_each_run() {
    if common::client().is_some() {
        support::runs_of_open_extents(&Xla, Xla);
    }
}

/// Compiled programs in plans are for one plugin build; others reject them before anything runs.
#[test]
fn plans_may_contain_compiled_programs() {
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
    place(&mut f, &Request { known: &[&Serialized], wanted: &wanted, pins: &pins, min_subgraph_size: 1 }).unwrap();
    let payload = |f: &Func| placed(f, &[&Serialized], Cache::none());
    let open = |plan: PlanFile| {
        Session::new(
            Arc::new(plan),
            0,
            Options { threads: 1, profile: false, ..Default::default() },
            &[Arc::new(Serialized)],
        )
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
    let task = program.tasks.iter().find_map(|t| match &t.exec {
        Some(Exec::Backend(b)) => Some((t, b)),
        _ => None,
    });
    let (task, exec) = task.unwrap();
    for (bytes, words) in [(other, "whose plans are the same everywhere"), (short, "")] {
        let context = LoadContext {
            program,
            task,
            exec,
            threads: 1,
            device: 0,
            rank_context: None,
            handles: &[],
            output_handles: &[],
        };
        let error = Serialized.load(&bytes, context).err().expect("it is refused").to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn results_reuse_donated_inputs_and_never_weights() {
    if common::client().is_none() {
        return;
    }
    // The weight is too large for the text, and comes first: it has the type of the first result.
    let n = 16;
    let ty = format!("tensor<{n}x{n}xf32>");
    let weight: Vec<String> = (0..n * n).map(|i| format!("{}.5", i % 7)).collect();
    let (f, plan) = in_one_subgraph(
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
        &Xla,
    );
    let mut session = session(plan, Xla);
    for seed in 0..4 {
        check(&f, &mut session, &[floats(&[n, n], seed), floats(&[n, n], seed + 9)]);
    }
}

#[test]
fn an_index_out_of_range_fails_only_its_run() {
    if common::client().is_some() {
        support::an_index_out_of_range(&Xla, Xla);
    }
}

/// One program runs on any rank's device; device numbers wrap around.
#[test]
fn every_device_runs_a_program() {
    let Some(client) = common::client() else { return };
    let f = support::function_of(
        "func @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {
  %y = of.add %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  of.return %y : (tensor<4xf32>) -> ()
}",
    );
    let module = of_xla::emit::module(&f).unwrap();
    let x = of_ops::Value::Tensor(Tensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap());
    for device in 0..9 {
        let y = common::run_on(&client, device, &module, std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(support::tensors(&y)[0].to_f64s().unwrap(), [2.0, 4.0, 6.0, 8.0], "device {device}");
    }
}

/// Equal elements, NaN, and windows of the smallest value or of padding alone.
#[test]
fn max_pool_indices_are_the_first_maximum() {
    if common::client().is_none() {
        return;
    }
    for (order, last) in [(0, false), (1, false), (1, true)] {
        let (ty, out) = if last { ("tensor<1x4x5x2xf32>", "1x4x4x2") } else { ("tensor<1x2x4x5xf32>", "1x2x4x4") };
        let (f, plan) = in_one_subgraph(
            &format!(
                "func @main(%x: {ty}) -> (tensor<{out}xf32>, tensor<{out}xi64>) {{
  %y, %at = of.max_pool %x {{kernel = [2, 2], strides = [2, 2], pads = [2, 1, 2, 2], dilations = [1, 1], ceil_mode = false,
      storage_order = {order}, return_indices = true, auto_pad = \"NOTSET\", channels_last = {last}}}
  of.return %y, %at
}}"
            ),
            "max_pool",
            &Xla,
        );
        let values = |i: usize| match i % 7 {
            0 => f32::NAN,
            1..=3 => f32::NEG_INFINITY,
            n => (n % 2) as f32,
        };
        let x = Tensor::from_slice(&[40], &(0..40).map(values).collect::<Vec<_>>()).unwrap();
        let dims = if last { vec![1, 4, 5, 2] } else { vec![1, 2, 4, 5] };
        check(&f, &mut session(plan, Xla), &[x.reshaped(dims).unwrap()]);
    }
}

#[test]
fn loops_and_branches_run_in_a_subgraph() {
    if common::client().is_none() {
        return;
    }
    // The carried sum, and every sum on the way, stacked; a branch on the iteration; a gather whose index is checked.
    let (f, plan) = in_one_subgraph(
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
        &Xla,
    );
    check(&f, &mut session(plan, Xla), &[floats(&[5, 3], 4), Tensor::from_i64s(&[7, 3, 9])]);
}
