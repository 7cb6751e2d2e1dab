//! Types: text for the compiler, element type and extents for Python.

use of_codegen::physical::{dtype_of, element_type};
use of_ir::text::{parse_dim, parse_type};
use of_ir::{DType, Dim, TensorType, Type};
use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::error::{input_error, raised};
use crate::numpy;

/// An extent: a number, or text.
#[derive(IntoPyObject)]
pub enum Extent {
    Fixed(i64),
    Named(String),
    Unknown(Option<i64>),
}

impl Extent {
    /// The extent of a dimension.
    pub fn of(dim: &Dim) -> Extent {
        match dim.as_const() {
            Some(number) => Extent::Fixed(number),
            None if dim.is_unknown() => Extent::Unknown(None),
            None => Extent::Named(dim.to_string()),
        }
    }
}

/// A dimension of a number or text such as `N*2 + 1`; None is unknown.
pub fn to_dim(value: &Bound<'_, PyAny>) -> PyResult<Dim> {
    if value.is_none() {
        return Ok(Dim::unknown());
    }
    if let Ok(number) = value.extract::<i64>() {
        return Ok(Dim::from(number));
    }
    let text = value.extract::<String>().map_err(|_| {
        input_error(value.py(), "an extent is neither a number nor text", Some("such as 8, \"N\" or \"N*2 + 1\""))
    })?;
    parse_dim(&text).map_err(|e| raised(value.py(), &e))
}

/// The element type with a name of NumPy, ml_dtypes or IR text.
pub fn to_dtype(py: Python<'_>, name: &str) -> PyResult<DType> {
    let named = match name {
        "str" => Some(DType::String),
        _ => numpy::element_type(name).and_then(dtype_of),
    };
    named.or_else(|| DType::from_mlir_name(name)).ok_or_else(|| {
        input_error(py, format!("no element type is called '{name}'"), Some("such as float32, bfloat16, int64 or bool"))
    })
}

/// The name of an element type in NumPy.
pub fn dtype_name(dtype: DType) -> &'static str {
    numpy::name(element_type(dtype))
}

/// A type from text.
pub fn to_type(py: Python<'_>, text: &str) -> PyResult<Type> {
    parse_type(text).map_err(|e| raised(py, &e))
}

/// The text of a tensor's type.
#[pyfunction]
#[pyo3(signature = (dtype, shape))]
pub fn tensor_type(py: Python<'_>, dtype: &str, shape: Option<Vec<Bound<'_, PyAny>>>) -> PyResult<String> {
    let dtype = to_dtype(py, dtype)?;
    let ty = match shape {
        None => TensorType::unranked(dtype),
        Some(shape) => TensorType::new(dtype, shape.iter().map(to_dim).collect::<PyResult<_>>()?),
    };
    Ok(Type::from(ty).to_string())
}
