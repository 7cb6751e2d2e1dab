//! `of.arg_max` and `of.arg_min`.

use of_ir::{DType, Dim, OpError, OpView, Tensor, TensorType, Type};

use super::reduce::result_shape;
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

macro_rules! arg {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal [$onnx:literal] $better:tt;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Primitive, onnx: $onnx] {
                operands: (x),
                results: (index),
                attrs: {
                    axis: i64,
                    /// The axis stays with extent 1.
                    keepdims: bool,
                    /// Of equal elements the last counts.
                    select_last_index: bool,
                },
            }
            samples: |seed| {
                let mut r = Rng::new(seed);
                let dims = r.dims(3, 1, 4);
                let x = r.tensor(DType::I32, &dims, -2.0, 2.0);
                Some((vec![x.into()], $name { axis: r.int(-3, 2), keepdims: r.int(0, 1) == 1, select_last_index: r.int(0, 1) == 1 }))
            };
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                let t = cx.tensor(0)?;
                let shape = match &t.shape {
                    Some(s) => {
                        let axis = shape::axis(self.axis, s.len())?;
                        if s[axis] == Dim::from(0i64) {
                            return Err(OpError::shape("an empty axis has no extreme element"));
                        }
                        Some(result_shape(s, &[axis], self.keepdims))
                    }
                    None => None,
                };
                Ok(vec![Type::Tensor(TensorType { dtype: DType::I64, shape, sbp: None })])
            }

            fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
                let x = inputs.tensor(0)?;
                let v = x.to_f64s().ok_or_else(|| OpError::eval("strings have no order"))?;
                let axis = shape::axis(self.axis, x.dims().len())?;
                let (n, inner): (usize, usize) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
                if n == 0 {
                    return Err(OpError::eval("an empty axis has no extreme element"));
                }
                let outer: usize = x.dims()[..axis].iter().product();
                let mut out = Vec::with_capacity(outer * inner);
                for o in 0..outer {
                    for i in 0..inner {
                        let at = |k: usize| v[(o * n + k) * inner + i];
                        let best = (1..n).fold(0, |b, k| {
                            // NaN counts as the extreme element, the first of them.
                            let better = at(k) $better at(b) || (at(k).is_nan() && !at(b).is_nan());
                            if better || (self.select_last_index && at(k) == at(b)) { k } else { b }
                        });
                        out.push(best as i64);
                    }
                }
                let dims: Vec<usize> = if self.keepdims {
                    x.dims().iter().enumerate().map(|(a, d)| if a == axis { 1 } else { *d }).collect()
                } else {
                    x.dims().iter().enumerate().filter(|(a, _)| *a != axis).map(|(_, d)| *d).collect()
                };
                Ok(vec![Tensor::from_slice(&dims, &out)?.into()])
            }
        }
    )*};
}

arg! {
    /// Index of the largest element along an axis.
    ArgMax = "of.arg_max" ["ArgMax"] >;
    /// Index of the smallest element along an axis.
    ArgMin = "of.arg_min" ["ArgMin"] <;
}
