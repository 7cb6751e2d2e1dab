//! Operators with maps. The IR has none: a map is two tensors, its values and its keys.
//!
//! An input `x` of map type becomes the inputs `x`, the values, and `x.keys`, both of rank 1. The output `y` of `ZipMap`, a
//! list of maps with the same keys, becomes the outputs `y`, a row of values for each map, and `y.keys`.

use std::sync::Arc;

use of_ir::{Attr, DType, Elements, Tensor, ValueId};

use super::{cast, class_labels, labels, list, nothing_left, pair};
use crate::import::{ImportError, ImportResult, Importer, Node};

/// `ZipMap`: the columns of scores by the labels of classes.
pub(super) fn zip_map(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let labels = class_labels(&mut node, "classlabels_strings", "classlabels_int64s")?;
    nothing_left(&node)?;
    let scores = node.input(0)?;
    let columns = cx.tensor_ty(scores)?.shape.as_ref().and_then(|s| s.last()?.as_const());
    if columns.is_some_and(|n| n != labels.len() as i64) {
        let message = format!("{} labels are given for {} columns", labels.len(), columns.unwrap_or_default());
        return Err(ImportError::invalid(message));
    }
    let rows = cx.ints(&[-1, labels.len() as i64])?;
    let values = pair(cx, "Reshape", scores, rows)?;
    let keys = cx.constant(labels)?;
    cx.map_keys.insert(values, keys);
    Ok(vec![values])
}

/// The values and the keys of the map that is input 0.
fn map(cx: &Importer<'_, '_>, node: &Node<'_>) -> Result<(ValueId, ValueId), ImportError> {
    let values = node.input(0)?;
    match cx.map_keys.get(&values) {
        Some(keys) if cx.rank(values)? == 1 => Ok((values, *keys)),
        _ => Err(ImportError::invalid(format!("input 0 must be a map, it is {}", cx.ty(values)))),
    }
}

/// For each of `wanted` the value of that key, or 0: `[1, wanted]`.
fn look_up(
    cx: &mut Importer<'_, '_>,
    (values, keys): (ValueId, ValueId),
    wanted: Tensor,
) -> Result<ValueId, ImportError> {
    let dtype = cx.tensor_ty(keys)?.dtype;
    if dtype != wanted.dtype() {
        return Err(ImportError::invalid(format!("the keys are {dtype}, those that are looked up {}", wanted.dtype())));
    }
    let wanted = cx.constant(wanted)?;
    let column = cx.ints(&[-1, 1])?;
    let (keys, values) = (pair(cx, "Reshape", keys, column)?, pair(cx, "Reshape", values, column)?);
    let same = pair(cx, "Equal", keys, wanted)?;
    let zero = cx.number(0.0, values)?;
    let found = cx.emit_one("Where", &[Some(same), Some(values), Some(zero)], [])?;
    let axis = cx.ints(&[0])?;
    cx.emit_one("ReduceSum", &[Some(found), Some(axis)], [("keepdims", Attr::Int(1))])
}

/// `DictVectorizer`: the values of the keys of a vocabulary.
pub(super) fn dict_vectorizer(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let texts = list::<Vec<Arc<str>>>(&mut node, "string_vocabulary")?;
    let numbers = list::<Vec<i64>>(&mut node, "int64_vocabulary")?;
    nothing_left(&node)?;
    let wanted = match (texts.is_empty(), numbers.is_empty()) {
        (false, true) => labels::texts(&texts),
        (true, false) => Tensor::from_i64s(&numbers),
        _ => return Err(ImportError::invalid("one vocabulary must be given, of strings or of integers")),
    };
    let map = map(cx, &node)?;
    if cx.tensor_ty(map.0)?.dtype == DType::String {
        return Err(ImportError::unsupported("a vocabulary of values that are strings"));
    }
    Ok(vec![look_up(cx, map, wanted)?])
}

/// `CastMap`: the values in the order of their keys, or at the index that is their key.
pub(super) fn cast_map(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let to: Option<Arc<str>> = node.attrs.take("cast_to")?;
    let form: Option<Arc<str>> = node.attrs.take("map_form")?;
    let most: i64 = node.attrs.take("max_map")?.unwrap_or(1);
    nothing_left(&node)?;
    let to = match to.as_deref().unwrap_or("TO_FLOAT") {
        "TO_FLOAT" => DType::F32,
        "TO_INT64" => DType::I64,
        "TO_STRING" => DType::String,
        other => return Err(ImportError::invalid(format!("cast_to '{other}' is not known"))),
    };
    let (values, keys) = map(cx, &node)?;
    match form.as_deref().unwrap_or("DENSE") {
        "DENSE" => {
            let size = cx.emit_one("Size", &[Some(keys)], [])?;
            let one = cx.ints(&[1])?;
            let size = pair(cx, "Reshape", size, one)?;
            let attrs = [("axis", Attr::Int(-1)), ("largest", Attr::Int(0)), ("sorted", Attr::Int(1))];
            let order = cx.emit_many("TopK", &[Some(keys), Some(size)], attrs, 2)?;
            let order = order.get(1).copied().ok_or_else(|| ImportError::invalid("TopK gives two values"))?;
            let sorted = pair(cx, "Gather", values, order)?;
            let sorted = cast(cx, sorted, to)?;
            let row = cx.ints(&[1, -1])?;
            Ok(vec![pair(cx, "Reshape", sorted, row)?])
        }
        "SPARSE" if to == DType::String || cx.tensor_ty(values)?.dtype == DType::String => {
            Err(ImportError::unsupported("a sparse map with strings"))
        }
        "SPARSE" => {
            // Far more than any map has, and few enough to compare with each key.
            const MAX_MAP: i64 = 1 << 24;
            if !(1..=MAX_MAP).contains(&most) {
                return Err(ImportError::invalid(format!("max_map is {most}, it must be from 1 to {MAX_MAP}")));
            }
            let wanted = (0..most).map(i128::from).collect();
            let wanted = Tensor::from_elements(cx.tensor_ty(keys)?.dtype, vec![most as usize], Elements::Int(wanted));
            let wanted = wanted.map_err(|e| ImportError::invalid(e.to_string()))?;
            let found = look_up(cx, (values, keys), wanted)?;
            Ok(vec![cast(cx, found, to)?])
        }
        other => Err(ImportError::invalid(format!("map_form '{other}' is not known"))),
    }
}
