//! `of.none`.

use of_ir::{OpView, Type};

use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics};

op! {
    /// Marks an omitted optional operand.
    ///
    /// A program computes nothing with it, so it has no samples of its own: those of ops with optional operands contain it.
    pub struct NoneValue = "of.none" [Structural] {
        operands: (),
        results: (value),
        attrs: {},
    }
    samples: |_seed| None;
}

impl Op for NoneValue {
    op_basics!(NoneValue);

    fn infer(&self, _cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::None])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![Value::None])
    }
}
