//! `of.optimization_barrier`.

use of_diag::Diagnostic;
use of_ir::{OpView, SbpSignature, TensorType, Type, ValueId};

use super::alternatives::alike;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics};

op! {
    /// The identity, opaque to passes: users of the result are not merged with equal users of the operand.
    ///
    /// So values that `recompute` chose are computed again and not kept.
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
