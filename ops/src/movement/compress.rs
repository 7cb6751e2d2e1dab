//! `of.compress`.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, OpError, OpView, TensorType, Type, ValueId};

use super::gather::{Extent, scatter_axis};
use super::{NonZero, cells, nonzero};
use crate::build::Build;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The slices of an axis whose condition is true; without `axis` those of the flattened tensor. A short condition
    /// counts as false at the end. Semantics of `numpy.compress`.
    pub struct Compress = "of.compress" [Primitive, onnx: "Compress"] {
        operands: (x, condition),
        results: (y),
        attrs: { axis: Option<i64> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let axis = r.int(-(rank as i64), rank as i64 - 1);
        let condition = r.tensor(DType::Bool, &[dims[shape::axis(axis, rank).ok()?]], 0.0, 1.0);
        Some((vec![r.f32s(&dims), condition.into()], Compress { axis: if r.int(0, 1) == 0 { None } else { Some(axis) } }))
    };
}

impl Op for Compress {
    op_basics!(Compress);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, condition) = (cx.tensor(0)?, cx.tensor(1)?);
        if condition.dtype != DType::Bool || condition.rank().is_some_and(|r| r != 1) {
            return Err(OpError::ty("the condition must be a bool tensor of rank 1"));
        }
        let known = cx.constant(1).and_then(|c| c.to_i64s()).map(|v| Dim::from(v.iter().filter(|x| **x != 0).count()));
        let n = known.unwrap_or_else(Dim::unknown);
        Ok(vec![match (self.axis, &x.shape) {
            (None, _) => Type::tensor(x.dtype, vec![n]),
            (Some(axis), Some(s)) => {
                let mut s = s.clone();
                s[shape::axis(axis, x.rank().unwrap_or(0))?] = n;
                Type::tensor(x.dtype, s)
            }
            (Some(_), None) => Type::Tensor(TensorType::unranked(x.dtype)),
        }])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, condition) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let flat;
        let (x, axis) = match self.axis {
            Some(axis) => (x, shape::axis(axis, x.dims().len())?),
            None => {
                flat = x.reshaped(vec![x.len()])?;
                (&flat, 0)
            }
        };
        let there = nonzero::truths(condition)?;
        let kept: Vec<usize> = there.iter().enumerate().filter(|(_, t)| **t).map(|(i, _)| i).collect();
        if kept.last().is_some_and(|i| *i >= x.dims()[axis]) {
            return Err(OpError::eval(format!(
                "the condition is longer than the axis of {} that it chooses from",
                x.dims()[axis]
            )));
        }
        let mut dims = x.dims().to_vec();
        dims[axis] = kept.len();
        let own = shape::strides(x.dims());
        let at = |i: &[usize]| i.iter().enumerate().map(|(a, i)| if a == axis { kept[*i] } else { *i } * own[a]).sum();
        Ok(vec![cells::pick(x, &dims, at)?.into()])
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, x, condition) = (cx.grads[0]?, cx.operands[0], cx.operands[1]);
        let rank = cx.rw.graph().ty(x).as_tensor()?.rank()?;
        let axis = self.axis.map_or(Ok(0), |axis| shape::axis(axis, rank)).ok()?;
        let mut b = Build::new(cx.rw);
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let kept = b.op(NonZero {}, &[condition])?;
            let kept = b.reshape(kept, &[-1])?;
            let whole = if self.axis.is_some() { x } else { b.reshape(x, &[-1])? };
            let dx = scatter_axis(b.rw, g, kept, 1, axis, Extent::Of(whole))?;
            Ok(vec![Some(b.reshape_like(dx, x)?), None])
        };
        Some(run())
    }
}
