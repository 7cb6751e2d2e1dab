//! Pooling of `[batch, channels, spatial…]` to a given image: `torch.nn.AdaptiveAvgPool` and `torch.nn.AdaptiveMaxPool`.

use std::panic::Location as Caller;

use of_diag::{Code, Diagnostic};
use of_ir::{NewOp, Tensor, ValueId};
use of_ops::movement::{Concat, Slice};
use of_ops::reduction::{ReduceMax, ReduceMean};

use super::{AvgPool, GlobalAvgPool, GlobalMaxPool, Layer, MaxPool};
use crate::Builder;
use crate::builder::location;

/// The mean of windows that cover the image: output `i` of `n` is of the elements from `floor(i extent / n)` to
/// `ceil((i + 1) extent / n)`, as in PyTorch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptiveAvgPool {
    /// Extents of the result, one for each spatial axis.
    pub outputs: Vec<i64>,
}

impl AdaptiveAvgPool {
    /// `[batch, channels, outputs…]`.
    pub fn new(outputs: &[i64]) -> AdaptiveAvgPool {
        AdaptiveAvgPool { outputs: outputs.to_vec() }
    }
}

impl Layer for AdaptiveAvgPool {
    /// # Errors
    /// When `x` has another number of spatial axes, or open extents and more than one output.
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        match windows(b, x, &self.outputs)? {
            Windows::Whole => GlobalAvgPool.apply(b, x),
            Windows::Equal(kernel) => AvgPool::new(&kernel).apply(b, x),
            Windows::Uneven(extents) => along_axes(b, x, &extents, &self.outputs, &ReduceMean { keepdims: true }),
        }
    }
}

/// The maximum of windows that cover the image, which are those of [`AdaptiveAvgPool`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptiveMaxPool {
    /// Extents of the result, one for each spatial axis.
    pub outputs: Vec<i64>,
}

impl AdaptiveMaxPool {
    /// `[batch, channels, outputs…]`.
    pub fn new(outputs: &[i64]) -> AdaptiveMaxPool {
        AdaptiveMaxPool { outputs: outputs.to_vec() }
    }
}

impl Layer for AdaptiveMaxPool {
    /// # Errors
    /// As for [`AdaptiveAvgPool`].
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        match windows(b, x, &self.outputs)? {
            Windows::Whole => GlobalMaxPool.apply(b, x),
            Windows::Equal(kernel) => MaxPool::new(&kernel).apply(b, x),
            Windows::Uneven(extents) => along_axes(b, x, &extents, &self.outputs, &ReduceMax { keepdims: true }),
        }
    }
}

/// The windows of an adaptive pool.
enum Windows {
    /// One, whatever the extents are.
    Whole,
    /// Of one size next to each other.
    Equal(Vec<i64>),
    /// Others; these are the extents of the image.
    Uneven(Vec<i64>),
}

#[track_caller]
fn windows(b: &Builder, x: ValueId, outputs: &[i64]) -> Result<Windows, Diagnostic> {
    let at = location(Caller::caller());
    let wrong = |what: String, hint: &str| Err(Diagnostic::error(Code::TYPE, at.clone(), what).hint(hint.to_owned()));
    let shape = b.ty(x).as_tensor().and_then(|t| t.shape.clone()).filter(|s| s.len() == outputs.len() + 2);
    let Some(shape) = shape else {
        let axes = outputs.len();
        return wrong(
            format!("an adaptive pool to {outputs:?} does not fit {}", b.ty(x)),
            &format!("the input is [batch, channels] and {axes} spatial axes"),
        );
    };
    if outputs.iter().any(|n| *n < 1) {
        return wrong(format!("an adaptive pool to {outputs:?}"), "outputs are positive");
    }
    if outputs.iter().all(|n| *n == 1) {
        return Ok(Windows::Whole);
    }
    let extents: Option<Vec<i64>> = shape[2..].iter().map(|d| d.as_const().filter(|d| *d > 0)).collect();
    let Some(extents) = extents else {
        let what = format!("an adaptive pool to {outputs:?} of {}: windows follow from extents", b.ty(x));
        return wrong(what, "give the image fixed extents, or pool it to 1");
    };
    let pairs = || extents.iter().zip(outputs);
    if pairs().all(|(extent, n)| extent % n == 0) {
        return Ok(Windows::Equal(pairs().map(|(extent, n)| extent / n).collect()));
    }
    Ok(Windows::Uneven(extents))
}

/// Reduces the windows of one spatial axis after the other. A window is a box, so that its mean is the mean of means, and so for the
/// maximum.
#[track_caller]
fn along_axes(
    b: &mut Builder,
    x: ValueId,
    extents: &[i64],
    outputs: &[i64],
    reduce: &(impl NewOp + Clone),
) -> Result<ValueId, Diagnostic> {
    let mut x = x;
    for (axis, (extent, n)) in (2..).zip(extents.iter().zip(outputs)).filter(|(_, (extent, n))| extent != n) {
        let at = b.constant(Tensor::from_i64s(&[axis]))?;
        let mut parts = Vec::new();
        for i in 0..*n {
            let (begin, end) = (i * extent / n, ((i + 1) * extent + n - 1) / n);
            let (begin, end) = (b.constant(Tensor::from_i64s(&[begin]))?, b.constant(Tensor::from_i64s(&[end]))?);
            let window = b.op(Slice {}, &[x, begin, end, at])?;
            parts.push(b.op(reduce.clone(), &[window, at])?);
        }
        x = if let [one] = parts[..] { one } else { b.op(Concat { axis }, &parts)? };
    }
    Ok(x)
}
