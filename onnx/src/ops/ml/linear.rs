//! Linear models.

use std::sync::Arc;

use of_ir::{Attr, DType, Elements, Tensor, ValueId};

use super::{best, both_signs, cast, class_labels, floats, matrix, nothing_left, pair, post_transform, transform};
use crate::import::{Fault, Importer, Node, Values};

/// `x · coefficients + intercepts` for `rows` rows of coefficients, in f32.
fn scores(cx: &mut Importer<'_, '_>, node: &mut Node<'_>, rows: usize) -> Result<ValueId, Fault> {
    let (w, b) = (floats(node, "coefficients")?, floats(node, "intercepts")?);
    if rows == 0 || w.is_empty() || w.len() % rows != 0 || !(b.is_empty() || b.len() == rows) {
        let (w, b) = (w.len(), b.len());
        return Err(Fault::invalid(format!("{w} coefficients and {b} intercepts do not form {rows} linear functions")));
    }
    let x = cast(cx, node.input(0)?, DType::F32)?;
    let w = matrix(cx, DType::F32, &[rows, w.len() / rows], w)?;
    let b = if b.is_empty() { None } else { Some(matrix(cx, DType::F32, &[rows], b)?) };
    cx.emit_one("Gemm", &[Some(x), Some(w), b], [("transB", Attr::Int(1))])
}

/// `LinearRegressor`.
pub(super) fn regressor(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let targets: i64 = node.attrs.take("targets")?.unwrap_or(1);
    let y = scores(cx, &mut node, usize::try_from(targets).unwrap_or(0))?;
    let y = post_transform(cx, &mut node, y)?;
    nothing_left(&node)?;
    Ok(vec![y])
}

/// `LinearClassifier`: one function a class, or one for two classes.
pub(super) fn classifier(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let labels = class_labels(&mut node, "classlabels_strings", "classlabels_ints")?;
    // Whether the classes were learned together changes nothing in their scores.
    node.attrs.drop("multi_class");
    let b: Vec<f64> = node.attrs.take("intercepts")?.unwrap_or_default();
    let rows = if b.is_empty() { labels.len() } else { b.len() };
    node.attrs.set("intercepts", Attr::Floats(b));
    let mut z = scores(cx, &mut node, rows)?;
    if rows == 1 && labels.len() == 2 {
        z = both_signs(cx, z)?;
    } else if rows != labels.len() {
        return Err(Fault::invalid(format!("{rows} functions do not separate {} classes", labels.len())));
    }
    let kind: Option<Arc<str>> = node.attrs.take("post_transform")?;
    let kind = kind.as_deref().unwrap_or("NONE").to_owned();
    nothing_left(&node)?;
    z = transform(cx, &kind, z)?;
    let y = if labels.len() > 1 { best(cx, labels, z)? } else { single(cx, labels, z, &kind)? };
    Ok(vec![y, z])
}

/// The label of the only class where its score is high, zero or an empty text elsewhere.
fn single(cx: &mut Importer<'_, '_>, label: Tensor, z: ValueId, kind: &str) -> Result<ValueId, Fault> {
    let threshold = cx.number(if kind == "NONE" { 0.0 } else { 0.5 }, z)?;
    let high = pair(cx, "GreaterOrEqual", z, threshold)?;
    let last = cx.ints(&[-1])?;
    let high = pair(cx, "Squeeze", high, last)?;
    let none = match label.elements() {
        Elements::Str(_) => Tensor::from_strings(vec![1], vec![String::new()]),
        _ => Ok(Tensor::from_i64s(&[0])),
    };
    let none = cx.constant(none.map_err(|e| Fault::invalid(e.to_string()))?)?;
    let label = cx.constant(label)?;
    cx.emit_one("Where", &[Some(high), Some(label), Some(none)], [])
}
