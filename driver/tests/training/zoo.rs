//! Models of the zoo: each learns, takes a state dict, and gives a graph for inference.

use std::path::Path;

use of_driver::Diagnostics;
use of_driver::training::{Hyperparameters, Loss, Progress, TrainOptions, Trainer, columns, named};
use of_driver::zoo::{self, Mode, ZooModel};
use of_driver::{CompileOptions, Model, SessionOptions, Silent};
use of_ir::Module;

fn model(text: &str) -> ZooModel {
    zoo::named(Path::new(text)).unwrap_or_else(|d| panic!("{text}: {d}")).unwrap()
}

fn error(result: Result<Model, Diagnostics>) -> String {
    result.err().map_or_else(String::new, |d| d.to_string())
}

/// Names and values of parameters.
fn numbers(module: &Module) -> Vec<(String, Vec<f64>)> {
    let all = zoo::parameters(module).into_iter();
    all.map(|(name, value)| (name, value.to_f64s().unwrap())).collect()
}

/// A trainer, and a batch of synthetic data.
fn training(zoo: &ZooModel, loss: Loss, batch: usize) -> (Trainer, Vec<of_runtime::Value>) {
    let adam = named("adam", &Hyperparameters::default()).unwrap();
    let mut options = TrainOptions::new(loss, adam, batch);
    options.frozen = zoo.spec.model.frozen.iter().map(|pattern| (*pattern).to_owned()).collect();
    let model = zoo.model(Mode::Training).unwrap_or_else(|d| panic!("{d}"));
    let wanted = columns(&model, &options).unwrap_or_else(|d| panic!("{d}"));
    let data = zoo.synthetic(&format!("synthetic:{batch}:3"), &wanted).unwrap_or_else(|d| panic!("{d}"));
    options.extents = data.extents(&wanted).unwrap();
    let session = SessionOptions { threads: 1, ..SessionOptions::default() };
    let trainer = Trainer::new(model, &options, &[], &CompileOptions::default(), session, &Silent);
    (trainer.unwrap_or_else(|d| panic!("{d}")), data.batch(&(0..batch).collect::<Vec<_>>()).unwrap())
}

/// Trains a small model on one batch of synthetic data; the loss falls to less than 1 / `factor`.
fn learns(name: &str, loss: Loss, (batch, steps, rate): (usize, usize, f64), factor: f64) {
    let zoo = model(&format!("zoo:{name}:small"));
    let (mut trainer, batch) = training(&zoo, loss, batch);
    let mut step = || trainer.step(batch.clone(), rate).unwrap_or_else(|d| panic!("{name}: {d}"));
    let first = step();
    let last = (1..steps).map(|_| step()).last().unwrap();
    assert!(last * factor < first, "{name}: from {first} to {last}");
    // The graph for inference has the trained parameters.
    let trained = zoo.trained(&trainer.trained_model().unwrap()).unwrap_or_else(|d| panic!("{name}: {d}"));
    let untrained = zoo.model(Mode::Inference).unwrap().module;
    assert_ne!(numbers(&trained), numbers(&untrained), "{name}");
    assert_eq!(trained.main().unwrap().outputs, untrained.main().unwrap().outputs, "{name}");
}

const TOKENS: Loss = Loss::CrossEntropy { smoothing: 0.0, ignore: -100, axis: -1 };

#[test]
fn resnet50_learns() {
    learns("resnet50", Loss::named("cross-entropy").unwrap(), (16, 20, 0.003), 10.0);
}

#[test]
fn bert_learns() {
    learns("bert", Loss::Output, (8, 60, 0.01), 4.0);
}

#[test]
fn gpt2_learns() {
    learns("gpt2", TOKENS, (8, 60, 0.01), 4.0);
}

#[test]
fn ncf_learns() {
    learns("ncf", Loss::BinaryCrossEntropy, (32, 40, 0.02), 10.0);
}

#[test]
fn wide_deep_learns() {
    learns("wide_deep", Loss::BinaryCrossEntropy, (32, 60, 0.02), 10.0);
}

#[test]
fn dlrm_learns() {
    learns("dlrm", Loss::BinaryCrossEntropy, (32, 60, 0.02), 10.0);
}

#[test]
fn transformer_learns() {
    learns("transformer", TOKENS, (8, 60, 0.005), 4.0);
}

#[test]
fn arcface_learns() {
    learns("arcface_resnet50", Loss::Output, (16, 20, 0.003), 10.0);
}

#[test]
fn ssd_learns() {
    learns("ssd_resnet34", Loss::Output, (2, 20, 0.003), 2.0);
}

#[test]
fn mask_rcnn_learns() {
    learns("mask_rcnn", Loss::Output, (2, 80, 0.005), 2.0);
}

/// The overlap of two boxes: intersection by union.
fn overlap(a: &[f64], b: &[f64]) -> f64 {
    let side = |i: usize| (a[i + 2].min(b[i + 2]) - a[i].max(b[i])).max(0.0);
    let area = |x: &[f64]| (x[2] - x[0]) * (x[3] - x[1]);
    let common = side(0) * side(1);
    common / (area(a) + area(b) - common)
}

