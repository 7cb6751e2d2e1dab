//! The search on training graphs of transformers: it is near-optimal and fast.

use std::time::Instant;

use of_frontend::gpt::{Gpt, training};
use of_ir::{DType, Func};
use of_passes::Manager;
use of_sharding::decide::decide;
use of_sharding::explain::summary;
use of_sharding::search::Effort;
use of_sharding::{MeshAxis, MeshSpec, Model};

/// The training graph in primitives, but for the updates, which stay whole.
fn prepared(c: &Gpt) -> Func {
    let mut m = training(c).unwrap_or_else(|e| panic!("{}", e.0[0]));
    let text = "differentiate,fold-constants,infer-shapes,canonicalize,expand-composites{keep=of.adam},\
                fold-constants,canonicalize,cse,dce";
    Manager::parse(text).unwrap().run(&mut m, &mut |_| {}).unwrap_or_else(|e| panic!("{}", e.0[0]));
    m.funcs.swap_remove("main").unwrap()
}

/// 8 x 8 x 16 H100: NVLink along the last axis but one, InfiniBand along the others.
fn cluster() -> MeshSpec {
    let mut m = MeshSpec::named("dgx-h100[8]").unwrap();
    let fast = m.axes[0].clone();
    let slow = |devices| MeshAxis { devices, bandwidth: 5e10, latency: 8e-6, cache: Vec::new() };
    m.axes = vec![slow(8), fast, slow(16)];
    m
}

/// Two layers of GPT-3; `OF_GPT_LAYERS=96 cargo test --release -p of-passes --test gpt -- --nocapture` for all, and times.
#[test]
fn gpt3_on_1024_devices_is_near_optimal() {
    let layers = std::env::var("OF_GPT_LAYERS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let c = Gpt { layers, batch: 64, sequence: 2048, hidden: 12288, heads: 96, vocabulary: 51200, dtype: DType::F16 };
    let f = prepared(&c);
    let mesh = cluster();
    let started = Instant::now();
    let model = Model::new(&f, &mesh).unwrap_or_else(|e| panic!("{}", e.0[0]));
    let effort = Effort { gap: 0.01, ..Effort::default() };
    let d = decide(&model, mesh.memory, &effort).unwrap_or_else(|e| panic!("{e}"));
    println!("{} ops in {:?}: {}", f.graph.walk().len(), started.elapsed(), summary(&model, &d));
    assert!(d.cost - d.bound <= 0.01 * d.cost, "{}", summary(&model, &d));
    assert!(d.memory <= mesh.memory);
    let again = decide(&model, mesh.memory, &effort).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again.labels, d.labels, "the search is deterministic");
}
