//! `of.expand`.

use std::iter;

use of_diag::Diagnostic;
use of_ir::{Dim, OpError, OpView, Sbp, SbpSignature, Shape, Tensor, TensorType, Type, ValueId};

use super::{MAX_AXES, cells, first_only, partials, split, to_shape};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Stretches axes of length 1 and adds leading axes, so that the result has the common broadcast shape of the
    /// operand and `shape`. The dimensions are global: who shards the op gives it local ones.
    pub struct Expand = "of.expand" [Primitive, onnx: "Expand"] {
        operands: (x, shape),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 4) as usize;
        let to = r.dims(rank, 1, 5);
        let keep = r.int(0, rank as i64) as usize;
        let own: Vec<usize> = to[rank - keep..].iter().map(|d| if r.int(0, 1) == 0 { 1 } else { *d }).collect();
        let to: Vec<i64> = to.iter().map(|d| *d as i64).collect();
        Some((vec![r.f32s(&own), Tensor::from_i64s(&to).into()], Expand {}))
    };
}

fn resolve(x: &Shape, spec: &[Dim]) -> Result<Shape, OpError> {
    if let Some(d) = spec.iter().find(|d| d.as_const().is_some_and(|c| c < 0)) {
        return Err(OpError::shape(format!("a dimension to expand to is {d}")));
    }
    shape::broadcast(&[x, &spec.to_vec()])
}

impl Op for Expand {
    op_basics!(Expand);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, spec) = (cx.tensor(0)?, cx.tensor(1)?);
        if !spec.dtype.is_int() || spec.rank().is_some_and(|r| r != 1) {
            return Err(OpError::ty("the shape must be an integer tensor of rank 1"));
        }
        let spec_len = spec.fixed_dims().and_then(|d| d.first().copied());
        if spec_len.is_some_and(|n| n > MAX_AXES) {
            return Err(OpError::shape("a tensor cannot have so many axes"));
        }
        let shape = match (&x.shape, cx.dims(1), spec_len) {
            (Some(s), Some(to), _) => Some(resolve(s, &to)?),
            (Some(s), None, Some(n)) => {
                let rank = n.max(s.len());
                // An axis of a length other than 1 keeps it; the requested length must be equal or 1.
                let keeps = |d: &Dim| d.as_const().is_some_and(|c| c != 1);
                let own =
                    |i: usize| s.get((i + s.len()).checked_sub(rank)?).filter(|d| keeps(d) || i + n < rank).cloned();
                Some((0..rank).map(|i| own(i).unwrap_or_else(Dim::unknown)).collect())
            }
            _ => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let (x, to) = (cx.dims(0)?, cx.dims(1)?);
        match (x.as_slice(), to.as_slice()) {
            (_, []) => Some(x),
            ([one], [n]) => match usize::try_from(n.as_const()?) {
                Ok(n) if n <= MAX_AXES => Some(vec![one.clone(); n]),
                _ => None,
            },
            (x, [n]) if n.as_const() == Some(1) || n.as_const() == Some(x.len() as i64) => Some(x.to_vec()),
            _ => None,
        }
    }

    fn shape_operand(&self) -> Option<usize> {
        Some(1)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, to) = (inputs.tensor(0)?, inputs.ints(1)?);
        let out = resolve(&to_shape(x.dims()), &to.into_iter().map(Dim::from).collect::<Vec<_>>())?;
        let dims: Vec<usize> = out.iter().filter_map(|d| usize::try_from(d.as_const()?).ok()).collect();
        let (own, lead) = (shape::strides(x.dims()), dims.len() - x.dims().len());
        let own = x.dims().iter().zip(own).map(|(d, s)| if *d == 1 { 0 } else { s as isize });
        let steps: Vec<isize> = iter::repeat_n(0, lead).chain(own).collect();
        Ok(vec![cells::stride(x, &dims, 0, &steps)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let mut out = partials(2);
        let (Ok(x), Some(to)) = (cx.tensor(0), cx.dims(1)) else { return out };
        let Some(from) = &x.shape else { return out };
        let Ok(to) = resolve(from, &to) else { return out };
        let lead = to.len() - from.len();
        for (i, d) in to.iter().enumerate() {
            let Some(result) = split(i) else { continue };
            match i.checked_sub(lead) {
                _ if d.as_const() == Some(1) => {}
                Some(j) if from[j] == *d => out.extend(split(j).map(|s| first_only(2, s, result))),
                // Every device broadcasts to its own part.
                Some(j) if from[j].as_const() == Some(1) => out.push(first_only(2, Sbp::Broadcast, result)),
                Some(_) => {}
                None => out.push(first_only(2, Sbp::Broadcast, result)),
            }
        }
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        Some(cx.unbroadcast(g, cx.operands[0]).map(|v| vec![Some(v), None]))
    }
}
