//! Running sums and products along an axis.

use of_diag::Diagnostic;
use of_ir::{DType, Elements, OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, Type, ValueId};

use crate::build::{Build, BuildResult, diagnostic};
use crate::elementwise::Select;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Running sums along an axis, which is operand 1.
    pub struct CumSum = "of.cum_sum" [Primitive, onnx: "CumSum"] {
        operands: (x, axis),
        results: (y),
        attrs: {
            /// The element itself does not count.
            exclusive: bool,
            /// From the end to the start.
            reverse: bool,
        },
    }
    samples: |seed| {
        let (x, axis, exclusive, reverse) = sample(seed);
        Some((vec![x.into(), axis.into()], CumSum { exclusive, reverse }))
    };
}

op! {
    /// Running products along an axis, which is operand 1. Source: ONNX CumProd.
    pub struct CumProd = "of.cum_prod" [Primitive, onnx: "CumProd"] {
        operands: (x, axis),
        results: (y),
        attrs: {
            /// The element itself does not count.
            exclusive: bool,
            /// From the end to the start.
            reverse: bool,
        },
    }
    samples: |seed| {
        let (x, axis, exclusive, reverse) = sample(seed);
        Some((vec![x.into(), axis.into()], CumProd { exclusive, reverse }))
    };
}

/// A tensor, an axis of it, and whether the op is exclusive and goes backwards.
fn sample(seed: u64) -> (Tensor, Tensor, bool, bool) {
    let mut r = Rng::new(seed);
    let dims = r.dims(3, 1, 4);
    let axis = Tensor::scalar(r.int(-3, 2));
    (r.tensor(DType::F32, &dims, -2.0, 2.0), axis, r.int(0, 1) == 1, r.int(0, 1) == 1)
}

fn infer(cx: &OpView<'_>) -> Inferred {
    let t = cx.tensor(0)?;
    if let (Some(a), Some(rank)) = (cx.ints(1).and_then(|a| a.first().copied()), t.rank()) {
        shape::axis(a, rank)?;
    }
    Ok(vec![Type::Tensor(t.with_dtype(t.dtype))])
}

/// `v` with each element along the axis replaced by what the elements up to it (or before it) come to.
fn run<T: Copy>(
    mut v: Vec<T>,
    [outer, n, inner]: [usize; 3],
    (exclusive, reverse): (bool, bool),
    neutral: T,
    combine: impl Fn(T, T) -> T,
) -> Vec<T> {
    // With an empty axis the others may be of any length.
    let outer = if v.is_empty() { 0 } else { outer };
    for o in 0..outer {
        for i in 0..inner {
            let mut so_far = neutral;
            for step in 0..n {
                let k = if reverse { n - 1 - step } else { step };
                let at = (o * n + k) * inner + i;
                let all = combine(so_far, v[at]);
                v[at] = if exclusive { so_far } else { all };
                so_far = all;
            }
        }
    }
    v
}

/// Evaluates either op, given its scalar functions on floats and on integers.
fn eval(
    inputs: &mut Inputs<'_>,
    floats: impl FnOnce(Vec<f64>, [usize; 3]) -> Vec<f64>,
    integers: impl FnOnce(Vec<i128>, [usize; 3]) -> Vec<i128>,
) -> Evaluated {
    let x = inputs.tensor(0)?;
    let axis = inputs.ints(1)?.first().copied().ok_or_else(|| OpError::eval("the axis is missing"))?;
    let axis = shape::axis(axis, x.dims().len())?;
    let parts = [x.dims()[..axis].iter().product(), x.dims()[axis], x.dims()[axis + 1..].iter().product()];
    let elements = match x.elements() {
        Elements::Float(v) => Elements::Float(floats(v, parts)),
        Elements::Int(v) => Elements::Int(integers(v, parts)),
        Elements::Str(_) => return Err(OpError::eval("strings have no sum and no product")),
    };
    Ok(vec![Tensor::from_elements(x.dtype(), x.dims().to_vec(), elements)?.into()])
}

