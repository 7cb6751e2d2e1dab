//! Elementwise functions of two operands with NumPy broadcasting.

use of_diag::Diagnostic;
use of_ir::{Dim, DimFn, OpError, OpView, PartialKind, Sbp, SbpSignature, TensorType, Type, ValueId};

use super::unary::Domain;
use super::{Log, Neg};
use crate::division::{self, divides_integers};
use crate::sample::Rng;
use crate::scalar::ScalarOp;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, scalar_eval, shape};

macro_rules! binary {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal $scalar:ident $domain:ident in $low:literal..$high:literal
       [$($onnx:literal)?] $(grad |$cx:ident, $g:ident| $grad:expr)?;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Primitive $(, onnx: $onnx)?] {
                operands: (a, b),
                results: (c),
                attrs: {},
            }
            samples: |seed| {
                let mut r = Rng::new(seed);
                let rank = r.int(1, 3) as usize;
                let dims = r.dims(rank, 1, 5);
                // The second operand misses axes or is broadcast along them.
                let keep = r.int(0, rank as i64) as usize;
                let other: Vec<usize> = dims[rank - keep..].iter().map(|d| if r.int(0, 3) == 0 { 1 } else { *d }).collect();
                let dtype = Domain::$domain.sample();
                let a = r.tensor(dtype, &dims, $low, $high);
                let b = r.tensor(dtype, &other, $low, $high);
                Some((vec![a.into(), b.into()], $name {}))
            };
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                infer(ScalarOp::$scalar, Domain::$domain, cx)
            }

            fn scalar(&self) -> Option<ScalarOp> {
                Some(ScalarOp::$scalar)
            }

            fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
                dims(ScalarOp::$scalar, cx)
            }

            fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
                eval(ScalarOp::$scalar, inputs)
            }

            fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
                signatures(ScalarOp::$scalar, cx)
            }

            $(fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
                let $g = cx.grads[0]?;
                let $cx = cx;
                let run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
                    let (a, b): (ValueId, ValueId) = $grad;
                    let a = $cx.unbroadcast(a, $cx.operands[0])?;
                    let b = $cx.unbroadcast(b, $cx.operands[1])?;
                    Ok(vec![Some(a), Some(b)])
                };
                let mut run = run;
                Some(run())
            })?
        }
    )*};
}

fn infer(op: ScalarOp, domain: Domain, cx: &OpView<'_>) -> Inferred {
    let (a, b) = (cx.tensor(0)?, cx.tensor(1)?);
    if a.dtype != b.dtype {
        return Err(OpError::ty(format!("operands have different element types {} and {}", a.dtype, b.dtype))
            .hint("add a cast"));
    }
    domain.check(a.dtype)?;
    let shape = match (&a.shape, &b.shape) {
        (Some(x), Some(y)) => Some(shape::broadcast(&[x, y])?),
        _ => None,
    };
    Ok(vec![Type::Tensor(TensorType { dtype: op.result_type(a.dtype), shape, sbp: None })])
}

fn eval(op: ScalarOp, inputs: &Inputs<'_>) -> Evaluated {
    let (a, b) = (inputs.tensor(0)?, inputs.tensor(1)?);
    let dims = broadcast_dims(&[a.dims(), b.dims()])?;
    // No division takes place where the result has no elements.
    if divides_integers(op, b.dtype()) && !dims.contains(&0) && b.to_i64s().is_some_and(|b| b.contains(&0)) {
        return Err(OpError::eval(division::BY_ZERO));
    }
    Ok(vec![scalar_eval::broadcast(op, &[a, b], &dims)?.into()])
}

/// The common dimensions of tensor values.
pub(crate) fn broadcast_dims(list: &[&[usize]]) -> Result<Vec<usize>, OpError> {
    let shapes: Vec<Vec<Dim>> = list.iter().map(|d| d.iter().map(|x| Dim::from(*x)).collect()).collect();
    let out = shape::broadcast(&shapes.iter().collect::<Vec<_>>())?;
    Ok(out.iter().filter_map(|d| d.as_const()).map(|d| d as usize).collect())
}

