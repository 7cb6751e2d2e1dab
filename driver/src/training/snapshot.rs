//! Snapshots of a training: all variables and the position in the data, as safetensors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_plan::ElementType;
use of_runtime::{Tensor, Variables};
use safetensors::tensor::{Dtype, View};
use safetensors::{SafeTensors, serialize};

use crate::error::{error, io_error};
use crate::session::run_error;

/// How far a training is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps that are done.
    pub step: usize,
    /// What shuffles the data.
    pub seed: u64,
}

struct Stored<'t>(&'t Tensor, Vec<usize>, Dtype);

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.2
    }

    fn shape(&self) -> &[usize] {
        &self.1
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.bytes().unwrap_or_default())
    }

    fn data_len(&self) -> usize {
        self.0.bytes().map_or(0, <[u8]>::len)
    }
}

fn dtype(of: ElementType) -> Option<Dtype> {
    Some(match of {
        ElementType::F64 => Dtype::F64,
        ElementType::F32 => Dtype::F32,
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::I64 => Dtype::I64,
        ElementType::I32 => Dtype::I32,
        ElementType::I16 => Dtype::I16,
        ElementType::I8 => Dtype::I8,
        ElementType::Ui8 => Dtype::U8,
        ElementType::I1 => Dtype::BOOL,
        _ => return None,
    })
}

/// Writes variables to a file, which appears whole or not at all. `names` chooses some: the name in the file, and that of the
/// variable; `None` writes all.
///
/// # Errors
/// When the file cannot be written, or a variable has no value or a type that safetensors lacks.
pub fn write(
    path: &Path,
    variables: &Variables,
    names: Option<&[(String, String)]>,
    progress: Progress,
) -> Result<(), Diagnostics> {
    let all = || variables.list().iter().map(|variable| (variable.name.clone(), variable.name.clone())).collect();
    let mut values = Vec::new();
    for (stored, variable) in names.map_or_else(all, <[_]>::to_vec) {
        values.push((stored, variables.get(&variable).map_err(|e| run_error(&e))?));
    }
    let metadata = HashMap::from([
        ("format".to_string(), "of-opt".to_string()),
        ("step".to_string(), progress.step.to_string()),
        ("seed".to_string(), progress.seed.to_string()),
    ]);
    write_tensors(path, &values, metadata)
}

/// Writes tensors with their names.
///
/// # Errors
/// As [`write`].
pub fn write_tensors(
    path: &Path,
    values: &[(String, Tensor)],
    metadata: HashMap<String, String>,
) -> Result<(), Diagnostics> {
    let mut stored = Vec::with_capacity(values.len());
    for (name, value) in values {
        let dtype = dtype(value.dtype()).ok_or_else(|| {
            error(Code::UNSUPPORTED, format!("variable '{name}' is {}, which safetensors lacks", value.dtype()))
        })?;
        stored.push((name.as_str(), Stored(value, value.dims().iter().map(|d| *d as usize).collect(), dtype)));
    }
    let bytes = serialize(stored, Some(metadata)).map_err(|e| error(Code::IO, format!("{}: {e}", path.display())))?;
    of_files::write(path, &bytes).map_err(|e| io_error(path, "written", &e).into())
}

/// Sets variables from a file that [`write`] made, and returns how far the training was.
///
/// # Errors
/// When the file cannot be read, or is of another training: a variable is absent or has another type.
pub fn read(path: &Path, variables: &Variables) -> Result<Progress, Diagnostics> {
    let damaged = |what: String| Diagnostics::from(error(Code::INPUT, format!("'{}' {what}", path.display())));
    let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
    let not = |e: safetensors::SafeTensorError| damaged(format!("is no snapshot: {e}"));
    let file = SafeTensors::deserialize(&bytes).map_err(not)?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(not)?;
    let field =
        |name: &str| metadata.metadata().as_ref().and_then(|m| m.get(name)).and_then(|text| text.parse::<u64>().ok());
    let (Some(step), Some(seed)) = (field("step"), field("seed")) else {
        return Err(damaged("is no snapshot of a training: it has no step".into()));
    };
    // All are checked before the first is set, so that an error changes nothing.
    let mut values = Vec::new();
    for variable in variables.list() {
        let own = file
            .tensor(&variable.name)
            .map_err(|_| damaged(format!("has no '{}': it is of another model or optimizer", variable.name)))?;
        let dims: Vec<i64> = own.shape().iter().map(|d| *d as i64).collect();
        if dtype(variable.dtype()) != Some(own.dtype()) || dims != variable.dims {
            let what = format!(
                "has '{}' as {:?}{dims:?}, and the model {}{:?}",
                variable.name,
                own.dtype(),
                variable.dtype(),
                variable.dims
            );
            return Err(damaged(what));
        }
        let value = Tensor::from_bytes(variable.dtype(), dims, own.data()).map_err(|e| damaged(e.to_string()))?;
        values.push((&variable.name, value));
    }
    for (name, value) in values {
        variables.set(name, &value).map_err(|e| run_error(&e))?;
    }
    Ok(Progress { step: step as usize, seed })
}
