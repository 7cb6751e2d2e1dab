//! `of.gradient`.

use of_ir::{OpError, OpView, TensorType, Type};

use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// The derivatives of the sum of `y` by each of `xs`, all floats; zeros by one that `y` does not depend on.
    ///
    /// What is between `xs` and `y` is what the graph says at this place. The pass `differentiate` puts the ops that
    /// compute it in place of this one. Source: ONNX Gradient.
    pub struct Gradient = "of.gradient" [Structural] {
        operands: (y, xs*),
        results: (gs*),
        attrs: {},
    }
    samples: |_seed| None;
}

impl Op for Gradient {
    op_basics!(Gradient);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let all = (0..cx.operands.len()).map(|i| cx.tensor(i)).collect::<Result<Vec<_>, _>>()?;
        if let Some(t) = all.iter().find(|t| !t.dtype.is_float()) {
            return Err(OpError::ty(format!("derivatives are of floats by floats, an operand is {}", t.dtype)));
        }
        Ok(all[1..].iter().map(|t| Type::Tensor(TensorType { sbp: None, ..(*t).clone() })).collect())
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval("a derivative has no value of its own").hint("run the pass 'differentiate' first"))
    }
}
