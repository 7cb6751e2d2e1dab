//! Pipeline stages: the joint search, and writing what it finds.

use std::time::Instant;

use of_frontend::gpt::{Gpt, training};
use of_ir::DType;
use of_ir::text::parse_module;
use of_passes::Manager;
use of_sharding::search::Effort;
use of_sharding::{MeshSpec, microbatches, stages};

/// A training step of `layers` layers tanh(x w) with weights of `width` x `width`, on `rows` rows.
fn step(layers: usize, rows: usize, width: usize) -> String {
    let (x, w) = (format!("tensor<{rows}x{width}xf32>"), format!("tensor<{width}x{width}xf32>"));
    let list = |one: &dyn Fn(usize) -> String| (0..layers).map(one).collect::<Vec<_>>().join(", ");
    let (args, ws) = (list(&|i| format!("%w{i}: {w}")), list(&|_| w.clone()));
    let mut body = String::new();
    for i in 0..layers {
        let from = if i == 0 { "x".into() } else { format!("y{}", i - 1) };
        body += &format!("  %p{i} = of.matmul %{from}, %w{i} : ({x}, {w}) -> {x}\n");
        body += &format!("  %y{i} = of.tanh %p{i} : ({x}) -> {x}\n");
    }
    let (gs, names) = (list(&|i| format!("%g{i}")), list(&|i| format!("%w{i}")));
    body += &format!("  {gs} = of.gradient %y{}, {names} : ({x}, {ws}) -> ({ws})\n", layers - 1);
    for i in 0..layers {
        body += &format!("  %n{i} = of.sub %w{i}, %g{i} : ({w}, {w}) -> {w}\n");
    }
    let (carried, news) = (list(&|i| (i + 1).to_string()), list(&|i| format!("%n{i}")));
    format!(
        "func @main(%x: {x}, {args}) -> ({ws}) attributes {{of.carried = [{carried}]}} {{\n{body}  of.return {news} : ({ws}) -> ()\n}}\n"
    )
}

/// Cuts, layouts and recomputation of three blocks, where memory is too short to keep all activations.
#[test]
fn alternatives_and_stages_are_searched_jointly() {
    let text = include_str!("../../tests/lit/recompute/memory.of");
    let mut found = 0;
    for memory in [300e6, 280e6, 260e6] {
        let mut module = parse_module(text, "memory.of", &of_ops::registry(), None).unwrap();
        let passes = Manager::parse("differentiate,simplify,recompute{ops=3}").unwrap();
        passes.run(&mut module, &mut |_| {}).unwrap_or_else(|d| panic!("{:?}", d.0));
        let func = module.funcs.get_mut("main").unwrap();
        let mesh = MeshSpec { memory, ..MeshSpec::named("dgx-h100[8]").unwrap() };
        let started = Instant::now();
        let p = match stages::choose(func, &mesh, 2, 2, &Effort::default()) {
            Ok(s) => s.pipeline,
            Err(d) => {
                println!("{:.0} MB: {} ({:.1} s)", memory / 1e6, d.0[0].message, started.elapsed().as_secs_f64());
                continue;
            }
        };
        let (cost, gap, seconds) = (1e3 * p.cost, 100.0 * (1.0 - p.bound / p.cost), started.elapsed().as_secs_f64());
        println!("{:.0} MB: {cost:.3} ms, gap {gap:.1} %, {:.1} MB ({seconds:.1} s)", memory / 1e6, p.memory / 1e6);
        assert!(p.memory <= memory && p.bound <= p.cost);
        found += 1;
    }
    assert!(found > 0, "nothing fits");
}

/// Cross-entropy of a network with one hidden layer; the gradient of the gather adds up by class.
const CROSS_ENTROPY: &str = "func @main(%x: tensor<8x12xf32>, %labels: tensor<8x1xi64>, %w0: tensor<12x16xf32>, %w1: tensor<16x10xf32>) -> (tensor<f32>, tensor<12x16xf32>, tensor<16x10xf32>) attributes {of.carried = [-1, 2, 3]} {
  %a = of.matmul %x, %w0
  %h = of.tanh %a
  %l = of.matmul %h, %w1
  %s = of.log_softmax %l {axis = -1}
  %p = of.gather_elements %s, %labels {axis = 1}
  %none = of.none
  %sum = of.reduce_sum %p, %none {keepdims = false}
  %loss = of.neg %sum
  %g0, %g1 = of.gradient %loss, %w0, %w1
  %n0 = of.sub %w0, %g0
  %n1 = of.sub %w1, %g1
  of.return %loss, %n0, %n1
}
";

/// What is priced as a pipeline can be written as one.
#[test]
fn feasible_pipelines_are_written() {
    let gpt = Gpt { layers: 2, batch: 8, sequence: 6, hidden: 16, heads: 2, vocabulary: 24, dtype: DType::F32 };
    let parse = |text: &str| parse_module(text, "step.of", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let steps = [
        ("GPT", training(&gpt).unwrap_or_else(|d| panic!("{d}"))),
        ("cross-entropy", parse(CROSS_ENTROPY)),
        ("layers", parse(&step(4, 64, 32))),
    ];
    let (mesh, effort) = (MeshSpec::named("cpu[2]").unwrap(), Effort::default());
    for (name, mut module) in steps {
        let passes = Manager::parse("sharding").unwrap();
        passes.run(&mut module, &mut |_| {}).unwrap_or_else(|d| panic!("{name}: {d}"));
        let func = &module.funcs["main"];
        let all = stages::pipelines(func, &mesh, &[2, 4], &effort).unwrap_or_else(|d| panic!("{name}: {d}"));
        let staged: Vec<_> = all.feasible.iter().filter(|p| p.stages > 1).collect();
        assert_eq!(staged.len(), 2, "{name}: {:?}", all.infeasible);
        for p in staged {
            let mut own = func.clone();
            let chosen = stages::choose(&mut own, &mesh, p.stages, p.microbatches, &effort)
                .unwrap_or_else(|d| panic!("{name}: {d}"));
            let parts = microbatches::Microbatches::of(&own, p.microbatches).unwrap_or_else(|d| panic!("{name}: {d}"));
            let names: Vec<String> = (0..p.stages).map(|i| format!("stage{i}")).collect();
            stages::write(&mut own, &chosen, &parts, &names).unwrap_or_else(|d| panic!("{name}: {d}"));
        }
    }
}
