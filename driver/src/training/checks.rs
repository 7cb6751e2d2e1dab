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
