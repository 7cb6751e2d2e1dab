//! `of.accumulate`.

use std::sync::Arc;

use of_ir::{OpError, OpView, PartialKind, Sbp, SbpSignature, TensorType, Type};

use crate::scalar::ScalarOp;
use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics, scalar_eval};

op! {
    /// The values of all microbatches, combined in their order: gradient accumulation.
    pub struct Accumulate = "of.accumulate" [Structural] {
        operands: (x),
        results: (y),
        attrs: {
            /// The number of microbatches.
            count: i64,
            /// How two values combine: `sum`, `max`, `min` or `prod`.
            kind: Arc<str>,
        },
    }
    samples: |_seed| None;
}

/// The kind of a name; `None` where there is none of that name.
pub fn partial_kind(name: &str) -> Option<PartialKind> {
    PartialKind::ALL.into_iter().find(|kind| kind.name() == name)
}

impl Accumulate {
    /// The combination of the values of all microbatches, in their order.
    ///
    /// # Errors
    /// When there are none, or they are no tensors of one type.
    pub(crate) fn combine(&self, values: &[Value]) -> Result<Value, OpError> {
        let scalar = match partial_kind(&self.kind) {
            Some(PartialKind::Sum) => ScalarOp::Add,
            Some(PartialKind::Max) => ScalarOp::Max,
            Some(PartialKind::Min) => ScalarOp::Min,
            Some(PartialKind::Prod) => ScalarOp::Mul,
            None => return Err(OpError::eval("it combines in no known way")),
        };
        let mut sum: Option<of_ir::Tensor> = None;
        for value in values {
            let Value::Tensor(term) = value else { return Err(OpError::eval("only tensors are accumulated")) };
            sum = Some(match sum {
                None => term.clone(),
                Some(sum) => scalar_eval::broadcast(scalar, &[&sum, term], sum.dims())?,
            });
        }
        Ok(sum.ok_or_else(|| OpError::eval("there is no microbatch"))?.into())
    }
}

impl Op for Accumulate {
    op_basics!(Accumulate);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if self.count < 1 {
            return Err(OpError::shape(format!("there are {} microbatches", self.count)));
        }
        if partial_kind(&self.kind).is_none() {
            return Err(OpError::ty(format!("'{}' is none of sum, max, min and prod", self.kind)));
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..cx.tensor(0)?.clone() })])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval("it reads a value of each microbatch"))
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let rank = cx.tensor(0).ok().and_then(TensorType::rank).unwrap_or(0);
        let splits = (0..rank).filter_map(|d| u8::try_from(d).ok().map(Sbp::Split));
        let partial = partial_kind(&self.kind).map(Sbp::Partial);
        splits.chain(partial).map(|s| SbpSignature::new(&[s], &[s])).collect()
    }
}
