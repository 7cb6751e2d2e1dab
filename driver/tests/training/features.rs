//! Options of a training: averages, accumulation, weight decay by name, precision, pruning, adapters.

use of_driver::training::{BaseStorage, Dataset, Hyperparameters, Lora, LossScale, Pruning, TrainOptions, Trainer};
use of_ir::{Module, Tensor};
use of_ops::{Value, interpret};

use super::*;

fn entropy() -> Loss {
    Loss::named("cross-entropy").unwrap()
}

fn steps(t: &mut Trainer, data: &Dataset, batch: usize, count: usize, rate: f64) -> Vec<f64> {
    let start = |i: usize| i * batch % SAMPLES;
    (0..count)
        .map(|i| t.step(data.batch(&(start(i)..start(i) + batch).collect::<Vec<_>>()).unwrap(), rate).unwrap())
        .collect()
}

fn numbers(t: &Trainer, name: &str) -> Vec<f64> {
    t.parameter(name).unwrap_or_else(|d| panic!("{d}")).to_f64s().unwrap()
}

fn assert_near(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= tolerance * w.abs().max(1e-2), "{what}: {g}, not {w}");
    }
}

#[test]
fn accumulated_steps_are_one_step_on_all_their_samples() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, folder) = data(dir.path(), entropy());
    let module = model(4, entropy());
    let whole = options("adam", &Hyperparameters::default(), entropy());
    let third =
        TrainOptions { batch: SAMPLES / 3, accumulate: 3, ..options("adam", &Hyperparameters::default(), entropy()) };
    let samples = dataset(&folder, &module, &whole);
    let mut one = trainer(module.clone(), &whole, &[]);
    let mut three = trainer(module, &third, &[]);
    steps(&mut one, &samples, SAMPLES, 2, 0.02);
    let before = numbers(&three, "a.weight");
    steps(&mut three, &samples, SAMPLES / 3, 2, 0.02);
    assert_eq!(before, numbers(&three, "a.weight"), "parameters change before the update");
    assert_eq!(numbers(&three, "step"), [0.0]);
    let mut rest = |n: usize| {
        for i in n..n + 1 {
            let start = i * SAMPLES / 3 % SAMPLES;
            three.step(samples.batch(&(start..start + SAMPLES / 3).collect::<Vec<_>>()).unwrap(), 0.02).unwrap();
        }
    };
    (2..6).for_each(&mut rest);
    assert_eq!((numbers(&three, "step"), numbers(&three, "step.accumulated")), (vec![2.0], vec![0.0]));
    for name in ["a.weight", "b.bias", "a.weight.mean", "b.weight.square"] {
        assert_near(&numbers(&three, name), &numbers(&one, name), 1e-3, name);
    }
}

#[test]
fn gradients_are_limited_by_value_and_then_by_norm() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, folder) = data(dir.path(), entropy());
    let module = model(4, entropy());
    // At a rate of 1, parameters change by their gradients.
    let gradients = |value: Option<f64>, norm: Option<f64>| -> Vec<f64> {
        let plain = options("sgd", &Hyperparameters::default(), entropy());
        let options = TrainOptions { clipping: Clipping { value, norm }, ..plain };
        let samples = dataset(&folder, &module, &options);
        let mut t = trainer(module.clone(), &options, &[]);
        let all = |t: &Trainer| ["a.weight", "a.bias", "b.weight", "b.bias"].map(|name| numbers(t, name)).concat();
        let before = all(&t);
        steps(&mut t, &samples, SAMPLES, 1, 1.0);
        before.iter().zip(all(&t)).map(|(before, after)| before - after).collect()
    };
    let norm_of = |list: &[f64]| list.iter().map(|g| g * g).sum::<f64>().sqrt();
    let free = gradients(None, None);
    let value = free.iter().fold(0.0, |most: f64, g| most.max(g.abs())) / 3.0;
    let limited: Vec<f64> = free.iter().map(|g| g.clamp(-value, value)).collect();
    let norm = norm_of(&limited) / 2.0;
    let scaled = |list: &[f64]| list.iter().map(|g| g * norm / norm_of(list)).collect::<Vec<_>>();
    for (got, want, what) in [
        (gradients(Some(value), None), limited.clone(), "value"),
        (gradients(None, Some(norm)), scaled(&free), "norm"),
        (gradients(Some(value), Some(norm)), scaled(&limited), "value, then norm"),
    ] {
        let near = got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-3 * value);
        assert!(near, "{what}: {got:?}, not {want:?}");
    }
}

