//! Model files of the command line: as the driver opens them, and IR text from stdin.

use std::io::Read;
use std::path::Path;

use of_diag::Diagnostics;
use of_driver::model::{self, already_compiled};
use of_driver::{Model, ModelOrPlan, Observer, io_error};

use crate::arguments::ModelFile;
use crate::console::{Console, is_dash};

/// Opens a model or plan; `-` is IR text on stdin.
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
pub fn open_for(model: &ModelFile, files: &[String], console: &Console) -> Result<ModelOrPlan, Diagnostics> {
    if is_dash(&model.model) {
        Ok(ModelOrPlan::Model(Box::new(stdin(console)?)))
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
pub fn open_model_for(model: &ModelFile, files: &[String], console: &Console) -> Result<Model, Diagnostics> {
    match open_for(model, files, console)? {
        ModelOrPlan::Model(model) => Ok(*model),
        ModelOrPlan::Plan(_) => Err(already_compiled(&model.model).into()),
    }
}

/// Reads IR text from a file or stdin.
///
/// # Errors
/// When it cannot be read or parsed.
pub fn read_text(path: &Path, console: &Console) -> Result<Model, Diagnostics> {
    if is_dash(path) { stdin(console) } else { model::read_text(path, console) }
}

fn stdin(console: &Console) -> Result<Model, Diagnostics> {
    const NAME: &str = "<stdin>";
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| io_error(Path::new(NAME), "read", &e))?;
    console.source(NAME, &text);
    // Data files are relative to the working folder: a pipe has no folder.
    let mut model = Model::from_text(&text, NAME, Some(Path::new("")))?;
    if model.module.name.is_empty() {
        model.module.name = "-".into();
    }
    model.files = vec![("-".into(), [0; 32])];
    Ok(model)
}
