//! `of.scatter_elements`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{DType, OpError, OpView, PartialKind, Sbp, SbpSignature, TensorType, Type, ValueId};

use super::gather_elements::{check, positions};
use super::scatter_gradient::{ScatterPair, adds};
use super::{GatherElements, index, split};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Copies `x` and writes updates to indexed elements: `y[i, indices[i, j, k], k] = updates[i, j, k]` for axis 1.
    ///
    /// `reduction` (none, add, mul, max, min) combines an update with the element of `x`. With none, the result of two
    /// updates of one element is unspecified.
    pub struct ScatterElements = "of.scatter_elements" [Primitive, onnx: "ScatterElements" | "Scatter"] {
        operands: (x, indices, updates),
        results: (y),
        attrs: { axis: i64, reduction: Arc<str> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let axis = r.int(-(rank as i64), rank as i64 - 1);
        let a = shape::axis(axis, rank).ok()?;
        let mut own = dims.clone();
        own[a] = r.int(1, dims[a] as i64) as usize;
        // Different elements, so that the result does not depend on the order.
        let shift = r.int(0, dims[a] as i64 - 1) as usize;
        let mut list = Vec::new();
        shape::for_each_index(&own, |i| list.push(((i[a] + shift) % dims[a]) as i128));
        let indices = of_ir::Tensor::from_elements(DType::I64, own.clone(), of_ir::Elements::Int(list)).ok()?;
        let reduction = r.pick(&["none", "add", "mul", "max", "min"]).into();
        Some((vec![r.f32s(&dims), indices.into(), r.f32s(&own)], ScatterElements { axis, reduction }))
    };
}

impl Op for ScatterElements {
    op_basics!(ScatterElements);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, indices, updates) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        index::check(indices)?;
        index::Combine::named(&self.reduction)?;
        if x.dtype != updates.dtype {
            return Err(OpError::ty(format!("updates of type {} do not fit data of type {}", updates.dtype, x.dtype)));
        }
        if let (Some(s), Some(i)) = (&x.shape, &indices.shape) {
            check(s, i, self.axis)?;
            if let Some(u) = &updates.shape
                && (u.len() != i.len() || u.iter().zip(i).any(|(a, b)| a.provably_ne(b)))
            {
                return Err(OpError::shape(format!(
                    "updates of shape {} do not fit indices of shape {}",
                    shape::show(u),
                    shape::show(i)
                )));
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, indices, updates) = (inputs.tensor(0)?, inputs.tensor(1)?, inputs.tensor(2)?);
        if indices.dims() != updates.dims() {
            return Err(OpError::eval("indices and updates have different shapes"));
        }
        let to = positions(x.dims(), indices.dims(), self.axis, &inputs.ints(1)?)?;
        let writes: Vec<(usize, usize)> = to.into_iter().zip(0..).collect();
        Ok(vec![index::Combine::named(&self.reduction)?.scatter(x, updates, &writes)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let mut out = Vec::new();
        if matches!(&*self.reduction, "none" | "add") {
            let sum = Sbp::Partial(PartialKind::Sum);
            out.push(SbpSignature::new(&[sum, Sbp::Broadcast, sum], &[sum]));
        }
        let shape = |i: usize| cx.tensor(i).ok()?.shape.as_ref();
        let (Some(x), Some(indices)) = (shape(0), shape(1)) else { return out };
        let Ok(axis) = check(x, indices, self.axis) else { return out };
        let alike = (0..x.len()).filter(|a| *a != axis && x[*a] == indices[*a]).filter_map(split);
        out.extend(alike.map(|s| SbpSignature::new(&[s, s, s], &[s])));
        if &*self.reduction == "add" {
            out.extend(split(axis).into_iter().flat_map(|part| adds(cx, part)));
        }
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, [x, indices, updates], y) = (cx.grads[0]?, *cx.operands.first_chunk()?, cx.results[0]);
        let places = ScatterPair {
            scatter: &|rw, x, u, reduction| {
                rw.create_one(ScatterElements { axis: self.axis, reduction: reduction.into() }, &[x, indices, u])
            },
            gather: &|rw, v| rw.create_one(GatherElements { axis: self.axis }, &[v, indices]),
        };
        places.gradient(cx.rw, &self.reduction, g, [x, updates, y])
    }
}
