//! Training: steps of native code against the interpreter, every optimizer and loss, snapshots, and what is refused.

mod adapters;
mod features;
mod forms;
mod gpu;
mod ids;
mod job;
mod losses;
mod mesh_features;
mod pipelines;
mod placements;
mod random_layouts;
mod ranks;
mod recurrent;
mod rules;
mod settings;
mod watch;
mod weights;
mod zoo;

use std::collections::HashMap;

use of_diag::Diagnostics;
use of_driver::training::{
    Clipping, Dataset, Hyperparameters, LOSSES, Loss, OPTIMIZERS, Progress, SnapshotPlace, TrainOptions, Trainer,
    columns, named, sample_order,
};
use of_driver::{CompileOptions, ImageOptions, Model, Precision, SessionOptions};
use of_frontend::Builder;
use of_frontend::nn::{self, Layer};
use of_frontend::training::{RATE, TrainingSpec, training};
use of_ir::{DType, Dim, Func, Module, Tensor, Type};
use of_ops::elementwise::{Relu, Tanh};
use of_ops::training::variables;
use of_ops::{Value, interpret};

const SAMPLES: usize = 24;
const FEATURES: usize = 6;
const CLASSES: usize = 3;

/// A perceptron whose parameters have names. Its output has the shape that the loss takes.
fn model(seed: u64, loss: Loss) -> Module {
    let shape: &[i64] = match loss {
        Loss::Ctc { .. } => &[0, 2, CLASSES as i64],
        Loss::CosineEmbedding { .. } => &[0, 2, 2],
        _ => &[0, CLASSES as i64],
    };
    perceptron(seed, &[FEATURES, 16, shape[1..].iter().product::<i64>() as usize], shape)
}

/// A perceptron with a wider hidden layer, c, between.
fn wide(seed: u64) -> Module {
    perceptron(seed, &[FEATURES, 16, 16, CLASSES], &[0, CLASSES as i64])
}

fn perceptron(seed: u64, widths: &[usize], shape: &[i64]) -> Module {
    let mut b = Builder::new("mlp");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(FEATURES as i64)]));
    let mut init = nn::Init::new(seed);
    let mut y = x;
    let layers: Vec<_> = widths.windows(2).map(|w| nn::Linear::new(&mut init, w[0], w[1]).unwrap()).collect();
    for (i, layer) in layers.iter().enumerate() {
        y = layer.apply(&mut b, y).unwrap();
        if i + 1 < layers.len() {
            y = b.op(Tanh {}, &[y]).unwrap();
            y = b.op(Relu {}, &[y]).unwrap();
        }
    }
    let shape = b.constant(Tensor::from_i64s(shape)).unwrap();
    let y = b.op(of_ops::movement::Reshape { allowzero: false }, &[y, shape]).unwrap();
    let mut module = b.finish(&[("y", y)]).unwrap();
    let func = module.funcs.get_mut("main").unwrap();
    let names = ["a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias"];
    let constants: Vec<_> =
        func.graph.walk().into_iter().filter(|op| func.graph.op(*op).name() == "of.constant").collect();
    assert_eq!(constants.len(), 2 * layers.len() + 1);
    for (op, name) in constants.into_iter().zip(&names[..2 * layers.len()]) {
        let v = func.graph.op(op).results[0];
        of_ir::Rewriter::new(&mut func.graph, "test").set_name(v, *name);
    }
    module
}

