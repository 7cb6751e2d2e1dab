//! Forms of models as exporters write them: what is a parameter and what is not, what is refused, and of what a warning is given.

use std::cell::RefCell;

use of_diag::{Diagnostic, Location};
use of_driver::Observer;
use of_ops::contraction::Det;
use of_ops::elementwise::{Gt, Mul, Select};
use of_ops::movement::Unsqueeze;
use of_ops::nn::{BatchNorm, BatchNormTraining, Dropout, Resize};
use of_ops::structural::NoneValue;

use super::*;

/// Keeps what is reported.
#[derive(Default)]
struct Kept(RefCell<Vec<Diagnostic>>);

impl Observer for Kept {
    fn diagnostic(&self, diagnostic: &Diagnostic) {
        self.0.borrow_mut().push(diagnostic.clone());
    }
}

/// A trainer of a model, and what was reported meanwhile.
fn trained(model: Model, options: &TrainOptions) -> (Result<Trainer, Diagnostics>, Vec<Diagnostic>) {
    let compile = CompileOptions { cache: of_driver::Cache::none(), ..CompileOptions::default() };
    let session = SessionOptions { threads: 1, ..SessionOptions::default() };
    let kept = Kept::default();
    let trainer = Trainer::new(model, options, &[], &compile, session, &kept);
    (trainer, kept.0.into_inner())
}

/// The model as `of-opt train` reads it from an ONNX file.
fn as_onnx(module: &Module) -> Model {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.onnx");
    std::fs::write(&path, of_onnx::export_bytes(module, &Default::default()).unwrap_or_else(|d| panic!("{d}")))
        .unwrap();
    of_driver::model::open_for_training(&path, &of_driver::Silent).unwrap_or_else(|d| panic!("{d}"))
}

fn floats(dims: &[usize], f: impl Fn(usize) -> f32) -> Tensor {
    Tensor::from_slice(dims, &(0..dims.iter().product()).map(f).collect::<Vec<_>>()).unwrap()
}

fn input(b: &mut Builder, dims: &[i64]) -> of_ir::ValueId {
    let dims = std::iter::once(Dim::symbol("n")).chain(dims.iter().map(|d| Dim::from(*d))).collect();
    b.input("x", Type::tensor(DType::F32, dims))
}

fn value(dims: &[i64], f: impl Fn(usize) -> f32) -> of_runtime::Value {
    let elements: Vec<f32> = (0..dims.iter().product::<i64>() as usize).map(f).collect();
    of_runtime::Tensor::from_elements(dims.to_vec(), &elements).unwrap().into()
}

/// A convolution and a resize to twice the size, whose scales have this name, if any. `threshold` clips what is small.
fn resized(scales: Option<&str>, scaled_by_weight: bool) -> Module {
    let mut b = Builder::new("resized");
    let x = input(&mut b, &[1, 4, 4]);
    let conv = nn::Conv::new(&mut nn::Init::new(3), 1, 1, &[3, 3]).unwrap().padding(1);
    let mut y = b.within("conv", |b| conv.apply(b, x)).unwrap();
    let factors = floats(&[4], |i| if i < 2 { 1.0 } else { 2.0 });
    let factors = match scales {
        Some(name) => b.parameter(name, factors),
        None => b.constant(factors),
    };
    let factors = factors.unwrap();
    if scaled_by_weight {
        y = b.op(Mul {}, &[y, factors]).unwrap();
    }
    let none = b.op(NoneValue {}, &[]).unwrap();
    let resize = Resize { mode: "linear".into(), ..Resize::default() };
    let y = b.op(resize, &[y, none, factors, none]).unwrap();
    b.finish(&[("y", y)]).unwrap()
}

fn mse() -> TrainOptions {
    TrainOptions { batch: 2, ..options("adamw", &Hyperparameters::default(), Loss::Mse) }
}

fn losses(t: &mut Trainer) -> Vec<f64> {
    let batch = [value(&[2, 1, 4, 4], |i| (i as f32 * 0.7).sin()), value(&[2, 1, 8, 8], |i| (i as f32 * 0.3).cos())];
    (0..4).map(|_| t.step(batch.to_vec(), 0.05).unwrap()).collect()
}

