//! Attributes as values of Python, and back.

use std::sync::Arc;

use of_ir::text::{parse_attr, print_attr};
use of_ir::{Attr, Attrs, OpDef, Type};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::error::{input_error, raised};

use super::constants::{to_array, to_tensor};
use super::types::{Extent, dtype_name, to_dim, to_dtype, to_type};

/// The attributes of an op from a dict. The op's declaration says of which kind each one is.
///
/// # Errors
/// When the op has no attribute of that name, or the value is of another kind.
pub fn to_attrs(def: &dyn OpDef, given: Option<&Bound<'_, PyDict>>) -> PyResult<Attrs> {
    let mut attrs = Attrs::new();
    let Some(given) = given else { return Ok(attrs) };
    for (name, value) in given {
        let py = name.py();
        let name: String = name.extract()?;
        if value.is_none() {
            continue;
        }
        let declared = def.signature().attrs.iter().find(|slot| slot.name == name);
        let attr = match declared {
            Some(slot) => typed(slot.kind, &value)?.ok_or_else(|| {
                let what = format!("'{}': attribute '{name}' must be {}, it is {value}", def.name(), slot.kind);
                input_error(py, what, None)
            })?,
            // It belongs to a pass or a backend.
            None if name.contains('.') => untyped(&value)?,
            None => {
                let known: Vec<&str> = def.signature().attrs.iter().map(|slot| slot.name).collect();
                let hint = match known.is_empty() {
                    true => "it has none".to_owned(),
                    false => format!("it has {}", known.join(", ")),
                };
                let what = format!("'{}' has no attribute '{name}'", def.name());
                return Err(input_error(py, what, Some(&hint)));
            }
        };
        attrs.set(name, attr);
    }
    Ok(attrs)
}

/// A value as an attribute of a kind (`AttrValue::KIND`); `None` if it is of another.
fn typed(kind: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<Attr>> {
    let py = value.py();
    let texts = |value: &Bound<'_, PyAny>| value.extract::<Vec<String>>().ok();
    Ok(match kind {
        "bool" => value.extract().ok().map(Attr::Bool),
        "integer" => value.extract().ok().map(Attr::Int),
        "float" => value.extract().ok().map(Attr::Float),
        "string" => value.extract::<String>().ok().map(|text| Attr::Str(text.into())),
        "integer list" => value.extract().ok().map(Attr::Ints),
        "float list" => value.extract().ok().map(Attr::Floats),
        "string list" => texts(value).map(|list| Attr::Strs(list.into_iter().map(Arc::from).collect())),
        "tensor" => Some(Attr::Tensor(to_tensor(value)?)),
        "type" => match value.extract::<String>() {
            Ok(text) => Some(Attr::Type(to_type(py, &text)?)),
            Err(_) => None,
        },
        "element type" => match value.extract::<String>() {
            Ok(text) => Some(Attr::DType(to_dtype(py, &text)?)),
            Err(_) => Some(Attr::DType(to_dtype(py, &value.getattr("name")?.extract::<String>()?)?)),
        },
        "dimensions" => {
            let dims = value.try_iter()?.map(|dim| to_dim(&dim?)).collect::<PyResult<_>>()?;
            Some(Attr::Dims(dims))
        }
        _ => match value.extract::<String>() {
            Ok(text) => Some(parse_attr(&text).map_err(|e| raised(py, &e))?),
            Err(_) => None,
        },
    })
}

/// A value as the attribute that it looks like.
fn untyped(value: &Bound<'_, PyAny>) -> PyResult<Attr> {
    let kinds: &[&str] = match () {
        () if value.is_instance_of::<PyBool>() => &["bool"],
        () if value.is_instance_of::<PyInt>() => &["integer"],
        () if value.is_instance_of::<PyFloat>() => &["float"],
        () if value.is_instance_of::<PyString>() => &["string"],
        () if value.is_instance_of::<PyList>() => &["integer list", "float list", "string list"],
        () => &["tensor"],
    };
    for kind in kinds {
        if let Some(attr) = typed(kind, value)? {
            return Ok(attr);
        }
    }
    Err(input_error(value.py(), format!("no attribute has the value {value}"), None))
}

/// The attributes as a dict.
///
/// # Errors
/// When NumPy lacks the dtype of a constant.
pub fn from_attrs<'py>(py: Python<'py>, attrs: &Attrs) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, attr) in attrs.iter() {
        dict.set_item(&**name, from_attr(py, attr)?)?;
    }
    Ok(dict)
}

fn from_attr<'py>(py: Python<'py>, attr: &Attr) -> PyResult<Bound<'py, PyAny>> {
    Ok(match attr {
        Attr::Unit => PyBool::new(py, true).to_owned().into_any(),
        Attr::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Attr::Int(value) => value.into_pyobject(py)?.into_any(),
        Attr::Float(value) => value.into_pyobject(py)?.into_any(),
        Attr::Str(text) | Attr::Symbol(text) => PyString::new(py, text).into_any(),
        Attr::Ints(list) => PyList::new(py, list)?.into_any(),
        Attr::Floats(list) => PyList::new(py, list)?.into_any(),
        Attr::Strs(list) => PyList::new(py, list.iter().map(|text| &**text))?.into_any(),
        Attr::Tensor(tensor) => to_array(py, tensor)?,
        Attr::Type(ty) => type_text(py, ty),
        Attr::DType(dtype) => PyString::new(py, dtype_name(*dtype)).into_any(),
        Attr::Dims(dims) => PyList::new(py, dims.iter().map(Extent::of))?.into_any(),
        Attr::Sbp(_) => PyString::new(py, &print_attr(attr)).into_any(),
        Attr::Array(list) => {
            let items = list.iter().map(|item| from_attr(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
    })
}

fn type_text<'py>(py: Python<'py>, ty: &Type) -> Bound<'py, PyAny> {
    PyString::new(py, &ty.to_string()).into_any()
}