/// Points around the corners of a cube, and their labels for a loss.
fn data(dir: &std::path::Path, loss: Loss) -> (Tensor, Tensor, std::path::PathBuf) {
    let mut r = of_ops::sample::Rng::new(9);
    let (mut x, mut classes) = (Vec::new(), Vec::new());
    for i in 0..SAMPLES {
        let class = i % CLASSES;
        classes.push(class as i64);
        x.extend((0..FEATURES).map(|f| (if f % CLASSES == class { 1.0 } else { 0.0 }) + r.float(-0.3, 0.3) as f32));
    }
    let x = Tensor::from_slice(&[SAMPLES, FEATURES], &x).unwrap();
    let is_class = loss.has_classes() && loss.axis_of_probabilities().is_none();
    let labels = if is_class || matches!(loss, Loss::Contrastive { .. }) {
        Tensor::from_slice(&[SAMPLES], &classes).unwrap()
    } else if let Loss::Ctc { .. } = loss {
        // No label, one, or two that differ.
        let words = classes.iter().flat_map(|c| [[-1, -1], [1, -1], [2, 1]][*c as usize]);
        Tensor::from_slice(&[SAMPLES, 2], &words.collect::<Vec<i64>>()).unwrap()
    } else if let Loss::CosineEmbedding { .. } = loss {
        let signs = classes.iter().map(|c| if *c == 0 { 1f32 } else { -1.0 });
        Tensor::from_slice(&[SAMPLES], &signs.collect::<Vec<_>>()).unwrap()
    } else {
        let hot = classes.iter().flat_map(|c| (0..CLASSES).map(move |k| if k as i64 == *c { 1f32 } else { 0.0 }));
        Tensor::from_slice(&[SAMPLES, CLASSES], &hot.collect::<Vec<_>>()).unwrap()
    };
    for (name, tensor) in [("x", &x), ("labels", &labels)] {
        of_driver::tensor_files::write_npy(&dir.join(format!("{name}.npy")), name, &Value::Tensor(tensor.clone()))
            .unwrap();
    }
    (x, labels, dir.to_owned())
}

fn options(optimizer: &str, hyperparameters: &Hyperparameters, loss: Loss) -> TrainOptions {
    let mut options = TrainOptions::new(loss, named(optimizer, hyperparameters).unwrap(), SAMPLES);
    if let Loss::Ctc { .. } = loss {
        options.extents.insert(of_driver::training::LABEL_LENGTH.into(), 2);
    }
    options
}

fn trainer(module: Module, options: &TrainOptions, rests: &[usize]) -> Trainer {
    trainer_in(module, options, rests, Precision::Model).unwrap_or_else(|d| panic!("{d}"))
}

fn trainer_in(
    module: Module,
    options: &TrainOptions,
    rests: &[usize],
    precision: Precision,
) -> Result<Trainer, Diagnostics> {
    let compile = CompileOptions { cache: of_driver::Cache::none(), precision, ..CompileOptions::default() };
    let session = SessionOptions { threads: 1, ..SessionOptions::default() };
    Trainer::new(Model::from_module(module), options, rests, &compile, session, &of_driver::Silent)
}

fn dataset(folder: &std::path::Path, module: &Module, options: &TrainOptions) -> Dataset {
    let wanted = columns(&Model::from_module(module.clone()), options).unwrap();
    let files = ["x", "labels"].map(|n| format!("{n}={}", folder.join(format!("{n}.npy")).display()).into());
    Dataset::read(&files, &wanted, &ImageOptions::default()).unwrap_or_else(|d| panic!("{d}"))
}

/// The training step in the interpreter, which has the gradients as ops.
struct Interpreted {
    func: Func,
    values: HashMap<String, Value>,
}

impl Interpreted {
    fn new(module: &Module, options: &TrainOptions) -> Self {
        Self::with(module, options, |_| ())
    }

