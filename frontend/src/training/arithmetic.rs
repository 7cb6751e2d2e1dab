//! Short names for the arithmetic of losses and optimizers.

use of_diag::Diagnostic;
use of_ir::{DType, Elements, NewOp, Tensor, Type, ValueId};
use of_ops::elementwise::{Abs, Add, Cast, Div, Exp, Gt, Mul, Pow, Select, Sqrt, Sub};
use of_ops::reduction::{ReduceMean, ReduceSum};
use of_ops::structural::Constant;

use crate::Builder;

pub(super) type ValueResult = Result<ValueId, Diagnostic>;

/// A builder of expressions over floats.
pub struct Arithmetic<'b> {
    b: &'b mut Builder,
}

impl<'b> Arithmetic<'b> {
    /// Expressions at the end of the function.
    pub fn new(b: &'b mut Builder) -> Self {
        Arithmetic { b }
    }

    /// Any op of one result.
    ///
    /// # Errors
    /// When operands do not fit the op; so for all methods.
    #[track_caller]
    pub fn op(&mut self, op: impl NewOp, operands: &[ValueId]) -> ValueResult {
        self.b.op(op, operands)
    }

    /// Any op, with all its results.
    #[track_caller]
    pub(super) fn op_all(&mut self, op: impl NewOp, operands: &[ValueId]) -> Result<Vec<ValueId>, Diagnostic> {
        self.b.op_all(op, operands)
    }

    pub(super) fn ty(&self, v: ValueId) -> &Type {
        self.b.ty(v)
    }

    pub(super) fn dtype(&self, v: ValueId) -> DType {
        self.b.ty(v).as_tensor().map_or(DType::F32, |t| t.dtype)
    }

    /// A number in the element type of `like`.
    #[track_caller]
    pub fn number(&mut self, value: f64, like: ValueId) -> ValueResult {
        let value = Tensor::from_elements(self.dtype(like), Vec::new(), Elements::Float(vec![value]));
        let value =
            value.map_err(|e| Diagnostic::error(of_diag::Code::TYPE, of_diag::Location::Unknown, e.to_string()))?;
        self.b.op(Constant { value }, &[])
    }

    /// An integer, i64.
    #[track_caller]
    pub fn integer(&mut self, value: i64) -> ValueResult {
        self.b.op(Constant { value: Tensor::scalar(value) }, &[])
    }

    /// `x + y`.
    #[track_caller]
    pub fn add(&mut self, x: ValueId, y: ValueId) -> ValueResult {
        self.b.op(Add {}, &[x, y])
    }

    /// `x - y`.
    #[track_caller]
    pub fn sub(&mut self, x: ValueId, y: ValueId) -> ValueResult {
        self.b.op(Sub {}, &[x, y])
    }

    /// `x * y`.
    #[track_caller]
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> ValueResult {
        self.b.op(Mul {}, &[x, y])
    }

    /// `x / y`.
    #[track_caller]
    pub fn div(&mut self, x: ValueId, y: ValueId) -> ValueResult {
        self.b.op(Div {}, &[x, y])
    }

    /// `x * factor`; `x` itself for 1.
    #[track_caller]
    pub fn scale(&mut self, x: ValueId, factor: f64) -> ValueResult {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.number(factor, x)?;
        self.mul(x, factor)
    }

    /// `x + summand`.
    #[track_caller]
    pub fn plus(&mut self, x: ValueId, summand: f64) -> ValueResult {
        let summand = self.number(summand, x)?;
        self.add(x, summand)
    }

    /// `x * x`.
    #[track_caller]
    pub fn square(&mut self, x: ValueId) -> ValueResult {
        self.mul(x, x)
    }

    /// The square root.
    #[track_caller]
    pub fn sqrt(&mut self, x: ValueId) -> ValueResult {
        self.b.op(Sqrt {}, &[x])
    }

    /// The absolute value.
    #[track_caller]
    pub fn abs(&mut self, x: ValueId) -> ValueResult {
        self.b.op(Abs {}, &[x])
    }

    /// `base` to the power of `x`.
    #[track_caller]
    pub fn power_of(&mut self, base: f64, x: ValueId) -> ValueResult {
        let base = self.number(base, x)?;
        self.b.op(Pow {}, &[base, x])
    }

