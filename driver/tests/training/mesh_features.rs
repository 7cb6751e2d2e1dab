//! Trainings on meshes with what stands between gradients and updates, and with random ops: they are those of one device.

use of_driver::training::{Lora, Pruning};
use of_driver::{MeshOptions, Search};
use of_ops::elementwise::{Mul, Sigmoid};

use super::ranks::{How, MESHES, assert_near, on_mesh, steps};
use super::*;

/// A product with weights, then a random layer.
fn random(layer: &dyn Layer, width: usize) -> Module {
    let mut b = Builder::new("random");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(width as i64)]));
    let w = b.parameter("w", Tensor::from_slice(&[width], &vec![1f32; width]).unwrap()).unwrap();
    let y = b.op(Mul {}, &[x, w]).unwrap();
    let y = layer.apply(&mut b, y).unwrap();
    b.finish(&[("y", y)]).unwrap()
}

/// Sample `i` is `2^i`, so the gradient of a weight is a sum of powers of two: it names the samples that are kept, and no order of the
/// sum rounds it.
#[test]
fn random_layers_keep_the_same_elements_on_all_meshes() {
    const BATCH: usize = 16;
    const WIDTH: usize = 64;
    let x: Vec<f32> = (0..BATCH * WIDTH).map(|i| ((i / WIDTH) as f32).exp2()).collect();
    let tensor = |values: &[f32]| of_runtime::Tensor::from_elements(vec![BATCH as i64, WIDTH as i64], values).unwrap();
    let batch = || vec![tensor(&x).into(), tensor(&[0.0; BATCH * WIDTH]).into()];
    let weights = |t: &mut Trainer| -> Vec<Tensor> {
        let step = |t: &mut Trainer| {
            t.step(batch(), 1.0 / 1024.0).unwrap();
            t.parameter("w").unwrap()
        };
        (0..3).map(|_| step(t)).collect()
    };
    let layers: [(&str, Box<dyn Layer>); 2] =
        [("dropout", Box::new(nn::Dropout(0.5))), ("stochastic depth", Box::new(nn::StochasticDepth(0.5)))];
    for (what, layer) in layers {
        let module = random(&*layer, WIDTH);
        let with = TrainOptions { batch: BATCH, seed: 7, ..options("sgd", &Hyperparameters::default(), Loss::L1) };
        let want = weights(&mut trainer(module.clone(), &with, &[]));
        assert!(want[0] != want[1] && want[1] != want[2], "{what}: steps are equal");
        let other = weights(&mut trainer(module.clone(), &TrainOptions { seed: 8, ..with_same(&with) }, &[]));
        assert_ne!(want, other, "{what}: seeds are equal");
        let meshes: [How; 6] = [
            ("cpu[2]", (1, 1), &[]),
            ("cpu[2]", (1, 1), &["x=S(0)", "labels=S(0)", "w=B"]),
            ("cpu[2]", (1, 1), &["x=S(1)", "w=S(0)"]),
            ("cpu[4]", (1, 1), &["x=S(0)", "labels=S(0)", "w=B"]),
            ("cpu[4]", (1, 1), &["x=S(1)", "w=S(0)"]),
            ("cpu[2x2]", (1, 1), &["x=S(0),S(1)", "w=B,S(0)"]),
        ];
        for how in meshes {
            let got = weights(&mut on_mesh(&module, &with, how, Precision::Model));
            assert_eq!(got, want, "{what} on {how:?}");
        }
    }
}

/// The same training by SGD; options are no `Clone`.
fn with_same(of: &TrainOptions) -> TrainOptions {
    TrainOptions { batch: of.batch, ..options("sgd", &Hyperparameters::default(), of.loss) }
}

