//! `of.softmax_ignore_zero` and `of.probit`: transforms of scores that other operators do not have.

use of_ir::{OpError, OpView, Rewriter, Sbp, SbpSignature, Type, ValueId};

use crate::build::Build;
use crate::elementwise::{Abs, Eq, Exp, Gt, Log, Neg, Select, Sign, Sqrt};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// Softmax along the last axis in which a score of zero keeps weight zero.
    ///
    /// A row of zeros alone becomes a half everywhere. Source: ai.onnx.ml, SOFTMAX_ZERO as its implementations have it.
    pub struct SoftmaxIgnoreZero = "of.softmax_ignore_zero" [Composite] {
        operands: (x),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let Ok(dims) = <[usize; 2]>::try_from(r.dims(2, 1, 4)) else { return None };
        Some((vec![r.f32s(&dims)], SoftmaxIgnoreZero {}))
    };
}

op! {
    /// The quantile function of the normal distribution, `sqrt(2) * erfinv(2 x - 1)`.
    ///
    /// With Winitzki's approximation of `erfinv`, which is what ai.onnx.ml's PROBIT means. Source: Winitzki, "A handy
    /// approximation for the error function and its inverse" (2008).
    pub struct Probit = "of.probit" [Composite] {
        operands: (x),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        Some((vec![r.tensor(of_ir::DType::F32, &dims, 0.01, 0.99).into()], Probit {}))
    };
}

/// A score closer to zero counts as zero.
const ZERO: f64 = 1e-7;
/// The constant of Winitzki's approximation.
const A: f64 = 0.147;

/// Operand 0 is floating-point; the result is of its type.
fn same(cx: &OpView<'_>) -> Inferred {
    let x = cx.tensor(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::ty(format!("operand 0 must be floating-point, it is {}", x.dtype)));
    }
    Ok(vec![Type::Tensor(x.clone())])
}

/// Splits of the first `axes` axes.
fn splits(axes: usize) -> Vec<SbpSignature> {
    (0..axes.min(255)).map(|a| SbpSignature::new(&[Sbp::Split(a as u8)], &[Sbp::Split(a as u8)])).collect()
}

impl Op for SoftmaxIgnoreZero {
    op_basics!(SoftmaxIgnoreZero);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if cx.tensor(0)?.rank() == Some(0) {
            return Err(OpError::shape("a scalar has no last axis"));
        }
        same(cx)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let (x, mut b) = (operands[0], Build::new(rw));
        let last = b.rank(x)?.saturating_sub(1);
        let most = b.max(x, &[last], true)?;
        let (size, near) = (b.op(Abs {}, &[x])?, b.number(ZERO, x)?);
        let counts = b.op(Gt {}, &[size, near])?;
        let below = b.sub(x, most)?;
        let weight = b.op(Exp {}, &[below])?;
        let least = b.op(Neg {}, &[most])?;
        let least = b.op(Exp {}, &[least])?;
        let little = b.mul(x, least)?;
        let y = b.op(Select {}, &[counts, weight, little])?;
        let sum = b.sum(y, &[last], true)?;
        let (zero, half) = (b.number(0.0, x)?, b.number(0.5, x)?);
        let none = b.op(Eq {}, &[sum, zero])?;
        let y = b.div(y, sum)?;
        Ok(vec![b.op(Select {}, &[none, half, y])?])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx.tensor(0).ok().and_then(of_ir::TensorType::rank).unwrap_or(0).saturating_sub(1))
    }
}

impl Op for Probit {
    op_basics!(Probit);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        same(cx)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let t = b.scale(operands[0], 2.0)?;
        let t = b.add_number(t, -1.0)?;
        let (less, more) = (b.scale(t, -1.0)?, b.add_number(t, 1.0)?);
        let less = b.add_number(less, 1.0)?;
        let inner = b.mul(less, more)?;
        let zero = b.number(0.0, inner)?;
        let certain = b.op(Eq {}, &[inner, zero])?;
        let log = b.op(Log {}, &[inner])?;
        let half = b.scale(log, 0.5)?;
        let half = b.add_number(half, 2.0 / (std::f64::consts::PI * A))?;
        let (square, rest) = (b.mul(half, half)?, b.scale(log, -1.0 / A)?);
        let root = b.add(square, rest)?;
        let root = b.op(Sqrt {}, &[root])?;
        let y = b.sub(root, half)?;
        let y = b.op(Sqrt {}, &[y])?;
        let sign = b.op(Sign {}, &[t])?;
        let y = b.mul(y, sign)?;
        let y = b.scale(y, std::f64::consts::SQRT_2)?;
        // What is certain has no finite quantile; the operator gives zero.
        Ok(vec![b.op(Select {}, &[certain, zero, y])?])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx.tensor(0).ok().and_then(of_ir::TensorType::rank).unwrap_or(0))
    }
}