/// Arithmetic on dimensions, for shape computations in the graph.
fn dims(op: ScalarOp, cx: &OpView<'_>) -> Option<Vec<Dim>> {
    let (a, b) = (cx.dims(0)?, cx.dims(1)?);
    let n = a.len().max(b.len());
    if (a.len() != n && a.len() != 1) || (b.len() != n && b.len() != 1) {
        return None;
    }
    let nonnegative = |d: &Dim| d.as_const().is_none_or(|c| c >= 0);
    (0..n)
        .map(|i| {
            let (x, y) = (&a[i.min(a.len() - 1)], &b[i.min(b.len() - 1)]);
            Some(match op {
                ScalarOp::Add => x + y,
                ScalarOp::Sub => x - y,
                ScalarOp::Mul => x * y,
                ScalarOp::Div if y.as_const() == Some(1) => x.clone(),
                // Dimensions are not negative, so truncation is flooring.
                ScalarOp::Div if nonnegative(x) && y.as_const().is_some_and(|c| c > 0) => {
                    Dim::call(DimFn::FloorDiv, x, y)
                }
                ScalarOp::Mod if y.as_const().is_some_and(|c| c > 0) => Dim::call(DimFn::Mod, x, y),
                ScalarOp::Max => Dim::call(DimFn::Max, x, y),
                ScalarOp::Min => Dim::call(DimFn::Min, x, y),
                ScalarOp::Eq => i64::from(equal(x, y)?).into(),
                _ => return None,
            })
        })
        .collect()
}

/// Splits along every axis, and the partial values that each function lets through.
fn signatures(op: ScalarOp, cx: &OpView<'_>) -> Vec<SbpSignature> {
    let (Ok(a), Ok(b)) = (cx.tensor(0), cx.tensor(1)) else { return Vec::new() };
    let (Some(a), Some(b)) = (&a.shape, &b.shape) else { return Vec::new() };
    let Ok(result) = shape::broadcast(&[a, b]) else { return Vec::new() };
    let mut out = shape::elementwise_splits(&[a, b], &result);
    let p = Sbp::Partial;
    let mut add = |x, y, z| out.push(SbpSignature::new(&[x, y], &[z]));
    match op {
        // (sum a_i) ± (sum b_i) = sum (a_i ± b_i)
        ScalarOp::Add | ScalarOp::Sub => {
            let sum = p(PartialKind::Sum);
            add(sum, sum, sum);
            let shift = if op == ScalarOp::Add { [PartialKind::Max, PartialKind::Min].as_slice() } else { &[] };
            for k in shift {
                add(p(*k), Sbp::Broadcast, p(*k));
                add(Sbp::Broadcast, p(*k), p(*k));
            }
        }
        // (sum a_i) b = sum (a_i b);  (prod a_i)(prod b_i) = prod (a_i b_i)
        ScalarOp::Mul => {
            add(p(PartialKind::Sum), Sbp::Broadcast, p(PartialKind::Sum));
            add(Sbp::Broadcast, p(PartialKind::Sum), p(PartialKind::Sum));
            add(p(PartialKind::Prod), p(PartialKind::Prod), p(PartialKind::Prod));
        }
        ScalarOp::Div => add(p(PartialKind::Sum), Sbp::Broadcast, p(PartialKind::Sum)),
        ScalarOp::Max | ScalarOp::Min => {
            let k = if op == ScalarOp::Max { PartialKind::Max } else { PartialKind::Min };
            add(p(k), p(k), p(k));
            for other in [PartialKind::Max, PartialKind::Min] {
                add(p(other), Sbp::Broadcast, p(other));
                add(Sbp::Broadcast, p(other), p(other));
            }
        }
        _ => {}
    }
    out
}

impl GradCx<'_, '_> {
    /// Sums a gradient over the axes along which `like` was broadcast.
    pub fn unbroadcast(&mut self, grad: ValueId, like: ValueId) -> Result<ValueId, Diagnostic> {
        crate::reduction::unbroadcast(self.rw, grad, like)
    }
}

