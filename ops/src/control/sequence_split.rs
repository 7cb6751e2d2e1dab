//! `of.split_to_sequence` and `of.concat_from_sequence`.

use of_ir::{Dim, OpError, OpView, TensorType, Type};

use super::sequence::{element, elements};
use crate::movement::{concat, pieces};
use crate::{Evaluated, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Splits a tensor along an axis into a sequence of tensors.
    ///
    /// A rank-1 `split` holds the length of each part. A scalar `split` is the length of all parts; the last may be
    /// shorter. Without `split` each part has length 1, and `keepdims` keeps that axis.
    pub struct SplitToSequence = "of.split_to_sequence" [Structural, onnx: "SplitToSequence"] {
        operands: (x, split?),
        results: (s),
        attrs: { axis: i64, keepdims: bool },
    }
    samples: |_seed| None;
}

op! {
    /// Joins the tensors of a sequence along an axis, which is a new one if `new_axis` is set.
    pub struct ConcatFromSequence = "of.concat_from_sequence" [Structural, onnx: "ConcatFromSequence"] {
        operands: (s),
        results: (y),
        attrs: { axis: i64, new_axis: bool },
    }
    samples: |_seed| None;
}

/// A longer sequence is a mistake, or an axis of a tensor without elements.
pub(super) const MAX_PIECES: usize = 1 << 24;

impl Op for SplitToSequence {
    op_basics!(SplitToSequence);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let single = cx.operand(1).is_none();
        if !single && !cx.tensor(1)?.dtype.is_int() {
            return Err(OpError::ty("split must be an integer tensor"));
        }
        let piece = match &t.shape {
            None => TensorType::unranked(t.dtype),
            Some(s) => {
                let mut s = s.clone();
                let axis = shape::axis(self.axis, s.len())?;
                // A common length of all pieces, where the numbers show one.
                let common = cx.ints(1).and_then(|l| {
                    let first = *l.first()?;
                    let divides = || s[axis].as_const().is_some_and(|n| first > 0 && n % first == 0);
                    (l.iter().all(|x| *x == first) && (cx.tensor(1).ok()?.rank() == Some(1) || divides()))
                        .then_some(first)
                });
                match (single, self.keepdims) {
                    (true, false) => {
                        s.remove(axis);
                    }
                    (true, true) => s[axis] = Dim::from(1i64),
                    (false, _) => s[axis] = common.filter(|n| *n >= 0).map_or_else(Dim::unknown, Dim::from),
                }
                TensorType::new(t.dtype, s)
            }
        };
        Ok(vec![Type::Sequence(Box::new(Type::Tensor(piece)))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let axis = shape::axis(self.axis, x.dims().len())?;
        let n = x.dims()[axis];
        let lengths: Vec<usize> = match inputs.opt_tensor(1) {
            None if n > MAX_PIECES => return Err(OpError::eval(format!("an axis of {n} makes too many pieces"))),
            None => vec![1; n],
            Some(split) => {
                let list = inputs.ints(1)?;
                let list = list.iter().map(|l| usize::try_from(*l).ok()).collect::<Option<Vec<_>>>();
                let list = list.ok_or_else(|| OpError::eval("a length to split by is negative"))?;
                match list.as_slice() {
                    [0] if split.dims().is_empty() => return Err(OpError::eval("a tensor cannot be split by 0")),
                    [by] if split.dims().is_empty() && n.div_ceil(*by) > MAX_PIECES => {
                        return Err(OpError::eval(format!("an axis of {n} makes too many pieces")));
                    }
                    [by] if split.dims().is_empty() => (0..n.div_ceil(*by)).map(|i| (*by).min(n - i * by)).collect(),
                    _ => list,
                }
            }
        };
        if lengths.iter().try_fold(0usize, |sum, l| sum.checked_add(*l)) != Some(n) {
            return Err(OpError::eval(format!("pieces of {lengths:?} do not make up an axis of length {n}")));
        }
        let drop = inputs.opt_tensor(1).is_none() && !self.keepdims;
        let out = pieces(x, axis, lengths.into_iter())?.into_iter().map(|t| {
            let mut dims = t.dims().to_vec();
            if drop {
                dims.remove(axis);
            }
            Ok(Value::Tensor(t.reshaped(dims)?))
        });
        Ok(vec![Value::Sequence(out.collect::<Result<_, OpError>>()?)])
    }
}

impl Op for ConcatFromSequence {
    op_basics!(ConcatFromSequence);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let Type::Tensor(t) = element(cx, 0)? else {
            return Err(OpError::ty("only a sequence of tensors can be joined"));
        };
        let shape = match &t.shape {
            None => None,
            Some(s) => {
                let mut s = s.clone();
                if self.new_axis {
                    s.insert(shape::axis(self.axis, s.len() + 1)?, Dim::unknown());
                } else {
                    let axis = shape::axis(self.axis, s.len())?;
                    s[axis] = Dim::unknown();
                }
                Some(s)
            }
        };
        Ok(vec![Type::Tensor(TensorType { dtype: t.dtype, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let parts = elements(inputs, 0)?.iter().map(|v| match v {
            Value::Tensor(t) if self.new_axis => {
                let mut dims = t.dims().to_vec();
                dims.insert(shape::axis(self.axis, dims.len() + 1)?, 1);
                Ok(t.reshaped(dims)?)
            }
            Value::Tensor(t) => Ok(t.clone()),
            _ => Err(OpError::eval("only a sequence of tensors can be joined")),
        });
        let parts = parts.collect::<Result<Vec<_>, OpError>>()?;
        if parts.is_empty() {
            return Err(OpError::eval("an empty sequence cannot be joined"));
        }
        Ok(vec![concat(&parts.iter().collect::<Vec<_>>(), self.axis)?.into()])
    }
}

#[cfg(test)]
mod tests {
    use of_ir::Tensor;

    use super::*;

    fn run(op: &dyn Op, values: &[Value]) -> Evaluated {
        op.eval(&mut Inputs { values, types: &[], region: &mut |_, _| Ok(vec![]) })
    }

    #[test]
    fn concat_from_sequence_inverts_split_to_sequence() {
        let x: Value = Tensor::from_slice(&[2, 5], &(0..10).collect::<Vec<i32>>()).unwrap().into();
        let split = |keepdims| SplitToSequence { axis: 1, keepdims };
        for by in [Tensor::scalar(2i64), Tensor::from_i64s(&[1, 0, 4])] {
            let s = run(&split(true), &[x.clone(), by.into()]).unwrap();
            assert!(matches!(&s[0], Value::Sequence(l) if l.len() == 3));
            assert_eq!(run(&ConcatFromSequence { axis: -1, new_axis: false }, &s).unwrap(), std::slice::from_ref(&x));
        }
        let s = run(&split(false), std::slice::from_ref(&x)).unwrap();
        assert_eq!(run(&ConcatFromSequence { axis: 1, new_axis: true }, &s).unwrap(), std::slice::from_ref(&x));
        assert!(run(&split(true), &[x.clone(), Tensor::from_i64s(&[1, 1]).into()]).is_err());
        assert!(run(&split(true), &[x, Tensor::scalar(0i64).into()]).is_err());
    }
}