#[test]
fn scales_of_a_resize_are_no_parameter() {
    let want =
        losses(&mut trained(Model::from_module(resized(None, false)), &mse()).0.unwrap_or_else(|d| panic!("{d}")));
    let models = [Model::from_module(resized(Some("scales"), false)), as_onnx(&resized(Some("scales"), false))];
    for (i, model) in models.into_iter().enumerate() {
        // A pattern may name it: it stays as it is anyway.
        let options = TrainOptions { frozen: vec!["scales".into()], ..mse() };
        // The import of ONNX makes a constant without a name of it.
        let has_name = i == 0;
        for options in [mse()].into_iter().chain(has_name.then_some(options)) {
            let (trainer, _) = trained(Model::from_module(model.module.clone()), &options);
            let mut trainer = trainer.unwrap_or_else(|d| panic!("{d}"));
            let names: Vec<&str> = trainer.parameters().iter().map(|p| p.name.as_str()).collect();
            assert_eq!(names, ["conv.weight", "conv.bias"]);
            assert_eq!(losses(&mut trainer), want);
            // The trained model has it as before.
            let module = trainer.trained_model().unwrap();
            let graph = &module.main().unwrap().graph;
            let resize = graph.walk().into_iter().find(|op| graph.op(*op).name() == "of.resize").unwrap();
            let scales = graph.constant(graph.op(resize).operands[2]).unwrap();
            assert_eq!(scales.to_f64s().unwrap(), [1.0, 1.0, 2.0, 2.0]);
        }
    }
}

#[test]
fn frozen_constants_that_a_gradient_needs_stay_constants() {
    let model = || Model::from_module(resized(Some("scales"), true));
    let want =
        losses(&mut trained(Model::from_module(resized(None, true)), &mse()).0.unwrap_or_else(|d| panic!("{d}")));
    let options = TrainOptions { frozen: vec!["scales".into()], ..mse() };
    let mut frozen = trained(model(), &options).0.unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(losses(&mut frozen), want);
    let error = trained(model(), &mse()).0.err().expect("it was accepted").to_string();
    assert!(error.contains("its scales or its region of interest are no constants"), "{error}");
}

#[test]
fn thresholds_of_comparisons_do_not_decay() {
    let mut b = Builder::new("threshold");
    let x = input(&mut b, &[2]);
    let limit = b.parameter("limit", floats(&[2], |_| 0.5)).unwrap();
    let w = b.parameter("w", floats(&[2], |_| 1.0)).unwrap();
    let zero = b.constant(Tensor::scalar(0f32)).unwrap();
    let y = b.op(Mul {}, &[x, w]).unwrap();
    let large = b.op(Gt {}, &[x, limit]).unwrap();
    let y = b.op(Select {}, &[large, y, zero]).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    let t = trained(Model::from_module(module), &mse()).0.unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(t.parameters().iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["w"]);
}

#[test]
fn all_ops_without_a_gradient_are_named_at_once() {
    let mut b = Builder::new("dets");
    let x = input(&mut b, &[65, 65]);
    let w = b.parameter("w", floats(&[65, 65], |_| 1.0)).unwrap();
    let mut y = b.op(Mul {}, &[x, w]).unwrap();
    for _ in 0..2 {
        let det = b.op(Det {}, &[y]).unwrap();
        let axes = b.constant(Tensor::from_i64s(&[1, 2])).unwrap();
        let det = b.op(Unsqueeze {}, &[det, axes]).unwrap();
        y = b.op(Mul {}, &[x, det]).unwrap();
    }
    let module = b.finish(&[("y", y)]).unwrap();
    let errors = trained(as_onnx(&module), &mse()).0.err().expect("it was accepted");
    let places: Vec<String> = errors.0.iter().map(|d| d.location.to_string()).collect();
    assert!(errors.0.iter().all(|d| d.message.contains("'of.det' has no gradient")), "{errors}");
    assert!(errors.0.iter().all(|d| matches!(d.location.roots()[..], [Location::Onnx { .. }])), "{errors}");
    assert!(places.len() == 2 && places[0] != places[1], "{errors}");
}

/// Two convolutions whose parameters have these names.
fn convolutions(names: [&str; 4]) -> Module {
    let mut b = Builder::new("folded");
    let mut y = input(&mut b, &[1, 4, 4]);
    let mut init = nn::Init::new(5);
    for (i, width) in [(0, 1), (1, 2)] {
        let conv = nn::Conv::new(&mut init, width, 2, &[3, 3]).unwrap().padding(1);
        y = b.within(format!("{i}"), |b| conv.apply(b, y)).unwrap();
    }
    let mut module = b.finish(&[("y", y)]).unwrap();
    let graph = &mut module.main_mut().unwrap().graph;
    let constants: Vec<_> = graph.walk().into_iter().filter(|op| graph.op(*op).name() == "of.constant").collect();
    assert_eq!(constants.len(), names.len());
    for (op, name) in constants.into_iter().zip(names) {
        let v = graph.op(op).results[0];
        of_ir::Rewriter::new(graph, "test").set_name(v, name);
    }
    module
}

