//! `optimize` on the graphs for measuring, by its own cost model.
//!
//! `cargo test --release -p of-passes --test optimize -- --nocapture` prints the table.

use std::time::Instant;

use of_frontend::Builder;
use of_frontend::measuring::{GRAPHS, nasrnn};
use of_ir::{DType, Module, Tensor, Type};
use of_ops::Value;
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Relu};
use of_ops::interpret::run_graph;
use of_ops::sample::Rng;
use of_passes::{Manager, Report};

fn run(module: &mut Module, passes: &str) -> Report {
    let m = Manager::parse(passes).unwrap();
    m.run(module, &mut |_| {}).unwrap_or_else(|d| panic!("{d:?}"))
}

/// Modelled microseconds before, after and at least, and the seconds of the pass.
fn optimized(module: &mut Module, options: &str) -> (f64, f64, f64, f64) {
    // Weights stay ops, so nothing large is computed here.
    let started = Instant::now();
    let report = run(module, &format!("optimize{{{options}}}"));
    let seconds = started.elapsed().as_secs_f64();
    let counters = &report.passes.last().unwrap().counters;
    let us = |name: &str| counters.get(name).map_or(0.0, |ns| *ns as f64 / 1e3);
    (us("ns before"), us("ns after"), us("ns at least"), seconds)
}

#[test]
fn measured_graphs_cost_less_after_optimize() {
    println!(
        "{:14} {:>6} {:>12} {:>12} {:>12} {:>8} {:>10} {:>8} {:>8}",
        "model", "target", "before us", "fused us", "after us", "gain %", "rewrites %", "gap %", "seconds"
    );
    for (name, make) in GRAPHS {
        for target in ["cpu", "t4"] {
            // Without rules the only gain is from fused activations.
            let (_, joined, ..) = optimized(&mut make().unwrap(), &format!("target={target},rounds=0"));
            let (before, after, least, seconds) =
                optimized(&mut make().unwrap(), &format!("target={target},exact=120"));
            let gain = |from: f64| 100.0 * (from / after - 1.0);
            let gap = 100.0 * (after / least - 1.0);
            println!(
                "{name:14} {target:>6} {before:12.1} {joined:12.1} {after:12.1} {:8.1} {:10.1} {gap:8.2} {seconds:8.2}",
                gain(before),
                gain(joined)
            );
            assert!(after <= joined && joined <= before);
            assert!(after <= 1.01 * least, "{name} on {target} may cost {gap:.2} % less");
        }
    }
}

/// On a target whose products take activations, an activation that alone reads a product is free. With other readers
/// the product is stored, and the activation is a kernel.
#[test]
fn activations_fuse_into_products() {
    let costs = |shared: bool, target: &str| {
        let mut b = Builder::new("joined");
        let [x, y] = ["x", "y"].map(|n| b.input(n, Type::fixed(DType::F32, &[256, 256])));
        let product = b.op(MatMul {}, &[x, y]).unwrap();
        let relu = b.op(Relu {}, &[product]).unwrap();
        let outputs = if shared { vec![("z", relu), ("p", product)] } else { vec![("z", relu)] };
        let (before, after, ..) = optimized(&mut b.finish(&outputs).unwrap(), &format!("target={target}"));
        (before, after)
    };
    let (before, after) = costs(false, "t4");
    // A start and two times 256 KiB at 320 GB/s.
    assert!((before - after - 6.64).abs() < 0.01, "{before} {after}");
    let (before, after) = costs(true, "t4");
    assert!((before - after).abs() < 0.01, "{before} {after}");
    let (before, after) = costs(false, "cpu");
    assert!((before - after).abs() < 0.01, "{before} {after}");
}

/// A module of 10,000 ops, segment by segment, in bounded time.
#[test]
fn compile_time_is_linear_in_module_size() {
    let mut b = Builder::new("large");
    let mut x = b.input("x", Type::fixed(DType::F32, &[4, 4]));
    for i in 0..2500 {
        let w = b.constant(Tensor::from_slice(&[4, 4], &[i as f32; 16]).unwrap()).unwrap();
        let y = b.op(MatMul {}, &[x, w]).unwrap();
        let y = b.op(Add {}, &[y, x]).unwrap();
        x = b.op(Relu {}, &[y]).unwrap();
    }
    let mut module = b.finish(&[("y", x)]).unwrap();
    assert!(module.main().unwrap().graph.walk().len() > 10_000);
    let started = Instant::now();
    run(&mut module, "optimize");
    println!("10,000 ops: {:.1} s", started.elapsed().as_secs_f64());
}

/// The same input gives the same text.
#[test]
fn optimize_is_deterministic() {
    let text = || {
        let mut module = nasrnn().unwrap();
        run(&mut module, "optimize{target=t4}");
        format!("{module:?}")
    };
    assert_eq!(text(), text());
}

/// The models compute the same as before.
#[test]
fn optimize_preserves_results() {
    for (name, options) in [("nasrnn", "cpu"), ("nasrnn", "t4"), ("squeezenet", "t4")] {
        let (_, make) = GRAPHS.iter().find(|(n, _)| *n == name).unwrap();
        let outputs = |passes: &str| {
            let mut module = make().unwrap();
            run(&mut module, passes);
            let func = module.main().unwrap();
            let mut rng = Rng::new(1);
            let mut input =
                |ty: &Type| rng.tensor(DType::F32, &ty.as_tensor().unwrap().fixed_dims().unwrap(), 0.25, 1.0);
            let inputs: Vec<Value> = func.input_types().iter().map(|t| input(t).into()).collect();
            run_graph(&func.graph, &inputs).unwrap()
        };
        let (want, got) = (outputs("verify"), outputs(&format!("optimize{{target={options}}}")));
        for (a, b) in want.iter().zip(&got) {
            let (Value::Tensor(a), Value::Tensor(b)) = (a, b) else { panic!("no tensors") };
            let (a, b) = (a.to_f64s().unwrap(), b.to_f64s().unwrap());
            let largest = a.iter().fold(0f64, |m, x| m.max(x.abs()));
            let off = a.iter().zip(&b).fold(0f64, |m, (x, y)| m.max((x - y).abs()));
            assert!(largest > 0.0 && off <= 1e-4 * largest, "{name} for {options} is off by {off} of {largest}");
        }
    }
}
