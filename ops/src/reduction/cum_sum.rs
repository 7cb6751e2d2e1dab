//! `of.cum_sum`.

use of_diag::Diagnostic;
use of_ir::{Elements, OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, Type, ValueId};

use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Running sums along an axis, which is operand 1.
    pub struct CumSum = "of.cum_sum" [Primitive, onnx: "CumSum"] {
        operands: (x, axis),
        results: (y),
        attrs: {
            /// The element itself does not count.
            exclusive: bool,
            /// From the end to the start.
            reverse: bool,
        },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        let axis = Tensor::scalar(r.int(-3, 2));
        Some((vec![r.f32s(&dims), axis.into()], CumSum { exclusive: r.int(0, 1) == 1, reverse: r.int(0, 1) == 1 }))
    };
}

impl Op for CumSum {
    op_basics!(CumSum);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        if let (Some(a), Some(rank)) = (cx.ints(1).and_then(|a| a.first().copied()), t.rank()) {
            shape::axis(a, rank)?;
        }
        Ok(vec![Type::Tensor(t.with_dtype(t.dtype))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let axis = inputs.ints(1)?.first().copied().ok_or_else(|| OpError::eval("the axis is missing"))?;
        let axis = shape::axis(axis, x.dims().len())?;
        let (n, inner): (usize, usize) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
        let outer: usize = x.dims()[..axis].iter().product();
        macro_rules! run {
            ($v:expr, $zero:expr) => {{
                let mut v = $v;
                for o in 0..outer {
                    for i in 0..inner {
                        let mut sum = $zero;
                        for step in 0..n {
                            let k = if self.reverse { n - 1 - step } else { step };
                            let at = (o * n + k) * inner + i;
                            let own = v[at];
                            v[at] = if self.exclusive { sum } else { sum + own };
                            sum += own;
                        }
                    }
                }
                v
            }};
        }
        let elements = match x.elements() {
            Elements::Float(v) => Elements::Float(run!(v, 0.0)),
            Elements::Int(v) => Elements::Int(run!(v, 0i128)),
            Elements::Str(_) => return Err(OpError::eval("strings have no sum")),
        };
        Ok(vec![Tensor::from_elements(x.dtype(), x.dims().to_vec(), elements)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let (Ok(t), Some(axis)) = (cx.tensor(0), cx.ints(1)) else { return Vec::new() };
        let Some(rank) = t.rank() else { return Vec::new() };
        let Some(axis) = axis.first().and_then(|a| shape::axis(*a, rank).ok()) else { return Vec::new() };
        let sum = Sbp::Partial(PartialKind::Sum);
        let mut out = vec![SbpSignature::new(&[sum, Sbp::Broadcast], &[sum])];
        out.extend(
            (0..rank)
                .filter(|a| *a != axis)
                .map(|a| SbpSignature::new(&[Sbp::Split(a as u8), Sbp::Broadcast], &[Sbp::Split(a as u8)])),
        );
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let back = CumSum { reverse: !self.reverse, ..self.clone() };
        Some(cx.rw.create_one(back, &[g, cx.operands[1]]).map(|v| vec![Some(v), None]))
    }
}