binary! {
    /// a + b
    Add = "of.add" Add Number in -2.0..2.0 ["Add"] grad |cx, g| (g, g);
    /// Logical and.
    And = "of.and" And Bool in 0.0..1.0 ["And"];
    /// Bitwise and.
    BitwiseAnd = "of.bitwise_and" BitwiseAnd Int in -9.0..9.0 ["BitwiseAnd"];
    /// Bitwise or.
    BitwiseOr = "of.bitwise_or" BitwiseOr Int in -9.0..9.0 ["BitwiseOr"];
    /// Bitwise exclusive or.
    BitwiseXor = "of.bitwise_xor" BitwiseXor Int in -9.0..9.0 ["BitwiseXor"];
    /// a / b; integers truncate towards zero, and by zero are an error.
    Div = "of.div" Div Number in 0.5..3.0 ["Div"] grad |cx, g| {
        let ga = cx.div(g, cx.operands[1])?;
        // d(a/b)/db = -(a/b)/b
        let p = cx.mul(ga, cx.results[0])?;
        (ga, cx.rw.create_one(Neg {}, &[p])?)
    };
    /// a = b
    Eq = "of.eq" Eq Any in -2.0..2.0 ["Equal"];
    /// Remainder with the sign of a; of integers by zero an error.
    Fmod = "of.fmod" Fmod Number in 1.0..9.0 [] grad |cx, g| (g, cx.of_divisor(g)?);
    /// a >= b
    Ge = "of.ge" Ge Any in -2.0..2.0 ["GreaterOrEqual"];
    /// a > b
    Gt = "of.gt" Gt Any in -2.0..2.0 ["Greater"];
    /// a <= b
    Le = "of.le" Le Any in -2.0..2.0 ["LessOrEqual"];
    /// a < b
    Lt = "of.lt" Lt Any in -2.0..2.0 ["Less"];
    /// The larger; NaN if either is.
    Max = "of.max" Max Number in -2.0..2.0 [] grad |cx, g| cx.choose(g, ScalarOp::Ge)?;
    /// The smaller; NaN if either is.
    Min = "of.min" Min Number in -2.0..2.0 [] grad |cx, g| cx.choose(g, ScalarOp::Le)?;
    /// Remainder with the sign of b; of integers by zero an error.
    Mod = "of.mod" Mod Number in 1.0..9.0 [] grad |cx, g| (g, cx.of_divisor(g)?);
    /// a * b
    Mul = "of.mul" Mul Number in -2.0..2.0 ["Mul"] grad |cx, g| (cx.mul(g, cx.operands[1])?, cx.mul(g, cx.operands[0])?);
    /// a != b
    Ne = "of.ne" Ne Any in -2.0..2.0 [];
    /// Logical or.
    Or = "of.or" Or Bool in 0.0..1.0 ["Or"];
    /// a to the power of b.
    Pow = "of.pow" Pow Number in 0.5..2.0 [] grad |cx, g| {
        // da = g b a^(b-1);  db = g a^b ln a
        let one = cx.scalar(1.0, cx.operands[1])?;
        let less = cx.sub(cx.operands[1], one)?;
        let power = cx.rw.create_one(Pow {}, &[cx.operands[0], less])?;
        let slope = cx.mul(cx.operands[1], power)?;
        let ln = cx.rw.create_one(Log {}, &[cx.operands[0]])?;
        let rise = cx.mul(cx.results[0], ln)?;
        (cx.mul(g, slope)?, cx.mul(g, rise)?)
    };
    /// Shift left; by the width or more gives 0.
    Shl = "of.shl" Shl Int in 0.0..7.0 [];
    /// Shift right, arithmetic for signed integers; by the width or more gives 0.
    Shr = "of.shr" Shr Int in 0.0..7.0 [];
    /// a - b
    Sub = "of.sub" Sub Number in -2.0..2.0 ["Sub"] grad |cx, g| (g, cx.neg(g)?);
    /// Logical exclusive or.
    Xor = "of.xor" Xor Bool in 0.0..1.0 ["Xor"];
}

impl GradCx<'_, '_> {
    /// By the divisor of a remainder `c = a - q b`, whose `q` is whole.
    fn of_divisor(&mut self, g: ValueId) -> Result<ValueId, Diagnostic> {
        let whole = self.sub(self.operands[0], self.results[0])?;
        let quotient = self.div(whole, self.operands[1])?;
        let quotient = self.rw.create_one(super::Round {}, &[quotient])?;
        let against = self.mul(g, quotient)?;
        self.neg(against)
    }

    /// The gradient goes to the operand that was chosen: `a` where `a <op> b`, else `b`.
    fn choose(&mut self, g: ValueId, op: ScalarOp) -> Result<(ValueId, ValueId), Diagnostic> {
        let (a, b) = (self.operands[0], self.operands[1]);
        let first = match op {
            ScalarOp::Ge => self.rw.create_one(Ge {}, &[a, b])?,
            _ => self.rw.create_one(Le {}, &[a, b])?,
        };
        let zero = self.scalar(0.0, g)?;
        let ga = self.rw.create_one(super::Select {}, &[first, g, zero])?;
        let gb = self.rw.create_one(super::Select {}, &[first, zero, g])?;
        Ok((ga, gb))
    }
}

/// Whether two dimensions are equal or unequal for all values of their symbols; `None` if that is unknown.
fn equal(x: &Dim, y: &Dim) -> Option<bool> {
    if x.is_unknown() || y.is_unknown() {
        return None;
    }
    let above = |d: Dim| (&d - &Dim::from(1i64)).is_nonnegative();
    match (x - y).as_const() {
        Some(distance) => Some(distance == 0),
        None if above(x - y) || above(y - x) => Some(false),
        None => None,
    }
}
