//! The two layouts of activations, `[N, C, spatial…]` and `[N, spatial…, C]`, and numbers for evaluation.

use std::num::Wrapping;

use of_ir::{Dim, Elements, NewOp, OpError, Rewriter, Shape, Tensor, ValueId};

use crate::build::Build;
use crate::{Expanded, shape};

/// Batch, channels and spatial dimensions of an activation.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Activation {
    pub n: Dim,
    pub c: Dim,
    pub spatial: Shape,
}

impl Activation {
    /// Reads a shape; `what` names the operand in messages.
    pub fn of(shape: &Shape, channels_last: bool) -> Result<Activation, OpError> {
        let rank = shape.len();
        if rank < 2 {
            return Err(OpError::shape(format!("{} has no batch and channel axes", shape::show(shape))));
        }
        Ok(if channels_last {
            Activation { n: shape[0].clone(), c: shape[rank - 1].clone(), spatial: shape[1..rank - 1].to_vec() }
        } else {
            Activation { n: shape[0].clone(), c: shape[1].clone(), spatial: shape[2..].to_vec() }
        })
    }

    /// The inverse of [`Activation::of`].
    pub fn shape(n: &Dim, c: &Dim, spatial: &[Dim], channels_last: bool) -> Shape {
        let mut s = vec![n.clone()];
        if !channels_last {
            s.push(c.clone());
        }
        s.extend_from_slice(spatial);
        if channels_last {
            s.push(c.clone());
        }
        s
    }
}

/// Dimensions of an activation in its layout.
pub(super) fn dims(n: usize, c: usize, spatial: &[usize], channels_last: bool) -> Vec<usize> {
    if channels_last { [&[n], spatial, &[c]].concat() } else { [&[n, c], spatial].concat() }
}

/// The channel axis of a tensor of the given rank.
pub(super) fn channel_axis(rank: usize, channels_last: bool) -> usize {
    if channels_last { rank.saturating_sub(1) } else { 1 }
}

/// Swaps the channel axis and the spatial axes of `n` samples: each holds a matrix of `rows x cols`, to be transposed.
pub(super) fn transpose_samples<T: Copy>(x: &[T], n: usize, rows: usize, cols: usize) -> Vec<T> {
    let mut out = Vec::with_capacity(x.len());
    for sample in 0..n {
        let from = &x[sample * rows * cols..][..rows * cols];
        for c in 0..cols {
            out.extend((0..rows).map(|r| from[r * cols + c]));
        }
    }
    out
}

/// An op whose first operands, so many, and results are `[N, spatial…, C]`, as `op`, the same on `[N, C, spatial…]`: for
/// derivatives, which know that layout alone.
pub(super) fn channels_first(rw: &mut Rewriter<'_>, operands: &[ValueId], images: usize, op: impl NewOp) -> Expanded {
    let b = &mut Build::new(rw);
    let rank = b.rank(operands[0])?;
    let to_first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let to_last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let mut operands = operands.to_vec();
    for image in operands.iter_mut().take(images) {
        *image = b.transpose(*image, &to_first)?;
    }
    let op = b.rw.create(op, &operands)?;
    let results = b.rw.graph().op(op).results.to_vec();
    results.into_iter().map(|v| b.transpose(v, &to_last)).collect()
}

/// What multiply-and-add evaluations compute with.
pub(super) trait Number:
    Copy + Default + std::ops::Mul<Output = Self> + std::ops::AddAssign + PartialOrd
{
}
impl Number for f64 {}
impl Number for Wrapping<i64> {}

/// Operands of one class: floats as `f64`; integers modulo 2^64, which is exact for every integer type that the
/// result is wrapped to.
pub(super) enum Numbers {
    Float(Vec<Vec<f64>>),
    Int(Vec<Vec<Wrapping<i64>>>),
}

/// The elements of all operands.
///
/// # Errors
/// For strings, or when classes differ.
pub(super) fn numbers(list: &[&Tensor]) -> Result<Numbers, OpError> {
    let (mut floats, mut ints) = (Vec::new(), Vec::new());
    for t in list {
        match t.elements() {
            Elements::Float(v) => floats.push(v),
            Elements::Int(v) => ints.push(v.into_iter().map(|x| Wrapping(x as i64)).collect()),
            Elements::Str(_) => return Err(OpError::eval("operands must be numbers")),
        }
    }
    match (floats.is_empty(), ints.is_empty()) {
        (_, true) => Ok(Numbers::Float(floats)),
        (true, false) => Ok(Numbers::Int(ints)),
        _ => Err(OpError::eval("operands must be numbers of one class")),
    }
}

/// Back to elements of a tensor.
pub(super) fn from_wrapping(v: Vec<Wrapping<i64>>) -> Elements {
    Elements::Int(v.into_iter().map(|x| i128::from(x.0)).collect())
}
