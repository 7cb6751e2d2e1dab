//! Recurrent networks on meshes: their scans compute with parts of a batch, and losses and values are those of one device.

use of_driver::Precision;
use of_frontend::nn::{Gru, Init, Lstm};
use of_ops::movement::Flatten;

use super::ranks::{How, assert_near, on_mesh};
use super::*;

const BATCH: usize = 12;
const STEPS: usize = 5;
const INPUTS: usize = 4;
const SIZE: usize = 8;

/// A recurrent network of two layers, the first in both directions; the states of all steps, and a product.
fn network(kind: &str) -> Module {
    let mut b = Builder::new(kind);
    let dims = vec![Dim::symbol("n"), Dim::from(STEPS as i64), Dim::from(INPUTS as i64)];
    let x = b.input("x", Type::tensor(DType::F32, dims));
    let init = &mut Init::new(3);
    let layers: [Box<dyn Layer>; 2] = match kind {
        "lstm" => [
            Box::new(Lstm::bidirectional(init, INPUTS, SIZE, 1).unwrap()),
            Box::new(Lstm::new(init, 2 * SIZE, SIZE).unwrap()),
        ],
        _ => [
            Box::new(Gru::bidirectional(init, INPUTS, SIZE, 1).unwrap()),
            Box::new(Gru::new(init, 2 * SIZE, SIZE).unwrap()),
        ],
    };
    let y = layers.iter().fold(x, |y, layer| layer.apply(&mut b, y).unwrap());
    let y = b.op(Flatten { axis: 1 }, &[y]).unwrap();
    let y = nn::Linear::new(init, STEPS * SIZE, CLASSES).unwrap().apply(&mut b, y).unwrap();
    b.finish(&[("y", y)]).unwrap()
}

/// By the search and by hand; as data, in microbatches, in stages, and all of them.
const MESHES: [How; 8] = [
    ("cpu[2]", (1, 1), &[]),
    ("cpu[2]", (1, 1), &["x=S(0)", "labels=S(0)"]),
    ("cpu[4]", (1, 1), &["x=S(0)", "labels=S(0)"]),
    ("cpu[2x2]", (1, 1), &["x=S(0),S(0)", "labels=S(0),S(0)"]),
    ("cpu[5]", (1, 1), &["x=S(0)", "labels=S(0)"]),
    ("cpu[2]", (1, 4), &[]),
    ("cpu[2]", (2, 3), &[]),
    ("cpu[2x2]", (2, 2), &[]),
];

#[test]
fn recurrent_networks_have_the_losses_of_one_device() {
    let mut r = of_ops::sample::Rng::new(2);
    let x: Vec<f32> = (0..BATCH * STEPS * INPUTS).map(|_| r.float(-1.0, 1.0) as f32).collect();
    let labels: Vec<i64> = (0..BATCH).map(|i| (i * 7 % CLASSES) as i64).collect();
    let batch = || {
        let dims = vec![BATCH as i64, STEPS as i64, INPUTS as i64];
        let x = of_runtime::Tensor::from_elements(dims, &x).unwrap();
        vec![x.into(), of_runtime::Tensor::from_elements(vec![BATCH as i64], &labels).unwrap().into()]
    };
    let losses = |t: &mut Trainer| -> Vec<f64> { (0..6).map(|_| t.step(batch(), 0.05).unwrap()).collect() };
    for kind in ["lstm", "gru"] {
        let module = network(kind);
        let with = || TrainOptions {
            batch: BATCH,
            ..options("adamw", &Hyperparameters::default(), Loss::named("cross-entropy").unwrap())
        };
        let mut one = trainer(module.clone(), &with(), &[]);
        let want = losses(&mut one);
        assert!(want[5] < want[0], "{kind} does not learn: {want:?}");
        let names: Vec<String> = one.variables().unwrap().names().into_iter().map(str::to_owned).collect();
        for how in MESHES {
            let what = format!("{kind} on {how:?}");
            let mut ranks = on_mesh(&module, &with(), how, Precision::Model);
            assert_near(&losses(&mut ranks), &want, 1e-4, &what);
            let value = |t: &Trainer, name: &str| t.parameter(name).unwrap().to_f64s().unwrap();
            for name in names.iter().filter(|name| name.contains("weight")) {
                assert_near(&value(&ranks, name), &value(&one, name), 2e-3, &format!("{name} of {what}"));
            }
        }
        // Roundings of 16 bits do not keep a batch from being split.
        let mut one = trainer_in(module.clone(), &with(), &[], Precision::Bf16).unwrap_or_else(|d| panic!("{d}"));
        let want = losses(&mut one);
        for how in [MESHES[1], MESHES[5], MESHES[7]] {
            let mut ranks = on_mesh(&module, &with(), how, Precision::Bf16);
            assert_near(&losses(&mut ranks), &want, 1e-2, &format!("{kind} of bf16 on {how:?}"));
        }
    }
}
