//! `of.softmax`, `of.log_softmax`, `of.hardmax`.

use of_diag::Diagnostic;
use of_ir::{Elements, OpError, OpView, Rewriter, Sbp, SbpSignature, Tensor, Type, ValueId};

use super::composites::one_axis;
use super::{ReduceMax, ReduceSum};
use crate::build::in_wide;
use crate::elementwise::{Div, Exp, Log, Mul, Sub};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

fn infer(cx: &OpView<'_>, axis: i64) -> Inferred {
    let t = cx.tensor(0)?;
    if !t.dtype.is_float() {
        return Err(OpError::ty(format!("operands must be floating-point numbers, they are {}", t.dtype)));
    }
    if let Some(rank) = t.rank() {
        shape::axis(axis, rank.max(1))?;
    }
    Ok(vec![Type::Tensor(t.with_dtype(t.dtype))])
}

/// Splits along every axis but `axis`.
fn splits(cx: &OpView<'_>, axis: i64) -> Vec<SbpSignature> {
    let Ok(Some(s)) = cx.tensor(0).map(|t| t.shape.as_ref()) else { return Vec::new() };
    let Ok(axis) = shape::axis(axis, s.len().max(1)) else { return Vec::new() };
    let mut out = shape::elementwise_splits(&[s], s);
    out.retain(|o| o.results[0] != Sbp::Split(axis as u8));
    out
}

/// Numbers of at most 1 whose sum every float of 16 bits holds: the largest f16.
const MAX_ADDEND: i64 = 65504;

/// x minus its maximum along `axis`, and the axis as an operand.
fn shifted(rw: &mut Rewriter<'_>, x: ValueId, axis: i64) -> Result<(ValueId, ValueId), Diagnostic> {
    let axes = one_axis(rw, x, axis)?;
    let max = rw.create_one(ReduceMax { keepdims: true }, &[x, axes])?;
    Ok((rw.create_one(Sub {}, &[x, max])?, axes))
}

op! {
    /// exp(x) / sum(exp(x)) along an axis, shifted by the maximum so that nothing overflows.
    pub struct Softmax = "of.softmax" [Composite, onnx: "Softmax"] {
        operands: (x),
        results: (y),
        attrs: { axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        Some((vec![r.f32s(&dims)], Softmax { axis: r.int(-3, 2) }))
    };
}

impl Op for Softmax {
    op_basics!(Softmax);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx, self.axis)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx, self.axis)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let (d, axes) = shifted(rw, operands[0], self.axis)?;
        let e = rw.create_one(Exp {}, &[d])?;
        let parts = |rw: &mut Rewriter<'_>, e: &[ValueId]| {
            let s = rw.create_one(ReduceSum { keepdims: true }, &[e[0], axes])?;
            Ok(vec![rw.create_one(Div {}, &[e[0], s])?])
        };
        let shape = rw.graph().ty(operands[0]).as_tensor().and_then(|t| t.shape.clone());
        let extent = shape.and_then(|s| s.get(shape::axis(self.axis, s.len()).ok()?)?.as_const());
        if extent.is_some_and(|n| n <= MAX_ADDEND) { parts(rw, &[e]) } else { in_wide(rw, &[e], parts) }
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, y) = (cx.grads[0]?, cx.results[0]);
        // dx = y (g - sum(g y)).
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let axes = one_axis(cx.rw, y, self.axis)?;
            let weighted = cx.rw.create_one(Mul {}, &[g, y])?;
            let mean = cx.rw.create_one(ReduceSum { keepdims: true }, &[weighted, axes])?;
            let rest = cx.rw.create_one(Sub {}, &[g, mean])?;
            Ok(vec![Some(cx.rw.create_one(Mul {}, &[rest, y])?)])
        };
        Some(run())
    }
}

op! {
    /// Logarithm of softmax: x - max - log(sum(exp(x - max))).
    pub struct LogSoftmax = "of.log_softmax" [Composite, onnx: "LogSoftmax"] {
        operands: (x),
        results: (y),
        attrs: { axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        Some((vec![r.f32s(&dims)], LogSoftmax { axis: r.int(-3, 2) }))
    };
}

impl Op for LogSoftmax {
    op_basics!(LogSoftmax);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx, self.axis)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx, self.axis)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let (d, axes) = shifted(rw, operands[0], self.axis)?;
        let e = rw.create_one(Exp {}, &[d])?;
        // What is added up over many elements leaves the range of small floats.
        in_wide(rw, &[d, e], |rw, wide| {
            let s = rw.create_one(ReduceSum { keepdims: true }, &[wide[1], axes])?;
            let l = rw.create_one(Log {}, &[s])?;
            Ok(vec![rw.create_one(Sub {}, &[wide[0], l])?])
        })
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, y) = (cx.grads[0]?, cx.results[0]);
        // dx = g - exp(y) sum(g).
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let axes = one_axis(cx.rw, y, self.axis)?;
            let sum = cx.rw.create_one(ReduceSum { keepdims: true }, &[g, axes])?;
            let p = cx.rw.create_one(Exp {}, &[y])?;
            let part = cx.rw.create_one(Mul {}, &[p, sum])?;
            Ok(vec![Some(cx.rw.create_one(Sub {}, &[g, part])?)])
        };
        Some(run())
    }
}

op! {
    /// 1 at the first maximum along an axis, 0 elsewhere.
    pub struct Hardmax = "of.hardmax" [Primitive, onnx: "Hardmax"] {
        operands: (x),
        results: (y),
        attrs: { axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        Some((vec![r.f32s(&dims)], Hardmax { axis: r.int(-3, 2) }))
    };
}

impl Op for Hardmax {
    op_basics!(Hardmax);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx, self.axis)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx, self.axis)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let v = x.to_f64s().ok_or_else(|| OpError::eval("strings have no maximum"))?;
        let axis = shape::axis(self.axis, x.dims().len().max(1))?;
        let n = x.dims().get(axis).copied().unwrap_or(1);
        let inner: usize = x.dims().iter().skip(axis + 1).product();
        let mut out = vec![0.0; v.len()];
        for start in (0..v.len()).filter(|i| (i / inner.max(1)).is_multiple_of(n.max(1))) {
            let best = (0..n).fold(0, |b, k| if v[start + k * inner] > v[start + b * inner] { k } else { b });
            out[start + best * inner] = 1.0;
        }
        Ok(vec![Tensor::from_elements(x.dtype(), x.dims().to_vec(), Elements::Float(out))?.into()])
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        cx.flat()
    }
}
