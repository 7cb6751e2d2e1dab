//! Feature preprocessing.

use std::sync::Arc;

use of_ir::{Attr, DType, Elements, Tensor, ValueId};
use of_ops::ml::LabelMap;

use super::{cast, floats, labels, list, matrix, nothing_left, pair};
use crate::import::{Fault, Importer, Node, Values};

/// `ArrayFeatureExtractor`: columns of the last axis; a list counts as one row.
pub(super) fn array_feature_extractor(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    nothing_left(&node)?;
    let (x, y) = (node.input(0)?, node.input(1)?);
    let flat = cx.ints(&[-1])?;
    let y = pair(cx, "Reshape", y, flat)?;
    let rank = cx.rank(x)?;
    let z = cx.emit_one("Gather", &[Some(x), Some(y)], [("axis", Attr::Int(-1))])?;
    if rank != 1 {
        return Ok(vec![z]);
    }
    let first = cx.ints(&[0])?;
    Ok(vec![pair(cx, "Unsqueeze", z, first)?])
}

/// `Binarizer`: whether an element is above the threshold, as a number.
pub(super) fn binarizer(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let x = node.input(0)?;
    let threshold: f64 = node.attrs.take("threshold")?.unwrap_or(0.0);
    nothing_left(&node)?;
    let dtype = cx.tensor_ty(x)?.dtype;
    // Integers are above a fraction if they are above its floor.
    let threshold = if dtype.is_float() { threshold } else { threshold.floor() };
    let threshold = cx.number(threshold, x)?;
    let above = pair(cx, "Greater", x, threshold)?;
    Ok(vec![cast(cx, above, dtype)?])
}

/// `Scaler`: `(x - offset) * scale`.
pub(super) fn scaler(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let (offset, scale) = (floats(&mut node, "offset")?, floats(&mut node, "scale")?);
    nothing_left(&node)?;
    let mut y = cast(cx, node.input(0)?, DType::F32)?;
    for (op, values) in [("Sub", offset), ("Mul", scale)] {
        if !values.is_empty() {
            let values = matrix(cx, DType::F32, &[values.len()], values)?;
            y = pair(cx, op, y, values)?;
        }
    }
    Ok(vec![y])
}

/// `Normalizer`: each row divided by its largest magnitude, by the sum of magnitudes, or by its length.
pub(super) fn normalizer(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let norm: Option<Arc<str>> = node.attrs.take("norm")?;
    nothing_left(&node)?;
    let reduction = match norm.as_deref().unwrap_or("MAX") {
        "MAX" => "ReduceMax",
        "L1" => "ReduceL1",
        "L2" => "ReduceL2",
        other => return Err(Fault::invalid(format!("norm '{other}' is not known"))),
    };
    let x = cast(cx, node.input(0)?, DType::F32)?;
    let sizes = if reduction == "ReduceMax" { cx.emit_one("Abs", &[Some(x)], [])? } else { x };
    let last = cx.ints(&[-1])?;
    let divisor = cx.emit_one(reduction, &[Some(sizes), Some(last)], [("keepdims", Attr::Int(1))])?;
    // A row of zeros stays one.
    let least = cx.number(1e-30, x)?;
    let divisor = pair(cx, "Max", divisor, least)?;
    Ok(vec![pair(cx, "Div", x, divisor)?])
}