#[test]
fn averages_follow_parameters_and_are_what_is_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let (x, _, folder) = data(dir.path(), entropy());
    let module = model(5, entropy());
    let with = TrainOptions { average: Some(0.75), ..options("sgd", &Hyperparameters::default(), entropy()) };
    let samples = dataset(&folder, &module, &with);
    let mut t = trainer(module, &with, &[]);
    let mut average = numbers(&t, "a.weight");
    assert_eq!(average, numbers(&t, "a.weight.average"));
    for _ in 0..5 {
        steps(&mut t, &samples, SAMPLES, 1, 0.5);
        for (a, p) in average.iter_mut().zip(numbers(&t, "a.weight")) {
            *a = 0.75 * *a + 0.25 * p;
        }
    }
    assert_near(&numbers(&t, "a.weight.average"), &average, 1e-5, "average");
    // The trained model has the averages, and gives the loss of the evaluation.
    let evaluated = t.evaluate(&samples).unwrap();
    assert!((evaluated.loss - cross_entropy(&t.trained_model().unwrap(), &x)).abs() < 1e-5);
    let path = dir.path().join("p.safetensors");
    t.write_parameters(&path, Progress::default()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let stored: Vec<f32> = file
        .tensor("a.weight")
        .unwrap()
        .data()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_near(&stored.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &average, 1e-5, "stored");
}

/// The loss of a model on the data, by the interpreter.
fn cross_entropy(module: &Module, x: &Tensor) -> f64 {
    let out =
        interpret::run_graph(&module.main().unwrap().graph, &[x.clone().into()]).unwrap_or_else(|d| panic!("{d}"));
    let Value::Tensor(scores) = &out[0] else { panic!("no scores") };
    let scores = scores.to_f64s().unwrap();
    let rows = scores.chunks_exact(CLASSES).enumerate();
    rows.map(|(i, row)| row.iter().map(|s| s.exp()).sum::<f64>().ln() - row[i % CLASSES]).sum::<f64>() / SAMPLES as f64
}

#[test]
fn weight_decay_leaves_out_parameters_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, folder) = data(dir.path(), entropy());
    let module = model(6, entropy());
    let decay = |x: f64| Hyperparameters { weight_decay: Some(x), ..Hyperparameters::default() };
    for name in OPTIMIZERS {
        // One step, so that the parameters that the gradient is of are the same.
        let run = |h: &Hyperparameters, no_decay: &[&str]| {
            let no_decay = no_decay.iter().map(|s| (*s).to_string()).collect();
            let with = TrainOptions { no_decay, ..options(name, h, entropy()) };
            let samples = dataset(&folder, &module, &with);
            let mut t = trainer(module.clone(), &with, &[]);
            steps(&mut t, &samples, SAMPLES, 1, 0.1);
            t
        };
        let (some, all, none) = (run(&decay(0.3), &["a.*"]), run(&decay(0.3), &[]), run(&decay(0.0), &[]));
        assert_eq!(numbers(&some, "a.weight"), numbers(&none, "a.weight"), "{name}");
        assert_eq!(numbers(&some, "b.weight"), numbers(&all, "b.weight"), "{name}");
        assert_ne!(numbers(&all, "a.weight"), numbers(&none, "a.weight"), "{name}");
    }
}

