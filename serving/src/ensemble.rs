//! Ensembles: models whose outputs are inputs of other models. The opener merges their models into one plan.
//!
//! Source: `ModelEnsembling` of Triton's `model_config.proto`.

use std::path::PathBuf;

use of_plan::ElementType;

use crate::config::{ModelConfig, data_type, extent, message_of, string, word, wrong};
use crate::model::{ModelVersion, TensorInfo};
use crate::pbtxt::{Field, Message};

/// An ensemble as its configuration describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnsembleConfig {
    /// Its inputs.
    pub inputs: Vec<Declared>,
    /// Its outputs.
    pub outputs: Vec<Declared>,
    /// Its models.
    pub steps: Vec<StepConfig>,
}

/// An input or output that a configuration declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: ElementType,
    /// Extents, without that of a batch.
    pub dims: Vec<i64>,
}

/// A model of an ensemble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepConfig {
    /// The model.
    pub model: String,
    /// Its version; the latest without one.
    pub version: Option<u64>,
    /// Inputs of the model, each with the tensor of the ensemble that it reads.
    pub inputs: Vec<(String, String)>,
    /// Outputs of the model, each with the tensor of the ensemble that it is.
    pub outputs: Vec<(String, String)>,
}

/// An ensemble, with the files of its models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    /// Name.
    pub name: String,
    /// Names of its inputs.
    pub inputs: Vec<String>,
    /// Names of its outputs.
    pub outputs: Vec<String>,
    /// Its models.
    pub steps: Vec<EnsembleStep>,
}

/// A model of an ensemble, with its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    /// Name of the model.
    pub name: String,
    /// Its file, which is no plan.
    pub file: PathBuf,
    /// Inputs of the model, each with the tensor of the ensemble that it reads.
    pub inputs: Vec<(String, String)>,
    /// Outputs of the model, each with the tensor of the ensemble that it is.
    pub outputs: Vec<(String, String)>,
}

/// Reads an input or output.
///
/// # Errors
/// When it has no name or type.
pub fn declared(whole: &Field) -> Result<Declared, String> {
    let (mut name, mut dtype, mut dims) = (None, None, Vec::new());
    for field in &message_of(whole)?.fields {
        match field.name.as_str() {
            "name" => name = Some(string(field)?.to_owned()),
            "data_type" => dtype = Some(data_type(field)?),
            "dims" => dims.push(extent(field)?),
            _ => return wrong(field, "is not supported in an ensemble"),
        }
    }
    match (name, dtype) {
        (Some(name), Some(dtype)) => Ok(Declared { name, dtype, dims }),
        _ => wrong(whole, "of an ensemble needs a name and a data_type"),
    }
}

/// Reads the message `ensemble_scheduling`.
///
/// # Errors
/// When it states what is not supported.
pub fn steps(message: &Message) -> Result<Vec<StepConfig>, String> {
    let read = |field: &Field| match field.name.as_str() {
        "step" => step(field),
        _ => wrong(field, "is not supported"),
    };
    message.fields.iter().map(read).collect()
}

fn step(whole: &Field) -> Result<StepConfig, String> {
    let mut step = StepConfig { model: String::new(), version: None, inputs: Vec::new(), outputs: Vec::new() };
    for field in &message_of(whole)?.fields {
        match field.name.as_str() {
            "model_name" => step.model = string(field)?.to_owned(),
            "model_version" => step.version = version(field)?,
            "input_map" => step.inputs.push(entry(field)?),
            "output_map" => step.outputs.push(entry(field)?),
            _ => return wrong(field, "is not supported"),
        }
    }
    if step.model.is_empty() {
        return wrong(whole, "has no model_name");
    }
    Ok(step)
}

/// A number, or -1 for the latest version.
fn version(field: &Field) -> Result<Option<u64>, String> {
    match word(field)? {
        "-1" => Ok(None),
        text => text.parse().map(Some).or_else(|_| wrong(field, "is no number of a version")),
    }
}

fn entry(whole: &Field) -> Result<(String, String), String> {
    let (mut key, mut value) = (None, None);
    for field in &message_of(whole)?.fields {
        match field.name.as_str() {
            "key" => key = Some(string(field)?.to_owned()),
            "value" => value = Some(string(field)?.to_owned()),
            _ => return wrong(field, "is not supported"),
        }
    }
    key.zip(value).map_or_else(|| wrong(whole, "needs a key and a value"), Ok)
}

/// Compares what the configuration of an ensemble declares with its plan.
///
/// # Errors
/// When a type or an extent differs.
pub fn check(model: &ModelVersion, ensemble: &EnsembleConfig) -> Result<(), String> {
    check_all("input", &ensemble.inputs, &model.inputs, &model.config)?;
    check_all("output", &ensemble.outputs, &model.outputs, &model.config)
}

fn check_all(kind: &str, declared: &[Declared], own: &[TensorInfo], config: &ModelConfig) -> Result<(), String> {
    for tensor in declared {
        let Some(info) = own.iter().find(|info| info.name == tensor.name) else { continue };
        let rows = usize::from(config.batching_is_required);
        let dims = info.shape.get(rows..).unwrap_or_default();
        let fits = |(declared, own): (&i64, &i64)| *declared == -1 || *own == -1 || declared == own;
        if tensor.dtype != info.dtype || tensor.dims.len() != dims.len() || !tensor.dims.iter().zip(dims).all(fits) {
            let (stated, dtype) = (&tensor.dims, tensor.dtype);
            let what = format!("the {kind} '{}' of the ensemble is {} {dims:?} in its models", tensor.name, info.dtype);
            return Err(format!("{what}, and {dtype} {stated:?} in the configuration"));
        }
    }
    Ok(())
}
