//! Trainings that watch their validation, and that are interrupted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use of_driver::training::{JobEvent, JobOptions, TrainingJob, Watch};

use super::ids::{constant, entropy, labelled};
use super::*;

const BATCH: usize = 8;
const STEPS: usize = SAMPLES / BATCH;

/// What a training reports of its end. The validation becomes worse with every epoch: its labels are wrong.
fn ends(dir: &Path, job: &JobOptions<'_>) -> Result<Vec<String>, String> {
    let (x, labels, _) = data(dir, entropy());
    let given = TrainOptions { batch: BATCH, ..options("adam", &Hyperparameters::default(), entropy()) };
    let right = labels.to_i64s().unwrap();
    let wrong: Vec<i64> = right.iter().map(|class| (class + 1) % CLASSES as i64).collect();
    let (data, validation) = (Arc::new(labelled(&x, &right, BATCH)), labelled(&x, &wrong, BATCH));
    let mut trainer = trainer(model(4, entropy()), &given, &[]);
    let mut seen = Vec::new();
    let mut observe = |event: JobEvent<'_>| {
        match event {
            JobEvent::Epoch(report) => seen.push(format!("epoch {} {:?}", report.epoch, report.is_best)),
            JobEvent::Stopped { epoch, best } => seen.push(format!("stopped {epoch} {}", best.unwrap().0)),
            JobEvent::KeptBest((epoch, _)) => seen.push(format!("kept {epoch}")),
            JobEvent::Interrupted { step, .. } => seen.push(format!("interrupted {step}")),
            JobEvent::Resumed { step, .. } => seen.push(format!("resumed {step}")),
            _ => {}
        }
        Ok(())
    };
    let done = TrainingJob::new(&mut trainer, (&data, Some(&validation)), job, &mut observe);
    done.and_then(|mut job| job.run(None)).map_err(|errors| errors.to_string())?;
    Ok(seen)
}

#[test]
fn a_training_ends_when_its_validation_does_not_improve_and_keeps_the_best_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let watch = Some(Watch { patience: Some(3), keep_best: true, ..Watch::default() });
    let job = |output: &str| JobOptions { outputs: vec![path(output)], watch, ..JobOptions::new(9, constant()) };
    let whole = ends(dir.path(), &job("best.safetensors")).unwrap();
    let epochs = ["epoch 0 Some(true)", "epoch 1 Some(false)", "epoch 2 Some(false)", "epoch 3 Some(false)"];
    assert_eq!(whole, [&epochs[..], &["stopped 3 0", "kept 0"]].concat());
    let first = JobOptions { outputs: vec![path("first.safetensors")], ..JobOptions::new(1, constant()) };
    ends(dir.path(), &first).unwrap();
    let bytes = |name: &str| std::fs::read(path(name)).unwrap();
    assert!(bytes("best.safetensors") == bytes("first.safetensors"));

    // One that is interrupted within an epoch, and goes on.
    let asked = AtomicUsize::new(0);
    let interruption = || (asked.fetch_add(1, Ordering::Relaxed) > STEPS).then_some(1);
    let snapshots = Some(SnapshotPlace::file(&path("s.safetensors")));
    let broken = JobOptions { snapshots: snapshots.clone(), interruption: &interruption, ..job("again.safetensors") };
    let seen = ends(dir.path(), &broken).unwrap();
    let [before, interrupted] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(before, epochs[0]);
    let step = interrupted.strip_prefix("interrupted ").unwrap();
    let rest = JobOptions { snapshots: snapshots.clone(), resume: true, ..job("again.safetensors") };
    let seen = ends(dir.path(), &rest).unwrap();
    assert_eq!(seen, [&[&*format!("resumed {step}")], &epochs[1..], &["stopped 3 0", "kept 0"]].concat());
    assert!(bytes("again.safetensors") == bytes("best.safetensors"));
    // After its end there is nothing left to train.
    let seen = ends(dir.path(), &rest).unwrap();
    assert_eq!(seen, ["resumed 12", "stopped 3 0", "kept 0"]);
    std::fs::remove_file(path("again.safetensors")).unwrap();
    let refused = ends(dir.path(), &rest).unwrap_err();
    assert!(refused.contains("goes on after epoch 1, the best so far, and '"), "{refused}");
}
