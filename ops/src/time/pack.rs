//! `of.pack`.

use of_ir::{Blob, Dim, OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, TensorType, Type};

use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics};

op! {
    /// The values of all microbatches, stacked along a new first axis: the inverse of `of.unpack`.
    pub struct Pack = "of.pack" [Structural] {
        operands: (x),
        results: (y),
        attrs: {
            /// The number of microbatches.
            count: i64,
        },
    }
    samples: |_seed| None;
}

impl Op for Pack {
    op_basics!(Pack);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        if self.count < 1 {
            return Err(OpError::shape(format!("there are {} microbatches", self.count)));
        }
        let stack = |s: &Vec<Dim>| std::iter::once(Dim::from(self.count)).chain(s.iter().cloned()).collect();
        let shape = t.shape.as_ref().map(|s| stack(&s.to_vec()));
        Ok(vec![Type::Tensor(TensorType { shape, sbp: None, ..t.clone() })])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval("it reads a value of each microbatch"))
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let rank = cx.tensor(0).ok().and_then(TensorType::rank).unwrap_or(0);
        let splits = (0..rank).filter_map(|d| u8::try_from(d).ok()).filter(|d| *d < u8::MAX);
        let splits = splits.map(|d| SbpSignature::new(&[Sbp::Split(d)], &[Sbp::Split(d + 1)]));
        let partial = PartialKind::ALL.map(|k| SbpSignature::new(&[Sbp::Partial(k)], &[Sbp::Partial(k)]));
        splits.chain(partial).collect()
    }
}

/// Tensors of one type, stacked along a new first axis.
///
/// # Errors
/// When there are none, or their elements are smaller than a byte.
pub(crate) fn pack(values: &[Value]) -> Result<Value, OpError> {
    let mut all = Vec::new();
    let mut ty = None;
    for value in values {
        let Value::Tensor(t) = value else { return Err(OpError::eval("only tensors are stacked")) };
        let (Some(bytes), Some(8..)) = (t.bytes(), t.dtype().bits()) else {
            return Err(OpError::eval("strings and elements smaller than a byte are not stacked"));
        };
        all.extend_from_slice(bytes);
        ty.get_or_insert((t.dtype(), t.dims()));
    }
    let (dtype, dims) = ty.ok_or_else(|| OpError::eval("there is no microbatch"))?;
    let dims = std::iter::once(values.len()).chain(dims.iter().copied()).collect::<Vec<_>>();
    Ok(Tensor::from_bytes(dtype, dims, Blob::new(all))?.into())
}
