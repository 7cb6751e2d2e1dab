//! Recomputation under short memory: the gap to the lower bound stays small.
//!
//! `cargo test --release -p of-passes --test recompute -- --nocapture` prints the cost of each limit.

use of_ir::text::parse_module;
use of_passes::Manager;
use of_sharding::decide::decide;
use of_sharding::explain::summary;
use of_sharding::search::Effort;
use of_sharding::{MeshSpec, Model, alternatives};

/// Three blocks on eight devices, which take 468 MB where all activations are kept.
#[test]
fn gap_is_small_under_a_memory_limit() {
    let text = include_str!("../../tests/lit/recompute/memory.of");
    let mesh = MeshSpec::named("dgx-h100[8]").unwrap();
    let effort = Effort::default();
    for memory in [450e6, 430e6, 420e6, 410e6, 380e6, 360e6] {
        let mut m = parse_module(text, "memory.of", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{:?}", d.0));
        let passes = Manager::parse("differentiate,simplify,recompute{ops=3}").unwrap();
        passes.run(&mut m, &mut |_| {}).unwrap_or_else(|d| panic!("{:?}", d.0));
        let func = m.funcs.get_mut("main").unwrap();
        let chosen =
            alternatives::choose(func, &mesh, memory, &effort).unwrap_or_else(|d| panic!("{:?}", d.0)).unwrap();
        let model = Model::new(func, &mesh).unwrap_or_else(|d| panic!("{:?}", d.0));
        let mut d = decide(&model, memory, &effort).unwrap_or_else(|d| panic!("{d}"));
        d.bound = d.bound.min(chosen.bound);
        println!("{:.0} MB: {}", memory / 1e6, summary(&model, &d));
        assert!(d.memory <= memory, "{memory}: {}", summary(&model, &d));
        assert!(d.cost - d.bound <= 0.01 * d.cost, "{memory}: {}", summary(&model, &d));
    }
}
