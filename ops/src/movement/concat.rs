//! `of.concat`.

use of_diag::Diagnostic;
use of_ir::{Dim, OpError, OpView, PartialKind, Sbp, SbpSignature, Shape, TensorType, Type, ValueId};

use super::cells::Cells;
use super::{MAX_AXES, Split, split};
use crate::sample::Rng;
use crate::structural::ShapeOf;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Joins tensors along an axis; their other dimensions are equal.
    pub struct Concat = "of.concat" [Primitive, onnx: "Concat"] {
        operands: (xs*),
        results: (y),
        attrs: { axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let axis = r.int(0, rank as i64 - 1) as usize;
        let operands = (0..r.int(1, 3)).map(|_| {
            let mut own = dims.clone();
            own[axis] = r.int(0, 3) as usize;
            r.f32s(&own)
        });
        Some((operands.collect(), Concat { axis: axis as i64 - if seed.is_multiple_of(2) { rank as i64 } else { 0 } }))
    };
}

impl Concat {
    /// The common shape of tensors of one rank.
    fn join(&self, shapes: &[&Shape]) -> Result<Shape, OpError> {
        let Some(first) = shapes.first() else { return Err(OpError::shape("there is nothing to join")) };
        let axis = shape::axis(self.axis, first.len())?;
        let mut out = (*first).clone();
        for s in &shapes[1..] {
            if s.len() != out.len() {
                return Err(OpError::shape(format!(
                    "{} and {} have different ranks",
                    shape::show(first),
                    shape::show(s)
                )));
            }
            for (a, d) in s.iter().enumerate() {
                if a == axis {
                    out[a] = if d.is_unknown() || out[a].is_unknown() { Dim::unknown() } else { &out[a] + d };
                } else if out[a].provably_ne(d) {
                    let message = format!("{} and {} differ at axis {a}", shape::show(first), shape::show(s));
                    return Err(OpError::shape(message));
                } else if d.as_const().is_some() || out[a].is_unknown() {
                    out[a] = d.clone();
                }
            }
        }
        Ok(out)
    }
}

impl Op for Concat {
    op_basics!(Concat);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let types = (0..cx.operands.len()).map(|i| cx.tensor(i)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = types.first() else { return Err(OpError::shape("there is nothing to join")) };
        if let Some(t) = types.iter().find(|t| t.dtype != first.dtype) {
            return Err(OpError::ty(format!("operands have different element types {} and {}", first.dtype, t.dtype)));
        }
        // An operand of unknown rank has the rank of the others, and any length along the axis.
        let rank = types.iter().find_map(|t| t.rank());
        let shape = match rank {
            Some(rank) => {
                let unknown: Shape = vec![Dim::unknown(); rank];
                Some(self.join(&types.iter().map(|t| t.shape.as_ref().unwrap_or(&unknown)).collect::<Vec<_>>())?)
            }
            None => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: first.dtype, shape, sbp: None })])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let mut out = Vec::new();
        for i in 0..cx.operands.len() {
            if cx.tensor(i).ok()?.rank()? != 1 {
                return None;
            }
            out.extend(cx.dims(i)?);
            if out.len() > MAX_AXES {
                return None;
            }
        }
        Some(out)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let xs = (0..inputs.values.len()).map(|i| inputs.tensor(i)).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![Value::Tensor(concat(&xs, self.axis)?)])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let n = cx.operands.len();
        let all = |s: Sbp| SbpSignature::new(&vec![s; n], &[s]);
        let mut out: Vec<_> = PartialKind::ALL.into_iter().map(|k| all(Sbp::Partial(k))).collect();
        let Some(rank) = (0..n).find_map(|i| cx.tensor(i).ok()?.rank()) else { return out };
        let Ok(axis) = shape::axis(self.axis, rank) else { return out };
        out.extend((0..rank).filter(|a| *a != axis).filter_map(split).map(all));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let rank = cx.rw.graph().ty(g).as_tensor()?.rank()?;
        let axis = shape::axis(self.axis, rank).ok()? as i64;
        let operands = cx.operands;
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let mut lengths = Vec::new();
            for x in operands {
                lengths.push(cx.rw.create_one(ShapeOf { start: Some(axis), end: Some(axis + 1) }, &[*x])?);
            }
            let sizes = cx.rw.create_one(Concat { axis: 0 }, &lengths)?;
            let parts = cx.rw.create(Split { axis, num_outputs: operands.len() as i64 }, &[g, sizes])?;
            Ok(cx.rw.graph().op(parts).results.iter().map(|v| Some(*v)).collect())
        };
        Some(run())
    }
}

/// Tensors joined along an axis.
///
/// # Errors
/// When their shapes or element types do not fit.
pub(crate) fn concat(xs: &[&of_ir::Tensor], axis: i64) -> Result<of_ir::Tensor, OpError> {
    let shapes: Vec<Shape> = xs.iter().map(|x| super::to_shape(x.dims())).collect();
    let out = Concat { axis }.join(&shapes.iter().collect::<Vec<_>>())?;
    let dims: Vec<usize> = out.iter().filter_map(|d| usize::try_from(d.as_const()?).ok()).collect();
    let dtype = xs[0].dtype();
    if xs.iter().any(|x| x.dtype() != dtype) {
        return Err(OpError::eval("tensors of different element types cannot be joined"));
    }
    let axis = shape::axis(axis, dims.len())?;
    let sources: Vec<Cells<'_>> = xs.iter().map(|x| Cells::of(x)).collect();
    let n = shape::count(&dims)?;
    let mut cells = Cells::with_room(dtype, n)?;
    if n == 0 {
        return cells.into_tensor(dtype, dims);
    }
    for outer in 0..dims[..axis].iter().product() {
        for (x, source) in xs.iter().zip(&sources) {
            let run: usize = x.dims()[axis..].iter().product();
            cells.push(source, outer * run, run);
        }
    }
    cells.into_tensor(dtype, dims)
}
