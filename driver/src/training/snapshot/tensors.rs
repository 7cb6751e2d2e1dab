//! Tensors with their names, as safetensors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_plan::ElementType;
use of_runtime::Tensor;
use safetensors::serialize;
use safetensors::tensor::{Dtype, View};

use super::place::write_durably;
use crate::error::{error, io_error};

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

/// The type that safetensors has for an element type.
pub fn dtype(of: ElementType) -> Option<Dtype> {
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

/// The error of a variable whose type safetensors lacks.
pub fn lacks(name: &str, dtype: ElementType) -> Diagnostics {
    error(Code::UNSUPPORTED, format!("variable '{name}' is {dtype}, which safetensors lacks")).into()
}

/// Writes tensors to a file, which appears whole or not at all.
///
/// # Errors
/// When the file cannot be written, or a value has a type that safetensors lacks.
pub fn write_tensors(
    path: &Path,
    values: &[(String, Tensor)],
    metadata: HashMap<String, String>,
) -> Result<(), Diagnostics> {
    let mut parts = Vec::with_capacity(values.len());
    for (name, value) in values {
        let dtype = dtype(value.dtype()).ok_or_else(|| lacks(name, value.dtype()))?;
        let dims = value.dims().iter().map(|d| *d as usize).collect();
        parts.push((name.as_str(), Stored(value, dims, dtype)));
    }
    let bytes = serialize(parts, Some(metadata)).map_err(|e| error(Code::IO, format!("{}: {e}", path.display())))?;
    write_durably(path, &bytes).map_err(|e| io_error(path, "written", &e).into())
}
