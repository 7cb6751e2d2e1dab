//! Classes of the data of `of-opt train`: whether the model has a score for each, and the files of their names.

use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_driver::training::{Dataset, Loss, TrainOptions};
use of_driver::zoo::ZooModel;
use of_driver::{Model, Observer, count, error, io_error};

use crate::console::Console;

/// Compares the classes of the data with the scores of a model that is trained by cross entropy. Returns a warning where the model has more scores.
///
/// # Errors
/// When a class has no score.
pub fn check(
    model: &Model,
    options: &TrainOptions,
    data: &Dataset,
    validation: Option<&Dataset>,
    zoo: Option<&ZooModel>,
) -> Result<Option<Diagnostic>, Diagnostics> {
    let Some((output, scores)) = scores(model, options) else { return Ok(None) };
    let classes = data.classes.len();
    let hint = |wanted: usize| match zoo.filter(|zoo| zoo.spec.model.settings.iter().any(|s| s.name == "classes")) {
        Some(zoo) => {
            format!("the setting classes={wanted} gives it as many: zoo:{}:classes={wanted}", zoo.spec.model.name)
        }
        None => format!("--reset-head {wanted} gives it a new last layer with as many"),
    };
    let has = format!("the model's output '{output}' has {}", count(scores, "score"));
    if classes > scores {
        let what = format!("the data has {}, and {has}", class_count(classes));
        return Err(error(Code::INPUT, what).hint(hint(classes)).into());
    }
    if let Loss::CrossEntropy { ignore, .. } = options.loss {
        for (place, data) in [("training", Some(data)), ("validation", validation)] {
            let largest = data.and_then(|data| data.largest_label(ignore)).and_then(|n| usize::try_from(n).ok());
            if let Some(label) = largest.filter(|label| *label >= scores) {
                let what = format!(
                    "the {place} data has the label {label}, and {has}, for the labels 0 to {}",
                    scores.saturating_sub(1)
                );
                let hint = format!("{}; --ignore-index {label} leaves this label out", hint(label + 1));
                return Err(error(Code::INPUT, what).hint(hint).into());
            }
        }
    }
    if classes == 0 || classes == scores {
        return Ok(None);
    }
    let what = format!("the data has {}, and {has}: the others stand for nothing", class_count(classes));
    Ok(Some(Diagnostic::warning(Code::INPUT, Location::Unknown, what).hint(hint(classes))))
}

/// The name of the output that cross entropy is of, and the number of its scores; `None` for other losses, and where it is not known.
fn scores(model: &Model, options: &TrainOptions) -> Option<(String, usize)> {
    let (Loss::CrossEntropy { axis, .. } | Loss::SoftCrossEntropy { axis, .. }) = options.loss else { return None };
    let func = model.module.main()?;
    let index = match &options.output {
        None => 0,
        Some(name) => func.outputs.iter().position(|output| output == name)?,
    };
    let types = func.output_types();
    let shape = types.get(index)?.as_tensor()?.shape.clone()?;
    let scores = shape.get(of_ops::shape::axis(axis, shape.len()).ok()?)?.as_const()?;
    Some((func.outputs.get(index)?.clone(), usize::try_from(scores).ok()?))
}

fn class_count(classes: usize) -> String {
    if classes == 1 { "1 class".into() } else { format!("{classes} classes") }
}

/// The classes of a data set for a message: their number and names; of many, the first.
pub fn listed(classes: &[String]) -> String {
    const MOST: usize = 10;
    let more = if classes.len() > MOST { format!(" and {} more", classes.len() - MOST) } else { String::new() };
    format!("{} ({}{more})", class_count(classes.len()), classes[..classes.len().min(MOST)].join(", "))
}

/// Writes the names of classes next to the trained model `path`, one a line: into `NAME.labels.txt` for `NAME.onnx`. Of `outputs` with one
/// NAME, the first gets them.
///
/// # Errors
/// When a file cannot be written.
pub fn write_names(path: &Path, outputs: &[PathBuf], classes: &[String], console: &Console) -> Result<(), Diagnostics> {
    let names = path.with_extension("labels.txt");
    let first = outputs.iter().find(|output| output.with_extension("labels.txt") == names);
    if classes.is_empty() || first.is_none_or(|first| first != path) {
        return Ok(());
    }
    // A name is a line.
    let lines = classes.iter().map(|class| class.replace(['\n', '\r'], " ") + "\n").collect::<String>();
    of_files::write(&names, &lines).map_err(|e| io_error(&names, "written", &e))?;
    console.note(&format!("{}: written, the names of the classes for 'of-opt run --top 1 --labels'", names.display()));
    Ok(())
}
