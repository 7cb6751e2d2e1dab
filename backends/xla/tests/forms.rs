//! Cases that the samples do not cover: ties, NaN, tables with equal keys, empty tables, indices out of range.

mod common;

use std::sync::Arc;

use of_codegen::Backend;
use of_ir::{DType, Elements, Tensor};
use of_ops::contraction::Det;
use of_ops::ml::{LabelMap, PairwiseCoupling, TreeEnsemble};
use of_ops::movement::Compress;
use of_ops::nn::{AffineGrid, Col2Im, MaxUnpool};
use of_ops::random::{Multinomial, RandomNormal, RandomUniform};
use of_ops::sample::Rng;
use of_ops::signal::Dft;
use of_ops::string::TfIdfVectorizer;
use of_ops::{Op, Value, interpret};
use of_test_support::compare::{Tolerance, difference};
use of_xla::{Client, Xla};

use common::support::{self, one_op};
use common::{run, verified};

/// Compares ops with the interpreter; MLIR verifies all modules when this is dropped.
struct Cases {
    client: Arc<Client>,
    modules: Vec<(String, String)>,
}

impl Cases {
    fn new() -> Option<Cases> {
        Some(Cases { client: common::client()?, modules: Vec::new() })
    }

    fn try_run(&mut self, op: &dyn Op, operands: &[Tensor], open: bool) -> Result<(Vec<Value>, Vec<Value>), String> {
        let operands: Vec<Value> = operands.iter().cloned().map(Value::Tensor).collect();
        let (func, inputs) = one_op(op, &operands, open);
        let at = func.graph.walk()[func.graph.walk().len() - 2];
        Xla.claims(&func.graph, at)?;
        let module = of_xla::emit::module(&func)?;
        self.modules.push((format!("{:?}", op.attrs()), module.text.clone()));
        let got = run(&self.client, &module, &inputs)?;
        Ok((got, interpret::run_graph(&func.graph, &inputs).map_err(|d| d.to_string())?))
    }

    fn check(&mut self, op: &dyn Op, operands: &[Tensor]) {
        for open in [false, true].into_iter().take(operands.len()) {
            let (got, want) = self.try_run(op, operands, open).unwrap_or_else(|e| panic!("{:?}: {e}", op.attrs()));
            assert_eq!(
                difference(&got, &want, Tolerance::of_largest(1e-5).with_16_bit_rounding()),
                None,
                "{:?} {operands:?}",
                op.attrs()
            );
        }
    }

    fn done(self) {
        verified(&self.modules);
    }
}

fn of<T: of_ir::Element>(dims: &[usize], values: &[T]) -> Tensor {
    Tensor::from_slice(dims, values).unwrap()
}

#[test]
fn determinants_of_ill_conditioned_matrices() {
    let Some(mut cases) = Cases::new() else { return };
    let nan = f32::NAN;
    let inf = f32::INFINITY;
    let threes: [[f32; 9]; 9] = [
        [1., 2., 3., 4., 5., 6., 7., 8., 9.],
        [0., 0., 0., 1., 2., 3., 4., 5., 6.],
        [0., 2., 3., 0., 5., 6., 0., 8., 1.],
        [0., 1., 0., 0., 0., 1., 1., 0., 0.],
        [1., 1., 1., -1., 1., 2., 1., -1., 3.],
        [nan, 1., 2., 3., 4., 5., 6., 7., 9.],
        [1., nan, 2., 3., 4., 5., 6., 7., 9.],
        [inf, 1., 2., 3., 4., 5., 6., 7., 9.],
        [0., 0., nan, 0., 1., 2., 0., 3., 4.],
    ];
    cases.check(&Det {}, &[of(&[3, 3, 3, 3], threes.as_flattened())]);
    for (n, dtype) in [(1, DType::F32), (2, DType::F64), (5, DType::F16), (5, DType::BF16), (17, DType::F32)] {
        cases.check(&Det {}, &[Rng::new(n as u64).tensor(dtype, &[3, n, n], -2.0, 2.0)]);
    }
    cases.check(&Det {}, &[of::<f32>(&[2, 0, 0], &[])]);
    cases.check(&Det {}, &[of::<f32>(&[0, 2, 2], &[])]);
    cases.done();
}

