//! What is checked before the first step of a training, and where its loss is no number.

use std::path::PathBuf;

use of_diag::{Code, Diagnostics};

use super::Dataset;
use super::snapshot::SnapshotPlace;
use crate::error::{count, error};

/// Rejects results that could not be written at the end: nothing is changed at their places.
pub(super) fn check_writable(outputs: &[PathBuf], snapshots: Option<&SnapshotPlace>) -> Result<(), Diagnostics> {
    let outputs: Vec<SnapshotPlace> = outputs.iter().map(|path| SnapshotPlace::file(path)).collect();
    for place in outputs.iter().chain(snapshots) {
        place.check_writable().map_err(|e| {
            let what = format!("'{}' cannot be written: {e}", place.shown());
            Diagnostics::from(error(Code::IO, what).hint("its folder must exist, and be writable"))
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

/// Rejects classes below 0, but for `ignored`, where they are in memory.
pub(super) fn check_classes(data: &Dataset, what: &str, ignored: i64) -> Result<(), Diagnostics> {
    data.negative_label(ignored).map_or(Ok(()), |(sample, label)| Err(negative(what, sample, label, ignored)))
}

/// Rejects classes below 0 of a batch of samples with these numbers, but for `ignored`.
pub(super) fn check_classes_of_batch(
    labels: Option<&of_runtime::Value>,
    samples: &[usize],
    ignored: i64,
) -> Result<(), Diagnostics> {
    let labels = labels.and_then(|labels| labels.as_tensor()?.to_elements::<i64>()).unwrap_or_default();
    let each = (labels.len() / samples.len().max(1)).max(1);
    let found = labels.iter().position(|label| *label < 0 && *label != ignored);
    match found.and_then(|at| Some((*samples.get(at / each)?, labels[at]))) {
        Some((sample, label)) => Err(negative("training", sample, label, ignored)),
        None => Ok(()),
    }
}

fn negative(what: &str, sample: usize, label: i64, ignored: i64) -> Diagnostics {
    let what = format!("sample {sample} of the {what} data (the first is 0) has the label {label}, which is no class");
    let hint = format!("classes are 0 and above; {ignored} (--ignore-index) stands for no label");
    error(Code::INPUT, what).hint(hint).into()
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
