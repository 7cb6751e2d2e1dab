//! Trainings as jobs of the library: what they report, and that one that is begun again has the same results.

use std::path::Path;
use std::sync::Arc;

use of_driver::training::{JobEvent, JobOptions, Schedule, ScheduleKind, TrainingJob};

use super::*;

const EPOCHS: usize = 3;
const BATCH: usize = 8;

/// Trains up to an epoch, and returns what the job reported.
fn run(folder: &Path, until: usize, options: JobOptions<'_>) -> (Vec<String>, Tensor) {
    let loss = Loss::named("cross-entropy").unwrap();
    let (known, module) = (Hyperparameters::default(), model(4, loss));
    let given = TrainOptions { batch: BATCH, ..super::options("adam", &known, loss) };
    let data = Arc::new(dataset(folder, &module, &given));
    let mut trainer = trainer(module, &given, &[]);
    let steps = SAMPLES / BATCH;
    let mut seen = Vec::new();
    let mut observe = |event: JobEvent<'_>| {
        match event {
            JobEvent::Begins { .. } => seen.push("begins".into()),
            JobEvent::Resumed { step, total, .. } => seen.push(format!("resumed at {step} of {total}")),
            JobEvent::Step(report) => {
                assert_eq!((report.step - 1) / steps, report.epoch);
                assert!(report.samples_per_second > 0.0 && report.total == EPOCHS * steps);
            }
            JobEvent::Profiled { step, timings, .. } => {
                assert!(timings.iter().any(|(_, tasks)| tasks.iter().any(|task| task.calls > 0)));
                seen.push(format!("step {step}"));
            }
            JobEvent::Epoch(report) => {
                assert_eq!(report.left.is_zero(), report.epoch + 1 == EPOCHS);
                seen.push(format!("epoch {}: {}", report.epoch, report.evaluation.unwrap().loss));
                if report.epoch + 1 == until && until < EPOCHS {
                    return Err(of_driver::error(of_diag::Code::RUN, "enough").into());
                }
            }
            JobEvent::Ends { waits, .. } => seen.push(format!("{} snapshots", waits.snapshots.count)),
            JobEvent::Written(path) => seen.push(format!("wrote {}", path.file_name().unwrap().display())),
            _ => {}
        }
        Ok(())
    };
    let job = TrainingJob::new(&mut trainer, (&data, Some(&data)), &options, &mut observe);
    assert_eq!(job.unwrap().run(None).is_ok(), until == EPOCHS);
    (seen, trainer.parameter("a.weight").unwrap())
}

#[test]
fn a_job_reports_its_course_and_goes_on_from_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, folder) = data(dir.path(), Loss::named("cross-entropy").unwrap());
    let schedule = Schedule { kind: ScheduleKind::Constant, rate: 0.01, warmup: 0 };
    let outputs = vec![dir.path().join("trained.onnx"), dir.path().join("trained.safetensors")];
    let plain = JobOptions { outputs: outputs.clone(), ..JobOptions::new(EPOCHS, schedule) };
    let (whole, weight) = run(&folder, EPOCHS, JobOptions { is_profiled: &|step| step == 1, ..plain });
    let epochs: Vec<&String> = whole.iter().filter(|line| line.starts_with("epoch")).collect();
    let written = ["0 snapshots", "wrote trained.onnx", "wrote trained.safetensors"].map(String::from);
    assert_eq!((&whole[..2], &whole[5..]), (&["begins".to_string(), "step 1".into()][..], &written[..]));
    assert!(outputs.iter().all(|path| path.is_file()));

    // One that ends after an epoch, and is begun again.
    let snapshots = Some(SnapshotPlace::file(&dir.path().join("state.snapshot")));
    let snapshot = || JobOptions { snapshots: snapshots.clone(), resume: true, ..JobOptions::new(EPOCHS, schedule) };
    let (first, _) = run(&folder, 1, snapshot());
    let (rest, resumed) = run(&folder, EPOCHS, snapshot());
    assert_eq!(first, ["begins", epochs[0]]);
    let steps = SAMPLES / BATCH;
    let at = format!("resumed at {steps} of {}", EPOCHS * steps);
    assert_eq!(rest, [at.as_str(), "begins", epochs[1], epochs[2], "2 snapshots"]);
    assert_eq!(resumed, weight);
}

/// Why a training of one epoch on changed data fails: before it begins, or at a step.
fn failure(change: impl FnOnce(&mut [f32], &mut [i64]), accumulate: usize, job: JobOptions<'_>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (x, labels, _) = data(dir.path(), loss);
    let module = model(4, loss);
    let given = TrainOptions { batch: BATCH, accumulate, ..super::options("sgd", &Hyperparameters::default(), loss) };
    let wanted = columns(&Model::from_module(module.clone()), &given).unwrap();
    let mut numbers: Vec<f32> = x.to_f64s().unwrap().into_iter().map(|x| x as f32).collect();
    let mut classes = labels.to_i64s().unwrap();
    change(&mut numbers, &mut classes);
    let x = Tensor::from_slice(x.dims(), &numbers).unwrap();
    let labels = Tensor::from_slice(labels.dims(), &classes).unwrap();
    let data = Arc::new(Dataset::of_columns(vec![("x".into(), x), ("labels".into(), labels)], &wanted).unwrap());
    let mut trainer = trainer(module, &given, &[]);
    let mut steps = 0;
    let mut observe = |event: JobEvent<'_>| {
        steps += usize::from(matches!(event, JobEvent::Step(_)));
        Ok(())
    };
    let done = TrainingJob::new(&mut trainer, (&data, None), &job, &mut observe).and_then(|mut job| job.run(None));
    let errors = done.err().map_or_else(String::new, |errors| errors.to_string());
    format!("{errors} after {steps} steps")
}