#[test]
fn gathers_and_scatters_follow_their_indices() {
    let Some(mut cases) = Cases::new() else { return };
    let x = of(&[1, 1, 2, 2], &[1f32, 2., 3., 4.]);
    let at = of(&[1, 1, 2, 2], &[5i64, 7, 13, 15]);
    let op = MaxUnpool { kernel: vec![2, 2], strides: vec![2, 2], pads: vec![] };
    cases.check(&op, &[x.clone(), at.clone()]);
    for dims in [[1, 1, 5, 6], [1, 1, 3, 4], [1, 1, 2, 7], [2, 2, 4, 4]] {
        let (func, _) = one_op(&op, &[x.clone(), at.clone(), Tensor::from_i64s(&dims)].map(Value::Tensor), false);
        assert!(func.graph.ty(func.graph.outputs()[0]).as_tensor().unwrap().fixed_dims().is_some());
        let (got, want) = cases.try_run(&op, &[x.clone(), at.clone(), Tensor::from_i64s(&dims)], false).unwrap();
        assert_eq!(difference(&got, &want, Tolerance::of_largest(0.0).with_16_bit_rounding()), None, "{dims:?}");
    }
    let ints = of(&[1, 1, 2, 2], &[1i32, -2, 3, 4]);
    cases.check(&op, &[ints, at.clone()]);
    for bad in [16i64, -1] {
        let at = of(&[1, 1, 2, 2], &[5i64, 7, bad, 15]);
        let failed = cases.try_run(&op, &[x.clone(), at], true);
        assert_eq!(failed.unwrap_err(), "an index is out of range");
    }
    cases.done();
}

#[test]
fn key_lookup_prefers_the_last_equal_key() {
    let Some(mut cases) = Cases::new() else { return };
    let default = of(&[1], &[-1f32]);
    let nan = f32::NAN;
    let x = of(&[2, 6], &[0f32, -0.0, nan, 1.5, 7.0, -3.0, f32::INFINITY, 2.0, 2.5, 1e30, -1e-30, 0.5]);
    for keys in [
        &[1.5f32, -0.0, nan, 1.5, 0.0, f32::INFINITY, nan, -3.0][..],
        &[-3.0],
        &[nan],
        &[7.0, 2.5],
        &[1e30, 0.5, 2.0],
        &[],
    ] {
        let values: Vec<f32> = (0..keys.len()).map(|i| i as f32 + 10.0).collect();
        let (keys, values) = (of(&[keys.len()], keys), of(&[values.len()], &values));
        cases.check(&LabelMap { keys, values, default: default.clone() }, std::slice::from_ref(&x));
    }
    for dtype in [DType::I8, DType::U8, DType::I64, DType::U64, DType::F16, DType::Bool] {
        let (low, high) = dtype.int_range().unwrap_or((-9, 9));
        let list: Vec<i128> = if dtype == DType::Bool { vec![1] } else { vec![low, 3, high, 1, 7, 3, 0] };
        let of_list = |list: Vec<i128>| Tensor::from_elements(dtype, vec![list.len()], Elements::Int(list)).unwrap();
        let x = if dtype == DType::Bool { vec![0, 1] } else { vec![0, 1, 2, 3, 4, 5, 6, 7, low, high, high - 1] };
        let values = Tensor::from_i64s(&(1..=list.len() as i64).map(|i| i64::MAX / i).collect::<Vec<_>>());
        let op = LabelMap { keys: of_list(list), values, default: Tensor::from_i64s(&[i64::MIN]) };
        cases.check(&op, &[of_list(x)]);
    }
    let keys: Vec<i64> = (0..1000).map(|i| (i * 7919) % 1009).collect();
    let op = LabelMap {
        values: Tensor::from_i64s(&keys),
        keys: Tensor::from_i64s(&keys),
        default: Tensor::from_i64s(&[-5]),
    };
    cases.check(&op, &[Tensor::from_i64s(&(-10..1030).collect::<Vec<_>>())]);
    cases.done();
}

