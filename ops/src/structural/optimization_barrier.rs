//! `of.optimization_barrier`.

use of_diag::Diagnostic;
use of_ir::{OpView, SbpSignature, TensorType, Type, ValueId};

use super::alternatives::alike;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics};

op! {
    /// The same tensor, that no pass looks through: what is computed of the result is not taken to be what was computed of
    /// the operand, so that it is computed again instead of being kept.
    pub struct OptimizationBarrier = "of.optimization_barrier" [Primitive] {
        operands: (x),
        results: (y),
        attrs: {},
    }
    samples: |seed| Some((vec![crate::sample::Rng::new(seed).f32s(&[2, 3])], OptimizationBarrier {}));
}

impl Op for OptimizationBarrier {
    op_basics!(OptimizationBarrier);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..cx.tensor(0)?.clone() })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![inputs.tensor(0)?.clone().into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        alike(cx)
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        Some(Ok(vec![Some(cx.grads[0]?)]))
    }
}