/// Splits of the axes along which nothing runs.
fn splits(cx: &OpView<'_>) -> Vec<SbpSignature> {
    let (Ok(t), Some(axis)) = (cx.tensor(0), cx.ints(1)) else { return Vec::new() };
    let Some(rank) = t.rank() else { return Vec::new() };
    let Some(axis) = axis.first().and_then(|a| shape::axis(*a, rank).ok()) else { return Vec::new() };
    let others = (0..rank).filter(|a| *a != axis).filter_map(|a| u8::try_from(a).ok());
    others.map(|a| SbpSignature::new(&[Sbp::Split(a), Sbp::Broadcast], &[Sbp::Split(a)])).collect()
}

impl Op for CumSum {
    op_basics!(CumSum);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let how = (self.exclusive, self.reverse);
        // Wrapping here and in the narrower element type agree.
        eval(inputs, |v, p| run(v, p, how, 0.0, |a, b| a + b), |v, p| run(v, p, how, 0, i128::wrapping_add))
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let sum = Sbp::Partial(PartialKind::Sum);
        let mut out = splits(cx);
        out.push(SbpSignature::new(&[sum, Sbp::Broadcast], &[sum]));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let back = CumSum { reverse: !self.reverse, ..self.clone() };
        Some(cx.rw.create_one(back, &[g, cx.operands[1]]).map(|v| vec![Some(v), None]))
    }
}

impl Op for CumProd {
    op_basics!(CumProd);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let how = (self.exclusive, self.reverse);
        eval(inputs, |v, p| run(v, p, how, 1.0, |a, b| a * b), |v, p| run(v, p, how, 1, i128::wrapping_mul))
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx)
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let x = cx.operands[0];
        let axis = *cx.rw.graph().constant(cx.operands[1])?.to_i64s()?.first()?;
        let dims = cx.rw.graph().ty(x).as_tensor()?.shape.clone()?;
        let axis = shape::axis(axis, dims.len()).ok()?;
        let n = usize::try_from(dims[axis].as_const()?).ok()?;
        let mut b = Build::new(cx.rw);
        Some(self.pairs(&mut b, x, g, (axis, dims.len(), n)).map(|dx| vec![Some(dx), None]))
    }
}

impl CumProd {
    /// dx of element k: what comes before it, times the sum over the results i behind of g of i and all that is between
    /// k and i. A quotient of products would fail at zeros, so that all pairs (k, i) are computed.
    fn pairs(
        &self,
        b: &mut Build<'_, '_>,
        x: ValueId,
        g: ValueId,
        (axis, rank, n): (usize, usize, usize),
    ) -> BuildResult {
        // Whether i comes behind k, as the products run; pairs extend along `axis` and the axis behind it.
        let mask = |b: &mut Build<'_, '_>, holds: &dyn Fn(usize, usize) -> bool| {
            let ordered = |k: usize, i: usize| if self.reverse { holds(i, k) } else { holds(k, i) };
            let pairs = (0..n * n).map(|p| i128::from(ordered(p / n, p % n))).collect();
            let mut dims = vec![1; rank + 1];
            (dims[axis], dims[axis + 1]) = (n, n);
            let mask = Tensor::from_elements(DType::Bool, dims, Elements::Int(pairs));
            b.constant(mask.map_err(|e| diagnostic(e.into()))?)
        };
        let (behind, up_to) = (mask(b, &|k, i| k < i)?, mask(b, &|k, i| k <= i)?);
        let (one, zero) = (b.number(1.0, x)?, b.number(0.0, x)?);
        let rows = b.unsqueeze(x, &[axis])?;
        let others = b.op(Select {}, &[behind, rows, one])?;
        let along = b.constant(Tensor::scalar((axis + 1) as i64))?;
        let between = b.op(self.clone(), &[others, along])?;
        let grads = b.unsqueeze(g, &[axis])?;
        let terms = b.mul(between, grads)?;
        let reached = if self.exclusive { behind } else { up_to };
        let terms = b.op(Select {}, &[reached, terms, zero])?;
        let after = b.sum(terms, &[axis + 1], false)?;
        let along = b.constant(Tensor::scalar(axis as i64))?;
        let before = b.op(CumProd { exclusive: true, reverse: self.reverse }, &[x, along])?;
        b.mul(before, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_tensors_take_no_time() {
        assert!(run(Vec::<f64>::new(), [1 << 50, 4, 0], (false, false), 0.0, |a, b| a + b).is_empty());
        assert!(run(Vec::<f64>::new(), [1 << 50, 0, 1 << 50], (true, true), 1.0, |a, b| a * b).is_empty());
    }
}
