//! A short run of the graph fuzzer: the seeds are fixed, so it finds the same every time.

use of_codegen::toolchain::cache::Cache;
use of_fuzz::check::{native, passes};
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
    let cache = Cache::at(&std::env::temp_dir().join("of-fuzz-kernels"), Cache::DEFAULT_LIMIT);
    let batch: Vec<_> = compiled.iter().map(|(case, checked)| (*case, checked)).collect();
    if let Err((i, f)) = native(&batch, &cache, &mut |_| ()) {
        panic!("seed {}: {f:?}\n{}", (i as u64 + 1) * NATIVE, show(batch[i].0));
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
