//! `of.softmax_zero` and `of.probit`: transforms of scores that other operators do not have.

use of_ir::{Elements, OpError, OpView, Sbp, SbpSignature, Tensor, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Softmax along the last axis in which a score of zero keeps weight zero.
    ///
    /// A row of zeros alone becomes a half everywhere. Source: ai.onnx.ml, SOFTMAX_ZERO as its implementations have it.
    pub struct SoftmaxZero = "of.softmax_zero" [Primitive] {
        operands: (x),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let Ok(dims) = <[usize; 2]>::try_from(r.dims(2, 1, 4)) else { return None };
        Some((vec![r.f32s(&dims)], SoftmaxZero {}))
    };
}

op! {
    /// The quantile function of the normal distribution, `sqrt(2) * erfinv(2 x - 1)`.
    ///
    /// With Winitzki's approximation of `erfinv`, which is what ai.onnx.ml's PROBIT means. Source: Winitzki, "A handy
    /// approximation for the error function and its inverse" (2008).
    pub struct Probit = "of.probit" [Primitive] {
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

/// Operand 0 is floating-point; the result is of its type.
fn same(cx: &OpView<'_>) -> Inferred {
    let x = cx.tensor(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::ty(format!("operand 0 must be floating-point, it is {}", x.dtype)));
    }
    Ok(vec![Type::Tensor(x.clone())])
}

fn floats(x: &Tensor) -> Result<Vec<f64>, OpError> {
    x.to_f64s().ok_or_else(|| OpError::eval("operand 0 holds no numbers"))
}

/// Splits of the first `axes` axes.
fn splits(axes: usize) -> Vec<SbpSignature> {
    (0..axes.min(255)).map(|a| SbpSignature::new(&[Sbp::Split(a as u8)], &[Sbp::Split(a as u8)])).collect()
}

impl Op for SoftmaxZero {
    op_basics!(SoftmaxZero);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if cx.tensor(0)?.rank() == Some(0) {
            return Err(OpError::shape("a scalar has no last axis"));
        }
        same(cx)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        shape::count(x.dims())?;
        let mut y = floats(x)?;
        for row in y.chunks_mut(x.dims().last().copied().unwrap_or(1).max(1)) {
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            row.iter_mut().for_each(|v| *v = if v.abs() > ZERO { (*v - most).exp() } else { *v * (-most).exp() });
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|v| *v = if sum == 0.0 { 0.5 } else { *v / sum });
        }
        Ok(vec![Tensor::from_elements(x.dtype(), x.dims().to_vec(), Elements::Float(y))?.into()])
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

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let of = |p: f64| {
            let t = 2.0 * p - 1.0;
            let log = ((1.0 - t) * (1.0 + t)).ln();
            if log == f64::NEG_INFINITY {
                return 0.0;
            }
            let half = 2.0 / (std::f64::consts::PI * 0.147) + 0.5 * log;
            std::f64::consts::SQRT_2.copysign(t) * ((half * half - log / 0.147).sqrt() - half).max(0.0).sqrt()
        };
        let y = floats(x)?.into_iter().map(of).collect();
        Ok(vec![Tensor::from_elements(x.dtype(), x.dims().to_vec(), Elements::Float(y))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx.tensor(0).ok().and_then(of_ir::TensorType::rank).unwrap_or(0))
    }
}
