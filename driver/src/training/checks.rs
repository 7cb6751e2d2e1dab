//! What is checked before the first step of a training, and where its loss is no number.

use std::path::PathBuf;

use of_diag::{Code, Diagnostics};

use super::Dataset;
use super::snapshot::SnapshotPlace;
use crate::error::{count, error};

/// Rejects results that could not be written at the end, or that would replace the snapshot: nothing is changed at their places.
pub(super) fn check_writable(outputs: &[PathBuf], snapshots: Option<&SnapshotPlace>) -> Result<(), Diagnostics> {
    if let Some(path) = snapshots.and_then(|place| outputs.iter().find(|path| place.is_at(path))) {
        let what =
            format!("'{}' is to be a trained model, and the snapshot of the training (--snapshot)", path.display());
        return Err(error(Code::INPUT, what).hint("give them different names").into());
    }
    let outputs: Vec<SnapshotPlace> = outputs.iter().map(|path| SnapshotPlace::file(path)).collect();
    for place in outputs.iter().chain(snapshots) {
        place.check_writable().map_err(|e| {
            let hint = match place.has_conditional_commits() {
                true => {
                    "keys and region are in the variables AWS_…; they must allow to list, read, write and remove objects"
                }
                false => "its folder must exist, and be writable",
            };
            let what = format!("'{}' cannot be written: {e}", place.shown());
            Diagnostics::from(error(Code::IO, what).hint(hint))
        })?;
    }
    Ok(())
}

/// Rejects places without room for so many bytes: it would be found out at the end of an epoch, or of the training.
pub(super) fn check_room(
    outputs: &[PathBuf],
    snapshots: Option<&SnapshotPlace>,
    (each, all): (u64, u64),
) -> Result<(), Diagnostics> {
    // A pipe or a device has no room, and needs none.
    let files = outputs.iter().filter(|path| !path.exists() || path.is_file());
    let outputs: Vec<(SnapshotPlace, u64)> = files.map(|path| (SnapshotPlace::file(path), each)).collect();
    let snapshots = snapshots.map(|place| (place.clone(), all));
    for (place, needed) in outputs.iter().chain(&snapshots) {
        let Some(free) = place.files().free_bytes().filter(|free| free < needed) else { continue };
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1_048_576.0);
        let what = format!("'{}' will have {}, and {} are free there", place.shown(), mib(*needed), mib(free));
        let hint =
            "free some room, or name a place on another disk; a file that is replaced stays until the new one is whole";
        return Err(error(Code::IO, what).hint(hint).into());
    }
    Ok(())
}

/// Rejects models of the zoo with separate adapters: their form for inference, which is written, has none.
pub(super) fn check_adapters_of_zoo(name: &str, outputs: &[PathBuf]) -> Result<(), Diagnostics> {
    let Some(path) = outputs.iter().find(|path| path.extension().is_none_or(|e| e != "safetensors")) else {
        return Ok(());
    };
    let what = format!("'{}' cannot have '{name}' with separate adapters", path.display());
    let hint = "add --merge, which adds them to the weights, or write .safetensors, which has the adapters alone";
    Err(error(Code::UNSUPPORTED, what).hint(hint).into())
}

/// Rejects a training whose steps are too few for an update.
pub(super) fn check_updates(steps: usize, accumulate: usize) -> Result<(), Diagnostics> {
    if steps >= accumulate {
        return Ok(());
    }
    let what = format!(
        "parameters are updated after every {accumulate} steps (--accumulate), and the training has {}: they would stay as they are",
        count(steps, "step")
    );
    Err(error(Code::INPUT, what).hint("give more --epochs, or a smaller --accumulate or --batch").into())
}

/// Why a loss is no number: the first of the samples whose data has none, or the course of the training.
pub(super) fn explain_loss(loss: f64, step: usize, data: &Dataset, samples: &[usize]) -> Diagnostics {
    let what = format!("the loss is {loss} at step {step}");
    match data.not_finite(samples) {
        Ok(Some((column, sample, value))) => {
            let what =
                format!("{what}: '{column}' of sample {sample} of the training data (the first is 0) has {value}");
            error(Code::INPUT, what).hint("replace such values, or leave the sample out").into()
        }
        // What cannot be read again has been reported.
        Ok(None) | Err(_) => {
            error(Code::RUN, what).hint("try a smaller --learning-rate, --warmup, or --clip-norm").into()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::super::snapshot::{SnapshotFile, SnapshotFiles};
    use super::*;

    /// A folder with room for 1000 bytes.
    struct Small;

    impl SnapshotFiles for Small {
        fn create(&self, _: &str) -> io::Result<Box<dyn SnapshotFile>> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn read(&self, _: &str) -> io::Result<Option<Vec<u8>>> {
            Ok(None)
        }

        fn written(&self, _: &str) -> io::Result<Option<SystemTime>> {
            Ok(None)
        }

        fn names(&self, _: &str) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn remove(&self, _: &str) -> io::Result<()> {
            Ok(())
        }

        fn free_bytes(&self) -> Option<u64> {
            Some(1000)
        }
    }

    #[test]
    fn places_without_room_are_found_before_the_first_step() {
        let place = SnapshotPlace::of_store(Arc::new(Small), "s.safetensors", "s.safetensors");
        assert!(check_room(&[], Some(&place), (0, 1000)).is_ok());
        let wrong = check_room(&[], Some(&place), (0, 2 << 20)).unwrap_err().to_string();
        assert!(wrong.contains("'s.safetensors' will have 2.0 MiB, and 0.0 MiB are free there"), "{wrong}");
        let dir = tempfile::tempdir().unwrap();
        let output = [dir.path().join("m.onnx")];
        assert!(check_room(&output, None, (1, 1)).is_ok());
        let wrong = check_room(&output, None, (u64::MAX, 0)).unwrap_err().to_string();
        assert!(wrong.contains("m.onnx' will have "), "{wrong}");
        assert!(check_room(&["/dev/null".into()], None, (u64::MAX, 0)).is_ok());
    }
}