/// A product, a batch normalisation by the batch and a dropout that is random, as PyTorch exports them in training mode.
fn in_training_mode(trains: bool) -> Module {
    let mut b = Builder::new("mode");
    let x = input(&mut b, &[4]);
    let w = b.parameter("w", floats(&[4, 4], |i| (i as f32 * 0.9).sin())).unwrap();
    let y = b.op(of_ops::contraction::MatMul {}, &[x, w]).unwrap();
    let named = [("norm.weight", 1.0), ("norm.bias", 0.0), ("norm.running_mean", 0.0), ("norm.running_var", 1.0)];
    let of_norm = named.map(|(name, value)| b.parameter(name, floats(&[4], |_| value)).unwrap());
    let operands = [&[y][..], &of_norm].concat();
    let y = match trains {
        true => b.op_all(BatchNormTraining { epsilon: 1e-5, momentum: 0.9 }, &operands).unwrap()[0],
        false => b.op(BatchNorm { epsilon: 1e-5, channels_last: false }, &operands).unwrap(),
    };
    let ratio = b.constant(Tensor::scalar(0.25f32)).unwrap();
    let dropout = Dropout { seed: 0, return_mask: false };
    let y = match trains {
        true => {
            let trains = Tensor::from_elements(DType::Bool, Vec::new(), of_ir::Elements::Int(vec![1])).unwrap();
            let trains = b.constant(trains).unwrap();
            b.op(dropout, &[y, ratio, trains]).unwrap()
        }
        false => b.op(dropout, &[y, ratio]).unwrap(),
    };
    b.finish(&[("y", y)]).unwrap()
}

#[test]
fn exports_in_training_mode_train_as_those_for_evaluation() {
    let batch = || vec![value(&[8, 4], |i| (i as f32 * 0.7).sin()), value(&[8, 4], |i| (i as f32 * 0.3).cos())];
    let with = TrainOptions { batch: 8, ..mse() };
    let run = |model: Model| {
        let mut t = trained(model, &with).0.unwrap_or_else(|d| panic!("{d}"));
        let losses: Vec<f64> = (0..5).map(|_| t.step(batch(), 0.05).unwrap()).collect();
        let statistics = t.parameters().iter().filter(|p| p.role == of_driver::training::Role::Statistic).count();
        assert_eq!(statistics, 2);
        let module = t.trained_model().unwrap();
        let ops: Vec<String> = module
            .main()
            .unwrap()
            .graph
            .walk()
            .into_iter()
            .map(|op| module.main().unwrap().graph.op(op).name().to_string())
            .collect();
        assert!(
            ops.iter().any(|op| op == "of.batch_norm") && ops.iter().all(|op| op != "of.batch_norm_training"),
            "{ops:?}"
        );
        (losses, t.parameter("norm.running_mean").unwrap())
    };
    let want = run(Model::from_module(in_training_mode(false)));
    assert_eq!(run(Model::from_module(in_training_mode(true))), want);
}

#[test]
fn folded_batch_normalisations_are_reported() {
    // Names of PyTorch's two exporters, of onnxruntime and of tf2onnx.
    for (names, tool, layers) in [
        (["onnx::Conv_32", "onnx::Conv_33", "onnx::Conv_35", "onnx::Conv_36"], "PyTorch's exporter", "2 layers carry"),
        (["0.weight", "0.weight_bias", "3.weight", "3.bias"], "PyTorch's exporter", "a layer carries"),
        (["ConvBnFusion_W_w", "ConvBnFusion_BN_B_b", "w", "b"], "onnxruntime", "a layer carries"),
        (["c/Conv2D_weights_fused_bn", "c/Conv2D_bias_fused_bn", "w", "b"], "tf2onnx", "a layer carries"),
    ] {
        for model in [Model::from_module(convolutions(names)), as_onnx(&convolutions(names))] {
            let (trainer, reports) = trained(model, &mse());
            assert!(trainer.is_ok(), "{:?}", trainer.err());
            let text: Vec<String> = reports.iter().map(ToString::to_string).collect();
            let [one] = &text[..] else { panic!("{text:?}") };
            assert!(
                one.contains(layers) && one.contains(tool) && one.contains("hint:") && one.contains(names[0]),
                "{one}"
            );
        }
    }
    // Weights that were computed before the export have such names, too, but their biases do not.
    for names in [["0.weight", "0.bias", "3.weight", "3.bias"], ["onnx::Conv_32", "0.bias", "3.weight", "3.bias"]] {
        let (trainer, reports) = trained(Model::from_module(convolutions(names)), &mse());
        assert!(trainer.is_ok() && reports.is_empty(), "{reports:?}");
    }
}
