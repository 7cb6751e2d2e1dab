//! `of.gather`.

use of_diag::Diagnostic;
use of_ir::{Dim, OpView, Rewriter, Sbp, SbpSignature, TensorType, Type, ValueId};

use super::cells::Cells;
use super::spec::{Part, spec};
use super::{MAX_AXES, Transpose, index, ints, partials, split};
use crate::sample::Rng;
use crate::structural::Constant;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The slices of an axis that `indices` name, which count from the end where negative:
    /// `y[.., i.., ..] = x[.., indices[i..], ..]`. Semantics of `numpy.take`.
    pub struct Gather = "of.gather" [Primitive, onnx: "Gather"] {
        operands: (x, indices),
        results: (y),
        attrs: { axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let axis = r.int(-(rank as i64), rank as i64 - 1);
        let n = dims[shape::axis(axis, rank).ok()?] as f64;
        let rank = r.int(0, 2) as usize;
        let own = r.dims(rank, 1, 3);
        let indices = r.tensor(of_ir::DType::I64, &own, -n, n);
        Some((vec![r.f32s(&dims), indices.into()], Gather { axis }))
    };
}

impl Op for Gather {
    op_basics!(Gather);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, indices) = (cx.tensor(0)?, cx.tensor(1)?);
        index::check(indices)?;
        let shape = match (&x.shape, &indices.shape) {
            (Some(s), Some(i)) => {
                let axis = shape::axis(self.axis, s.len())?;
                Some([&s[..axis], i, &s[axis + 1..]].concat())
            }
            _ => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        if cx.tensor(0).ok()?.rank()? != 1 || cx.tensor(1).ok()?.rank()? > 1 {
            return None;
        }
        let (x, list) = (cx.dims(0)?, cx.ints(1)?);
        if list.len() > MAX_AXES {
            return None;
        }
        list.iter().map(|i| Some(x[index::resolve(*i, x.len()).ok()?].clone())).collect()
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, indices) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let axis = shape::axis(self.axis, x.dims().len())?;
        let n = x.dims()[axis];
        let list = inputs.ints(1)?.into_iter().map(|i| index::resolve(i, n)).collect::<Result<Vec<_>, _>>()?;
        let dims = [&x.dims()[..axis], indices.dims(), &x.dims()[axis + 1..]].concat();
        let source = Cells::of(x);
        let count = shape::count(&dims)?;
        let mut out = Cells::with_room(x.dtype(), count)?;
        if count == 0 {
            return Ok(vec![out.into_tensor(x.dtype(), dims)?.into()]);
        }
        let inner: usize = x.dims()[axis + 1..].iter().product();
        for outer in 0..x.dims()[..axis].iter().product() {
            list.iter().for_each(|i| out.push(&source, (outer * n + i) * inner, inner));
        }
        Ok(vec![out.into_tensor(x.dtype(), dims)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let mut out = partials(2);
        let rank = |i: usize| cx.tensor(i).ok().and_then(TensorType::rank);
        let (Some(x), Some(indices)) = (rank(0), rank(1)) else { return out };
        let Ok(axis) = shape::axis(self.axis, x) else { return out };
        let mut add = |a, b, y| {
            if let Some(y) = split(y) {
                out.push(SbpSignature::new(&[a, b], &[y]));
            }
        };
        for a in (0..x).filter(|a| *a != axis) {
            if let Some(s) = split(a) {
                add(s, Sbp::Broadcast, if a < axis { a } else { a + indices - 1 });
            }
        }
        for i in 0..indices {
            if let Some(s) = split(i) {
                add(Sbp::Broadcast, s, axis + i);
            }
        }
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let (x, indices) = (cx.operands[0], cx.operands[1]);
        let rank = |v: ValueId| cx.rw.graph().ty(v).as_tensor().and_then(TensorType::rank);
        let axis = shape::axis(self.axis, rank(x)?).ok()?;
        let back = scatter_axis(cx.rw, g, indices, rank(indices)?, axis, Extent::Of(x));
        Some(back.map(|v| vec![Some(v), None]))
    }
}

/// How long an axis is to be.
pub(super) enum Extent {
    Fixed(usize),
    /// As long as the same axis of this value.
    Of(ValueId),
}

/// Adds the slices `g[.., i.., ..]` up at `indices[i..]` of an axis: the gradient of a gather.
pub(super) fn scatter_axis(
    rw: &mut Rewriter<'_>,
    g: ValueId,
    indices: ValueId,
    index_rank: usize,
    axis: usize,
    extent: Extent,
) -> Result<ValueId, Diagnostic> {
    let rank = rw.graph().ty(g).as_tensor().and_then(TensorType::rank).unwrap_or(0);
    let dtype = rw.graph().ty(g).as_tensor().map_or(of_ir::DType::F32, |t| t.dtype);
    // The indexed axes come first, as `scatter_nd` has them.
    let others: Vec<usize> = (0..axis).chain(axis + index_rank..rank).collect();
    let perm: Vec<i64> = (axis..axis + index_rank).chain(others.iter().copied()).map(|a| a as i64).collect();
    let updates = rw.create_one(Transpose { perm: Some(perm) }, &[g])?;
    let first = match extent {
        Extent::Fixed(n) => ints(rw, &[n as i64])?,
        Extent::Of(x) => spec(rw, x, &[Part::axis(axis)])?,
    };
    let rest: Vec<Part> = others.into_iter().map(Part::axis).collect();
    let rest = spec(rw, g, &rest)?;
    let dims = rw.create_one(super::Concat { axis: 0 }, &[first, rest])?;
    let zero = Constant::number(rw, 0.0, dtype)?;
    let zeros = rw.create_one(super::Expand {}, &[zero, dims])?;
    let last = ints(rw, &[-1])?;
    let indices = rw.create_one(super::Unsqueeze {}, &[indices, last])?;
    let sum = rw.create_one(super::ScatterNd { reduction: "add".into() }, &[zeros, indices, updates])?;
    // The axis returns to its place.
    let back: Vec<i64> = (1..=axis).chain([0]).chain(axis + 1..rank - index_rank + 1).map(|a| a as i64).collect();
    rw.create_one(Transpose { perm: Some(back) }, &[sum])
}

#[cfg(test)]
mod tests {
    use of_ir::Tensor;

    use super::*;

    #[test]
    fn indices_out_of_range_are_refused() {
        for i in [3, -4] {
            let values = [Tensor::from_i64s(&[1, 2, 3]).into(), Tensor::from_i64s(&[i]).into()];
            let mut inputs = Inputs { values: &values, types: &[], region: &mut |_, _| Ok(vec![]) };
            let e = Gather { axis: 0 }.eval(&mut inputs).unwrap_err();
            assert!(e.message.contains("outside"), "{}", e.message);
        }
    }
}
