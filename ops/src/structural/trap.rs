//! `of.trap`.

use std::sync::Arc;

use of_ir::{OpError, OpView, Type};

use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// Fails with the message when it runs; its result has the given type.
    ///
    /// A branch that does not fit the shapes of a model contains it where inference fails; the model works as long as
    /// the branch is not taken.
    pub struct Trap = "of.trap" [Structural] {
        operands: (),
        results: (y),
        traits: { effect: true },
        attrs: { message: Arc<str>, result_type: Type },
    }
    samples: |_seed| None;
}

impl Op for Trap {
    op_basics!(Trap);

    fn infer(&self, _cx: &OpView<'_>) -> Inferred {
        Ok(vec![self.result_type.clone()])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Err(OpError::eval(self.message.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Graph, Rewriter};

    use super::*;
    use crate::interpret::run_graph;
    use crate::structural::Return;

    #[test]
    fn fail_op_returns_an_error() {
        let mut g = Graph::new();
        let entry = g.entry();
        let mut rw = Rewriter::new(&mut g, "test");
        rw.at_end(entry);
        let y = rw
            .create_one(Trap { message: "no such branch".into(), result_type: Type::fixed(DType::F32, &[2]) }, &[])
            .unwrap();
        rw.create(Return {}, &[y]).unwrap();
        assert!(run_graph(&g, &[]).unwrap_err().to_string().contains("no such branch"));
    }
}
