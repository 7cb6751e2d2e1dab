//! `of.return` and `of.yield`: the terminators of functions and regions.

use of_ir::OpView;

use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// Ends a function; its operands are the outputs.
    pub struct Return = "of.return" [Structural] {
        operands: (values*),
        results: (),
        traits: { terminator: true },
        attrs: {},
    }
    samples: |_seed| None;
}

impl Op for Return {
    op_basics!(Return);

    fn infer(&self, _cx: &OpView<'_>) -> Inferred {
        Ok(vec![])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(inputs.values.to_vec())
    }
}

op! {
    /// Ends a region; its operands are the region's results.
    pub struct Yield = "of.yield" [Structural] {
        operands: (values*),
        results: (),
        traits: { terminator: true },
        attrs: {},
    }
    samples: |_seed| None;
}

impl Op for Yield {
    op_basics!(Yield);

    fn infer(&self, _cx: &OpView<'_>) -> Inferred {
        Ok(vec![])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(inputs.values.to_vec())
    }
}
