//! Trainings that go on with other flags, and parameters that are not trained.

use std::path::Path;
use std::sync::Arc;

use of_driver::training::{JobEvent, JobOptions, TrainingJob};

use super::ids::{constant, entropy, labelled};
use super::*;

/// Trains with changed options.
fn run(dir: &Path, job: &JobOptions<'_>, change: impl FnOnce(&mut TrainOptions)) -> Result<(), String> {
    let (x, labels, _) = data(dir, entropy());
    let mut given = TrainOptions { batch: 8, ..options("adam", &Hyperparameters::default(), entropy()) };
    change(&mut given);
    let data = Arc::new(labelled(&x, &labels.to_i64s().unwrap(), 8));
    let mut trainer = trainer(model(4, entropy()), &given, &[]);
    let mut observe = |_: JobEvent<'_>| Ok(());
    let done = TrainingJob::new(&mut trainer, (&data, None), job, &mut observe);
    done.and_then(|mut job| job.run(None)).map_err(|errors| errors.to_string())
}

#[test]
fn a_training_goes_on_with_the_same_flags_alone() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("s.safetensors");
    let snapshots = Some(SnapshotPlace::file(&place));
    run(dir.path(), &JobOptions { snapshots: snapshots.clone(), ..JobOptions::new(2, constant()) }, |_| ()).unwrap();
    let written = std::fs::read(&place).unwrap();
    let resumed = |epochs, change: fn(&mut TrainOptions)| {
        let job = JobOptions { snapshots: snapshots.clone(), resume: true, ..JobOptions::new(epochs, constant()) };
        run(dir.path(), &job, change).unwrap_err()
    };
    let sgd = |options: &mut TrainOptions| options.optimizer = named("sgd", &Hyperparameters::default()).unwrap();
    for (errors, words) in [
        (resumed(3, sgd), "--optimizer adam (with mean and square of each parameter); this one has --optimizer sgd"),
        (resumed(3, |options| options.average = Some(0.9)), "with no --ema; this one has --ema 0.9"),
        (resumed(3, |options| options.accumulate = 2), "with --accumulate 1; this one has --accumulate 2"),
        (resumed(1, |_| ()), "is at step 6, in epoch 2; --epochs 1 ends at step 3"),
    ] {
        assert!(errors.contains(words) && errors.contains("s.safetensors"), "{words}: {errors}");
    }
    assert!(std::fs::read(&place).unwrap() == written);
    let same =
        JobOptions { outputs: vec![dir.path().join("./s.safetensors")], snapshots, ..JobOptions::new(3, constant()) };
    let refused = run(dir.path(), &same, |_| ()).unwrap_err();
    assert!(refused.contains("is to be a trained model, and the snapshot of the training (--snapshot)"), "{refused}");
}

#[test]
fn scalars_that_look_like_parameters_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut b = Builder::new("scaled");
    let x = b.input("x", Type::tensor(DType::F32, vec![Dim::symbol("n"), Dim::from(3i64)]));
    let (weight, scale) = (Tensor::from_slice(&[3], &[1f32, 2.0, 3.0]).unwrap(), Tensor::scalar(0.5f32));
    let (weight, scale) = (b.constant(weight).unwrap(), b.constant(scale).unwrap());
    let y = b.op(of_ops::elementwise::Mul {}, &[x, weight]).unwrap();
    let y = b.op(of_ops::elementwise::Mul {}, &[y, scale]).unwrap();
    let mut module = b.finish(&[("y", y)]).unwrap();
    let func = module.funcs.get_mut("main").unwrap();
    for (value, name) in [(weight, "weight"), (scale, "logit_scale")] {
        of_ir::Rewriter::new(&mut func.graph, "test").set_name(value, name);
    }
    let path = dir.path().join("scaled.onnx");
    of_onnx::export_file(&path, &module, &of_onnx::ExportOptions::default()).unwrap();
    let model = of_driver::model::open_for_training(&path, &of_driver::Silent).unwrap();
    let given = TrainOptions { batch: 4, ..options("adam", &Hyperparameters::default(), entropy()) };
    let trainer = trainer(model.module, &given, &[]);
    assert_eq!(trainer.scalars(), ["logit_scale"]);
    assert_eq!(trainer.parameters().iter().map(|parameter| &*parameter.name).collect::<Vec<_>>(), ["weight"]);
}