#[test]
fn loss_scale_keeps_the_trajectory_and_skips_what_is_not_finite() {
    let dir = tempfile::tempdir().unwrap();
    let (x, labels, _) = data(dir.path(), entropy());
    let module = model(7, entropy());
    let options = options("adam", &Hyperparameters::default(), entropy());
    let rule = LossScale { initial: 1024.0, interval: 3, ..LossScale::default() };
    let mut plain = Interpreted::new(&module, &options);
    let mut scaled = Interpreted::with(&module, &options, |spec| spec.loss_scale = Some(rule));
    let number = |i: &Interpreted, name: &str| match &i.values[name] {
        Value::Tensor(t) => t.to_f64s().unwrap()[0],
        other => panic!("{other:?}"),
    };
    for step in 0..4 {
        // A power of two changes no bit.
        assert_eq!(plain.step(&x, &labels, 0.05), scaled.step(&x, &labels, 0.05));
        assert_eq!(plain.values["a.weight"], scaled.values["a.weight"]);
        let expected = if step < 2 { 1024.0 } else { 2048.0 };
        assert_eq!(number(&scaled, "loss_scale"), expected, "after step {step}");
    }
    // Gradients that are not finite change nothing but the scale.
    let before = scaled.values.clone();
    let huge = Tensor::from_slice(x.dims(), &vec![f32::INFINITY; x.len()]).unwrap();
    scaled.step(&huge, &labels, 0.05);
    assert_eq!((number(&scaled, "loss_scale"), number(&scaled, "loss_scale.updates")), (1024.0, 0.0));
    for (name, value) in &before {
        if !name.starts_with("loss_scale") {
            assert_eq!(*value, scaled.values[name], "{name}");
        }
    }
}

#[test]
fn precision_of_16_bits_trains_as_f32_does() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, folder) = data(dir.path(), entropy());
    let module = wide(8);
    let options = options("adamw", &Hyperparameters::default(), entropy());
    let samples = dataset(&folder, &module, &options);
    let run = |precision| {
        let mut t = trainer_in(module.clone(), &options, &[], precision).unwrap_or_else(|d| panic!("{d}"));
        let losses = steps(&mut t, &samples, SAMPLES, 30, 0.01);
        let names: Vec<String> = t.variables().unwrap().names().into_iter().map(str::to_owned).collect();
        (losses, names, t)
    };
    let (exact, names, _) = run(Precision::Model);
    assert!(!names.iter().any(|name| name == "loss_scale"));
    for precision in [Precision::Bf16, Precision::F16] {
        let (losses, names, t) = run(precision);
        assert_eq!(names.iter().any(|name| name == "loss_scale"), precision == Precision::F16);
        assert_ne!(losses, exact, "{precision:?} rounds nothing");
        for (got, want) in losses.iter().zip(&exact) {
            assert!((got - want).abs() < 0.02 * want.abs().max(0.05), "{precision:?}: {got}, not {want}");
        }
        // The parameters are f32, and change by less than bf16 resolves.
        assert_eq!(t.parameter("a.weight").unwrap().dtype(), DType::F32);
        if precision == Precision::F16 {
            assert_eq!(numbers(&t, "loss_scale"), [65536.0]);
        }
    }
    // Extents that only the data gives are known before products are rounded.
    let ctc = Loss::named("ctc").unwrap();
    let (_, _, folder) = data(dir.path(), ctc);
    let (module, options) = (model(8, ctc), super::options("adamw", &Hyperparameters::default(), ctc));
    let samples = dataset(&folder, &module, &options);
    let mut t = trainer_in(module.clone(), &options, &[], Precision::Bf16).unwrap_or_else(|d| panic!("{d}"));
    let losses = steps(&mut t, &samples, SAMPLES, 30, 0.02);
    assert!(losses[29] < losses[0] / 2.0, "{losses:?}");
    let error =
        trainer_in(module.clone(), &options, &[], Precision::Int8).err().expect("int8 was accepted").to_string();
    assert!(error.contains("not in int8"), "{error}");
}

