//! `of.if`.

use of_ir::OpView;

use super::{check_condition, join::join_all, region, region_error, truth, yields};
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics};

op! {
    /// Runs the first region if the condition is true, the second if not; gives back what the region yields.
    ///
    /// The regions have no arguments: they read the values that are visible at the op.
    pub struct If = "of.if" [Structural, onnx: "If"] {
        operands: (condition),
        results: (ys*),
        regions: 2,
        attrs: {},
    }
    samples: |_seed| None;
}

impl Op for If {
    op_basics!(If);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        check_condition(cx.tensor(0)?)?;
        for i in 0..2 {
            if !cx.graph.region_args(region(cx, i)?).is_empty() {
                return Err(region_error(format!("region {i} must have no arguments")));
            }
        }
        join_all(&yields(cx, 0)?, &yields(cx, 1)?)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let condition = truth(inputs.values.first().unwrap_or(&crate::Value::None))?;
        (inputs.region)(usize::from(!condition), &[])
    }
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Graph, Rewriter, Tensor, Type};

    use super::*;
    use crate::elementwise::{Add, Neg};
    use crate::interpret::run_graph;
    use crate::structural::{Return, Yield};

    #[test]
    fn if_runs_the_taken_region_with_captures() {
        let mut g = Graph::new();
        let entry = g.entry();
        let mut rw = Rewriter::new(&mut g, "test");
        let c = rw.add_arg(entry, Type::fixed(DType::Bool, &[]), None);
        let x = rw.add_arg(entry, Type::fixed(DType::F32, &[1]), None);
        let (a, b) = (rw.new_region(), rw.new_region());
        rw.at_end(a);
        let y = rw.create_one(Add {}, &[x, x]).unwrap();
        rw.create(Yield {}, &[y]).unwrap();
        rw.at_end(b);
        let y = rw.create_one(Neg {}, &[x]).unwrap();
        rw.create(Yield {}, &[y]).unwrap();
        rw.at_end(entry);
        assert!(rw.create_with_regions(If {}, &[x], &[a, b]).is_err());
        let op = rw.create_with_regions(If {}, &[c], &[a, b]).unwrap();
        let y = rw.graph().op(op).results[0];
        assert_eq!(*rw.graph().ty(y), Type::fixed(DType::F32, &[1]));
        rw.create(Return {}, &[y]).unwrap();
        let x = Tensor::from_slice(&[1], &[3f32]).unwrap();
        for (c, right) in [(1, 6f32), (0, -3f32)] {
            let c = Tensor::from_elements(DType::Bool, vec![], of_ir::Elements::Int(vec![c])).unwrap();
            let out = run_graph(&g, &[c.into(), x.clone().into()]).unwrap();
            assert_eq!(out, [Tensor::from_slice(&[1], &[right]).unwrap().into()]);
        }
    }
}