    /// The training with changes of its specification.
    fn with(module: &Module, options: &TrainOptions, change: impl FnOnce(&mut TrainingSpec<'_>)) -> Self {
        let masks = HashMap::new();
        let mut spec = TrainingSpec::new(options.loss, &*options.optimizer, &masks);
        spec.clipping = options.clipping;
        change(&mut spec);
        let made = training(module, &spec).unwrap_or_else(|d| panic!("{d}"));
        let mut whole = Module::default();
        let mut values = HashMap::new();
        for v in variables(&made.train).unwrap() {
            let ty = made.train.graph.ty(made.train.graph.args()[v.input]).as_tensor().unwrap();
            let dims = ty.fixed_dims().unwrap();
            let value = match v.initial {
                Some(of_ops::training::InitialValue::Tensor(t)) => t,
                _ => Tensor::from_slice(&dims, &vec![0f32; dims.iter().product()]).unwrap(),
            };
            values.insert(made.train.inputs[v.input].clone(), value.into());
        }
        whole.funcs.insert("main".into(), made.train);
        let mut manager = of_passes::Manager::default();
        manager.add::<of_passes::Specialize>(options.extents.clone()).append("differentiate").unwrap();
        manager.run(&mut whole, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
        Self { func: whole.funcs.swap_remove("main").unwrap(), values }
    }

    fn step(&mut self, x: &Tensor, labels: &Tensor, rate: f64) -> f64 {
        let given = |name: &String| match name.as_str() {
            "x" => x.clone().into(),
            "labels" => labels.clone().into(),
            RATE => Tensor::scalar(rate as f32).into(),
            other => self.values[other].clone(),
        };
        let inputs: Vec<Value> = self.func.inputs.iter().map(given).collect();
        let out = interpret::run_graph(&self.func.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
        for v in variables(&self.func).unwrap() {
            if let Some(next) = v.next {
                self.values.insert(self.func.inputs[v.input].clone(), out[next].clone());
            }
        }
        let Value::Tensor(loss) = &out[0] else { panic!("no loss") };
        loss.to_f64s().unwrap()[0]
    }
}

/// Every optimizer and every loss, with some settings.
fn every_optimizer_and_loss() -> Vec<(String, Hyperparameters, Loss, Clipping)> {
    let mut cases: Vec<(String, Hyperparameters, Loss, Clipping)> = Vec::new();
    let entropy = Loss::named("cross-entropy").unwrap();
    let none = Clipping::default();
    for name in OPTIMIZERS {
        cases.push((name.into(), Hyperparameters::default(), entropy, none));
    }
    let heavy = Hyperparameters { momentum: Some(0.9), weight_decay: Some(0.01), ..Hyperparameters::default() };
    let (value, norm) = (Some(0.05), Some(0.1));
    cases.push(("sgd".into(), Hyperparameters { nesterov: true, ..heavy }, entropy, Clipping { norm, ..none }));
    cases.push(("rmsprop".into(), heavy, entropy, Clipping { value, ..none }));
    cases.push(("adam".into(), heavy, entropy, Clipping { value, norm }));
    // The loss `output` has no labels; the models of the zoo are trained with it.
    for name in LOSSES.into_iter().filter(|name| *name != "output") {
        cases.push(("sgd".into(), Hyperparameters::default(), Loss::named(name).unwrap(), none));
    }
    cases.push(("sgd".into(), heavy, Loss::CrossEntropy { smoothing: 0.2, ignore: 0, axis: -1 }, none));
    cases
}

/// A learning rate that suits an optimizer.
fn rate_of(optimizer: &str) -> f64 {
    match optimizer {
        "adadelta" => 1.0,
        "lars" => 0.2,
        "sgd" => 0.1,
        _ => 0.02,
    }
}

#[test]
fn every_optimizer_and_loss_trains_as_the_interpreter_does() {
    for (optimizer, hyperparameters, loss, clipping) in every_optimizer_and_loss() {
        let what = format!("{optimizer} {hyperparameters:?} {loss:?} {clipping:?}");
        let dir = tempfile::tempdir().unwrap();
        let (x, labels, folder) = data(dir.path(), loss);
        let options = TrainOptions { clipping, ..options(&optimizer, &hyperparameters, loss) };
        let module = model(4, loss);
        let data = dataset(&folder, &module, &options);
        let mut native = trainer(module.clone(), &options, &[]);
        let mut interpreted = Interpreted::new(&module, &options);
        let rate = rate_of(&optimizer);
        let all: Vec<usize> = (0..SAMPLES).collect();
        let (mut first, mut last) = (0.0, 0.0);
        for step in 0..8 {
            let want = interpreted.step(&x, &labels, rate);
            last = native.step(data.batch(&all).unwrap(), rate).unwrap_or_else(|d| panic!("{what}: {d}"));
            assert!((want - last).abs() <= 1e-4 * want.abs().max(1e-3), "{what}, step {step}: {last}, not {want}");
            first = if step == 0 { last } else { first };
        }
        assert!(last < first, "{what}: the loss rises from {first} to {last}");
        for (name, value) in &interpreted.values {
            let Value::Tensor(want) = value else { panic!("no tensor") };
            let (want, got) = (want.to_f64s().unwrap(), native.parameter(name).unwrap().to_f64s().unwrap());
            let largest = want.iter().fold(1e-6, |m: f64, x| m.max(x.abs()));
            for (w, g) in want.iter().zip(&got) {
                assert!((w - g).abs() <= 2e-3 * largest, "{what}: {name} is {g}, not {w}");
            }
        }
    }
}

#[test]
fn trained_model_gives_what_was_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (x, labels, folder) = data(dir.path(), loss);
    let options = TrainOptions { batch: 10, ..options("adam", &Hyperparameters::default(), loss) };
    let module = model(5, loss);
    let data = dataset(&folder, &module, &options);
    let mut t = trainer(module, &options, &[SAMPLES % 10]);
    let before = t.evaluate(&data).unwrap();
    for epoch in 0..40 {
        let order = sample_order(SAMPLES, 1, epoch);
        for batch in order.chunks_exact(10) {
            t.step(data.batch(batch).unwrap(), 0.02).unwrap();
        }
    }
    let after = t.evaluate(&data).unwrap();
    assert!(after.loss < before.loss / 4.0 && after.accuracy == Some(1.0), "{before:?} {after:?}");
    let trained = t.trained_model().unwrap();
    let out = interpret::run_graph(&trained.main().unwrap().graph, &[x.into()]).unwrap();
    let Value::Tensor(scores) = &out[0] else { panic!("no scores") };
    let scores = scores.to_f64s().unwrap();
    let classes = labels.to_i64s().unwrap();
    let mut sum = 0.0;
    for (row, class) in scores.chunks_exact(CLASSES).zip(classes) {
        sum += row.iter().map(|s| s.exp()).sum::<f64>().ln() - row[class as usize];
    }
    assert!((sum / SAMPLES as f64 - after.loss).abs() < 1e-5, "{sum} {after:?}");
}

#[test]
fn lent_models_and_written_parameters_are_the_trained_ones() {
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (.., folder) = data(dir.path(), loss);
    // Averages are what evaluation uses, so that they are what is lent.
    let options = TrainOptions { batch: 10, average: Some(0.5), ..options("adam", &Hyperparameters::default(), loss) };
    let module = model(5, loss);
    let data = dataset(&folder, &module, &options);
    let mut t = trainer(module, &options, &[]);
    let batch: Vec<usize> = (0..10).collect();
    for _ in 0..3 {
        t.step(data.batch(&batch).unwrap(), 0.02).unwrap();
        let exported = |module: &Module| of_onnx::export_bytes(module, &of_onnx::ExportOptions::default()).unwrap();
        let copied = exported(&t.trained_model().unwrap());
        let path = dir.path().join("trained.onnx");
        let write = |module: &Module| of_onnx::export_file(&path, module, &of_onnx::ExportOptions::default());
        t.lend_model(false, write).unwrap();
        assert!(std::fs::read(&path).unwrap() == copied);
        let refused = t.lend_model(false, |_| Err::<(), _>(Diagnostics::default()));
        assert!(refused.is_err());
        let (parameters, progress) = (dir.path().join("p.safetensors"), Progress::default());
        t.write_parameters(&parameters, progress).unwrap();
        let bytes = std::fs::read(&parameters).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), t.parameters().len());
        for parameter in t.parameters() {
            let value = t.parameter(&parameter.evaluated).unwrap();
            assert_eq!(file.tensor(&parameter.name).unwrap().data(), &value.bytes().unwrap()[..], "{}", parameter.name);
        }
    }
}