#[test]
fn pruned_weights_stay_zero() {
    let dir = tempfile::tempdir().unwrap();
    let (x, _, folder) = data(dir.path(), entropy());
    let module = wide(9);
    for pruning in [Pruning::Tensor(0.5), Pruning::Global(0.5), Pruning::Structured { keep: 2, group: 4 }] {
        let with = TrainOptions {
            pruning: Some(pruning),
            average: Some(0.5),
            ..options("adamw", &Hyperparameters::default(), entropy())
        };
        let samples = dataset(&folder, &module, &with);
        let mut t = trainer(module.clone(), &with, &[]);
        let zeros = |t: &Trainer| -> Vec<bool> {
            ["b.weight", "c.weight"].iter().flat_map(|n| numbers(t, n)).map(|w| w == 0.0).collect()
        };
        let before = zeros(&t);
        let losses = steps(&mut t, &samples, SAMPLES, 20, 0.02);
        assert_eq!(before, zeros(&t), "{pruning}");
        assert!(losses[19] < losses[0] / 2.0, "{pruning}: {losses:?}");
        let (pruned, all) = t.pruned();
        assert_eq!(pruned * 2, all, "{pruning}");
        if let Pruning::Structured { .. } = pruning {
            // `[outputs, inputs]`: two of four inputs.
            for row in numbers(&t, "b.weight").chunks_exact(4) {
                assert_eq!(row.iter().filter(|w| **w == 0.0).count(), 2, "{row:?}");
            }
        }
        assert!((t.evaluate(&samples).unwrap().loss - cross_entropy(&t.trained_model().unwrap(), &x)).abs() < 1e-5);
    }
    let odd = TrainOptions {
        pruning: Some(Pruning::Structured { keep: 2, group: 5 }),
        ..options("adamw", &Hyperparameters::default(), entropy())
    };
    let error = trainer_in(module, &odd, &[], Precision::Model).err().expect("it was accepted").to_string();
    assert!(error.contains("pruning 2:5 fits no weight"), "{error}");
}

#[test]
fn adapters_learn_while_the_model_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (x, _, folder) = data(dir.path(), entropy());
    let module = wide(10);
    for base in [BaseStorage::Model, BaseStorage::Int8, BaseStorage::Int4] {
        let lora = Lora { targets: vec!["b.*".into(), "c.weight".into()], base, seed: 1, ..Lora::new(4, 8.0) };
        let with = TrainOptions { lora: Some(lora), ..options("adam", &Hyperparameters::default(), entropy()) };
        let samples = dataset(&folder, &module, &with);
        let mut t = trainer(module.clone(), &with, &[]);
        let first = cross_entropy(&t.merged_model().unwrap(), &x);
        if base == BaseStorage::Model {
            assert!((first - cross_entropy(&module, &x)).abs() < 1e-6, "fresh adapters change the model");
        }
        let kept = numbers(&t, "a.weight");
        // As PEFT: uniform in ±1 / sqrt(inputs), and zeros.
        let a = numbers(&t, "b.lora_A.weight");
        assert!(a.iter().all(|w| w.abs() <= 1.0 / 4.0) && a.iter().any(|w| w.abs() > 1.0 / 8.0), "{a:?}");
        assert!(numbers(&t, "b.lora_B.weight").iter().all(|w| *w == 0.0));
        let losses = steps(&mut t, &samples, SAMPLES, 40, 0.02);
        assert!(losses[39] < losses[0] / 2.0, "{base:?}: {losses:?}");
        assert_eq!(kept, numbers(&t, "a.weight"));
        let trained: Vec<&str> = t
            .parameters()
            .iter()
            .filter(|p| p.role == of_driver::training::Role::Trained)
            .map(|p| p.name.as_str())
            .collect();
        assert_eq!(trained.len(), 4, "{trained:?}");
        // Separate and merged adapters are the same model.
        let evaluated = t.evaluate(&samples).unwrap().loss;
        for model in [t.trained_model().unwrap(), t.merged_model().unwrap()] {
            let loss = cross_entropy(&model, &x);
            assert!((evaluated - loss).abs() < 1e-4, "{base:?}: {evaluated}, not {loss}");
        }
        let path = dir.path().join("adapter_model.safetensors");
        t.write_adapters(&path, "base").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names: Vec<String> = file.names().iter().map(|name| (*name).to_string()).collect();
        names.sort();
        assert_eq!(names[..2], ["base_model.model.b.lora_A.weight", "base_model.model.b.lora_B.weight"]);
        assert_eq!(file.tensor(&names[0]).unwrap().shape(), [4, 16]);
        assert_eq!(file.tensor(&names[1]).unwrap().shape(), [16, 4]);
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.path().join("adapter_config.json")).unwrap()).unwrap();
        assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &8.0.into()));
        assert_eq!(config["target_modules"], serde_json::json!(["b", "c"]));
    }
    let none = TrainOptions {
        lora: Some(Lora { targets: vec!["z".into()], ..Lora::new(4, 8.0) }),
        ..options("adam", &Hyperparameters::default(), entropy())
    };
    let error = trainer_in(module, &none, &[], Precision::Model).err().expect("it was accepted").to_string();
    assert!(error.contains("no weight of a product has a name for an adapter; there are a.weight"), "{error}");
}

