//! Values that one subgraph produces and another reads stay on the device: on the emulated GPU against the interpreter, and
//! on a stub driver that prints the bus transfers.

mod common;

use std::sync::Arc;

use common::{emulated, function_of, numbers, said, shared as plan, stub, to_runtime};
use of_cuda::Device;
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_plan::PlanFile;
use of_runtime::{Options, Session};
use of_test_support::compare::{Tolerance, assert_numbers_close};

/// Read by the host and by another subgraph.
const BOTH: &str = "func @main(%x: tensor<32x16xf32>, %w: tensor<16x32xf32>) -> (tensor<32x32xf32>) {
  %a = of.matmul %x, %w\n  %h = of.tanh %a\n  %y = of.matmul %a, %h\n  of.return %y\n}\n";

/// Read only by another subgraph; the host reads a second result.
const PRIVATE: &str = "func @main(%x: tensor<32x16xf32>, %w: tensor<16x32xf32>) -> (tensor<32x32xf32>) {
  %a = of.matmul %x, %w\n  %b = of.matmul %w, %x\n  %zero = of.constant {value = dense<0> : tensor<i64>}
  %t = of.cum_sum %b, %zero {exclusive = false, reverse = false}
  %h = of.matmul %x, %t\n  %w2 = of.matmul %h, %w\n  %y = of.matmul %w2, %a\n  of.return %y\n}\n";

/// Read by three subgraphs, the caller and the host, and so are their results.
const MANY: &str = "func @main(%x: tensor<32x16xf32>, %w: tensor<16x32xf32>)
    -> (tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>) {
  %a = of.matmul %x, %w\n  %h = of.tanh %a\n  %b = of.matmul %a, %h\n  %i = of.tanh %b\n  %c = of.matmul %a, %i
  %j = of.tanh %c\n  %y = of.matmul %j, %a\n  of.return %y, %a, %b, %c\n}\n";

/// The host reads a slice of it, and so does a subgraph, which accesses it inside the value.
const SLICE: &str = "func @main(%x: tensor<32x16xf32>, %w: tensor<16x32xf32>) -> (tensor<32x32xf32>) {
  %from = of.constant {value = dense<[16]> : tensor<1xi64>}\n  %to = of.constant {value = dense<[32]> : tensor<1xi64>}
  %axes = of.constant {value = dense<[0]> : tensor<1xi64>}\n  %a = of.matmul %x, %w\n  %none = of.none
  %s = of.slice %a, %from, %to, %axes, %none\n  %h = of.tanh %s\n  %t = of.transpose %h {perm = [1, 0]}
  %y = of.matmul %t, %s\n  of.return %y\n}\n";

/// Read by a subgraph that is compiled for the extents of each run.
const OPEN: &str = "func @main(%x: tensor<16x16xf32>, %y: tensor<?(N)x16xf32>) -> (tensor<?(N)x16xf32>) {
  %a = of.matmul %x, %x\n  %h = of.tanh %a\n  %s = of.matmul %y, %h\n  %t = of.matmul %s, %a\n  of.return %t\n}\n";

/// Runs the plan of a text with inputs of these extents and compares with the interpreter.
fn compare(text: &str, plan: &Arc<PlanFile>, runs: &[[[usize; 2]; 2]]) {
    let f = function_of(text);
    let mut session = Session::new(Arc::clone(plan), 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    let mut r = Rng::new(7);
    for dims in runs {
        let inputs = dims.map(|d| r.f32s(&d));
        let want = interpret::run_graph(&f.graph, &inputs).unwrap();
        let got = session.run(inputs.iter().map(to_runtime).collect()).unwrap();
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            let Value::Tensor(want) = want else { panic!("no tensor") };
            let (got, want) = (numbers(got), want.to_f64s().unwrap());
            assert_numbers_close(text, &got, &want, Tolerance { absolute: 1e-4, ..Tolerance::of_largest(1e-4) });
        }
    }
}

const SQUARE: [[usize; 2]; 2] = [[32, 16], [16, 32]];

#[test]
fn subgraphs_read_values_of_others_on_the_device() {
    if !emulated() {
        return;
    }
    for (text, subgraphs) in [(BOTH, 2), (PRIVATE, 2), (MANY, 4), (SLICE, 2)] {
        compare(text, &plan(text, "emulated", subgraphs), &[SQUARE; 3]);
    }
    let open = plan(OPEN, "emulated", 2);
    compare(OPEN, &open, &[[[16, 16], [3, 16]], [[16, 16], [5, 16]], [[16, 16], [3, 16]]]);
}

/// Runs in a process that has a driver.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn on_a_driver() {
    let text = std::env::var_os("KEPT").unwrap();
    let (text, subgraphs) = match text.to_str() {
        Some("both") => (BOTH, 2),
        Some("private") => (PRIVATE, 2),
        _ => (MANY, 4),
    };
    compare(text, &plan(text, "sm_90+cublaslt", subgraphs), &[SQUARE; 2]);
    println!("it agrees");
}

#[test]
fn values_without_host_readers_do_not_cross_the_bus() {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    // 2048 bytes are an input, 1024 the square of 16, 4096 that of 32.
    for (name, up, down) in [
        ("both", &[2048, 2048, 4096][..], &[4096, 4096][..]),
        ("private", &[1024, 2048, 2048, 2048, 2048], &[1024, 4096]),
        ("many", &[2048, 2048, 4096, 4096, 4096], &[4096, 4096, 4096, 4096]),
    ] {
        let variables = [("OF_CUDA_DRIVER", library), ("OF_CUBLASLT", library), ("STUB_SAYS", "1"), ("KEPT", name)];
        let out = said("on_a_driver", &variables);
        assert!(out.contains("it agrees"), "{out}");
        let crossed = |way: &str| {
            let mut all: Vec<usize> =
                out.lines().filter_map(|l| l.strip_prefix(way)).filter_map(|n| n.parse().ok()).collect();
            all.sort_unstable();
            all
        };
        assert_eq!((&crossed("up ")[..], &crossed("down ")[..]), (up, down), "{name}: {out}");
    }
}
