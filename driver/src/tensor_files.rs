//! Values in files, and as the runtime holds them.

use std::path::Path;

use of_codegen::physical::dtype_of;
use of_diag::{Code, Diagnostics};
use of_ir::{Dim, TensorType, Type};
use of_ops::Value;
use of_plan::Port;

use crate::error::error;
use crate::npy;

/// A value and the name that its file gives it.
pub struct Named {
    /// Name of the input or output that it belongs to, where the file says.
    pub name: Option<String>,
    /// The value.
    pub value: Value,
}

/// Reads a value of type `ty`: `.npy` by its name, everything else as an ONNX value.
///
/// # Errors
/// When the file cannot be read or is damaged.
pub fn read(path: &Path, ty: Option<&Type>) -> Result<Named, Diagnostics> {
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npy")) {
        return Ok(Named { name: None, value: Value::Tensor(npy::read(path)?) });
    }
    let (name, value) = of_onnx::tensor_io::read(path, ty).map_err(|e| {
        // A file of another kind is more likely than a damaged one.
        let is_pb = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("pb"));
        if is_pb || e.code == Code::IO { Diagnostics::from(e) } else { not_a_value(path) }
    })?;
    Ok(Named { name: Some(name).filter(|n| !n.is_empty()), value })
}

/// The formats of files that hold a value of an input.
pub(crate) const FORMATS: &str = "values are in .npy, .npz, .pb (ONNX's TensorProto, SequenceProto, OptionalProto, MapProto), and for images \
     .png, .jpg, .bmp, .ppm, .tiff, .webp";

fn not_a_value(path: &Path) -> Diagnostics {
    error(Code::INPUT, format!("'{}' is in no format of values", path.display())).hint(FORMATS).into()
}

/// Reads all arrays of an archive.
///
/// # Errors
/// When the file cannot be read or is damaged.
pub fn read_npz(path: &Path) -> Result<Vec<(String, Value)>, Diagnostics> {
    Ok(npy::read_npz(path)?.into_iter().map(|(n, t)| (n, Value::Tensor(t))).collect())
}

/// Writes an ONNX value.
///
/// # Errors
/// When the file cannot be written.
pub fn write_pb(path: &Path, name: &str, value: &Value) -> Result<(), Diagnostics> {
    Ok(of_onnx::tensor_io::write(path, name, value)?)
}

/// Writes a NumPy array.
///
/// # Errors
/// When the file cannot be written, or the value is not a tensor of a type that NumPy supports.
pub fn write_npy(path: &Path, name: &str, value: &Value) -> Result<(), Diagnostics> {
    match value {
        Value::Tensor(t) => Ok(npy::write(path, t)?),
        _ => {
            let what = format!("output '{name}' is not a tensor, which is all that .npy can hold");
            Err(error(Code::INPUT, what).hint("--output-format pb writes any value").into())
        }
    }
}

/// Values as the runtime takes them.
///
/// # Errors
/// When one cannot be an input.
pub fn to_runtime_all(values: Vec<Value>) -> Result<Vec<of_runtime::Value>, Diagnostics> {
    // Each is gone before the next is made, so that memory holds one set of them.
    values
        .into_iter()
        .map(|v| of_reference::to_runtime(&v).map_err(|e| error(Code::INPUT, e.to_string()).into()))
        .collect()
}

/// A value that came out of a run.
///
/// # Errors
/// When it contradicts its own type.
pub fn from_runtime(v: &of_runtime::Value) -> Result<Value, Diagnostics> {
    of_reference::from_runtime(v).map_err(|e| error(Code::RUN, e.to_string()).into())
}

/// A tensor that came out of a run, whose bytes both share.
///
/// # Errors
/// When it contradicts its own type.
pub fn shared_from_runtime(tensor: of_runtime::Tensor) -> Result<of_ir::Tensor, Diagnostics> {
    struct Shared(of_runtime::AlignedBytes);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let (Some(dtype), true) = (dtype_of(tensor.dtype()), tensor.bytes().is_some()) else {
        return Ok(match from_runtime(&tensor.into())? {
            Value::Tensor(tensor) => tensor,
            _ => return Err(error(Code::RUN, "a value is no tensor").into()),
        });
    };
    let dims = tensor.dims().iter().map(|d| *d as usize).collect();
    let bytes = of_ir::Blob::from_owner(Shared(tensor.into_bytes().unwrap_or_else(|| (&[][..]).into())));
    of_ir::Tensor::from_bytes(dtype, dims, bytes).map_err(|e| error(Code::RUN, e.to_string()).into())
}

/// The type of a tensor; `None` for other values.
pub fn type_of(value: &Value) -> Option<Type> {
    match value {
        Value::Tensor(t) => Some(t.ty().into()),
        _ => None,
    }
}

/// The type of an input of a plan; `None` where the plan does not fix it.
pub fn port_type(port: &Port) -> Option<Type> {
    let dtype = dtype_of(port.dtype())?;
    let dim = |d: &i64| if *d < 0 { Dim::unknown() } else { Dim::from(*d) };
    let open = port.object && port.dims.is_empty();
    let shape = if open { None } else { Some(port.dims.iter().map(dim).collect()) };
    Some(Type::Tensor(TensorType { dtype, shape, sbp: None }))
}