#[test]
fn dropout_is_random_in_steps_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (x, _, folder) = data(dir.path(), entropy());
    let mut init = nn::Init::new(11);
    let model = nn::Sequential::new()
        .then(nn::Linear::new(&mut init, FEATURES, 64).unwrap())
        .then(nn::Dropout(0.25))
        .then(nn::Linear::new(&mut init, 64, CLASSES).unwrap());
    let mut b = Builder::new("dropout");
    let input = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(FEATURES as i64)]));
    let y = model.apply(&mut b, input).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    let run = |seed: u64, batch: usize, accumulate: usize| {
        let with = TrainOptions { seed, batch, accumulate, ..options("sgd", &Hyperparameters::default(), entropy()) };
        let samples = dataset(&folder, &module, &with);
        let mut t = trainer(module.clone(), &with, &[]);
        let evaluated = t.evaluate(&samples).unwrap().loss;
        assert!((evaluated - cross_entropy(&module, &x)).abs() < 1e-5, "an evaluation is random");
        // A rate of 0: losses differ by dropout alone.
        steps(&mut t, &samples, batch, 6, 0.0)
    };
    let (first, again, other) = (run(1, SAMPLES, 1), run(1, SAMPLES, 1), run(2, SAMPLES, 1));
    assert_eq!(first, again);
    assert!(first.iter().zip(&other).all(|(a, b)| a != b));
    // Every step has other numbers, those of one update as well.
    for losses in [first, run(1, SAMPLES, 3)] {
        assert!((1..6).all(|i| losses[..i].iter().all(|l| *l != losses[i])), "{losses:?}");
    }
    // The mean stays, and a quarter is dropped: the output is that of the kept part, scaled.
    let mut b = Builder::new("ones");
    let input = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(4096i64)]));
    let w = b.parameter("w", Tensor::from_slice(&[4096], &[1f32; 4096]).unwrap()).unwrap();
    let y = b.op(of_ops::elementwise::Mul {}, &[input, w]).unwrap();
    let y = nn::Dropout(0.25).apply(&mut b, y).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    let with = TrainOptions { batch: 4, ..options("sgd", &Hyperparameters::default(), Loss::L1) };
    let mut t = trainer(module, &with, &[]);
    let tensor = |value: f32| of_runtime::Tensor::from_elements(vec![4i64, 4096], &[value; 4 * 4096]).unwrap();
    let mean = t.step(vec![tensor(1.0).into(), tensor(0.0).into()], 0.0).unwrap();
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    let w = |t: &Trainer| numbers(t, "w");
    t.step(vec![tensor(1.0).into(), tensor(0.0).into()], 4.0 * 4096.0).unwrap();
    // The gradient of an element is 4/3 for each of four samples that keep it.
    let kept: f64 = w(&t).iter().map(|w| (1.0 - w) / (4.0 / 3.0)).sum::<f64>() / (4.0 * 4096.0);
    assert!((kept - 0.75).abs() < 0.02, "{kept}");
}

