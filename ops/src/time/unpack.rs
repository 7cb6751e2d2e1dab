//! `of.unpack`.

use of_ir::{OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, TensorType, Type};

use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics};

op! {
    /// The slices of `x` along its first axis, one in each microbatch: microbatch `t` gets `x[t]`.
    pub struct Unpack = "of.unpack" [Structural] {
        operands: (x),
        results: (y),
        attrs: {},
    }
    samples: |_seed| None;
}

impl Op for Unpack {
    op_basics!(Unpack);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let count = t.shape.as_ref().and_then(|s| s.first()?.as_const()).filter(|n| *n > 0);
        if count.is_none() {
            return Err(OpError::shape("the number of microbatches, the first extent, must be a number above 0"));
        }
        let shape = t.shape.as_ref().map(|s| s.iter().skip(1).cloned().collect());
        Ok(vec![Type::Tensor(TensorType { shape, sbp: None, ..t.clone() })])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval("it has a value in each microbatch"))
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let rank = cx.tensor(0).ok().and_then(TensorType::rank).unwrap_or(0);
        let splits = (1..rank).filter_map(|d| u8::try_from(d).ok());
        let splits = splits.map(|d| SbpSignature::new(&[Sbp::Split(d)], &[Sbp::Split(d - 1)]));
        let partial = PartialKind::ALL.map(|k| SbpSignature::new(&[Sbp::Partial(k)], &[Sbp::Partial(k)]));
        splits.chain(partial).collect()
    }
}

/// The slices of a tensor along its first axis.
///
/// # Errors
/// When there are none, or their elements are smaller than a byte.
pub(crate) fn unpack(x: &Value) -> Result<Vec<Value>, OpError> {
    let Value::Tensor(x) = x else { return Err(OpError::eval("only tensors are cut into microbatches")) };
    let Some((count, rest)) = x.dims().split_first() else { return Err(OpError::eval("a scalar has no slices")) };
    let (Some(bytes), Some(8..), 1..) = (x.bytes(), x.dtype().bits(), *count) else {
        return Err(OpError::eval(
            "elements smaller than a byte, strings and empty tensors are not cut into microbatches",
        ));
    };
    let len = bytes.len() / count;
    let slice = |t: usize| {
        let part = bytes.slice(t * len..(t + 1) * len).ok_or_else(|| OpError::eval("the tensor is too short"))?;
        Ok(Tensor::from_bytes(x.dtype(), rest.to_vec(), part)?.into())
    };
    (0..*count).map(slice).collect()
}
