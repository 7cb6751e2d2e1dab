//! Sequences: lists of values of one type whose length is known at run time.

use of_ir::{DType, OpError, OpView, Tensor, TensorType, Type};

use super::join::join;
use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics};

op! {
    /// A sequence without elements.
    pub struct SequenceEmpty = "of.sequence_empty" [Structural, onnx: "SequenceEmpty"] {
        operands: (),
        results: (s),
        attrs: {
            /// Element type of the tensors that it may hold; f32 without it.
            dtype: Option<DType>,
        },
    }
    samples: |_seed| Some((vec![], SequenceEmpty { dtype: None }));
}

op! {
    /// A sequence of the operands.
    pub struct SequenceConstruct = "of.sequence_construct" [Structural, onnx: "SequenceConstruct"] {
        operands: (xs*),
        results: (s),
        attrs: {},
    }
    samples: |_seed| None;
}

op! {
    /// The element at a position, which counts from the end where negative.
    pub struct SequenceAt = "of.sequence_at" [Structural, onnx: "SequenceAt"] {
        operands: (s, position),
        results: (x),
        attrs: {},
    }
    samples: |_seed| None;
}

op! {
    /// Inserts an element into a sequence before `position`, or at the end without it.
    pub struct SequenceInsert = "of.sequence_insert" [Structural, onnx: "SequenceInsert"] {
        operands: (s, x, position?),
        results: (t),
        attrs: {},
    }
    samples: |_seed| None;
}

op! {
    /// The sequence without the element at a position, the last one without it.
    pub struct SequenceErase = "of.sequence_erase" [Structural, onnx: "SequenceErase"] {
        operands: (s, position?),
        results: (t),
        attrs: {},
    }
    samples: |_seed| None;
}

op! {
    /// Number of elements.
    pub struct SequenceLength = "of.sequence_length" [Structural, onnx: "SequenceLength"] {
        operands: (s),
        results: (n),
        attrs: {},
    }
    samples: |_seed| None;
}

/// The element type of the sequence at operand `i`.
pub(super) fn element<'a>(cx: &OpView<'a>, i: usize) -> Result<&'a Type, OpError> {
    match cx.ty(i) {
        Some(Type::Sequence(t)) => Ok(t),
        Some(other) => Err(OpError::ty(format!("operand {i} must be a sequence, it is {other}"))),
        None => Err(OpError::ty(format!("operand {i} is missing"))),
    }
}

/// The elements of the sequence at operand `i`.
pub(super) fn elements<'a>(inputs: &Inputs<'a>, i: usize) -> Result<&'a [Value], OpError> {
    match inputs.values.get(i) {
        Some(Value::Sequence(v)) => Ok(v),
        _ => Err(OpError::eval(format!("operand {i} must be a sequence"))),
    }
}

fn check_position(cx: &OpView<'_>, i: usize) -> Result<(), OpError> {
    match cx.ty(i) {
        None => Ok(()),
        Some(Type::Tensor(t)) if t.dtype.is_int() && t.fixed_dims().is_none_or(|d| d.iter().all(|n| *n == 1)) => Ok(()),
        Some(other) => Err(OpError::ty(format!("the position must be one integer, it is {other}"))),
    }
}

/// The position at operand `i`, resolved among `places`; `absent` if it is left out.
fn position(
    inputs: &Inputs<'_>,
    i: usize,
    places: usize,
    range: usize,
    absent: Option<usize>,
) -> Result<usize, OpError> {
    let outside = |p: String| OpError::eval(format!("position {p} is outside a sequence of length {range}"));
    if inputs.opt_tensor(i).is_none() {
        return absent.ok_or_else(|| outside("-1".into()));
    }
    let p = *inputs.ints(i)?.first().ok_or_else(|| OpError::eval("the position is empty"))?;
    let at = if p < 0 { i128::from(p) + range as i128 } else { i128::from(p) };
    usize::try_from(at).ok().filter(|at| *at < places).ok_or_else(|| outside(p.to_string()))
}

impl Op for SequenceEmpty {
    op_basics!(SequenceEmpty);