#[test]
fn resumed_training_has_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (_, _, folder) = data(dir.path(), loss);
    let options = TrainOptions { batch: 8, ..options("adamw", &Hyperparameters::default(), loss) };
    let module = model(6, loss);
    let data = dataset(&folder, &module, &options);
    let steps = |t: &mut Trainer, from: usize, to: usize| {
        for step in from..to {
            let order = sample_order(SAMPLES, 3, step / 3);
            t.step(data.batch(&order[step % 3 * 8..(step % 3 + 1) * 8]).unwrap(), 0.01).unwrap();
        }
    };
    let mut whole = trainer(module.clone(), &options, &[]);
    steps(&mut whole, 0, 11);
    let path = dir.path().join("s.safetensors");
    let place = SnapshotPlace::file(&path);
    let mut first = trainer(module.clone(), &options, &[]);
    steps(&mut first, 0, 5);
    let progress = Progress { step: 5, seed: 3, batch: 8, samples: SAMPLES };
    first.snapshot(&place, progress).unwrap();
    let mut second = trainer(module.clone(), &options, &[]);
    assert_eq!(second.restore(&place).unwrap(), progress);
    steps(&mut second, 5, 11);
    for name in whole.variables().unwrap().names() {
        let value = |t: &Trainer| t.variables().unwrap().get(name).unwrap();
        assert_eq!(value(&whole), value(&second), "{name}");
    }
    // Snapshots of another training, and damaged ones, change nothing.
    let sgd = TrainOptions { optimizer: named("sgd", &Hyperparameters::default()).unwrap(), ..options };
    let mut other = trainer(module, &sgd, &[]);
    let before = second.parameter("a.weight").unwrap();
    let parameters = dir.path().join("p.safetensors");
    other.write_parameters(&parameters, Progress::default()).unwrap();
    let error = second.restore(&SnapshotPlace::file(&parameters)).unwrap_err().to_string();
    assert!(error.contains("has no hash of its tensors"), "{error}");
    let of_other = SnapshotPlace::file(&dir.path().join("o.safetensors"));
    other.snapshot(&of_other, progress).unwrap();
    let error = second.restore(&of_other).unwrap_err().to_string();
    assert!(error.contains("--optimizer sgd; this one has --optimizer adamw (with mean and square"), "{error}");
    std::fs::write(&path, b"nothing").unwrap();
    assert!(second.restore(&place).unwrap_err().to_string().contains("is no snapshot"));
    assert_eq!(before, second.parameter("a.weight").unwrap());
}

