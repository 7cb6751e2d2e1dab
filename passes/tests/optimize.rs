//! What `optimize` does to the models of the zoo, by its own cost model.
//!
//! `cargo test --release -p of-passes --test optimize -- --nocapture` prints the table.

use std::time::Instant;

use of_frontend::zoo::ZOO;
use of_ir::Module;
use of_passes::{Manager, Report};

fn run(module: &mut Module, passes: &str) -> Report {
    let m = Manager::parse(passes).unwrap();
    m.run(module, &mut |_| {}).unwrap_or_else(|d| panic!("{d:?}"))
}

/// Modelled microseconds before, after and at least, and how long the pass took.
fn optimized(module: &mut Module, options: &str) -> (f64, f64, f64, f64) {
    // Small constants (shapes) first; weights stay ops, so that nothing large is computed here.
    let started = Instant::now();
    let report = run(module, &format!("optimize{{{options}}}"));
    let seconds = started.elapsed().as_secs_f64();
    let counters = &report.passes.last().unwrap().counters;
    let us = |name: &str| counters.get(name).map_or(0.0, |ns| *ns as f64 / 1e3);
    (us("ns before"), us("ns after"), us("ns at least"), seconds)
}

#[test]
fn models_of_the_zoo_cost_less() {
    println!("{:14} {:>6} {:>12} {:>12} {:>8} {:>8}", "model", "target", "before us", "after us", "gain %", "seconds");
    for (name, make) in ZOO {
        for target in ["cpu", "t4"] {
            let mut module = make().unwrap();
            let (before, after, _, seconds) = optimized(&mut module, &format!("target={target}"));
            let gain = 100.0 * (before / after - 1.0);
            println!("{name:14} {target:>6} {before:12.1} {after:12.1} {gain:8.1} {seconds:8.2}");
            assert!(after <= before);
        }
    }
}