/// Random trees: the two branches of node `i` lead to nodes behind it, or to leaves.
fn forest(r: &mut Rng, aggregate: &str) -> TreeEnsemble {
    let (nodes, leaves, targets) = (r.int(1, 40), r.int(1, 12), r.int(1, 4));
    let branch = |r: &mut Rng, from: i64| match r.int(0, 3) {
        0 => -1 - r.int(0, leaves - 1),
        _ if from >= nodes => -1 - r.int(0, leaves - 1),
        _ => r.int(from, nodes - 1),
    };
    let list = |r: &mut Rng, low: i64, high: i64| (0..nodes).map(|_| r.int(low, high)).collect::<Vec<_>>();
    let mut begins = |n: i64, most: i64| {
        let mut at = 0;
        let begins: Vec<i64> = (0..n).map(|_| (at, at += r.int(0, most)).0).collect();
        (begins, at as usize)
    };
    let ((leaf, votes), (sets, members)) = (begins(leaves, 3), begins(nodes, 4));
    TreeEnsemble {
        roots: (0..r.int(1, 5)).map(|_| branch(r, 0)).collect(),
        features: list(r, 0, 3),
        modes: list(r, 0, 6),
        splits: (0..nodes).map(|_| r.int(-2, 2) as f64).collect(),
        on_true: (0..nodes).map(|i| branch(r, i + 1)).collect(),
        on_false: (0..nodes).map(|i| branch(r, i + 1)).collect(),
        missing_true: list(r, 0, 1),
        sets,
        members: (0..members).map(|_| r.int(-2, 2) as f64).collect(),
        leaves: leaf,
        vote_targets: (0..votes).map(|_| r.int(0, targets - 1)).collect(),
        vote_weights: (0..votes).map(|_| r.float(-1.0, 1.0)).collect(),
        targets,
        aggregate: aggregate.into(),
    }
}

#[test]
fn tree_ensembles_match_the_interpreter() {
    let Some(mut cases) = Cases::new() else { return };
    for seed in 0..16u64 {
        let mut r = Rng::new(seed);
        let op = forest(&mut r, ["SUM", "AVERAGE", "MIN", "MAX"][seed as usize % 4]);
        // Whole numbers, so that splits and members are hit; one of eight is NaN.
        let x: Vec<f32> = (0..9 * 4).map(|_| if r.int(0, 7) == 0 { f32::NAN } else { r.int(-2, 2) as f32 }).collect();
        cases.check(&op, &[of(&[9, 4], &x)]);
        cases.check(&op, &[Rng::new(seed).tensor(DType::F64, &[2, 4], -2.0, 2.0)]);
        cases.check(&op, &[of::<f32>(&[0, 4], &[])]);
    }
    let none = TreeEnsemble { roots: vec![], ..forest(&mut Rng::new(1), "MIN") };
    cases.check(&none, &[of(&[1, 4], &[0f32; 4])]);
    cases.done();
}

#[test]
fn pairwise_coupling_iterates_until_each_row_converges() {
    let Some(mut cases) = Cases::new() else { return };
    for classes in [2, 3, 5, 9] {
        let pairs = classes * (classes - 1) / 2;
        let x = Rng::new(classes as u64).tensor(DType::F32, &[7, pairs], -0.2, 1.2);
        cases.check(&PairwiseCoupling { classes: classes as i64 }, &[x]);
        let even = of(&[1, pairs], &vec![0.5f64; pairs]);
        cases.check(&PairwiseCoupling { classes: classes as i64 }, &[even]);
    }
    cases.check(&PairwiseCoupling { classes: 3 }, &[of(&[2, 3], &[f32::NAN, 0.5, 0.5, 0.25, 0.5, 0.75])]);
    cases.check(&PairwiseCoupling { classes: 3 }, &[of::<f32>(&[0, 3], &[])]);
    cases.done();
}

