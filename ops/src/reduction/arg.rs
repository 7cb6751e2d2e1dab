//! `of.arg_max` and `of.arg_min`.

use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, TensorType, Type};

use super::reduce::result_shape;
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

/// How the elements along an axis lie in a tensor.
struct Rows {
    outer: usize,
    n: usize,
    inner: usize,
    /// Of equal elements the last counts.
    last: bool,
}

impl Rows {
    /// The index of the best element of each row.
    fn best<T: Copy + PartialEq>(&self, v: &[T], better: impl Fn(T, T) -> bool) -> Vec<i64> {
        let row = |(o, i): (usize, usize)| {
            let at = |k: usize| v[(o * self.n + k) * self.inner + i];
            let next = |b, k| if better(at(k), at(b)) || (self.last && at(k) == at(b)) { k } else { b };
            (1..self.n).fold(0, next) as i64
        };
        (0..self.outer).flat_map(|o| (0..self.inner).map(move |i| (o, i))).map(row).collect()
    }
}

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
                let axis = shape::axis(self.axis, x.dims().len())?;
                let (n, inner): (usize, usize) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
                if n == 0 {
                    return Err(OpError::eval("an empty axis has no extreme element"));
                }
                let rows = Rows { outer: x.dims()[..axis].iter().product(), n, inner, last: self.select_last_index };
                let out = match x.elements() {
                    // NaN counts as the extreme element, the first of them.
                    Elements::Float(v) => rows.best(&v, |a, b| a $better b || (a.is_nan() && !b.is_nan())),
                    Elements::Int(v) => rows.best(&v, |a, b| a $better b),
                    Elements::Str(_) => return Err(OpError::eval("strings have no order")),
                };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    #[test]
    fn top_k_distinguishes_large_integers() {
        let x: Value = Tensor::from_slice(&[3], &[u64::MAX - 1, u64::MAX, u64::MAX - 1]).unwrap().into();
        let values = [x];
        let mut inputs = Inputs { values: &values, types: &[], region: &mut |_, _| Ok(Vec::new()) };
        let op = ArgMax { axis: 0, keepdims: false, select_last_index: true };
        assert_eq!(op.eval(&mut inputs).unwrap(), [Tensor::from_slice(&[], &[1i64]).unwrap().into()]);
    }
}
