//! Python's values as those of the runtime, and back.

use of_plan::ElementType;
use of_runtime::{AlignedBytes, Tensor, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::array::{Memory, View};
use crate::dlpack::Shared;
use crate::error::input_error;
use crate::numpy::Numpy;

/// Results up to this size are copied: that costs less than an array that shares memory.
const COPIED: usize = 16 << 10;

/// Converts one input. `expected` is the element type of its port, which lists and numbers get; `owners` collects what keeps
/// memory alive.
///
/// # Errors
/// When it is no tensor, sequence or optional value.
pub fn to_value(value: &Bound<'_, PyAny>, expected: ElementType, owners: &mut Vec<Py<PyAny>>) -> PyResult<Value> {
    if value.is_none() {
        return Ok(Value::Optional(None));
    }
    let numpy = Numpy::get(value.py())?;
    if let Some(view) = View::of(value)? {
        return from_view(value, view, owners);
    }
    if let Some(shared) = Shared::of(value)? {
        owners.push(shared.owner);
        return tensor(value.py(), shared.dtype, shared.dims, shared.bytes);
    }
    if expected == ElementType::Unknown && (value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>()) {
        let items = value.try_iter()?.map(|item| to_value(&item?, expected, owners));
        return Ok(Value::Sequence(items.collect::<PyResult<_>>()?));
    }
    let array = numpy.converted(value, expected)?;
    let view = View::of(&array)?.ok_or_else(|| input_error(value.py(), "the value is no array", None))?;
    from_view(&array, view, owners)
}

fn tensor(py: Python<'_>, dtype: ElementType, dims: Vec<i64>, bytes: AlignedBytes) -> PyResult<Value> {
    let made = Tensor::new(dtype, dims, bytes);
    Ok(made.map_err(|e| input_error(py, e.to_string(), None))?.into())
}

fn from_view(array: &Bound<'_, PyAny>, view: View, owners: &mut Vec<Py<PyAny>>) -> PyResult<Value> {
    let py = array.py();
    if view.is_text {
        let strings = strings(array)?;
        let made = Tensor::from_strings(view.dims, strings);
        return Ok(made.map_err(|e| input_error(py, e.to_string(), None))?.into());
    }
    let Some(dtype) = view.dtype else {
        let what = format!("an array of dtype {} has no element type here", array.getattr("dtype")?);
        return Err(input_error(py, what, None));
    };
    let view = match view.is_dense {
        true => view,
        false => {
            let copy = Numpy::get(py)?.contiguous(array)?;
            View::of(&copy)?.ok_or_else(|| input_error(py, "the copy of an array is no array", None))?
        }
    };
    if dtype.bits() < 8 {
        return tensor(py, dtype, view.dims.clone(), pack(view.bytes(), dtype.bits()));
    }
    let bytes = view.external();
    owners.extend(view.owners);
    tensor(py, dtype, view.dims, bytes)
}

/// The strings of an array, in row-major order.
fn strings(array: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let py = array.py();
    let items = array.call_method0("ravel")?.call_method0("tolist")?;
    let one = |item: PyResult<Bound<'_, PyAny>>| -> PyResult<String> {
        let item = item?;
        if let Ok(bytes) = item.cast::<PyBytes>() {
            let text = std::str::from_utf8(bytes.as_bytes());
            return Ok(text.map_err(|_| input_error(py, "an element of text is not UTF-8", None))?.into());
        }
        item.extract().map_err(|_| {
            let kind = item.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string());
            input_error(py, format!("an array of objects holds {kind} where text is expected"), None)
        })
    };
    items.try_iter()?.map(one).collect()
}

/// Elements of less than 8 bits, from one in a byte to packed ones: the first in the lowest bits.
fn pack(bytes: &[u8], bits: u32) -> AlignedBytes {
    let each = (8 / bits) as usize;
    let mut packed = AlignedBytes::zeroed(bytes.len().div_ceil(each));
    for (to, group) in packed.iter_mut().zip(bytes.chunks(each)) {
        for (at, byte) in group.iter().enumerate() {
            *to |= (byte & ((1 << bits) - 1)) << (at as u32 * bits);
        }
    }
    packed
}

/// The reverse of [`pack`]. Signed elements are extended.
fn unpack(bytes: &[u8], dtype: ElementType, count: usize) -> Vec<u8> {
    let bits = dtype.bits();
    let each = (8 / bits) as usize;
    let signed = matches!(dtype, ElementType::I4 | ElementType::I2);
    let element = |i: usize| {
        let raw = (bytes[i / each] >> ((i % each) as u32 * bits)) << (8 - bits);
        if signed { ((raw as i8) >> (8 - bits)) as u8 } else { raw >> (8 - bits) }
    };
    (0..count).map(element).collect()
}

/// Converts a result.
///
/// # Errors
/// When NumPy lacks its dtype.
pub fn from_value<'py>(py: Python<'py>, value: Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Optional(None) => Ok(py.None().into_bound(py)),
        Value::Optional(Some(value)) => from_value(py, *value),
        Value::Sequence(values) => {
            let items = values.into_iter().map(|value| from_value(py, value)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, items)?.into_any())
        }
        Value::Tensor(tensor) => from_tensor(py, tensor),
    }
}

fn from_tensor(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let numpy = Numpy::get(py)?;
    let (dtype, dims) = (tensor.dtype(), tensor.dims().to_vec());
    if let Some(strings) = tensor.strings() {
        return numpy.objects(py, strings.to_vec(), &dims);
    }
    let bytes = tensor.into_bytes().unwrap_or_default();
    if bytes.len() > COPIED && dtype.bits() >= 8 {
        return Memory::array(py, dtype, &dims, bytes);
    }
    let array = numpy.empty(py, dtype, &dims)?;
    if let Some(view) = View::of(&array)? {
        match dtype.bits() {
            8.. => view.fill(&bytes),
            _ => view.fill(&unpack(&bytes, dtype, view.len)),
        }
    }
    Ok(array)
}
