//! `of.gather_nd`.

use of_diag::Diagnostic;
use of_ir::{
    DType, Elements, OpError, OpView, PartialKind, Sbp, SbpSignature, Shape, Tensor, TensorType, Type, ValueId,
};

use super::cells::Cells;
use super::spec::{Part, spec};
use super::{Concat, ScatterNd, index, split, zeros_like};
use crate::build::Build;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Slices of `x`: the last axis of `indices` names places in the axes of `x` after the first `batch_dims`, which both
    /// operands share.
    pub struct GatherNd = "of.gather_nd" [Primitive, onnx: "GatherND"] {
        operands: (x, indices),
        results: (y),
        attrs: { batch_dims: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 4) as usize;
        let dims = r.dims(rank, 1, 4);
        let batch = r.int(0, rank as i64 - 1) as usize;
        let named = r.int(1, (rank - batch) as i64) as usize;
        let places = [&dims[..batch], &[r.int(1, 3) as usize]].concat();
        let mut list = Vec::new();
        for _ in 0..places.iter().product() {
            list.extend(dims[batch..batch + named].iter().map(|d| i128::from(r.int(-(*d as i64), *d as i64 - 1))));
        }
        let indices = Tensor::from_elements(DType::I64, [places, vec![named]].concat(), Elements::Int(list)).ok()?;
        Some((vec![r.f32s(&dims), indices.into()], GatherNd { batch_dims: batch as i64 }))
    };
}

/// How many axes play which part.
struct Parts {
    batch: usize,
    /// Axes of the data that one index names.
    named: usize,
    /// Axes of the indices before the last.
    outer: usize,
    result: Shape,
}

impl GatherNd {
    fn parts(&self, x: &Shape, indices: &Shape) -> Result<Option<Parts>, OpError> {
        let batch = usize::try_from(self.batch_dims).unwrap_or(usize::MAX);
        let Some((last, outer)) = indices.split_last() else {
            return Err(OpError::shape("indices must have at least one axis"));
        };
        if batch > outer.len() || batch > x.len() {
            return Err(OpError::attr(format!("batch_dims is {}, the operands have fewer axes", self.batch_dims)));
        }
        if let Some(a) = (0..batch).find(|a| x[*a].provably_ne(&outer[*a])) {
            return Err(OpError::shape(format!(
                "batch axis {a} differs: {} and {}",
                shape::show(x),
                shape::show(indices)
            )));
        }
        match last.as_const().map(usize::try_from) {
            Some(Ok(named)) if named <= x.len() - batch => {
                let result = [outer, &x[batch + named..]].concat();
                Ok(Some(Parts { batch, named, outer: outer.len(), result }))
            }
            Some(_) => Err(OpError::shape(format!("indices of {last} numbers name no slice of {}", shape::show(x)))),
            None => Ok(None),
        }
    }
}

impl Op for GatherNd {
    op_basics!(GatherNd);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, indices) = (cx.tensor(0)?, cx.tensor(1)?);
        index::check(indices)?;
        let shape = match (&x.shape, &indices.shape) {
            (Some(s), Some(i)) => self.parts(s, i)?.map(|p| p.result),
            _ => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, indices) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let p = self.parts(&super::to_shape(x.dims()), &super::to_shape(indices.dims()))?;
        let p = p.ok_or_else(|| OpError::eval("the shape of the indices is not known"))?;
        let dims = [&indices.dims()[..p.outer], &x.dims()[p.batch + p.named..]].concat();
        let own = shape::strides(x.dims());
        let inner: usize = x.dims()[p.batch + p.named..].iter().product();
        let each: usize = indices.dims()[p.batch..p.outer].iter().product();
        let batch_size: usize = x.dims()[p.batch..].iter().product();
        let list = inputs.ints(1)?;
        let source = Cells::of(x);
        let count = shape::count(&dims)?;
        let mut out = Cells::with_room(x.dtype(), count)?;
        // Indices must be good also where slices are empty.
        for place in 0..indices.dims()[..p.outer].iter().product() {
            let mut at = place / each * batch_size;
            for k in 0..p.named {
                at += index::resolve(list[place * p.named + k], x.dims()[p.batch + k])? * own[p.batch + k];
            }
            out.push(&source, at, inner);
        }
        Ok(vec![out.into_tensor(x.dtype(), dims)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let partial = |k| SbpSignature::new(&[Sbp::Partial(k), Sbp::Broadcast], &[Sbp::Partial(k)]);
        let mut out: Vec<_> = PartialKind::ALL.into_iter().map(partial).collect();
        let shape = |i: usize| cx.tensor(i).ok()?.shape.as_ref();
        let (Some(x), Some(indices)) = (shape(0), shape(1)) else { return out };
        let Ok(Some(p)) = self.parts(x, indices) else { return out };
        let batch = (0..p.batch).filter_map(split).map(|s| SbpSignature::new(&[s, s], &[s]));
        let places = (p.batch..p.outer).filter_map(split).map(|s| SbpSignature::new(&[Sbp::Broadcast, s], &[s]));
        let whole = (p.batch + p.named..x.len()).filter_map(|a| {
            Some(SbpSignature::new(&[split(a)?, Sbp::Broadcast], &[split(a - p.batch - p.named + p.outer)?]))
        });
        out.extend(batch.chain(places).chain(whole));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let (x, indices) = (cx.operands[0], cx.operands[1]);
        let batch = usize::try_from(self.batch_dims).ok()?;
        let rank = cx.rw.graph().ty(indices).as_tensor().and_then(TensorType::rank)?;
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let indices = with_batch(&mut Build::new(cx.rw), indices, rank, batch)?;
            let zeros = zeros_like(cx.rw, x)?;
            Ok(vec![Some(cx.rw.create_one(ScatterNd { reduction: "add".into() }, &[zeros, indices, g])?), None])
        };
        Some(run())
    }
}

/// Indices of `rank` axes that name the first `batch` axes of the data too, each place its own.
fn with_batch(b: &mut Build<'_, '_>, indices: ValueId, rank: usize, batch: usize) -> Result<ValueId, Diagnostic> {
    if batch == 0 {
        return Ok(indices);
    }
    let indices = b.cast(indices, DType::I64)?;
    let dims: Vec<Part> = (0..rank - 1).map(Part::axis).chain([Part::number(1)]).collect();
    let dims = spec(b.rw, indices, &dims)?;
    let mut all = Vec::new();
    for a in 0..batch {
        let count = b.extent(indices, a)?;
        let own = b.numbers(count)?;
        let own = b.unsqueeze(own, &(1..rank - a).collect::<Vec<_>>())?;
        all.push(b.expand(own, dims)?);
    }
    all.push(indices);
    b.op(Concat { axis: rank as i64 - 1 }, &all)
}