#[test]
fn frozen_parameters_stay_and_wrong_options_are_refused() {
    let loss = Loss::named("cross-entropy").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (_, _, folder) = data(dir.path(), loss);
    let frozen = |names: &[&str]| TrainOptions {
        frozen: names.iter().map(|n| (*n).to_string()).collect(),
        ..options("adam", &Hyperparameters::default(), loss)
    };
    let module = model(7, loss);
    let data = dataset(&folder, &module, &frozen(&[]));
    let mut t = trainer(module.clone(), &frozen(&["a.*"]), &[]);
    let before = [t.parameter("a.weight").unwrap(), t.parameter("b.weight").unwrap()];
    t.step(data.batch(&(0..SAMPLES).collect::<Vec<_>>()).unwrap(), 0.1).unwrap();
    assert_eq!(before[0], t.parameter("a.weight").unwrap());
    assert_ne!(before[1], t.parameter("b.weight").unwrap());
    let refused = |options: &TrainOptions, module: Module| {
        let compile = CompileOptions::default();
        let model = Model::from_module(module);
        let made = Trainer::new(model, options, &[], &compile, SessionOptions::default(), &of_driver::Silent);
        made.err().expect("it was accepted").to_string()
    };
    assert!(
        refused(&frozen(&["c"]), module.clone()).contains("no parameter is called 'c'; there are a.weight, a.bias")
    );
    assert!(refused(&frozen(&["*"]), module.clone()).contains("all parameters are frozen"));
    let named = |output: Option<&str>, labels: &str| TrainOptions {
        output: output.map(str::to_owned),
        labels: labels.into(),
        ..frozen(&[])
    };
    assert!(refused(&named(Some("z"), "labels"), module.clone()).contains("no output 'z'; there are y"));
    assert!(refused(&named(None, "x"), module.clone()).contains("has an input 'x', which training adds"));
    let mut b = Builder::new("none");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(2i64)]));
    let y = b.op(Relu {}, &[x]).unwrap();
    let bare = b.finish(&[("y", y)]).unwrap();
    assert!(refused(&frozen(&[]), bare).contains("the model has no parameters"));
}
