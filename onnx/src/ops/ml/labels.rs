//! Label encoders.

use std::sync::Arc;

use of_ir::{DType, Tensor};
use of_ops::ml::LabelMap;

use super::{list, nothing_left};
use crate::import::{Fault, Importer, Node, Values, literal};

/// A tensor of strings.
pub(super) fn texts(list: &[Arc<str>]) -> Tensor {
    let literal = literal(of_ir::Attr::Strs(list.to_vec()));
    literal.unwrap_or_else(|| Tensor::from_i64s(&[]))
}

/// `0, 1, 2, …`.
fn counted(n: usize) -> Tensor {
    Tensor::from_i64s(&(0..n as i64).collect::<Vec<_>>())
}

fn text(s: &str) -> Tensor {
    texts(&[s.into()])
}

/// The defaults that the attributes give.
fn defaults(node: &mut Node<'_>) -> Result<(Tensor, Tensor), Fault> {
    let number: i64 = node.attrs.take("default_int64")?.unwrap_or(-1);
    let string: Option<Arc<str>> = node.attrs.take("default_string")?;
    Ok((Tensor::from_i64s(&[number]), text(string.as_deref().unwrap_or("_Unused"))))
}

fn emit(cx: &mut Importer<'_, '_>, node: &Node<'_>, keys: Tensor, values: Tensor, default: Tensor) -> Values {
    nothing_left(node)?;
    let keys = keys.reshaped(vec![keys.len()]).map_err(|e| Fault::invalid(e.to_string()))?;
    Ok(vec![cx.rw.create_one(LabelMap { keys, values, default }, &[node.input(0)?])?])
}

/// `LabelEncoder` of 1: strings are numbered, or numbers named.
pub(super) fn label_encoder_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let names = texts(&list::<Vec<Arc<str>>>(&mut node, "classes_strings")?);
    let numbers = counted(names.len());
    let (number, string) = defaults(&mut node)?;
    if cx.tensor_ty(node.input(0)?)?.dtype == DType::String {
        emit(cx, &node, names, numbers, number)
    } else {
        emit(cx, &node, numbers, names, string)
    }
}

/// `CategoryMapper`: the same with numbers of the model's choice.
pub(super) fn category_mapper(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let names = texts(&list::<Vec<Arc<str>>>(&mut node, "cats_strings")?);
    let numbers = Tensor::from_i64s(&list::<Vec<i64>>(&mut node, "cats_int64s")?);
    let (number, string) = defaults(&mut node)?;
    if cx.tensor_ty(node.input(0)?)?.dtype == DType::String {
        emit(cx, &node, names, numbers, number)
    } else {
        emit(cx, &node, numbers, names, string)
    }
}

/// The one list among `<what>_strings`, `<what>_int64s`, `<what>_floats` and `<what>_tensor`.
fn one_of(node: &mut Node<'_>, what: &str) -> Result<Tensor, Fault> {
    let mut found = None;
    for kind in ["strings", "int64s", "floats", "tensor"] {
        if let Some(a) = node.attrs.take_any(&format!("{what}_{kind}"))?
            && found.replace(a).is_some()
        {
            return Err(Fault::invalid(format!("{what} are given twice")));
        }
    }
    found.and_then(literal).ok_or_else(|| Fault::invalid(format!("{what} are not given")))
}

/// `LabelEncoder` from 2 on.
pub(super) fn label_encoder(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let (keys, values) = (one_of(&mut node, "keys")?, one_of(&mut node, "values")?);
    let (number, string) = defaults(&mut node)?;
    let float: f64 = node.attrs.take("default_float")?.unwrap_or(-0.0);
    let given: Option<Tensor> = node.attrs.take("default_tensor")?;
    let default = match (given, values.dtype()) {
        (Some(t), _) => t,
        (None, DType::I64) => number,
        (None, DType::String) => string,
        (None, d) if d.is_float() => {
            let t = Tensor::from_elements(d, vec![1], of_ir::Elements::Float(vec![float]));
            t.map_err(|e| Fault::invalid(e.to_string()))?
        }
        (None, d) => {
            let t = Tensor::from_elements(d, vec![1], of_ir::Elements::Int(vec![-1]));
            t.map_err(|e| Fault::invalid(e.to_string()))?
        }
    };
    emit(cx, &node, keys, values, default)
}