#[test]
fn what_a_job_cannot_do_is_refused_before_its_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let schedule = Schedule { kind: ScheduleKind::Constant, rate: 0.01, warmup: 0 };
    let plain = || JobOptions { shuffle: false, ..JobOptions::new(1, schedule) };
    let negative = failure(|_, classes| classes[17] = -1, 1, plain());
    assert!(negative.contains("sample 17 of the training data (the first is 0) has the label -1"), "{negative}");
    assert!(negative.ends_with("after 0 steps"), "{negative}");
    // The label that does not count is none.
    assert_eq!(failure(|_, classes| classes[17] = -100, 1, plain()), " after 3 steps");
    let untouched = failure(|_, _| (), 4, plain());
    assert!(
        untouched.contains("updated after every 4 steps (--accumulate), and the training has 3 steps"),
        "{untouched}"
    );
    assert!(untouched.ends_with("after 0 steps"), "{untouched}");
    let nowhere = dir.path().join("none/x.onnx");
    for job in [
        JobOptions { outputs: vec![nowhere.clone()], ..plain() },
        JobOptions { outputs: vec![dir.path().to_owned()], ..plain() },
        JobOptions { snapshots: Some(SnapshotPlace::file(&nowhere.with_extension("safetensors"))), ..plain() },
    ] {
        let refused = failure(|_, _| (), 1, job);
        assert!(refused.contains("cannot be written") && refused.ends_with("after 0 steps"), "{refused}");
    }
    // A file that is there stays as it is, where the training fails.
    let old = dir.path().join("old.onnx");
    std::fs::write(&old, "old").unwrap();
    let failed =
        failure(|x, _| x[FEATURES * 9 + 1] = f32::NAN, 1, JobOptions { outputs: vec![old.clone()], ..plain() });
    assert!(failed.contains("the loss is NaN at step 1: 'x' of sample 9 of the training data"), "{failed}");
    assert_eq!(std::fs::read(&old).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn separate_adapters_of_a_model_of_the_zoo_are_refused_before_the_first_step() {
    let zoo = of_driver::zoo::named(Path::new("zoo:ncf:small")).unwrap().unwrap();
    let model = zoo.model(of_driver::zoo::Mode::Training).unwrap();
    let sgd = named("sgd", &Hyperparameters::default()).unwrap();
    let lora = Some(of_driver::training::Lora::new(2, 2.0));
    let given = TrainOptions { lora, ..TrainOptions::new(Loss::named("bce").unwrap(), sgd, BATCH) };
    let wanted = columns(&model, &given).unwrap();
    let data = Arc::new(zoo.synthetic("synthetic:16", &wanted).unwrap());
    let mut trainer = trainer(model.module, &given, &[]);
    let schedule = Schedule { kind: ScheduleKind::Constant, rate: 0.01, warmup: 0 };
    let dir = tempfile::tempdir().unwrap();
    let outputs = vec![dir.path().join("m.onnx")];
    let mut job = JobOptions { outputs: outputs.clone(), zoo: Some(&zoo), ..JobOptions::new(1, schedule) };
    let mut observe = |_: JobEvent<'_>| Ok(());
    let refused = TrainingJob::new(&mut trainer, (&data, None), &job, &mut observe).err().unwrap().to_string();
    assert!(refused.contains("with separate adapters") && refused.contains("add --merge"), "{refused}");
    job.merge = true;
    TrainingJob::new(&mut trainer, (&data, None), &job, &mut observe).unwrap().run(None).unwrap();
    assert!(outputs[0].is_file());
}

#[test]
fn a_job_without_a_whole_batch_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let loss = Loss::named("cross-entropy").unwrap();
    let (_, _, folder) = data(dir.path(), loss);
    let module = model(4, loss);
    let given = TrainOptions { batch: SAMPLES + 1, ..super::options("sgd", &Hyperparameters::default(), loss) };
    let data = Arc::new(dataset(&folder, &module, &given));
    let mut trainer = trainer(module, &given, &[]);
    let options = JobOptions::new(1, Schedule { kind: ScheduleKind::Constant, rate: 0.01, warmup: 0 });
    let mut observe = |_: JobEvent<'_>| Ok(());
    let refused = TrainingJob::new(&mut trainer, (&data, None), &options, &mut observe).err().unwrap();
    assert!(refused.to_string().contains("the data has 24 samples, fewer than the 25 of a step"), "{refused}");
}
