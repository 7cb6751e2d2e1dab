//! `of.reverse_sequence`.

use of_diag::Diagnostic;
use of_ir::{OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::{cells, split};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Reverses the first `lengths[b]` elements of the time axis of each sequence `b`; the others stay.
    pub struct ReverseSequence = "of.reverse_sequence" [Primitive, onnx: "ReverseSequence"] {
        operands: (x, lengths),
        results: (y),
        attrs: { batch_axis: i64, time_axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(2, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let batch = r.int(0, 1);
        let lengths: Vec<i64> = (0..dims[batch as usize]).map(|_| r.int(0, dims[1 - batch as usize] as i64)).collect();
        Some((vec![r.f32s(&dims), Tensor::from_i64s(&lengths).into()], ReverseSequence { batch_axis: batch, time_axis: 1 - batch }))
    };
}

impl ReverseSequence {
    /// The batch and the time axis.
    fn axes(&self, rank: usize) -> Result<(usize, usize), OpError> {
        let (batch, time) = (shape::axis(self.batch_axis, rank)?, shape::axis(self.time_axis, rank)?);
        if batch == time { Err(OpError::attr("the batch axis is the time axis")) } else { Ok((batch, time)) }
    }
}

impl Op for ReverseSequence {
    op_basics!(ReverseSequence);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, lengths) = (cx.tensor(0)?, cx.tensor(1)?);
        if !lengths.dtype.is_int() || lengths.rank().is_some_and(|r| r != 1) {
            return Err(OpError::ty("lengths must be an integer tensor of rank 1"));
        }
        if let (Some(s), Some(l)) = (&x.shape, &lengths.shape) {
            let (batch, _) = self.axes(s.len())?;
            if s[batch].provably_ne(&l[0]) {
                return Err(OpError::shape(format!("{} lengths are given for {} sequences", l[0], s[batch])));
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, lengths) = (inputs.tensor(0)?, inputs.ints(1)?);
        let (batch, time) = self.axes(x.dims().len())?;
        let limit = x.dims()[time];
        let lengths =
            lengths.iter().map(|l| usize::try_from(*l).ok().filter(|l| *l <= limit)).collect::<Option<Vec<_>>>();
        let lengths = lengths.filter(|l| l.len() == x.dims()[batch]);
        let lengths = lengths.ok_or_else(|| OpError::eval("lengths do not fit the sequences"))?;
        let own = shape::strides(x.dims());
        let at = |i: &[usize]| {
            let (t, n) = (i[time], lengths[i[batch]]);
            let from = if t < n { n - 1 - t } else { t };
            i.iter().enumerate().map(|(a, i)| if a == time { from } else { *i } * own[a]).sum()
        };
        Ok(vec![cells::pick(x, x.dims(), at)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let partial = |k| SbpSignature::new(&[Sbp::Partial(k), Sbp::Broadcast], &[Sbp::Partial(k)]);
        let mut out: Vec<_> = PartialKind::ALL.into_iter().map(partial).collect();
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return out };
        let Ok((batch, time)) = self.axes(rank) else { return out };
        for a in (0..rank).filter(|a| *a != time) {
            let Some(s) = split(a) else { continue };
            out.push(SbpSignature::new(&[s, if a == batch { Sbp::Split(0) } else { Sbp::Broadcast }], &[s]));
        }
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        // Reversing twice changes nothing.
        let g = cx.grads[0]?;
        let lengths = *cx.operands.get(1)?;
        Some(cx.rw.create_one(self.clone(), &[g, lengths]).map(|v| vec![Some(v), None]))
    }
}
