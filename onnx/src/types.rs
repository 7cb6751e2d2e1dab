//! Declared types and symbolic dimensions.

use of_diag::{Code, Diagnostic, Location};
use of_ir::text::parse_dim;
use of_ir::{Dim, TensorType, Type};

use crate::proto::tensor_shape_proto::dimension::Value as DimValue;
use crate::proto::type_proto::Value as TypeValue;
use crate::proto::{TensorShapeProto, TypeProto, tensor_shape_proto::Dimension, type_proto};
use crate::tensor::{dtype, invalid, onnx_dtype};

/// The type that a model declares.
pub(crate) fn ty(proto: &TypeProto) -> Result<Type, Diagnostic> {
    let refuse = |what: &str| {
        Err(Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, format!("values of {what} type are not supported")))
    };
    let element = |t: &Option<Box<TypeProto>>| match t {
        Some(t) => Ok(Box::new(ty(t)?)),
        None => Err(invalid("a type has no element type".into())),
    };
    match &proto.value {
        Some(TypeValue::TensorType(t)) => {
            let shape = t.shape.as_ref().map(shape).transpose()?;
            Ok(TensorType { dtype: dtype(t.elem_type().into())?, shape, sbp: None }.into())
        }
        Some(TypeValue::SequenceType(s)) => Ok(Type::Sequence(element(&s.elem_type)?)),
        Some(TypeValue::OptionalType(o)) => Ok(Type::Optional(element(&o.elem_type)?)),
        Some(TypeValue::MapType(_)) => refuse("map"),
        Some(TypeValue::SparseTensorType(_)) => refuse("sparse tensor"),
        Some(TypeValue::OpaqueType(_)) => refuse("opaque"),
        None => Err(invalid("a type is not given".into())),
    }
}

/// The keys and the values of a map, each a list whose length is the symbol `size`; `None` for another type.
pub(crate) fn map(proto: &TypeProto, size: &str) -> Option<Result<[Type; 2], Diagnostic>> {
    let Some(TypeValue::MapType(m)) = &proto.value else { return None };
    let list = |dtype| Type::tensor(dtype, vec![Dim::symbol(size)]);
    let value = match m.value_type.as_deref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::TensorType(t)) => dtype(t.elem_type().into()),
        _ => Err(invalid("the values of a map must be tensors".into())),
    };
    let both = dtype(m.key_type().into()).and_then(|key| Ok([list(key), list(value?)]));
    Some(both)
}

fn shape(proto: &TensorShapeProto) -> Result<Vec<Dim>, Diagnostic> {
    // Far more than any format or library supports; bounds the cost of code quadratic in the rank.
    const MAX_AXES: usize = 255;
    if proto.dim.len() > MAX_AXES {
        return Err(invalid(format!("a tensor cannot have {} axes", proto.dim.len())));
    }
    Ok(proto.dim.iter().map(dim).collect())
}

fn dim(proto: &Dimension) -> Dim {
    match &proto.value {
        Some(DimValue::DimValue(n)) if *n >= 0 => Dim::from(*n),
        Some(DimValue::DimParam(text)) => dim_param(text),
        _ => Dim::unknown(),
    }
}

/// A named dimension. Expressions over names are kept; any other text becomes an opaque symbol.
fn dim_param(text: &str) -> Dim {
    let text = text.trim();
    if text.is_empty() || text == "?" {
        return Dim::unknown();
    }
    // A hyphen inside a word belongs to the name.
    let hyphenated = text.as_bytes().windows(3).any(|w| w[1] == b'-' && !(w[0] == b' ' && w[2] == b' '));
    match parse_dim(text) {
        Ok(d) if !hyphenated => match d.as_const() {
            Some(n) if n < 0 => Dim::unknown(),
            _ => d,
        },
        _ => Dim::symbol(text),
    }
}

/// The type as models declare it; `None` for that of an operand that is left out.
pub(crate) fn proto(ty: &Type) -> Option<TypeProto> {
    let value = match ty {
        Type::Tensor(t) => TypeValue::TensorType(type_proto::Tensor {
            elem_type: Some(onnx_dtype(t.dtype)),
            shape: t.shape.as_ref().map(|s| TensorShapeProto { dim: s.iter().map(dimension).collect() }),
        }),
        Type::Sequence(t) => {
            TypeValue::SequenceType(Box::new(type_proto::Sequence { elem_type: Some(Box::new(proto(t)?)) }))
        }
        Type::Optional(t) => {
            TypeValue::OptionalType(Box::new(type_proto::Optional { elem_type: Some(Box::new(proto(t)?)) }))
        }
        Type::None => return None,
    };
    Some(TypeProto { value: Some(value), ..TypeProto::default() })
}

fn dimension(d: &Dim) -> Dimension {
    let value = match d.as_const() {
        Some(n) => Some(DimValue::DimValue(n)),
        None => dim_text(d).map(DimValue::DimParam),
    };
    Dimension { value, ..Dimension::default() }
}

/// A dimension with symbols as text that reads back; `None` where it has symbols that mean nothing outside this module.
pub(crate) fn dim_text(d: &Dim) -> Option<String> {
    if d.is_unknown() || d.symbols().iter().any(|s| is_invented(s)) {
        return None;
    }
    Some(d.as_symbol().map_or_else(|| d.to_string(), ToString::to_string))
}

/// Whether inference gives this name to a dimension about which nothing is known.
pub(crate) fn is_invented(symbol: &str) -> bool {
    symbol.strip_prefix('u').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// The largest `n` of a symbol `u<n>` in `ty`: symbols that inference invents are counted on from there.
pub(crate) fn largest_fresh(ty: &Type) -> u32 {
    let mut largest = 0;
    ty.map_dims(&mut |d| {
        for s in d.symbols() {
            let number = s.strip_prefix('u').and_then(|n| n.parse::<u32>().ok());
            largest = largest.max(number.unwrap_or(0));
        }
        d.clone()
    });
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_names_and_expressions_are_distinguished() {
        for (text, shown) in [("batch", "batch"), ("batch*2", "batch*2"), ("past + 1", "past + 1"), ("8", "8")] {
            assert_eq!(dim_param(text).to_string(), shown);
        }
        assert_eq!(dim_param("seq-len").as_symbol().map(|s| s.to_string()).as_deref(), Some("seq-len"));
        assert!(dim_param("floor(N/2)").as_symbol().is_some());
        assert!(dim_param("-1").is_unknown() && dim_param("?").is_unknown() && dim_param("").is_unknown());
    }

    #[test]
    fn invented_symbols_do_not_collide_with_model_symbols() {
        let t = Type::tensor(of_ir::DType::F32, vec![dim_param("u7*2"), dim_param("user"), dim_param("u3")]);
        assert_eq!(largest_fresh(&t), 7);
    }
}
