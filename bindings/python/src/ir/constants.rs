//! Arrays of Python as constants of the IR. Their memory is shared, not copied.

use of_codegen::physical::{dtype_of, element_type};
use of_ir::{Blob, Tensor};
use of_plan::ElementType;
use of_runtime::{AlignedBytes, Value};
use pyo3::prelude::*;

use crate::array::Memory;
use crate::error::input_error;
use crate::numpy::Numpy;
use crate::values::to_value;

/// Memory of Python that a constant shares, with what keeps it alive.
struct Held {
    bytes: AlignedBytes,
    _owners: Vec<Py<PyAny>>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The constant for an array, a tensor of another library, or a list of integers.
///
/// # Errors
/// When it is none of these, or its elements have no element type.
pub fn to_tensor(value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = value.py();
    let mut owners = Vec::new();
    let wrong = |what: String| input_error(py, what, Some("give a NumPy array, or a tensor that has DLPack"));
    let is_array = value.hasattr("__array_struct__")?
        || value.hasattr("__dlpack__")?
        || value.is_instance_of::<pyo3::types::PyCapsule>();
    let value = match is_array {
        true => value.clone(),
        false => {
            // Numbers and lists have no dtype: integers alone are clear.
            let array = Numpy::get(py)?.converted(value, ElementType::I64)?;
            let back = array.call_method0("tolist")?;
            let same = match value.try_iter() {
                Ok(items) => back.eq(items.collect::<PyResult<Vec<_>>>()?)?,
                Err(_) => back.eq(value)?,
            };
            if !same {
                return Err(wrong("a constant of numbers that are no integers has no dtype".into()));
            }
            array
        }
    };
    let Value::Tensor(tensor) = to_value(&value, ElementType::Unknown, &mut owners)? else {
        return Err(wrong("a constant is no tensor".into()));
    };
    let Some(dtype) = dtype_of(tensor.dtype()) else {
        return Err(wrong(format!("a constant cannot hold elements of type {}", tensor.dtype().name())));
    };
    let dims: Vec<usize> = tensor.dims().iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
    let made = match tensor.strings() {
        Some(strings) => Tensor::from_strings(dims, strings.to_vec()),
        None => {
            let held = Held { bytes: tensor.into_bytes().unwrap_or_default(), _owners: owners };
            Tensor::from_bytes(dtype, dims, Blob::from_owner(held))
        }
    };
    made.map_err(|e| wrong(e.to_string()))
}

/// An array with the elements of a constant.
///
/// # Errors
/// When NumPy lacks its dtype.
pub fn to_array<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let dims: Vec<i64> = tensor.dims().iter().map(|dim| *dim as i64).collect();
    if let Some(strings) = tensor.strings() {
        return Numpy::get(py)?.objects(py, strings.to_vec(), &dims);
    }
    let dtype = element_type(tensor.dtype());
    let bytes: &[u8] = tensor.bytes().map_or(&[], |bytes| bytes);
    let made = of_runtime::Tensor::from_bytes(dtype, dims.clone(), bytes);
    let made = made.map_err(|e| input_error(py, e.to_string(), None))?;
    match dtype.bits() {
        8.. => Memory::array(py, dtype, &dims, made.into_bytes().unwrap_or_default()),
        _ => crate::values::from_value(py, made.into()),
    }
}
