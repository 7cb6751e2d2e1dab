//! `of.trilu`.

use of_diag::Diagnostic;
use of_ir::{OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::cells::Cells;
use super::{first_only, split};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The upper or lower triangle of the matrices in the last two axes, zero elsewhere. Diagonal `k` (0 without it, the
    /// main one) belongs to the triangle; positive ones are above the main one.
    pub struct Trilu = "of.trilu" [Primitive, onnx: "Trilu"] {
        operands: (x, k?),
        results: (y),
        attrs: { upper: bool },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(2, 4) as usize;
        let dims = r.dims(rank, 1, 4);
        Some((vec![r.f32s(&dims), Tensor::scalar(r.int(-3, 3)).into()], Trilu { upper: r.int(0, 1) == 0 }))
    };
}

impl Op for Trilu {
    op_basics!(Trilu);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if x.rank().is_some_and(|r| r < 2) {
            return Err(OpError::shape("a triangle needs at least two axes"));
        }
        if let Some(k) = cx.ty(1).and_then(Type::as_tensor)
            && !k.dtype.is_int()
        {
            return Err(OpError::ty("k must be an integer"));
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let k = match inputs.opt_tensor(1) {
            Some(_) => *inputs.ints(1)?.first().ok_or_else(|| OpError::eval("k is empty"))?,
            None => 0,
        };
        let [.., _, _] = x.dims() else { return Err(OpError::eval("a triangle needs at least two axes")) };
        let (source, zero) = (Cells::of(x), Cells::zeros(x.dtype(), 1)?);
        let mut out = Cells::with_room(x.dtype(), x.len())?;
        let mut at = 0;
        shape::for_each_index(x.dims(), |i| {
            let (row, column) = (i[i.len() - 2] as i64, i[i.len() - 1] as i64);
            let inside = if self.upper { column - row >= k } else { column - row <= k };
            if inside {
                out.push(&source, at, 1)
            } else {
                out.push(&zero, 0, 1)
            }
            at += 1;
        });
        Ok(vec![out.into_tensor(x.dtype(), x.dims().to_vec())?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let n = cx.operands.len();
        let sum = Sbp::Partial(PartialKind::Sum);
        let mut out = vec![first_only(n, sum, sum)];
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return out };
        out.extend((0..rank.saturating_sub(2)).filter_map(|a| Some(first_only(n, split(a)?, split(a)?))));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let mut operands = cx.operands.to_vec();
        *operands.first_mut()? = g;
        let mut out = vec![None; operands.len()];
        Some(cx.rw.create_one(self.clone(), &operands).map(|v| {
            out[0] = Some(v);
            out
        }))
    }
}