#[test]
fn stochastic_depth_keeps_samples_whole() {
    const SAMPLES: i64 = 64;
    let mut b = Builder::new("depth");
    let input = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(4i64)]));
    let w = b.parameter("w", Tensor::from_slice(&[4], &[1f32; 4]).unwrap()).unwrap();
    let y = b.op(of_ops::elementwise::Mul {}, &[input, w]).unwrap();
    let y = nn::StochasticDepth(0.5).apply(&mut b, y).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    let with = TrainOptions { batch: SAMPLES as usize, ..options("sgd", &Hyperparameters::default(), Loss::L1) };
    let mut t = trainer(module, &with, &[]);
    let tensor = |value: f32| of_runtime::Tensor::from_elements(vec![SAMPLES, 4], &[value; 4 * 64]).unwrap();
    // A sample that is kept counts twice in the gradient of each of the four elements.
    let loss = t.step(vec![tensor(1.0).into(), tensor(0.0).into()], 2.0).unwrap();
    let kept: Vec<f64> = numbers(&t, "w").iter().map(|w| 1.0 - w).collect();
    assert!(kept.iter().all(|part| (part - kept[0]).abs() < 1e-6), "{kept:?}");
    assert!((0.2..0.8).contains(&kept[0]) && (loss - 2.0 * kept[0]).abs() < 1e-5, "{kept:?}, {loss}");
}

#[test]
fn running_statistics_are_those_of_torch() {
    let mut b = Builder::new("norm");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(2i64)]));
    let y = nn::BatchNorm::new(2).unwrap().apply(&mut b, x).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    let with = TrainOptions { batch: 4, ..options("sgd", &Hyperparameters::default(), Loss::Mse) };
    let mut t = trainer(module, &with, &[]);
    let tensor = |values: &[f32]| of_runtime::Tensor::from_elements(vec![4i64, 2], values).unwrap();
    let batch = [1.0, -2.0, 2.0, 0.0, 3.0, 2.0, 6.0, 4.0];
    t.step(vec![tensor(&batch).into(), tensor(&[0.0; 8]).into()], 0.1).unwrap();
    // A tenth of the mean; nine tenths of 1 and a tenth of the sum of squared deviations, 14 and 20, divided by three.
    assert_near(&numbers(&t, "running_mean"), &[0.3, 0.1], 1e-6, "mean");
    assert_near(&numbers(&t, "running_var"), &[0.9 + 1.4 / 3.0, 0.9 + 2.0 / 3.0], 1e-6, "variance");
}

#[test]
fn merged_model_has_the_statistics_of_its_training() {
    let dir = tempfile::tempdir().unwrap();
    let (x, _, folder) = data(dir.path(), entropy());
    let mut init = nn::Init::new(12);
    let network = nn::Sequential::new()
        .named("a", nn::Linear::new(&mut init, FEATURES, 16).unwrap())
        .named("norm", nn::BatchNorm::new(16).unwrap())
        .then(nn::Activation::Relu)
        .named("b", nn::Linear::new(&mut init, 16, CLASSES).unwrap());
    let mut b = Builder::new("normalized");
    let input = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(FEATURES as i64)]));
    let y = network.apply(&mut b, input).unwrap();
    let module = b.finish(&[("y", y)]).unwrap();
    let lora = Lora { seed: 1, ..Lora::new(2, 2.0) };
    let with = TrainOptions { lora: Some(lora), ..options("adam", &Hyperparameters::default(), entropy()) };
    let samples = dataset(&folder, &module, &with);
    let mut t = trainer(module, &with, &[]);
    steps(&mut t, &samples, SAMPLES, 10, 0.02);
    let loss = t.evaluate(&samples).unwrap().loss;
    for model in [t.trained_model().unwrap(), t.merged_model().unwrap()] {
        assert!((cross_entropy(&model, &x) - loss).abs() < 1e-5);
    }
}
