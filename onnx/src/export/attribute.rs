//! Op attributes to node attributes.

use of_ir::Attr;

use crate::proto::AttributeProto;
use crate::proto::attribute_proto::AttributeType as Kind;
use crate::{tensor, types};

/// An attribute. ONNX's floats have 32 bits, and its truth values and element types are numbers.
///
/// # Errors
/// For kinds that ONNX does not have.
pub(super) fn attribute(name: &str, value: &Attr) -> Result<AttributeProto, String> {
    let text = |s: &str| bytes::Bytes::copy_from_slice(s.as_bytes());
    let mut a = AttributeProto { name: Some(name.into()), ..AttributeProto::default() };
    let kind = match value {
        Attr::Bool(b) => {
            a.i = Some(i64::from(*b));
            Kind::Int
        }
        Attr::Int(i) => {
            a.i = Some(*i);
            Kind::Int
        }
        Attr::DType(d) => {
            a.i = Some(tensor::onnx_dtype(*d).into());
            Kind::Int
        }
        Attr::Float(x) => {
            a.f = Some(*x as f32);
            Kind::Float
        }
        Attr::Str(s) => {
            a.s = Some(text(s));
            Kind::String
        }
        Attr::Ints(list) => {
            a.ints.clone_from(list);
            Kind::Ints
        }
        Attr::Floats(list) => {
            a.floats = list.iter().map(|x| *x as f32).collect();
            Kind::Floats
        }
        Attr::Strs(list) => {
            a.strings = list.iter().map(|s| text(s)).collect();
            Kind::Strings
        }
        Attr::Tensor(t) => {
            a.t = Some(tensor::tensor_proto(t));
            Kind::Tensor
        }
        Attr::Type(ty) => {
            a.tp = Some(types::proto(ty).ok_or_else(|| format!("attribute '{name}' is no type of a value"))?);
            Kind::TypeProto
        }
        Attr::Unit | Attr::Dims(_) | Attr::Sbp(_) | Attr::Symbol(_) | Attr::Array(_) => {
            return Err(format!("attribute '{name}' is of kind {}, which ONNX does not have", value.kind()));
        }
    };
    a.r#type = Some(kind as i32);
    Ok(a)
}
