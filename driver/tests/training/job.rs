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