#[test]
fn mask_rcnn_finds_the_objects_that_it_was_trained_on() {
    let zoo = model("zoo:mask_rcnn:small,objects=1");
    let (mut trainer, batch) = training(&zoo, Loss::Output, 2);
    for _ in 0..150 {
        trainer.step(batch.clone(), 0.003).unwrap();
    }
    let trained = zoo.trained(&trainer.trained_model().unwrap()).unwrap();
    let columns = zoo.spec.synthetic(2, 3).unwrap();
    let column = |name: &str| columns.iter().find(|(known, _)| *known == name).unwrap().1.clone();
    let graph = &trained.main().unwrap().graph;
    let found = of_ops::interpret::run_graph(graph, &[column("image").into()]).unwrap_or_else(|d| panic!("{d}"));
    let numbers = |i: usize| match &found[i] {
        of_ops::Value::Tensor(t) => {
            (t.dims().to_vec(), t.to_f64s().or(t.to_i64s().map(|v| v.into_iter().map(|x| x as f64).collect())).unwrap())
        }
        other => panic!("{other:?}"),
    };
    let ((dims, boxes), (_, labels), (_, scores), (mask_dims, masks)) =
        (numbers(0), numbers(1), numbers(2), numbers(3));
    assert_eq!((dims, mask_dims), (vec![2, 8, 4], vec![2, 8, 28, 28]));
    assert!(boxes.iter().all(|x| (0.0..=64.0).contains(x)), "{boxes:?}");
    let (wanted, classes) = (column("boxes").to_f64s().unwrap(), column("labels").to_i64s().unwrap());
    for image in 0..2 {
        let own = &scores[image * 8..(image + 1) * 8];
        assert!(own.windows(2).all(|pair| pair[0] >= pair[1]), "{own:?}");
        let best = overlap(&boxes[image * 32..image * 32 + 4], &wanted[image * 4..image * 4 + 4]);
        assert!(best > 0.5 && labels[image * 8] == classes[image] as f64, "{best}: {labels:?} {classes:?} {scores:?}");
        // A slot without a detection has neither score nor class.
        assert!((0..8).all(|i| (own[i] > 0.05) == (labels[image * 8 + i] > 0.0) && (own[i] > 0.05 || own[i] == 0.0)));
        let mask = &masks[image * 8 * 784..image * 8 * 784 + 784];
        let inside = mask.iter().filter(|x| **x > 0.5).count();
        assert!(inside > 784 / 3, "{inside} pixels of the object");
    }
}

#[test]
fn dropout_of_training_graphs_is_random_and_absent_from_inference() {
    let zoo = model("zoo:gpt2:small,dropout=0.5");
    let (mut trainer, batch) = training(&zoo, TOKENS, 4);
    // Without updates the losses differ by the dropped elements alone.
    let losses: Vec<f64> = (0..3).map(|_| trainer.step(batch.clone(), 0.0).unwrap()).collect();
    assert!(losses[0] != losses[1] && losses[1] != losses[2], "{losses:?}");
    let graph = &zoo.model(Mode::Inference).unwrap().module.funcs["main"].graph;
    assert!(graph.walk().into_iter().all(|op| graph.op(op).name() != "of.dropout"));
}

#[test]
fn state_dicts_are_taken_by_name_and_shape() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("w.safetensors");
    let (trainer, _) = training(&model("zoo:arcface_resnet50:small,seed=5"), Loss::Output, 4);
    trainer.write_parameters(&file, Progress { step: 0, seed: 0, batch: 4, samples: 4 }).unwrap();
    let with = |settings: &str| model(&format!("zoo:arcface_resnet50:{settings},weights={}", file.display()));
    for mode in [Mode::Training, Mode::Inference] {
        let loaded = with("small").model(mode).unwrap_or_else(|d| panic!("{d}"));
        let own = model("zoo:arcface_resnet50:small,seed=5").model(mode).unwrap().module;
        assert_eq!(numbers(&loaded.module), numbers(&own));
        let other = model("zoo:arcface_resnet50:small").model(mode).unwrap().module;
        assert_ne!(numbers(&own), numbers(&other));
        assert_eq!(loaded.files[0].0, "w.safetensors");
    }
    let wrong = error(with("small,layers=2-1-1-1").model(Mode::Inference));
    assert!(wrong.contains("has no 'layer1.1.bn1.weight'"), "{wrong}");
    let wrong = error(with("small,features=8").model(Mode::Inference));
    assert!(wrong.contains("has 'fc.weight' with extents [16, 256]"), "{wrong}");
    let other = model(&format!("zoo:ncf:small,weights={}", file.display()));
    assert!(error(other.model(Mode::Training)).contains("has no 'mf_user_embed.weight'"));
    std::fs::write(&file, "text").unwrap();
    assert!(error(with("small").model(Mode::Training)).contains("is no safetensors file"));
}

#[test]
fn synthetic_data_is_a_function_of_its_seed_and_its_text_is_checked() {
    let zoo = model("zoo:resnet50:small");
    let options =
        TrainOptions::new(Loss::named("cross-entropy").unwrap(), named("sgd", &Hyperparameters::default()).unwrap(), 2);
    let wanted = columns(&zoo.model(Mode::Training).unwrap(), &options).unwrap();
    let bytes = |text: &str| {
        let data = zoo.synthetic(text, &wanted).unwrap_or_else(|d| panic!("{d}"));
        let batch = data.batch(&[0, 1]).unwrap();
        batch[0].as_tensor().unwrap().to_elements::<f32>().unwrap()
    };
    assert_eq!(bytes("synthetic:4"), bytes("synthetic:4:0"));
    assert_ne!(bytes("synthetic:4"), bytes("synthetic:4:1"));
    for text in ["synthetic:", "synthetic:0", "synthetic:x", "synthetic:4:y", "synthetic:99999999999"] {
        let wrong = zoo.synthetic(text, &wanted).unwrap_err().to_string();
        assert!(wrong.contains("a number of samples is needed"), "{wrong}");
    }
}
