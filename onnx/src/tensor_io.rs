//! Values in files of their own: `TensorProto`, `SequenceProto` or `OptionalProto`, as ONNX's test data has them.

use std::path::Path;

use bytes::Bytes;
use of_diag::{Code, Diagnostic, Location};
use of_ir::Type;
use of_ops::Value;
use prost::Message;

use crate::external::External;
use crate::load;
use crate::proto::{OptionalProto, SequenceProto, TensorProto, optional_proto, sequence_proto};
use crate::tensor::{self, invalid, tensor_proto};

/// Reads the value in a file, and the name that it carries; empty where it has none.
///
/// The bytes do not identify the format: `ty` gives the expected one, a tensor by default.
///
/// # Errors
/// When the file cannot be read, is damaged, or holds a kind of value that is not supported.
pub fn read(path: &Path, ty: Option<&Type>) -> Result<(String, Value), Diagnostic> {
    let folder = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p }.to_path_buf());
    let external = External::new(folder);
    decode(load::map(path)?, ty, &external).map_err(|mut d| {
        d.message = format!("{}: {}", path.display(), d.message);
        d
    })
}

fn decode(bytes: Bytes, ty: Option<&Type>, external: &External) -> Result<(String, Value), Diagnostic> {
    Ok(match ty {
        Some(Type::Sequence(_)) => {
            let p: SequenceProto = load::decode(bytes, "an ONNX sequence")?;
            (p.name().to_owned(), sequence(&p, external)?)
        }
        Some(Type::Optional(_)) => {
            let p: OptionalProto = load::decode(bytes, "an ONNX optional")?;
            (p.name().to_owned(), optional(&p, external)?)
        }
        _ => {
            let p: TensorProto = load::decode(bytes, "an ONNX tensor")?;
            (p.name().to_owned(), tensor::tensor(&p, external)?.into())
        }
    })
}

fn refuse(what: &str) -> Diagnostic {
    Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, format!("{what} values are not supported"))
}

fn sequence(p: &SequenceProto, external: &External) -> Result<Value, Diagnostic> {
    use sequence_proto::DataType as Kind;
    let kind = Kind::try_from(p.elem_type()).map_err(|_| invalid("a sequence of no known kind".into()))?;
    Ok(Value::Sequence(match kind {
        Kind::Undefined => Vec::new(),
        Kind::Tensor => {
            let all = p.tensor_values.iter().map(|t| Ok(tensor::tensor(t, external)?.into()));
            all.collect::<Result<_, Diagnostic>>()?
        }
        Kind::SparseTensor => {
            let all = p.sparse_tensor_values.iter().map(|t| Ok(tensor::dense(t, external)?.into()));
            all.collect::<Result<_, Diagnostic>>()?
        }
        Kind::Sequence => p.sequence_values.iter().map(|s| sequence(s, external)).collect::<Result<_, _>>()?,
        Kind::Optional => p.optional_values.iter().map(|o| optional(o, external)).collect::<Result<_, _>>()?,
        Kind::Map => return Err(refuse("map")),
    }))
}

fn optional(p: &OptionalProto, external: &External) -> Result<Value, Diagnostic> {
    use optional_proto::DataType as Kind;
    let kind = Kind::try_from(p.elem_type()).map_err(|_| invalid("an optional of no known kind".into()))?;
    let value = match kind {
        Kind::Undefined => None,
        Kind::Tensor => p.tensor_value.as_ref().map(|t| tensor::tensor(t, external).map(Value::from)).transpose()?,
        Kind::SparseTensor => {
            p.sparse_tensor_value.as_ref().map(|t| tensor::dense(t, external).map(Value::from)).transpose()?
        }
        Kind::Sequence => p.sequence_value.as_ref().map(|s| sequence(s, external)).transpose()?,
        Kind::Optional => p.optional_value.as_ref().map(|o| optional(o, external)).transpose()?,
        Kind::Map => return Err(refuse("map")),
    };
    Ok(Value::Optional(value.map(Box::new)))
}