#[test]
fn ngrams_are_counted() {
    let Some(mut cases) = Cases::new() else { return };
    for seed in 0..12u64 {
        let mut r = Rng::new(seed);
        let (ones, twos, threes) = (r.int(0, 4), r.int(0, 6), r.int(1, 8));
        let count = ones + twos + threes;
        let shortest = r.int(1, 3);
        let op = TfIdfVectorizer {
            mode: ["TF", "IDF", "TFIDF"][seed as usize % 3].into(),
            min_gram_length: shortest,
            max_gram_length: r.int(shortest, 9),
            max_skip_count: r.int(0, 9),
            ngram_counts: vec![0, ones, ones + 2 * twos],
            ngram_indexes: (0..count).map(|_| r.int(0, count)).collect(),
            // Few different ones, so that n-grams repeat; the last is no u8.
            pool_int64s: (0..ones + 2 * twos + 3 * threes).map(|_| r.pick(&[0, 1, 2, 255, -1])).collect(),
            pool_strings: vec![],
            weights: if r.int(0, 1) == 0 { vec![] } else { (0..count).map(|_| r.float(-2.0, 2.0)).collect() },
        };
        let dtype = [DType::I64, DType::I32, DType::U8, DType::U64][seed as usize % 4];
        let high = dtype.int_range().unwrap().1;
        for dims in [&[11][..], &[3, 8], &[2, 1], &[2, 0], &[0, 4]] {
            let items = (0..dims.iter().product()).map(|_| r.pick(&[0, 1, 2, high, high.min(255)])).collect();
            cases.check(&op, &[Tensor::from_elements(dtype, dims.to_vec(), Elements::Int(items)).unwrap()]);
        }
    }
    cases.done();
}

/// More numbers than one generation of the state yields, twice.
#[test]
fn random_numbers_match_the_seed() {
    let Some(mut cases) = Cases::new() else { return };
    for (count, seed) in [(1, 0), (311, 1), (312, -1), (313, 1 << 40), (2000, 7)] {
        let shape = Tensor::from_i64s(&[count, 1]);
        for dtype in [DType::F64, DType::F32] {
            let ops: [&dyn Op; 2] = [
                &RandomUniform { dtype, low: -3.0, high: 0.5, seed },
                &RandomNormal { dtype, mean: 2.0, scale: 0.25, seed },
            ];
            for op in ops {
                let (got, want) = cases.try_run(op, std::slice::from_ref(&shape), false).unwrap();
                assert_eq!(
                    difference(&got, &want, Tolerance::of_largest(1e-7).with_16_bit_rounding()),
                    None,
                    "{:?}",
                    op.attrs()
                );
            }
        }
        let logits = Rng::new(3).tensor(DType::F32, &[3, 5], -2.0, 2.0);
        cases.check(&Multinomial { dtype: DType::I32, sample_size: count, seed }, &[logits]);
    }
    cases.done();
}

#[test]
fn fourier_transforms_of_any_length_and_axis() {
    let Some(mut cases) = Cases::new() else { return };
    for (n, inverse, onesided) in [
        (1, false, false),
        (7, false, true),
        (64, false, true),
        (1, true, true),
        (9, true, true),
        (12, true, true),
        (31, true, false),
        (100, false, false),
    ] {
        for (axis, dims) in [(0, [6, 2, 5, 0]), (2, [2, 3, 10, 0]), (-3, [2, 4, 3, 0])] {
            let parts = if onesided { 1 + usize::from(inverse) } else { 1 + n % 2 };
            let x = Rng::new(n as u64).tensor(DType::F64, &[&dims[..3], &[parts]].concat(), -1.0, 1.0);
            let operands = [x, Tensor::scalar(n as i64), Tensor::scalar(axis as i64)];
            let (got, want) = cases.try_run(&Dft { inverse, onesided }, &operands, false).unwrap();
            assert_eq!(
                difference(&got, &want, Tolerance::of_largest(1e-9).with_16_bit_rounding()),
                None,
                "{n} {inverse} {onesided} {axis}"
            );
        }
    }
    cases.done();
}

