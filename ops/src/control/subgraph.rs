//! `of.subgraph`.

use std::sync::Arc;

use of_ir::OpView;

use super::yields;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// Ops that one backend compiles as a whole; gives back what the region yields.
    ///
    /// The region has no arguments: it reads the values that are visible at the op. Placement makes it, after all passes.
    pub struct Subgraph = "of.subgraph" [Structural] {
        operands: (),
        results: (ys*),
        regions: 1,
        attrs: {
            /// Name of the backend.
            backend: Arc<str>,
        },
    }
    samples: |_seed| None;
}

impl Op for Subgraph {
    op_basics!(Subgraph);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        yields(cx, 0)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        (inputs.region)(0, &[])
    }
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Graph, Rewriter, Tensor, Type};

    use super::*;
    use crate::elementwise::Neg;
    use crate::interpret::run_graph;
    use crate::structural::{Return, Yield};

    #[test]
    fn subgraph_evaluates_its_region() {
        let mut g = Graph::new();
        let entry = g.entry();
        let mut rw = Rewriter::new(&mut g, "test");
        let x = rw.add_arg(entry, Type::fixed(DType::F32, &[1]), None);
        let (region, _) = rw.region_with(|rw, _| {
            let y = rw.create_one(Neg {}, &[x]).unwrap();
            rw.create(Yield {}, &[y]).unwrap();
        });
        let op = rw.create_with_regions(Subgraph { backend: "some".into() }, &[], &[region]).unwrap();
        let y = rw.graph().op(op).results[0];
        rw.create(Return {}, &[y]).unwrap();
        let x = Tensor::from_slice(&[1], &[3f32]).unwrap();
        assert_eq!(run_graph(&g, &[x.into()]).unwrap(), [Tensor::from_slice(&[1], &[-3f32]).unwrap().into()]);
    }
}