    fn infer(&self, _cx: &OpView<'_>) -> Inferred {
        let tensor = TensorType::unranked(self.dtype.unwrap_or(DType::F32));
        Ok(vec![Type::Sequence(Box::new(Type::Tensor(tensor)))])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![Value::Sequence(Vec::new())])
    }
}

impl Op for SequenceConstruct {
    op_basics!(SequenceConstruct);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let mut types = cx.operands.iter().map(|v| cx.graph.ty(*v));
        let Some(first) = types.next() else { return Err(OpError::ty("there is nothing to make a sequence of")) };
        let all = types.try_fold(first.clone(), |a, b| join(&a, b))?;
        Ok(vec![Type::Sequence(Box::new(all))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![Value::Sequence(inputs.values.to_vec())])
    }
}

impl Op for SequenceAt {
    op_basics!(SequenceAt);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        check_position(cx, 1)?;
        Ok(vec![element(cx, 0)?.clone()])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let list = elements(inputs, 0)?;
        Ok(vec![list[position(inputs, 1, list.len(), list.len(), None)?].clone()])
    }
}

impl Op for SequenceInsert {
    op_basics!(SequenceInsert);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        check_position(cx, 2)?;
        let new = cx.ty(1).ok_or_else(|| OpError::ty("operand 1 is missing"))?;
        // The new element may be longer or shorter than those that are there.
        Ok(vec![Type::Sequence(Box::new(join(element(cx, 0)?, new)?))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let mut list = elements(inputs, 0)?.to_vec();
        let new = inputs.values.get(1).cloned().ok_or_else(|| OpError::eval("operand 1 is missing"))?;
        // One past the last element is a place too.
        let at = position(inputs, 2, list.len() + 1, list.len(), Some(list.len()))?;
        list.insert(at, new);
        Ok(vec![Value::Sequence(list)])
    }
}

impl Op for SequenceErase {
    op_basics!(SequenceErase);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        check_position(cx, 1)?;
        Ok(vec![Type::Sequence(Box::new(element(cx, 0)?.clone()))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let mut list = elements(inputs, 0)?.to_vec();
        let at = position(inputs, 1, list.len(), list.len(), list.len().checked_sub(1))?;
        list.remove(at);
        Ok(vec![Value::Sequence(list)])
    }
}

impl Op for SequenceLength {
    op_basics!(SequenceLength);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        element(cx, 0)?;
        Ok(vec![Type::fixed(DType::I64, &[])])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![Tensor::scalar(elements(inputs, 0)?.len() as i64).into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(op: &dyn Op, values: &[Value]) -> Evaluated {
        op.eval(&mut Inputs { values, types: &[], region: &mut |_, _| Ok(vec![]) })
    }

    #[test]
    fn sequence_insert_and_erase() {
        let n = |v: i64| Value::Tensor(Tensor::scalar(v));
        let s = run(&SequenceConstruct {}, &[n(1), n(2)]).unwrap().remove(0);
        let s = run(&SequenceInsert {}, &[s, n(9), n(-1)]).unwrap().remove(0);
        assert_eq!(s, Value::Sequence(vec![n(1), n(9), n(2)]));
        let s = run(&SequenceInsert {}, &[s, n(5)]).unwrap().remove(0);
        assert_eq!(run(&SequenceLength {}, std::slice::from_ref(&s)).unwrap(), [n(4)]);
        assert_eq!(run(&SequenceAt {}, &[s.clone(), n(-1)]).unwrap(), [n(5)]);
        assert!(run(&SequenceAt {}, &[s.clone(), n(4)]).is_err());
        let s = run(&SequenceErase {}, &[s, n(0)]).unwrap().remove(0);
        assert_eq!(s, Value::Sequence(vec![n(9), n(2), n(5)]));
        let empty = run(&SequenceEmpty { dtype: None }, &[]).unwrap().remove(0);
        assert!(run(&SequenceErase {}, std::slice::from_ref(&empty)).is_err());
        assert_eq!(run(&SequenceInsert {}, &[empty, n(3), n(0)]).unwrap(), [Value::Sequence(vec![n(3)])]);
    }
}
