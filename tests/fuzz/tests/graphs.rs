//! A short run of the graph fuzzer: the seeds are fixed, so it finds the same every time.

use of_codegen::CpuCode;
use of_fuzz::check::{Compiler, native, passes};
use of_fuzz::generate::case;
use of_fuzz::shrink::{show, shrink};

/// The number of graphs, and how many of them share a compiled plan.
const GRAPHS: u64 = 200;
const NATIVE: u64 = 8;

#[test]
fn random_graphs_agree_in_all_configurations() {
    let cases: Vec<_> = (1..=GRAPHS).map(|seed| case(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).collect();
    let mut compiled = Vec::new();
    for (seed, case) in (1_u64..).zip(&cases) {
        match passes(case) {
            Ok(checked) if seed.is_multiple_of(NATIVE) => compiled.push((case, checked)),
            Ok(_) => {}
            Err(f) => {
                let small = shrink(case, &mut |c| passes(c).is_err_and(|e| e.stage == f.stage));
                panic!("seed {seed}: {f:?}\n{}", show(&small));
            }
        }
    }
    let batch: Vec<_> = compiled.iter().map(|(case, checked)| (*case, checked)).collect();
    for cpu_code in [CpuCode::Machine, CpuCode::C] {
        if let Err((i, f)) = native(&batch, &Compiler::new(cpu_code), &mut |_| ()) {
            panic!("seed {}, {cpu_code:?}: {f:?}\n{}", (i as u64 + 1) * NATIVE, show(batch[i].0));
        }
    }
}

#[test]
fn a_seed_always_gives_the_same_graph() {
    for seed in [3, 7, 11] {
        let text = || show(&case(seed).unwrap_or_else(|e| panic!("{e}")));
        assert_eq!(text(), text());
    }
}

/// The tolerance is tight enough to detect a wrong pass.
#[test]
fn differences_are_detected() {
    use of_fuzz::compare::{Expected, compare};
    use of_ir::Tensor;
    let of = |v: &[f32]| Tensor::from_slice(&[v.len()], v).unwrap();
    let want = of(&[1.0, -2.0, 0.0]);
    let noise = vec![(of(&[1.001, -2.0, 0.0]).into(), want.clone().into())];
    let expected = Expected { value: want.into(), free: Vec::new(), noise };
    assert!(compare(&of(&[1.003, -2.0, 0.0]).into(), &expected).is_ok());
    assert!(compare(&of(&[1.01, -2.0, 0.0]).into(), &expected).is_err());
    assert!(compare(&of(&[1.0, -2.001, 0.0]).into(), &expected).is_err());
    assert!(compare(&of(&[1.0, -2.0, 1e-6]).into(), &expected).is_err());
    assert!(compare(&of(&[1.0, f32::NAN, 0.0]).into(), &expected).is_err());
    assert!(compare(&of(&[1.0, -2.0]).into(), &expected).is_err());
}

/// The tolerance of a sum follows from the magnitudes of its terms, which partial sums may reach.
#[test]
fn sums_move_by_the_rounding_errors_of_their_terms() {
    use of_fuzz::evaluate::summed;
    use of_ir::Tensor;
    use of_ops::{Value, interpret};
    const TERMS: usize = 256;
    let text = format!(
        "func @main(%a: tensor<1x{TERMS}xf32>, %b: tensor<{TERMS}x1xf32>) -> (tensor<1x1xf32>) {{\n  %y = of.matmul %a, %b\n  of.return %y\n}}\n"
    );
    let module = of_ir::text::parse_module(&text, "sum.of", &of_ops::registry(), None).unwrap();
    let graph = &module.main().unwrap().graph;
    // The first half of the sum is large, and the other one cancels it.
    let a: Vec<f32> = (0..TERMS).map(|i| if i < TERMS / 2 { 1.1 } else { -1.1 + i as f32 * 1e-4 }).collect();
    let inputs: Vec<Value> = vec![
        Tensor::from_slice(&[1, TERMS], &a).unwrap().into(),
        Tensor::from_slice(&[TERMS, 1], &[0.7_f32; TERMS]).unwrap().into(),
    ];
    let number = |values: Vec<Value>| {
        let Value::Tensor(t) = &values[0] else { panic!("{values:?}") };
        t.to_f64s().unwrap()[0]
    };
    let exact = number(interpret::run_graph(graph, &inputs).unwrap());
    let bound = (2.0 * TERMS as f64).sqrt() * 2f64.powi(-24) * a.iter().map(|x| f64::from(x.abs() * 0.7)).sum::<f64>();
    let apart: Vec<f64> = (0..16).map(|seed| (number(summed(graph, &inputs, seed).unwrap()) - exact).abs()).collect();
    let most = apart.iter().copied().fold(0.0, f64::max);
    assert!(most <= 1.01 * bound && most > bound / 4.0, "{most} of at most {bound}");
}
