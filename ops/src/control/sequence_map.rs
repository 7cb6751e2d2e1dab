//! `of.sequence_map`.

use of_ir::{OpError, OpView, Type};

use super::loop_::Outer;
use super::sequence::elements;
use super::{region, region_error, yields};
use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics};

op! {
    /// Runs its region for every element of a sequence; gives one sequence for each value that the region yields.
    ///
    /// Further sequences are as long as the first and give their elements in step; a value that is no sequence is
    /// given to every run. Source: ONNX SequenceMap.
    pub struct SequenceMap = "of.sequence_map" [Structural, onnx: "SequenceMap"] {
        operands: (s, others*),
        results: (ys*),
        regions: 1,
        attrs: {},
    }
    samples: |_seed| None;
}

/// What the region gets of an operand of type `t`.
pub fn element_of(t: &Type) -> &Type {
    match t {
        Type::Sequence(e) => e,
        other => other,
    }
}

impl Op for SequenceMap {
    op_basics!(SequenceMap);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        super::sequence::element(cx, 0)?;
        let args = cx.graph.region_args(region(cx, 0)?);
        if args.len() != cx.operands.len() {
            let what = format!("the region has {} arguments, it must have {}", args.len(), cx.operands.len());
            return Err(region_error(what));
        }
        for (i, (v, arg)) in cx.operands.iter().zip(args).enumerate() {
            let (given, taken) = (element_of(cx.graph.ty(*v)), cx.graph.ty(*arg));
            if !given.compatible(taken) {
                return Err(OpError::ty(format!("operand {i} gives {given}, the region takes {taken}")));
            }
        }
        let out = yields(cx, 0)?;
        // What is inside the region cannot be named outside it, and differs from one run to the next.
        let outer = Outer::new(cx);
        let free = |t: &Type| t.map_dims(&mut |d| outer.dim(d));
        Ok(out.iter().map(|t| Type::Sequence(Box::new(free(t)))).collect())
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let n = elements(inputs, 0)?.len();
        let mut lists: Vec<Vec<Value>> = vec![Vec::with_capacity(n); inputs.types.len()];
        for i in 0..n {
            let args = inputs.values.iter().enumerate().map(|(k, v)| match v {
                Value::Sequence(list) => list.get(i).cloned().ok_or_else(|| {
                    OpError::eval(format!("operand {k} has {} elements, the first has {n}", list.len()))
                }),
                other => Ok(other.clone()),
            });
            let args = args.collect::<Result<Vec<_>, OpError>>()?;
            let out = (inputs.region)(0, &args)?;
            lists.iter_mut().zip(out).for_each(|(list, v)| list.push(v));
        }
        Ok(lists.into_iter().map(Value::Sequence).collect())
    }
}