    /// `1 - base^x` for `0 <= base < 1` and `x >= 0`, in the type of `x`. Differences of nearly equal numbers cancel: in f32, small
    /// exponents `e = x ln(base)` take the series `-e - e^2 / 2! - ...` instead, which is exact there to the last bits.
    #[track_caller]
    pub fn one_minus_power(&mut self, base: f64, x: ValueId) -> ValueResult {
        /// Terms of the series; for exponents above [`SMALL`] what follows is below 1e-9 of the sum.
        const TERMS: u32 = 9;
        const SMALL: f64 = -0.5;
        if self.dtype(x) == DType::F64 {
            let power = self.power_of(base, x)?;
            let negative = self.scale(power, -1.0)?;
            return self.plus(negative, 1.0);
        }
        let exponent = self.scale(x, base.ln())?;
        let coefficient = |k: u32| -1.0 / (1..=k).map(f64::from).product::<f64>();
        let mut series = self.number(coefficient(TERMS), x)?;
        for k in (1..TERMS).rev() {
            series = self.mul(series, exponent)?;
            series = self.plus(series, coefficient(k))?;
        }
        series = self.mul(series, exponent)?;
        let power = self.b.op(Exp {}, &[exponent])?;
        let negative = self.scale(power, -1.0)?;
        let difference = self.plus(negative, 1.0)?;
        let small = self.number(SMALL, x)?;
        let is_small = self.b.op(Gt {}, &[exponent, small])?;
        self.b.op(Select {}, &[is_small, series, difference])
    }

    /// `old * keep + new * (1 - keep)`.
    #[track_caller]
    pub fn running(&mut self, old: ValueId, new: ValueId, keep: f64) -> ValueResult {
        let (old, new) = (self.scale(old, keep)?, self.scale(new, 1.0 - keep)?);
        self.add(old, new)
    }

    /// The sum of all elements.
    #[track_caller]
    pub fn sum(&mut self, x: ValueId) -> ValueResult {
        self.b.op(ReduceSum { keepdims: false }, &[x])
    }

    /// The mean of all elements.
    #[track_caller]
    pub fn mean(&mut self, x: ValueId) -> ValueResult {
        self.b.op(ReduceMean { keepdims: false }, &[x])
    }

    /// The square root of the sum of squares.
    #[track_caller]
    pub fn norm(&mut self, x: ValueId) -> ValueResult {
        let squares = self.square(x)?;
        let sum = self.sum(squares)?;
        self.sqrt(sum)
    }

    /// `x` in another element type.
    #[track_caller]
    pub fn cast(&mut self, x: ValueId, to: DType) -> ValueResult {
        if self.dtype(x) == to { Ok(x) } else { self.b.op(Cast::to(to), &[x]) }
    }
}

#[cfg(test)]
mod tests {
    use of_ops::interpret::run_graph;

    use super::*;

    /// The bias corrections of Adam: from the first step on, and where nothing is left of the power.
    #[test]
    fn one_minus_a_power_does_not_cancel() {
        let counts: Vec<f64> = [1.0, 2.0, 3.0, 10.0, 499.0, 500.0, 501.0, 1e4, 1e6, 1e9].to_vec();
        for (dtype, tolerance) in [(DType::F32, 4e-7), (DType::F64, 1e-11)] {
            for base in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999] {
                let mut b = Builder::new("m");
                let x = b.input("x", Type::fixed(dtype, &[counts.len()]));
                let y = Arithmetic::new(&mut b).one_minus_power(base, x).unwrap();
                let module = b.finish(&[("y", y)]).unwrap();
                let x = Tensor::from_elements(dtype, vec![counts.len()], Elements::Float(counts.clone())).unwrap();
                let out = run_graph(&module.main().unwrap().graph, &[x.into()]).unwrap();
                let of_ops::Value::Tensor(got) = &out[0] else { panic!("no tensor") };
                for (got, count) in got.to_f64s().unwrap().iter().zip(&counts) {
                    let want = -(count * base.ln()).exp_m1();
                    assert!((got / want - 1.0).abs() <= tolerance, "{dtype} {base}^{count}: {got}, not {want}");
                }
            }
        }
    }
}