/// Writes a value, named `name`.
///
/// # Errors
/// When the file cannot be written, or the value is one that was left out.
pub fn write(path: &Path, name: &str, value: &Value) -> Result<(), Diagnostic> {
    let bytes = match value {
        Value::Tensor(t) => TensorProto { name: Some(name.into()), ..tensor_proto(t) }.encode_to_vec(),
        Value::Sequence(s) => SequenceProto { name: Some(name.into()), ..sequence_proto(s)? }.encode_to_vec(),
        Value::Optional(o) => {
            OptionalProto { name: Some(name.into()), ..optional_proto(o.as_deref())? }.encode_to_vec()
        }
        Value::None => return Err(nothing()),
    };
    of_files::write(path, bytes)
        .map_err(|e| Diagnostic::error(Code::IO, Location::Unknown, format!("cannot write {}: {e}", path.display())))
}

fn nothing() -> Diagnostic {
    invalid("a value that is left out cannot be written".into())
}

fn sequence_proto(values: &[Value]) -> Result<SequenceProto, Diagnostic> {
    use sequence_proto::DataType as Kind;
    let mut p = SequenceProto::default();
    for v in values {
        let kind = match v {
            Value::Tensor(t) => {
                p.tensor_values.push(tensor_proto(t));
                Kind::Tensor
            }
            Value::Sequence(s) => {
                p.sequence_values.push(sequence_proto(s)?);
                Kind::Sequence
            }
            Value::Optional(o) => {
                p.optional_values.push(optional_proto(o.as_deref())?);
                Kind::Optional
            }
            Value::None => return Err(nothing()),
        };
        if p.elem_type.replace(kind as i32).is_some_and(|k| k != kind as i32) {
            return Err(invalid("a sequence of values of different kinds cannot be written".into()));
        }
    }
    // An empty sequence says nothing about its elements: tensors are the usual ones.
    p.elem_type.get_or_insert(Kind::Tensor as i32);
    Ok(p)
}

fn optional_proto(value: Option<&Value>) -> Result<OptionalProto, Diagnostic> {
    use optional_proto::DataType as Kind;
    let mut p = OptionalProto::default();
    let kind = match value {
        None => Kind::Undefined,
        Some(Value::Tensor(t)) => {
            p.tensor_value = Some(tensor_proto(t));
            Kind::Tensor
        }
        Some(Value::Sequence(s)) => {
            p.sequence_value = Some(sequence_proto(s)?);
            Kind::Sequence
        }
        Some(Value::Optional(o)) => {
            p.optional_value = Some(Box::new(optional_proto(o.as_deref())?));
            Kind::Optional
        }
        Some(Value::None) => return Err(nothing()),
    };
    p.elem_type = Some(kind as i32);
    Ok(p)
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Elements, Tensor};

    use super::*;

    #[test]
    fn values_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.pb");
        let t = Value::Tensor(Tensor::from_slice(&[2, 1], &[1.5f32, -2.0]).unwrap());
        let s = Value::Tensor(Tensor::from_strings(vec![2], vec!["a".into(), "é".into()]).unwrap());
        let nibbles = Tensor::from_elements(DType::I4, vec![3], Elements::Int(vec![-8, 7, 1])).unwrap().into();
        let crumbs = Tensor::from_elements(DType::I2, vec![5], Elements::Int(vec![-2, 1, 0, -1, 1])).unwrap().into();
        let sequence = Value::Sequence(vec![t.clone(), t.clone()]);
        let tensor_type = Type::fixed(DType::F32, &[2, 1]);
        let sequence_type = Type::Sequence(Box::new(tensor_type.clone()));
        let cases = [
            (t.clone(), None),
            (s, None),
            (nibbles, None),
            (crumbs, None),
            (sequence.clone(), Some(sequence_type.clone())),
            (Value::Sequence(vec![]), Some(sequence_type.clone())),
            (Value::Optional(Some(Box::new(t))), Some(Type::Optional(Box::new(tensor_type.clone())))),
            (Value::Optional(Some(Box::new(sequence))), Some(Type::Optional(Box::new(sequence_type)))),
            (Value::Optional(None), Some(Type::Optional(Box::new(tensor_type)))),
        ];
        for (value, ty) in cases {
            write(&path, "v", &value).unwrap();
            assert_eq!(read(&path, ty.as_ref()).unwrap(), ("v".to_owned(), value));
        }
        assert!(write(&path, "v", &Value::None).is_err());
    }

    #[test]
    fn damaged_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.pb");
        std::fs::write(&path, [0xff; 7]).unwrap();
        assert!(read(&path, None).is_err());
        assert!(read(dir.path(), None).is_err() && read(&dir.path().join("none"), None).is_err());
    }
}
