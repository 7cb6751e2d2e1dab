//! Trainings on the emulated GPU, whose variables stay on the device: they are those of the CPU.

use of_driver::Target;
use of_driver::training::{Lora, Pruning};
use of_test_support::component::{CUDA_EMULATED, require};

use super::*;

#[track_caller]
fn emulated() -> bool {
    require(&CUDA_EMULATED, of_codegen::toolchain::emulator::isa()).is_some()
}

/// A training that runs as a whole on the emulated GPU.
fn on_gpu(module: &Module, options: &TrainOptions) -> Result<Trainer, Diagnostics> {
    // Many steps have kernels in common.
    let kernels = std::env::temp_dir().join("of-native-tests");
    let (cache, target) = (of_driver::Cache::at(&kernels, of_driver::Cache::DEFAULT_LIMIT), Target::cuda("emulated"));
    let compile = CompileOptions { cache, target, ..CompileOptions::default() };
    let session = SessionOptions { threads: 1, ..SessionOptions::default() };
    Trainer::new(Model::from_module(module.clone()), options, &[], &compile, session, &of_driver::Silent)
}

/// Compares trainings of a few steps: losses, values, and an evaluation in the middle.
fn compare(what: &str, module: &Module, options: &TrainOptions, folder: &std::path::Path, rate: f64) {
    let data = dataset(folder, module, options);
    let all: Vec<usize> = (0..SAMPLES).collect();
    let gpu = on_gpu(module, options).unwrap_or_else(|d| panic!("{what}: {d}"));
    let mut both = [trainer(module.clone(), options, &[]), gpu].map(|mut t| {
        let mut losses = Vec::new();
        for step in 0..4 {
            losses.push(t.step(data.batch(&all).unwrap(), rate).unwrap_or_else(|d| panic!("{what}: {d}")));
            if step == 1 {
                losses.push(t.evaluate(&data).unwrap().loss);
            }
        }
        (losses, t)
    });
    let [(want, _), (got, _)] = &both;
    for (want, got) in want.iter().zip(got) {
        assert!((want - got).abs() <= 1e-4 * want.abs().max(1e-3), "{what}: {got}, not {want}");
    }
    let [(_, native), (_, gpu)] = &mut both;
    let names: Vec<String> = native.parameters().iter().map(|parameter| parameter.name.clone()).collect();
    for name in names {
        let [want, got] = [&mut *native, &mut *gpu].map(|t| t.parameter(&name).unwrap().to_f64s().unwrap());
        let largest = want.iter().fold(1e-6, |m: f64, x| m.max(x.abs()));
        for (want, got) in want.iter().zip(&got) {
            assert!((want - got).abs() <= 2e-3 * largest, "{what}: {name} is {got}, not {want}");
        }
    }
}

#[test]
fn every_optimizer_and_loss_trains_on_a_gpu() {
    if !emulated() {
        return;
    }
    for (optimizer, hyperparameters, loss, clipping) in every_optimizer_and_loss() {
        let dir = tempfile::tempdir().unwrap();
        let (_, _, folder) = data(dir.path(), loss);
        let options = TrainOptions { clipping, ..options(&optimizer, &hyperparameters, loss) };
        let module = model(4, loss);
        if let Loss::Ctc { .. } = loss {
            // It iterates over time.
            let refused = on_gpu(&module, &options).err().map(|d| d.to_string()).unwrap_or_default();
            assert!(refused.contains("control flow runs on the host"), "{refused}");
            continue;
        }
        compare(&format!("{optimizer} {loss:?}"), &module, &options, &folder, rate_of(&optimizer));
    }
}

#[test]
fn adapters_masks_averages_and_accumulation_train_on_a_gpu() {
    if !emulated() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (_, _, folder) = data(dir.path(), loss);
    let plain = || options("adamw", &Hyperparameters::default(), loss);
    let lora = Lora { targets: vec!["b.*".into(), "c.*".into()], seed: 1, ..Lora::new(4, 8.0) };
    for (what, options) in [
        ("adapters", TrainOptions { lora: Some(lora), ..plain() }),
        ("pruning", TrainOptions { pruning: Some(Pruning::Structured { keep: 2, group: 4 }), ..plain() }),
        ("averages", TrainOptions { average: Some(0.75), ..plain() }),
        ("accumulation", TrainOptions { accumulate: 3, ..plain() }),
    ] {
        compare(what, &wide(4), &options, &folder, 0.02);
    }
}
