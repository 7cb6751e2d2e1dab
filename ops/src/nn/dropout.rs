//! `of.dropout`.

use of_diag::Diagnostic;
use of_ir::{DType, OpError, OpView, Rewriter, Tensor, TensorType, Type, ValueId};

use crate::build::{Build, diagnostic};
use crate::elementwise::{Ge, Not, Or, Reciprocal, Select};
use crate::random::RandomUniform;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// Dropout: in training `y = x / (1 - ratio)` where `mask` holds and 0 elsewhere, `y = x` otherwise.
    ///
    /// The mask holds where a number of `of.random_uniform` in `0..1` is not below the ratio, and everywhere when not
    /// in training. The ratio is 0.5 and there is no training where nothing is said. Source: ONNX Dropout.
    pub struct Dropout = "of.dropout" [Composite, onnx: "Dropout"] {
        operands: (x, ratio?, training?),
        results: (y, mask?),
        attrs: {
            /// Whether there is a second result.
            return_mask: bool,
            /// Of the random numbers.
            seed: i64,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        let mut operands = vec![r.f32s(&dims)];
        if r.int(0, 2) > 0 {
            let ratio = r.tensor(DType::F32, &[], 0.0, 1.0);
            let training = r.tensor(DType::Bool, &[], 0.0, 2.0);
            operands.extend([ratio.into(), training.into()]);
        }
        Some((operands, Dropout { return_mask: r.int(0, 1) == 0, seed: r.int(0, 9) }))
    };
}

impl Op for Dropout {
    op_basics!(Dropout);

    fn is_random(&self, cx: &OpView<'_>) -> bool {
        cx.operand(2).is_some()
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = TensorType { sbp: None, ..cx.tensor(0)?.clone() };
        if !x.dtype.is_float() {
            return Err(OpError::ty(format!("the input must be floating-point, it is {}", x.dtype)));
        }
        if cx.operand(1).is_some() && !cx.tensor(1)?.dtype.is_float() {
            return Err(OpError::ty("the ratio must be floating-point"));
        }
        if cx.operand(2).is_some() && cx.tensor(2)?.dtype != DType::Bool {
            return Err(OpError::ty("whether it trains must be bool"));
        }
        let one = |i: usize| {
            let dims = cx.ty(i).and_then(Type::as_tensor).and_then(TensorType::fixed_dims);
            dims.is_none_or(|d| d.iter().all(|n| *n == 1))
        };
        if !one(1) || !one(2) {
            return Err(OpError::shape("ratio and training must be one element each"));
        }
        let mask = self.return_mask.then(|| Type::Tensor(x.with_dtype(DType::Bool)));
        Ok(std::iter::once(Type::Tensor(x)).chain(mask).collect())
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let x = operands[0];
        let (y, mask) = match training(b, operands) {
            None => (x, None),
            Some(training) => {
                let (y, mask) = self.train(b, x, b.given(operands, 1), training)?;
                (y, Some(mask))
            }
        };
        if !self.return_mask {
            return Ok(vec![y]);
        }
        let mask = match mask {
            Some(mask) => mask,
            None => {
                let kept = Tensor::from_elements(DType::Bool, vec![], of_ir::Elements::Int(vec![1]));
                let kept = b.constant(kept.map_err(|e| diagnostic(e.into()))?)?;
                let dims = b.shape_of(x)?;
                b.expand(kept, dims)?
            }
        };
        Ok(vec![y, mask])
    }
}

/// The operand that says whether it trains; `None` where it is known that nothing is dropped.
fn training(b: &Build<'_, '_>, operands: &[ValueId]) -> Option<ValueId> {
    let training = b.given(operands, 2)?;
    let known = |v: ValueId| b.rw.graph().constant(v)?.to_f64s()?.first().copied();
    let keeps_all = known(training) == Some(0.0) || b.given(operands, 1).and_then(known) == Some(0.0);
    (!keeps_all).then_some(training)
}

impl Dropout {
    /// Result and mask of an op that may train.
    fn train(
        &self,
        b: &mut Build<'_, '_>,
        x: ValueId,
        ratio: Option<ValueId>,
        training: ValueId,
    ) -> Result<(ValueId, ValueId), Diagnostic> {
        let dims = b.shape_of(x)?;
        let training = b.reshape(training, &[])?;
        let ratio = match ratio {
            Some(ratio) => {
                let ratio = b.cast(ratio, DType::F64)?;
                b.reshape(ratio, &[])?
            }
            None => b.constant(Tensor::scalar(0.5f64))?,
        };
        let drawn = RandomUniform { dtype: DType::F64, low: 0.0, high: 1.0, seed: self.seed };
        let drawn = b.op(drawn, &[dims])?;
        let kept = b.op(Ge {}, &[drawn, ratio])?;
        let rests = b.op(Not {}, &[training])?;
        let mask = b.op(Or {}, &[kept, rests])?;
        let one = b.number(1.0, ratio)?;
        let left = b.sub(one, ratio)?;
        let factor = b.op(Reciprocal {}, &[left])?;
        let factor = b.op(Select {}, &[training, factor, one])?;
        let factor = b.cast(factor, b.dtype(x))?;
        let scaled = b.mul(x, factor)?;
        let zero = b.number(0.0, x)?;
        Ok((b.op(Select {}, &[mask, scaled, zero])?, mask))
    }
}