/// `Imputer`: one value, NaN perhaps, replaced by another, column by column.
pub(super) fn imputer(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let x = node.input(0)?;
    let dtype = cx.tensor_ty(x)?.dtype;
    let float: f64 = node.attrs.take("replaced_value_float")?.unwrap_or(0.0);
    let int: i64 = node.attrs.take("replaced_value_int64")?.unwrap_or(0);
    let (by_floats, by_ints) =
        (floats(&mut node, "imputed_value_floats")?, list::<Vec<i64>>(&mut node, "imputed_value_int64s")?);
    nothing_left(&node)?;
    let tensor = |dims: Vec<usize>, e: Elements| {
        Tensor::from_elements(dtype, dims, e).map_err(|e| Fault::invalid(e.to_string()))
    };
    let (by, old) = if dtype.is_float() {
        (tensor(vec![by_floats.len()], Elements::Float(by_floats))?, tensor(vec![], Elements::Float(vec![float]))?)
    } else {
        let by = by_ints.into_iter().map(i128::from).collect::<Vec<_>>();
        (tensor(vec![by.len()], Elements::Int(by))?, tensor(vec![], Elements::Int(vec![int.into()]))?)
    };
    if by.is_empty() {
        return Err(Fault::invalid(format!("there is no value to put in, of the kind of {dtype}")));
    }
    let missing = if dtype.is_float() && float.is_nan() {
        cx.emit_one("IsNaN", &[Some(x)], [])?
    } else {
        let old = cx.constant(old)?;
        pair(cx, "Equal", x, old)?
    };
    let by = cx.constant(by)?;
    Ok(vec![cx.emit_one("Where", &[Some(missing), Some(by), Some(x)], [])?])
}

/// `OneHotEncoder`: a new last axis with a one at the category's place.
pub(super) fn one_hot_encoder(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let numbers: Vec<i64> = list(&mut node, "cats_int64s")?;
    let names: Vec<Arc<str>> = list(&mut node, "cats_strings")?;
    if node.attrs.take_flag("zeros")? == Some(false) {
        return Err(Fault::unsupported("zeros = 0, which makes an unknown category an error"));
    }
    nothing_left(&node)?;
    let (mut x, keys) = match (numbers.is_empty(), names.is_empty()) {
        (true, false) => (node.input(0)?, labels::texts(&names)),
        (false, true) => (cast(cx, node.input(0)?, DType::I64)?, Tensor::from_i64s(&numbers)),
        _ => return Err(Fault::invalid("the categories must be given, as strings or as integers")),
    };
    let places: Vec<i64> = (0..keys.len() as i64).collect();
    let map = LabelMap { keys, values: Tensor::from_i64s(&places), default: Tensor::from_i64s(&[-1]) };
    x = cx.rw.create_one(map, &[x])?;
    let last = cx.ints(&[-1])?;
    x = pair(cx, "Unsqueeze", x, last)?;
    let places = cx.ints(&places)?;
    let on = pair(cx, "Equal", x, places)?;
    Ok(vec![cast(cx, on, DType::F32)?])
}

/// `FeatureVectorizer`: the columns of all inputs side by side, each cut or filled up to its length.
pub(super) fn feature_vectorizer(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let lengths: Vec<i64> = list(&mut node, "inputdimensions")?;
    nothing_left(&node)?;
    if lengths.len() != node.inputs.len() || lengths.iter().any(|n| *n < 0) {
        return Err(Fault::invalid("inputdimensions must give a length for every input"));
    }
    let mut parts: Vec<Option<ValueId>> = Vec::new();
    for (i, length) in lengths.into_iter().enumerate() {
        let mut x = cast(cx, node.input(i)?, DType::F32)?;
        if cx.rank(x)? == 1 {
            let first = cx.ints(&[0])?;
            x = pair(cx, "Unsqueeze", x, first)?;
        }
        let own = cx.tensor_ty(x)?.shape.as_ref().and_then(|s| s.get(1)?.as_const());
        let own = own.ok_or_else(|| Fault::unsupported("the number of columns of an input is not known"))?;
        if own > length {
            let bounds = [cx.ints(&[0])?, cx.ints(&[length])?, cx.ints(&[1])?];
            x = cx.emit_one("Slice", &[Some(x), Some(bounds[0]), Some(bounds[1]), Some(bounds[2])], [])?;
        } else if own < length {
            let pads = cx.ints(&[0, 0, 0, length - own])?;
            x = pair(cx, "Pad", x, pads)?;
        }
        parts.push(Some(x));
    }
    Ok(vec![cx.emit_one("Concat", &parts, [("axis", Attr::Int(1))])?])
}
