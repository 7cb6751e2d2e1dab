//! `of.one_hot`.

use of_diag::Diagnostic;
use of_ir::{Dim, Elements, OpError, OpView, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::cells::Cells;
use super::{Concat, split};
use crate::build::{Build, diagnostic};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// A new axis of length `depth` that is `values[1]` at the place an index names and `values[0]` elsewhere. Negative
    /// indices count from the end; one out of range names no place.
    pub struct OneHot = "of.one_hot" [Primitive, onnx: "OneHot"] {
        operands: (indices, depth, values),
        results: (y),
        attrs: { axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(0, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let depth = r.int(1, 5);
        let indices = r.tensor(of_ir::DType::I64, &dims, -6.0, 6.0);
        let axis = r.int(-(rank as i64) - 1, rank as i64);
        Some((vec![indices.into(), Tensor::scalar(depth).into(), r.f32s(&[2])], OneHot { axis }))
    };
}

/// The one number of a tensor of any number type.
fn scalar(t: &Tensor) -> Option<i64> {
    match t.to_f64s()?.as_slice() {
        [x] if x.is_finite() => Some(*x as i64),
        _ => None,
    }
}

impl Op for OneHot {
    op_basics!(OneHot);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (indices, depth, values) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        if ![indices, depth].iter().all(|t| t.dtype.is_int() || t.dtype.is_float()) {
            return Err(OpError::ty("indices and depth must be numbers"));
        }
        let Some(s) = &indices.shape else { return Ok(vec![Type::Tensor(TensorType::unranked(values.dtype))]) };
        let known = cx.constant(1).as_ref().and_then(scalar).map(Dim::from);
        let n = known.or_else(|| cx.dims(1)?.into_iter().next()).unwrap_or_else(Dim::unknown);
        if n.as_const().is_some_and(|n| n < 0) {
            return Err(OpError::shape(format!("depth is {n}")));
        }
        let mut out = s.clone();
        out.insert(shape::axis(self.axis, s.len() + 1)?, n);
        Ok(vec![Type::tensor(values.dtype, out)])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (indices, values) = (inputs.tensor(0)?, inputs.tensor(2)?);
        let depth = scalar(inputs.tensor(1)?).and_then(|d| usize::try_from(d).ok());
        let depth = depth.ok_or_else(|| OpError::eval("depth must be one number that is not negative"))?;
        if values.len() != 2 {
            return Err(OpError::eval("values must be two: off and on"));
        }
        let list = indices.to_f64s().ok_or_else(|| OpError::eval("indices must be numbers"))?;
        let mut dims = indices.dims().to_vec();
        let axis = shape::axis(self.axis, dims.len() + 1)?;
        dims.insert(axis, depth);
        let mut out = Cells::with_room(values.dtype(), shape::count(&dims)?)?;
        let (source, inner) = (Cells::of(values), indices.dims()[axis..].iter().product::<usize>());
        shape::for_each_index(&[indices.dims()[..axis].iter().product(), depth, inner], |i| {
            let index = list[i[0] * inner + i[2]];
            let on = index == i[1] as f64 || index == i[1] as f64 - depth as f64;
            out.push(&source, usize::from(on), 1);
        });
        Ok(vec![out.into_tensor(values.dtype(), dims)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return Vec::new() };
        let Ok(axis) = shape::axis(self.axis, rank + 1) else { return Vec::new() };
        let one = |a: usize| {
            Some(SbpSignature::new(
                &[split(a)?, Sbp::Broadcast, Sbp::Broadcast],
                &[split(if a < axis { a } else { a + 1 })?],
            ))
        };
        (0..rank).filter_map(one).collect()
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, operands) = (cx.grads[0]?, cx.operands);
        let rank = cx.rw.graph().ty(g).as_tensor()?.rank()?;
        let mut b = Build::new(cx.rw);
        // values[1] is where the ones are, values[0] everywhere else.
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let unit = Tensor::from_elements(b.dtype(g), vec![2], Elements::Float(vec![0.0, 1.0]));
            let unit = b.constant(unit.map_err(|e| diagnostic(e.into()))?)?;
            let ones = b.op(self.clone(), &[operands[0], operands[1], unit])?;
            let chosen = b.mul(g, ones)?;
            let axes: Vec<usize> = (0..rank).collect();
            let (all, on) = (b.sum(g, &axes, false)?, b.sum(chosen, &axes, false)?);
            let off = b.sub(all, on)?;
            let [off, on] = [off, on].map(|v| b.reshape(v, &[1]));
            Ok(vec![None, None, Some(b.op(Concat { axis: 0 }, &[off?, on?])?)])
        };
        Some(run())
    }
}
