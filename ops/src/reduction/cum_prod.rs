//! `of.cum_prod`.

use of_ir::{Elements, OpError, OpView, Sbp, SbpSignature, Tensor, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Running products along an axis, which is operand 1. Source: ONNX CumProd.
    pub struct CumProd = "of.cum_prod" [Primitive, onnx: "CumProd"] {
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
        Some((vec![r.f32s(&dims), axis.into()], CumProd { exclusive: r.int(0, 1) == 1, reverse: r.int(0, 1) == 1 }))
    };
}

impl Op for CumProd {
    op_basics!(CumProd);

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
            ($v:expr, $one:expr, $times:expr) => {{
                let mut v = $v;
                for o in 0..outer {
                    for i in 0..inner {
                        let mut product = $one;
                        for step in 0..n {
                            let k = if self.reverse { n - 1 - step } else { step };
                            let at = (o * n + k) * inner + i;
                            let all = $times(product, v[at]);
                            v[at] = if self.exclusive { product } else { all };
                            product = all;
                        }
                    }
                }
                v
            }};
        }
        let elements = match x.elements() {
            Elements::Float(v) => Elements::Float(run!(v, 1.0, |a: f64, b: f64| a * b)),
            // Wrapping here and in the narrower element type agree.
            Elements::Int(v) => Elements::Int(run!(v, 1i128, i128::wrapping_mul)),
            Elements::Str(_) => return Err(OpError::eval("strings have no product")),
        };
        Ok(vec![Tensor::from_elements(x.dtype(), x.dims().to_vec(), elements)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let (Ok(t), Some(axis)) = (cx.tensor(0), cx.ints(1)) else { return Vec::new() };
        let Some(rank) = t.rank() else { return Vec::new() };
        let Some(axis) = axis.first().and_then(|a| shape::axis(*a, rank).ok()) else { return Vec::new() };
        let others = (0..rank).filter(|a| *a != axis).filter_map(|a| u8::try_from(a).ok());
        others.map(|a| SbpSignature::new(&[Sbp::Split(a), Sbp::Broadcast], &[Sbp::Split(a)])).collect()
    }

    // No gradient yet: the quotient rule fails at zeros.
}
