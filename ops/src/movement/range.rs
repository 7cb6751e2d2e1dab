//! `of.range`.

use of_diag::Diagnostic;
use of_ir::{Dim, DimFn, Elements, OpError, OpView, Tensor, Type, ValueId};

use super::MAX_AXES;
use crate::build::Build;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// `start, start + delta, ..` before `limit`: `max(ceil((limit - start) / delta), 0)` numbers.
    pub struct Range = "of.range" [Primitive, onnx: "Range"] {
        operands: (start, limit, delta),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (start, n, delta) = (r.int(-5, 5), r.int(0, 6), r.pick(&[-3, -1, 1, 2]));
        let all = [start, start + n * delta, delta];
        let scalar = |v: i64| if seed.is_multiple_of(2) { Tensor::scalar(v).into() } else { Tensor::scalar(v as f32 / 4.0).into() };
        Some((all.map(scalar).to_vec(), Range {}))
    };
}

/// Number of elements.
fn count(start: &Elements, limit: &Elements, delta: &Elements) -> Result<usize, OpError> {
    let n = match (start, limit, delta) {
        (Elements::Int(s), Elements::Int(l), Elements::Int(d)) => match (s.as_slice(), l.as_slice(), d.as_slice()) {
            ([_], [_], [0]) => return Err(OpError::eval("delta is 0")),
            ([s], [l], [d]) => {
                let (distance, by) = if *d > 0 { (l - s, *d) } else { (s - l, -d) };
                usize::try_from((distance.max(0) + by - 1) / by).unwrap_or(usize::MAX)
            }
            _ => return Err(OpError::eval("start, limit and delta must be scalars")),
        },
        (Elements::Float(s), Elements::Float(l), Elements::Float(d)) => {
            match (s.as_slice(), l.as_slice(), d.as_slice()) {
                ([s], [l], [d]) if *d != 0.0 && s.is_finite() && d.is_finite() && !l.is_nan() => {
                    ((l - s) / d).ceil().max(0.0) as usize
                }
                _ => return Err(OpError::eval("start, limit and delta must be finite scalars, delta not 0")),
            }
        }
        _ => return Err(OpError::eval("start, limit and delta must be numbers of one type")),
    };
    shape::count(&[n])
}

impl Op for Range {
    op_basics!(Range);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let dtype = cx.tensor(0)?.dtype;
        for i in 0..3 {
            let t = cx.tensor(i)?;
            if t.dtype != dtype || (!dtype.is_float() && !dtype.is_int()) {
                return Err(OpError::ty(format!(
                    "start, limit and delta must be numbers of one type, operand {i} is {}",
                    t.dtype
                )));
            }
            if t.fixed_dims().is_some_and(|d| d.iter().product::<usize>() != 1) {
                return Err(OpError::shape(format!("operand {i} must be a scalar")));
            }
        }
        if let (Some(s), Some(l), Some(d)) = (cx.constant(0), cx.constant(1), cx.constant(2)) {
            let n = count(&s.elements(), &l.elements(), &d.elements())?;
            return Ok(vec![Type::tensor(dtype, vec![Dim::from(n)])]);
        }
        Ok(vec![Type::tensor(dtype, vec![symbolic(cx).unwrap_or_else(Dim::unknown)])])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let (start, delta) = (cx.dims(0)?.first()?.clone(), cx.dims(2)?.first()?.clone());
        let n = usize::try_from(symbolic(cx)?.as_const()?).ok()?;
        (n <= MAX_AXES).then(|| (0..n).map(|i| &start + &(&delta * &Dim::from(i))).collect())
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (start, limit, delta) = (inputs.tensor(0)?, inputs.tensor(1)?, inputs.tensor(2)?);
        let n = count(&start.elements(), &limit.elements(), &delta.elements())?;
        let elements = match (start.elements(), delta.elements()) {
            (Elements::Int(s), Elements::Int(d)) => Elements::Int(collect(n, |i| s[0] + i as i128 * d[0])?),
            (Elements::Float(s), Elements::Float(d)) => Elements::Float(collect(n, |i| s[0] + i as f64 * d[0])?),
            _ => return Err(OpError::eval("start and delta must be numbers of one type")),
        };
        Ok(vec![Tensor::from_elements(start.dtype(), vec![n], elements)?.into()])
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        // Element i is `start + i delta`.
        let (g, start) = (cx.grads[0]?, cx.operands[0]);
        let b = &mut Build::new(cx.rw);
        let mut run = || {
            let count = b.extent(g, 0)?;
            let numbers = b.numbers(count)?;
            let numbers = b.cast(numbers, b.dtype(g))?;
            let moved = b.mul(g, numbers)?;
            let (first, step) = (b.sum(g, &[0], false)?, b.sum(moved, &[0], false)?);
            Ok(vec![Some(b.reshape_like(first, start)?), None, Some(b.reshape_like(step, cx.operands[2])?)])
        };
        Some(run())
    }
}

/// `f` of the first `n` numbers.
fn collect<T>(n: usize, f: impl Fn(usize) -> T) -> Result<Vec<T>, OpError> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).map_err(|_| OpError::eval(format!("{n} numbers do not fit into memory")))?;
    v.extend((0..n).map(f));
    Ok(v)
}

/// Number of elements where it follows from shapes.
fn symbolic(cx: &OpView<'_>) -> Option<Dim> {
    let one = |i: usize| match cx.dims(i)?.as_slice() {
        [d] => Some(d.clone()),
        _ => None,
    };
    let (start, limit, delta) = (one(0)?, one(1)?, one(2)?.as_const()?);
    let distance = match delta {
        0 => return None,
        d if d > 0 => &limit - &start,
        _ => &start - &limit,
    };
    let n = match delta.checked_abs()? {
        1 => distance,
        by => Dim::call(DimFn::CeilDiv, &distance, &by.into()),
    };
    Some(if n.is_nonnegative() { n } else { Dim::call(DimFn::Max, &n, &0i64.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_counts_its_elements() {
        let n = |s: i128, l, d| count(&Elements::Int(vec![s]), &Elements::Int(vec![l]), &Elements::Int(vec![d]));
        assert_eq!(n(0, 7, 3).unwrap(), 3);
        assert_eq!(n(7, 0, -3).unwrap(), 3);
        assert_eq!(n(7, 0, 3).unwrap(), 0);
        assert!(n(0, 1, 0).is_err());
        assert!(n(0, 1 << 62, 1).is_err());
    }
}
