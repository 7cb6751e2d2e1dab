//! Model files of the command line: as the driver opens them, and from stdin.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;

use of_diag::Diagnostics;
use of_driver::model::{self, Format, already_compiled};
use of_driver::{Model, ModelOrPlan, Observer, io_error};

use crate::arguments::ModelFile;
use crate::console::{Console, is_dash};

/// Opens a model or plan; `-` is stdin.
///
/// # Errors
/// When it cannot be read, is damaged, or holds an unsupported op.
pub fn open(model: &ModelFile, console: &Console) -> Result<ModelOrPlan, Diagnostics> {
    open_for(model, &[], console)
}

/// As [`open`], for inputs from `files`: initializers that they have values for are inputs.
///
/// # Errors
/// As [`open`].
pub fn open_for(model: &ModelFile, files: &[OsString], console: &Console) -> Result<ModelOrPlan, Diagnostics> {
    if is_dash(&model.model) {
        stdin(console)
    } else {
        model::open_for(&model.model, &model.initializer_input, files, console)
    }
}

/// Opens a model.
///
/// # Errors
/// As [`open`], and when the file is a plan.
pub fn open_model(model: &ModelFile, console: &Console) -> Result<Model, Diagnostics> {
    open_model_for(model, &[], console)
}

/// As [`open_model`], for inputs from `files`.
///
/// # Errors
/// As [`open_model`].
pub fn open_model_for(model: &ModelFile, files: &[OsString], console: &Console) -> Result<Model, Diagnostics> {
    match open_for(model, files, console)? {
        ModelOrPlan::Model(model) => Ok(*model),
        ModelOrPlan::Plan(_) => Err(already_compiled(&model.model).into()),
    }
}

/// Reads IR text from a file, or a model from stdin.
///
/// # Errors
/// When it cannot be read or parsed.
pub fn read_text(path: &Path, console: &Console) -> Result<Model, Diagnostics> {
    if is_dash(path) { model_on_stdin(console) } else { model::read_text(path, console) }
}

/// Imports an ONNX model from a file or stdin.
///
/// # Errors
/// When it cannot be read, is damaged, or holds an unsupported op.
pub fn import(path: &Path, console: &Console) -> Result<Model, Diagnostics> {
    if is_dash(path) { model_on_stdin(console) } else { model::import(path, console) }
}

fn model_on_stdin(console: &Console) -> Result<Model, Diagnostics> {
    match stdin(console)? {
        ModelOrPlan::Model(model) => Ok(*model),
        ModelOrPlan::Plan(_) => Err(already_compiled(Path::new(STDIN)).into()),
    }
}

/// How messages call stdin.
const STDIN: &str = "<stdin>";

/// Reads a model or plan from stdin, detected by its content.
fn stdin(console: &Console) -> Result<ModelOrPlan, Diagnostics> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|e| io_error(Path::new(STDIN), "read", &e))?;
    let hash = model::hash_of_bytes(&bytes);
    let mut model = match model::format_of_bytes(&bytes) {
        Format::Plan => return Ok(ModelOrPlan::Plan(Box::new(model::plan_from_bytes(&bytes, STDIN)?))),
        Format::Onnx => Model::from_onnx(bytes).map_err(|errors| named(errors, STDIN))?,
        Format::Text => {
            let text = String::from_utf8_lossy(&bytes);
            console.source(STDIN, &text);
            // Data files are relative to the working folder: a pipe has no folder.
            Model::from_text(&text, STDIN, Some(Path::new("")))?
        }
    };
    if model.module.name.is_empty() {
        model.module.name = "-".into();
    }
    model.files = vec![("-".into(), hash)];
    Ok(ModelOrPlan::Model(Box::new(model)))
}

/// Errors about "the file" with its name.
fn named(mut errors: Diagnostics, name: &str) -> Diagnostics {
    for d in &mut errors.0 {
        if let Some(rest) = d.message.strip_prefix("the file ") {
            d.message = format!("{name} {rest}");
        }
    }
    errors
}
