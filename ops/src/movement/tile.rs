//! `of.tile`.

use of_diag::Diagnostic;
use of_ir::{Dim, OpError, OpView, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::spec::{Part, spec};
use super::{MAX_AXES, cells, first_only, partials, split};
use crate::build::Build;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The tensor repeated along every axis as often as `repeats` says. Semantics of `numpy.tile` for equal ranks.
    pub struct Tile = "of.tile" [Primitive, onnx: "Tile"] {
        operands: (x, repeats),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let repeats: Vec<i64> = (0..rank).map(|_| r.int(1, 3)).collect();
        Some((vec![r.f32s(&dims), Tensor::from_i64s(&repeats).into()], Tile {}))
    };
}

fn check(repeats: usize, rank: usize) -> Result<(), OpError> {
    if repeats == rank {
        Ok(())
    } else {
        Err(OpError::shape(format!("{repeats} repeats are given for a tensor of rank {rank}")))
    }
}

impl Op for Tile {
    op_basics!(Tile);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, repeats) = (cx.tensor(0)?, cx.tensor(1)?);
        if !repeats.dtype.is_int() || repeats.rank().is_some_and(|r| r != 1) {
            return Err(OpError::ty("repeats must be an integer tensor of rank 1"));
        }
        let shape = match (&x.shape, cx.dims(1)) {
            (Some(s), Some(r)) => {
                check(r.len(), s.len())?;
                if r.iter().any(|n| n.as_const().is_some_and(|n| n < 0)) {
                    return Err(OpError::shape("a number of repeats is negative"));
                }
                Some(s.iter().zip(&r).map(|(d, n)| if d.is_unknown() { Dim::unknown() } else { d * n }).collect())
            }
            (Some(s), None) => Some(vec![Dim::unknown(); s.len()]),
            (None, Some(r)) => Some(vec![Dim::unknown(); r.len()]),
            (None, None) => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let x = cx.dims(0)?;
        match cx.ints(1)?.as_slice() {
            [] => Some(x),
            [n] => {
                let n = usize::try_from(*n).ok()?;
                let len = x.len().checked_mul(n).filter(|l| *l <= MAX_AXES)?;
                Some(x.iter().cycle().take(len).cloned().collect())
            }
            _ => None,
        }
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, repeats) = (inputs.tensor(0)?, inputs.ints(1)?);
        check(repeats.len(), x.dims().len())?;
        let dims = x.dims().iter().zip(&repeats).map(|(d, n)| d.checked_mul(usize::try_from(*n).ok()?));
        let dims = dims
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| OpError::eval(format!("repeats {repeats:?} are out of range")))?;
        let own = shape::strides(x.dims());
        Ok(vec![cells::pick(x, &dims, |i| i.iter().zip(x.dims()).zip(&own).map(|((i, d), s)| i % d * s).sum())?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let mut out = partials(2);
        let Some(repeats) = cx.ints(1) else { return out };
        let once = repeats.iter().enumerate().filter(|(_, n)| **n == 1);
        out.extend(once.filter_map(|(a, _)| Some(first_only(2, split(a)?, split(a)?))));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let x = cx.operands[0];
        let rank = cx.rw.graph().ty(x).as_tensor()?.rank()?;
        let repeats: Vec<i64> =
            cx.rw.graph().dims_value(cx.operands[1])?.iter().map(Dim::as_const).collect::<Option<_>>()?;
        if repeats.len() != rank {
            return None;
        }
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            // The repeats become axes of their own, which are summed.
            let both = repeats.iter().enumerate().flat_map(|(a, n)| [Part::number(*n), Part::axis(a)]);
            let dims = spec(cx.rw, x, &both.collect::<Vec<_>>())?;
            let apart = cx.rw.create_one(super::Reshape { allowzero: true }, &[g, dims])?;
            let axes: Vec<usize> = (0..rank).map(|a| 2 * a).collect();
            let sum = if rank == 0 { g } else { Build::new(cx.rw).sum(apart, &axes, false)? };
            Ok(vec![Some(sum), None])
        };
        Some(run())
    }
}
