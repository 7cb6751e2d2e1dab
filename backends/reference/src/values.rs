//! Conversions between runtime values and op values.

use of_codegen::physical::{dtype_of, element_type};
use of_ir::{Blob, Tensor};
use of_ops::Value;
use of_runtime::{TensorRef, ValueRef};

/// A conversion error: a value that contradicts its type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub String);

fn fail<T>(what: impl Into<String>) -> Result<T, ConvertError> {
    Err(ConvertError(what.into()))
}

fn sizes(dims: &[i64]) -> Result<Vec<usize>, ConvertError> {
    dims.iter().map(|d| usize::try_from(*d).or_else(|_| fail(format!("dimension {d} is negative")))).collect()
}

/// A copy of an input of an executable.
///
/// # Errors
/// When the value contradicts its type.
pub fn from_input(v: &ValueRef<'_>) -> Result<Value, ConvertError> {
    match v {
        ValueRef::Dense(t) => Ok(Value::Tensor(from_dense(t)?)),
        ValueRef::Object(v) => from_runtime(v),
    }
}

fn from_dense(t: &TensorRef<'_>) -> Result<Tensor, ConvertError> {
    let Some(dtype) = dtype_of(t.dtype) else { return fail("a tensor has no element type") };
    Tensor::from_bytes(dtype, sizes(t.dims)?, Blob::new(t.bytes.to_vec())).or_else(|e| fail(e.to_string()))
}

/// A copy of a value of the runtime.
///
/// # Errors
/// When the value contradicts its type.
pub fn from_runtime(v: &of_runtime::Value) -> Result<Value, ConvertError> {
    Ok(match v {
        of_runtime::Value::Tensor(t) => match (t.strings(), t.bytes()) {
            (Some(s), _) => {
                Value::Tensor(Tensor::from_strings(sizes(t.dims())?, s.to_vec()).or_else(|e| fail(e.to_string()))?)
            }
            (None, Some(bytes)) => Value::Tensor(from_dense(&TensorRef { dtype: t.dtype(), dims: t.dims(), bytes })?),
            (None, None) => return fail("a tensor has no data"),
        },
        of_runtime::Value::Sequence(list) => Value::Sequence(list.iter().map(from_runtime).collect::<Result<_, _>>()?),
        of_runtime::Value::Optional(None) => Value::Optional(None),
        of_runtime::Value::Optional(Some(v)) => Value::Optional(Some(Box::new(from_runtime(v)?))),
    })
}

/// A runtime value; an absent operand has none.
///
/// # Errors
/// For `Value::None`, and a tensor that the runtime cannot hold.
pub fn to_runtime(v: &Value) -> Result<of_runtime::Value, ConvertError> {
    Ok(match v {
        Value::Tensor(t) => {
            let dims: Vec<i64> = t.dims().iter().map(|d| *d as i64).collect();
            let tensor = match (t.strings(), t.bytes()) {
                (Some(s), _) => of_runtime::Tensor::from_strings(dims, s.to_vec()),
                (None, Some(b)) => of_runtime::Tensor::from_bytes(element_type(t.dtype()), dims, b),
                (None, None) => return fail("a tensor has no data"),
            };
            of_runtime::Value::Tensor(tensor.or_else(|e| fail(e.to_string()))?)
        }
        Value::Sequence(list) => of_runtime::Value::Sequence(list.iter().map(to_runtime).collect::<Result<_, _>>()?),
        Value::Optional(None) => of_runtime::Value::Optional(None),
        Value::Optional(Some(v)) => of_runtime::Value::Optional(Some(Box::new(to_runtime(v)?))),
        Value::None => return fail("a value is missing"),
    })
}