#[test]
fn adapters_masks_averages_and_accumulation_are_those_of_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (_, _, folder) = data(dir.path(), loss);
    let module = wide(4);
    let plain = || options("adamw", &Hyperparameters::default(), loss);
    let lora = Lora { targets: vec!["b.*".into(), "c.*".into()], seed: 1, ..Lora::new(4, 8.0) };
    // What is compared, and a value of each.
    let cases: [(&str, TrainOptions, &str); 6] = [
        ("adapters", TrainOptions { lora: Some(lora), ..plain() }, "b.lora_B.weight"),
        ("2:4", TrainOptions { pruning: Some(Pruning::Structured { keep: 2, group: 4 }), ..plain() }, "b.weight"),
        ("channels", TrainOptions { pruning: Some(Pruning::Channels(0.25)), ..plain() }, "b.weight"),
        ("averages", TrainOptions { average: Some(0.75), ..plain() }, "b.weight.average"),
        ("accumulation", TrainOptions { accumulate: 3, ..plain() }, "b.weight"),
        ("accumulated averages", TrainOptions { accumulate: 2, average: Some(0.5), ..plain() }, "c.weight.average"),
    ];
    for (what, options, value) in cases {
        let data = dataset(&folder, &module, &options);
        let mut one = trainer(module.clone(), &options, &[]);
        let want = steps(&mut one, &data, 0..12);
        let evaluated = one.evaluate(&data).unwrap();
        let numbers = |t: &Trainer| t.parameter(value).unwrap().to_f64s().unwrap();
        for how in [MESHES[0], MESHES[2], MESHES[3], MESHES[6]] {
            let mut ranks = on_mesh(&module, &options, how, Precision::Model);
            assert_near(&steps(&mut ranks, &data, 0..12), &want, 1e-4, &format!("{what}: losses of {how:?}"));
            let own = ranks.evaluate(&data).unwrap();
            assert_near(&[own.loss], &[evaluated.loss], 1e-4, &format!("{what}: evaluation of {how:?}"));
            assert_near(&numbers(&ranks), &numbers(&one), 1e-3, &format!("{what}: {value} of {how:?}"));
            if options.pruning.is_some() {
                let zeros = |t: &Trainer| numbers(t).iter().map(|w| *w == 0.0).collect::<Vec<_>>();
                assert!(zeros(&one).contains(&true));
                assert_eq!(zeros(&ranks), zeros(&one), "{what} on {how:?}");
            }
        }
    }
}

/// A perceptron of eight layers with dropouts between.
fn deep(width: usize) -> Module {
    let mut b = Builder::new("deep");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(width as i64)]));
    let init = &mut nn::Init::new(3);
    let mut y = x;
    for _ in 0..8 {
        y = nn::Linear::new(init, width, width).unwrap().apply(&mut b, y).unwrap();
        y = b.op(Tanh {}, &[y]).unwrap();
        y = b.op(Sigmoid {}, &[y]).unwrap();
        y = nn::Dropout(0.25).apply(&mut b, y).unwrap();
    }
    b.finish(&[("y", y)]).unwrap()
}

/// The counter of random numbers crosses all layers, and is no reason to keep them together.
#[test]
fn layers_with_dropouts_are_recomputed_and_cut_into_stages() {
    const BATCH: usize = 1024;
    const WIDTH: usize = 16;
    let x: Vec<f32> = (0..BATCH * WIDTH).map(|i| (i % 7) as f32 - 3.0).collect();
    let tensor = || of_runtime::Tensor::from_elements(vec![BATCH as i64, WIDTH as i64], &x).unwrap();
    let losses = |t: &mut Trainer| -> Vec<f64> {
        (0..4).map(|_| t.step(vec![tensor().into(), tensor().into()], 0.05).unwrap()).collect()
    };
    let module = deep(WIDTH);
    let with = || TrainOptions { batch: BATCH, seed: 5, ..options("adamw", &Hyperparameters::default(), Loss::L1) };
    let peak = |t: &Trainer| t.expected_memory(false).planned.values;
    let within = |memory: u64| {
        let mesh = MeshOptions { mesh: "cpu[1]".into(), search: vec![Search::Recompute], ..MeshOptions::default() };
        let (memory, cache) = (Some(memory), of_driver::Cache::none());
        let compile = CompileOptions { cache, memory, mesh: Some(mesh), ..CompileOptions::default() };
        let session = SessionOptions { threads: 1, ..SessionOptions::default() };
        Trainer::new(Model::from_module(module.clone()), &with(), &[], &compile, session, &of_driver::Silent)
            .unwrap_or_else(|d| panic!("{d}"))
    };
    let want = losses(&mut trainer(module.clone(), &with(), &[]));
    let (mut kept, mut recomputed) = (within(8_000_000), within(2_000_000));
    assert!(peak(&recomputed) < 2_000_000 && peak(&recomputed) * 4 < peak(&kept) * 3, "{}", peak(&kept));
    let own = losses(&mut kept);
    assert_near(&own, &want, 1e-5, "on a mesh of one device");
    assert_eq!(losses(&mut recomputed), own);
    for how in [("cpu[2]", (2, 4), &[][..]), ("cpu[4]", (4, 4), &[][..])] {
        assert_near(&losses(&mut on_mesh(&module, &with(), how, Precision::Model)), &want, 1e-4, &format!("{how:?}"));
    }
}
