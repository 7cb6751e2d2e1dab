//! `of.gather_elements`.

use of_diag::Diagnostic;
use of_ir::{OpError, OpView, PartialKind, Sbp, SbpSignature, Shape, TensorType, Type, ValueId};

use super::{ScatterElements, cells, index, split};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// One element for each index: `y[i, j, k] = x[i, indices[i, j, k], k]` for axis 1. Semantics of
    /// `numpy.take_along_axis`.
    pub struct GatherElements = "of.gather_elements" [Primitive, onnx: "GatherElements"] {
        operands: (x, indices),
        results: (y),
        attrs: { axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let axis = r.int(-(rank as i64), rank as i64 - 1);
        let a = shape::axis(axis, rank).ok()?;
        let mut own = dims.clone();
        own[a] = r.int(1, 4) as usize;
        let n = dims[a] as f64;
        let indices = r.tensor(of_ir::DType::I64, &own, -n, n);
        Some((vec![r.f32s(&dims), indices.into()], GatherElements { axis }))
    };
}

/// Checks that `indices` fits into `x` on every axis but the one indexed.
pub(super) fn check(x: &Shape, indices: &Shape, axis: i64) -> Result<usize, OpError> {
    let axis = shape::axis(axis, x.len())?;
    let larger = |a: usize| matches!((indices[a].as_const(), x[a].as_const()), (Some(i), Some(n)) if i > n);
    if indices.len() != x.len() || (0..x.len()).any(|a| a != axis && larger(a)) {
        return Err(OpError::shape(format!("indices of shape {} do not fit {}", shape::show(indices), shape::show(x))));
    }
    Ok(axis)
}

/// Position in `x` of the element that each index names, in the order of the indices.
pub(super) fn positions(x: &[usize], indices: &[usize], axis: i64, list: &[i64]) -> Result<Vec<usize>, OpError> {
    let axis = check(&super::to_shape(x), &super::to_shape(indices), axis)?;
    let strides = shape::strides(x);
    let mut out = Vec::with_capacity(list.len());
    let mut wrong = None;
    shape::for_each_index(indices, |i| match index::resolve(list[out.len()], x[axis]) {
        Ok(n) => out.push(i.iter().enumerate().map(|(a, i)| if a == axis { n } else { *i } * strides[a]).sum()),
        Err(e) => {
            out.push(0);
            wrong.get_or_insert(e);
        }
    });
    wrong.map_or(Ok(out), Err)
}

impl Op for GatherElements {
    op_basics!(GatherElements);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, indices) = (cx.tensor(0)?, cx.tensor(1)?);
        index::check(indices)?;
        if let (Some(s), Some(i)) = (&x.shape, &indices.shape) {
            check(s, i, self.axis)?;
        }
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape: indices.shape.clone(), sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, indices) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let at = positions(x.dims(), indices.dims(), self.axis, &inputs.ints(1)?)?;
        let mut next = at.into_iter();
        Ok(vec![cells::pick(x, indices.dims(), |_| next.next().unwrap_or(0))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let p = |k| SbpSignature::new(&[Sbp::Partial(k), Sbp::Broadcast], &[Sbp::Partial(k)]);
        let mut out: Vec<_> = PartialKind::ALL.into_iter().map(p).collect();
        let shape = |i: usize| cx.tensor(i).ok()?.shape.as_ref();
        let (Some(x), Some(indices)) = (shape(0), shape(1)) else { return out };
        let Ok(axis) = check(x, indices, self.axis) else { return out };
        // Positions on the other axes count from the start of the tensor, so both must be cut alike.
        let alike = (0..x.len()).filter(|a| *a != axis && x[*a] == indices[*a]).filter_map(split);
        out.extend(alike.map(|s| SbpSignature::new(&[s, s], &[s])));
        out.extend(split(axis).map(|s| SbpSignature::new(&[Sbp::Broadcast, s], &[s])));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let (x, indices) = (cx.operands[0], cx.operands[1]);
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let zeros = super::zeros_like(cx.rw, x)?;
            let op = ScatterElements { axis: self.axis, reduction: "add".into() };
            Ok(vec![Some(cx.rw.create_one(op, &[zeros, indices, g])?), None])
        };
        Some(run())
    }
}
