//! `of.scatter_nd`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{DType, OpError, OpView, Sbp, SbpSignature, Shape, TensorType, Type, ValueId};

use super::scatter_gradient::{ScatterPair, adds};
use super::{GatherNd, index, split};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Copies `x` and writes updates to indexed slices: `y[indices[i, j], ..] = updates[i, j, ..]`.
    ///
    /// The last axis of `indices` indexes the leading axes of `x`. `reduction` (none, add, mul, max, min) combines a slice
    /// with that of `x`. With none, the result of two updates of one slice is unspecified.
    pub struct ScatterNd = "of.scatter_nd" [Primitive, onnx: "ScatterND"] {
        operands: (x, indices, updates),
        results: (y),
        attrs: { reduction: Arc<str> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 2, 4);
        let named = r.int(1, rank as i64) as usize;
        let n = r.int(1, 3) as usize;
        let mut indices = Vec::new();
        // Different places, so that the result does not depend on the order.
        for i in 0..n.min(dims[0]) {
            indices.push(i as i128);
            dims[1..named].iter().for_each(|d| indices.push(i128::from(r.int(-(*d as i64), *d as i64 - 1))));
        }
        let n = n.min(dims[0]);
        let updates = [&[n], &dims[named..]].concat();
        let indices = of_ir::Tensor::from_elements(DType::I64, vec![n, named], of_ir::Elements::Int(indices)).ok()?;
        let reduction = r.pick(&["none", "add", "mul", "max", "min"]).into();
        Some((vec![r.f32s(&dims), indices.into(), r.f32s(&updates)], ScatterNd { reduction }))
    };
}

/// Axes of the data that one index names, and axes of the indices that count the slices.
fn parts(x: &Shape, indices: &Shape) -> Result<Option<(usize, usize)>, OpError> {
    let Some(last) = indices.last() else { return Err(OpError::shape("indices must have at least one axis")) };
    match last.as_const().map(usize::try_from) {
        Some(Ok(named)) if named <= x.len() => Ok(Some((named, indices.len() - 1))),
        Some(_) => Err(OpError::shape(format!("indices of {last} numbers name no slice of {}", shape::show(x)))),
        None => Ok(None),
    }
}

impl Op for ScatterNd {
    op_basics!(ScatterNd);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, indices, updates) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        index::check(indices)?;
        index::Combine::named(&self.reduction)?;
        if x.dtype != updates.dtype {
            return Err(OpError::ty(format!("updates of type {} do not fit data of type {}", updates.dtype, x.dtype)));
        }
        if let (Some(s), Some(i)) = (&x.shape, &indices.shape)
            && let Some((named, outer)) = parts(s, i)?
            && let Some(u) = &updates.shape
        {
            let expected = [&i[..outer], &s[named..]].concat();
            if u.len() != expected.len() || u.iter().zip(&expected).any(|(a, b)| a.provably_ne(b)) {
                let message =
                    format!("updates of shape {} are given, {} are needed", shape::show(u), shape::show(&expected));
                return Err(OpError::shape(message));
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, indices, updates) = (inputs.tensor(0)?, inputs.tensor(1)?, inputs.tensor(2)?);
        let (s, i) = (super::to_shape(x.dims()), super::to_shape(indices.dims()));
        let (named, outer) = parts(&s, &i)?.ok_or_else(|| OpError::eval("the shape of the indices is not known"))?;
        if updates.dims() != [&indices.dims()[..outer], &x.dims()[named..]].concat() {
            return Err(OpError::eval(format!("updates of shape {:?} do not fit", updates.dims())));
        }
        let own = shape::strides(x.dims());
        let inner: usize = x.dims()[named..].iter().product();
        let list = inputs.ints(1)?;
        let slices: usize = indices.dims()[..outer].iter().product();
        let mut writes = Vec::new();
        for slice in 0..slices {
            let mut to = 0;
            for a in 0..named {
                to += index::resolve(list[slice * named + a], x.dims()[a])? * own[a];
            }
            writes.extend((0..inner).map(|k| (to + k, slice * inner + k)));
        }
        Ok(vec![index::Combine::named(&self.reduction)?.scatter(x, updates, &writes)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let shape = |i: usize| cx.tensor(i).ok()?.shape.as_ref();
        let (Some(x), Some(indices)) = (shape(0), shape(1)) else { return Vec::new() };
        let Ok(Some((named, outer))) = parts(x, indices) else { return Vec::new() };
        // Axes that no index names are independent of each other.
        let whole = (named..x.len()).filter_map(|a| {
            Some(SbpSignature::new(&[split(a)?, Sbp::Broadcast, split(a - named + outer)?], &[split(a)?]))
        });
        let mut out: Vec<_> = whole.collect();
        if matches!(&*self.reduction, "add" | "none") {
            let sum = Sbp::Partial(of_ir::PartialKind::Sum);
            out.push(SbpSignature::new(&[sum, Sbp::Broadcast, sum], &[sum]));
        }
        if &*self.reduction == "add" {
            out.extend((0..outer).filter_map(split).flat_map(|part| adds(cx, part)));
        }
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, [x, indices, updates], y) = (cx.grads[0]?, *cx.operands.first_chunk()?, cx.results[0]);
        let places = ScatterPair {
            scatter: &|rw, x, u, reduction| rw.create_one(ScatterNd { reduction: reduction.into() }, &[x, indices, u]),
            gather: &|rw, v| rw.create_one(GatherNd { batch_dims: 0 }, &[v, indices]),
        };
        places.gradient(cx.rw, &self.reduction, g, [x, updates, y])
    }
}
