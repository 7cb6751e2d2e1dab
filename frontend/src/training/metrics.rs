//! What an evaluation counts besides the loss: labels that are right.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, Dim, Tensor, ValueId};
use of_ops::elementwise::{Eq, Gt};
use of_ops::movement::Unsqueeze;
use of_ops::reduction::{ArgMax, TopK};
use of_ops::structural::{Constant, Size};

use super::Loss;
use super::arithmetic::{Arithmetic, ValueResult};
use super::loss::binary_scores;
use crate::Builder;

/// A number that an evaluation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Labels that count.
    Labels,
    /// Those of them that are predicted: by the largest score, or for binary labels by the sign of the score.
    Correct,
    /// Those of them that are among the classes of the `k` largest scores.
    CorrectOfTopK,
}

impl Metric {
    /// The name of the output of an evaluation that has it.
    pub(super) fn output(self) -> &'static str {
        match self {
            Metric::Labels => "labels_that_count",
            Metric::Correct => "correct",
            Metric::CorrectOfTopK => "correct_of_top_k",
        }
    }
}

/// The metrics of a loss, as i64; none for losses without classes. `top_k` is the number of classes among which a label may be.
///
/// # Errors
/// When the types do not fit, or there are fewer classes.
pub(super) fn metrics(
    b: &mut Builder,
    loss: Loss,
    output: ValueId,
    labels: ValueId,
    top_k: Option<i64>,
) -> Result<Vec<(Metric, ValueId)>, Diagnostic> {
    let scores = match loss {
        Loss::BinaryCrossEntropy | Loss::Focal { .. } => binary_scores(b, output)?,
        _ => output,
    };
    let b = &mut Arithmetic::new(b);
    match loss {
        Loss::CrossEntropy { axis, ignore, .. } => {
            let none = b.integer(ignore)?;
            let ignored = b.op(Eq {}, &[labels, none])?;
            let (ignored, one) = (b.cast(ignored, DType::I64)?, b.integer(1)?);
            let counts = b.sub(one, ignored)?;
            let mut out = vec![(Metric::Labels, b.sum(counts)?)];
            out.extend(of_classes(b, (output, axis), (labels, Some(counts)), top_k)?);
            Ok(out)
        }
        Loss::SoftCrossEntropy { axis, .. } => {
            let labels = largest(b, labels, axis)?;
            let mut out = vec![(Metric::Labels, b.op(Size {}, &[labels])?)];
            out.extend(of_classes(b, (output, axis), (labels, None), top_k)?);
            Ok(out)
        }
        Loss::BinaryCrossEntropy | Loss::Focal { .. } => {
            let (zero, half) = (b.number(0.0, scores)?, b.number(0.5, labels)?);
            let sides = [b.op(Gt {}, &[scores, zero])?, b.op(Gt {}, &[labels, half])?];
            let [predicted, right] = [b.cast(sides[0], DType::I64)?, b.cast(sides[1], DType::I64)?];
            Ok(vec![(Metric::Labels, b.op(Size {}, &[labels])?), (Metric::Correct, equal(b, predicted, right, None)?)])
        }
        _ => Ok(Vec::new()),
    }
}

/// The metrics of scores of classes along an axis. Labels have counts of 0 or 1, where some do not count.
fn of_classes(
    b: &mut Arithmetic<'_>,
    (output, axis): (ValueId, i64),
    (labels, counts): (ValueId, Option<ValueId>),
    top_k: Option<i64>,
) -> Result<Vec<(Metric, ValueId)>, Diagnostic> {
    let best = largest(b, output, axis)?;
    let mut out = vec![(Metric::Correct, equal(b, best, labels, counts)?)];
    let Some(k) = top_k else { return Ok(out) };
    let shape = b.ty(output).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
    let classes = of_ops::shape::axis(axis, shape.len()).ok().and_then(|axis| shape.get(axis).and_then(Dim::as_const));
    if let Some(classes) = classes.filter(|classes| *classes < k) {
        let what = format!("a label cannot be among the first {k} classes of {classes}");
        return Err(Diagnostic::error(Code::INPUT, Location::Unknown, what).hint("give a smaller number of classes"));
    }
    let count = b.op(Constant { value: Tensor::from_i64s(&[k]) }, &[])?;
    let first = b.op_all(TopK { axis, largest: true, sorted: true }, &[output, count])?[1];
    let along = b.op(Constant { value: Tensor::from_i64s(&[axis]) }, &[])?;
    let labels = b.op(Unsqueeze {}, &[labels, along])?;
    let counts = counts.map(|counts| b.op(Unsqueeze {}, &[counts, along])).transpose()?;
    out.push((Metric::CorrectOfTopK, equal(b, first, labels, counts)?));
    Ok(out)
}

/// The class of the largest number along an axis.
fn largest(b: &mut Arithmetic<'_>, v: ValueId, axis: i64) -> ValueResult {
    b.op(ArgMax { axis, keepdims: false, select_last_index: false }, &[v])
}

/// How many numbers are equal, each as often as it counts.
fn equal(b: &mut Arithmetic<'_>, x: ValueId, y: ValueId, counts: Option<ValueId>) -> ValueResult {
    let equal = b.op(Eq {}, &[x, y])?;
    let ones = b.cast(equal, DType::I64)?;
    let ones = counts.map_or(Ok(ones), |counts| b.mul(ones, counts))?;
    b.sum(ones)
}