#[test]
fn images_of_blocks_grids_and_choices() {
    let Some(mut cases) = Cases::new() else { return };
    let ints = Tensor::from_i64s;
    let op = Col2Im { strides: vec![2, 1], pads: vec![1, 0, 2, 1], dilations: vec![1, 2] };
    for dtype in [DType::F32, DType::F16, DType::I32] {
        let x = Rng::new(5).tensor(dtype, &[2, 3 * 6, 4 * 4], -9.0, 9.0);
        let (got, want) = cases.try_run(&op, &[x, ints(&[6, 5]), ints(&[3, 2])], false).unwrap();
        assert_eq!(difference(&got, &want, Tolerance::of_largest(1e-5).with_16_bit_rounding()), None, "{dtype}");
    }
    let x = support::floats(&[2, 18, 15], 5);
    assert!(cases.try_run(&op, &[x, ints(&[6, 5]), ints(&[3, 2])], false).is_err());
    for align_corners in [false, true] {
        for size in [&[2, 3, 1, 4][..], &[1, 1, 2, 1, 3]] {
            let rank = size.len() - 2;
            let theta = support::floats(&[size[0] as usize, rank, rank + 1], 1);
            let (got, want) = cases.try_run(&AffineGrid { align_corners }, &[theta, ints(size)], false).unwrap();
            assert_eq!(difference(&got, &want, Tolerance::of_largest(1e-6).with_16_bit_rounding()), None, "{size:?}");
        }
    }
    for (axis, list) in [(None, &[1, 0, 1, 1, 0][..]), (Some(-1), &[0, 1]), (Some(0), &[])] {
        let condition = Tensor::from_elements(DType::Bool, vec![list.len()], Elements::Int(list.to_vec())).unwrap();
        let (got, want) = cases.try_run(&Compress { axis }, &[support::floats(&[3, 4], 2), condition], false).unwrap();
        assert_eq!(difference(&got, &want, Tolerance::of_largest(0.0).with_16_bit_rounding()), None, "{axis:?}");
    }
    cases.done();
}

#[test]
fn scans_run_forward_and_backward_along_any_axis() {
    let Some(client) = common::client() else { return };
    // One input forward along its last axis, one backward along its first; one output of either kind. What both read outside is
    // captured, its maximum is taken inside and the index of a gather is checked.
    let text = |n: usize, index: &str| {
        format!(
            "func @main(%s: tensor<3xf32>, %x: tensor<3x{n}xf32>, %y: tensor<{n}x2xf32>, %c: tensor<3xf32>)
    -> (tensor<3xf32>, tensor<2x{n}xf32>, tensor<{n}x3xf32>, tensor<3xf32>) {{
  %axes = of.constant {{value = dense<0> : tensor<1xi64>}}
  %d = of.add %c, %c
  %last, %a, %b = of.scan %s, %x, %y {{num_scan_inputs = 2, scan_input_axes = [-1, 0], scan_input_directions = [0, 1],
      scan_output_axes = [1, 0], scan_output_directions = [1, 0]}}
      : (tensor<3xf32>, tensor<3x{n}xf32>, tensor<{n}x2xf32>) -> (tensor<3xf32>, tensor<2x{n}xf32>, tensor<{n}x3xf32>) {{
  ^(%p: tensor<3xf32>, %u: tensor<3xf32>, %v: tensor<2xf32>):
    %most = of.reduce_max %d, %axes {{keepdims = false}}
    %i = of.constant {{value = dense<{index}> : tensor<i64>}}
    %one = of.gather %v, %i {{axis = 0}}
    %t = of.mul %u, %one
    %h = of.add %p, %t
    %next = of.add %h, %most
    %w = of.sub %v, %one
    of.yield %next, %w, %next
  }}
  %e = of.neg %d
  of.return %last, %a, %b, %e
}}"
        )
    };
    let registry = of_ops::registry();
    let mut modules = Vec::new();
    for n in [0, 1, 5] {
        let parsed =
            of_ir::text::parse_module(&text(n, "-1"), "test", &registry, None).unwrap_or_else(|d| panic!("{d}"));
        let func = parsed.main().unwrap();
        let inputs = [&[3][..], &[3, n], &[n, 2], &[3]].map(|dims| Value::Tensor(support::floats(dims, n as u64)));
        let module = of_xla::emit::module(func).unwrap();
        assert!(module.text.contains("stablehlo.while") || n == 0);
        let got = run(&client, &module, &inputs).unwrap_or_else(|e| panic!("{e}\n{}", module.text));
        let want = interpret::run_graph(&func.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
        assert_eq!(difference(&got, &want, Tolerance::of_largest(1e-5).with_16_bit_rounding()), None);
        modules.push((format!("scan of {n}"), module.text));
    }
    let parsed = of_ir::text::parse_module(&text(4, "2"), "test", &registry, None).unwrap();
    let inputs = [&[3][..], &[3, 4], &[4, 2], &[3]].map(|dims| Value::Tensor(support::floats(dims, 1)));
    let module = of_xla::emit::module(parsed.main().unwrap()).unwrap();
    assert_eq!(run(&client, &module, &inputs), Err("an index is out of range".into()));
    modules.push(("scan of a bad index".into(), module.text));
    verified(&modules);
}
