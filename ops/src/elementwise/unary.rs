//! Elementwise functions of one operand.

use of_diag::Diagnostic;
use of_ir::{DType, OpError, OpView, PartialKind, Sbp, SbpSignature, Type, ValueId};

use crate::sample::Rng;
use crate::scalar::ScalarOp;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, scalar_eval, shape};

/// Which element types a row accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Domain {
    /// Floats and integers.
    Number,
    /// Floats.
    Float,
    /// Integers.
    Int,
    /// Bool.
    Bool,
    /// Anything, strings too.
    Any,
}

impl Domain {
    pub(super) fn check(self, dtype: DType) -> Result<(), OpError> {
        let (ok, what) = match self {
            Domain::Number => (dtype.is_float() || dtype.is_int(), "numbers"),
            Domain::Float => (dtype.is_float(), "floating-point numbers"),
            Domain::Int => (dtype.is_int(), "integers"),
            Domain::Bool => (dtype == DType::Bool, "bools"),
            Domain::Any => (true, "anything"),
        };
        if ok { Ok(()) } else { Err(OpError::ty(format!("operands must be {what}, they are {dtype}"))) }
    }

    pub(super) fn sample(self) -> DType {
        match self {
            Domain::Int => DType::I32,
            Domain::Bool => DType::Bool,
            _ => DType::F32,
        }
    }
}

macro_rules! unary {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal $scalar:ident $domain:ident in $low:literal..$high:literal
       [$($onnx:literal)?] $(grad |$cx:ident, $g:ident| $grad:expr)?;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Primitive $(, onnx: $onnx)?] {
                operands: (x),
                results: (y),
                attrs: {},
            }
            samples: |seed| {
                let mut r = Rng::new(seed);
                let rank = r.int(0, 3) as usize;
                let dims = r.dims(rank, 1, 5);
                let x = r.tensor(Domain::$domain.sample(), &dims, $low, $high);
                Some((vec![x.into()], $name {}))
            };
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                let t = cx.tensor(0)?;
                Domain::$domain.check(t.dtype)?;
                Ok(vec![Type::Tensor(t.with_dtype(ScalarOp::$scalar.result_type(t.dtype)))])
            }

            fn scalar(&self) -> Option<ScalarOp> {
                Some(ScalarOp::$scalar)
            }

            fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
                let x = inputs.tensor(0)?;
                Ok(vec![scalar_eval::broadcast(ScalarOp::$scalar, &[x], x.dims())?.into()])
            }

            fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
                signatures(ScalarOp::$scalar, cx)
            }

            $(fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
                let $g = cx.grads[0]?;
                let $cx = cx;
                Some((|| Ok(vec![$grad]))())
            })?
        }
    )*};
}

/// The gradient of what is constant between its jumps: none.
fn jumps() -> Result<Option<ValueId>, Diagnostic> {
    Ok(None)
}

/// Splits along every axis; partial values pass through functions that commute with the reduction.
fn signatures(op: ScalarOp, cx: &OpView<'_>) -> Vec<SbpSignature> {
    let Ok(Some(s)) = cx.tensor(0).map(|t| t.shape.as_ref()) else { return Vec::new() };
    let mut out = shape::elementwise_splits(&[s], s);
    let mut partial = |from, to| out.push(SbpSignature::new(&[Sbp::Partial(from)], &[Sbp::Partial(to)]));
    match op {
        ScalarOp::Neg => {
            partial(PartialKind::Sum, PartialKind::Sum);
            partial(PartialKind::Max, PartialKind::Min);
            partial(PartialKind::Min, PartialKind::Max);
        }
        ScalarOp::Reciprocal => partial(PartialKind::Prod, PartialKind::Prod),
        // Increasing functions commute with max and min.
        ScalarOp::Exp
        | ScalarOp::Log
        | ScalarOp::Sqrt
        | ScalarOp::Tanh
        | ScalarOp::Sigmoid
        | ScalarOp::Erf
        | ScalarOp::Ceil
        | ScalarOp::Floor
        | ScalarOp::Round
        | ScalarOp::Sinh
        | ScalarOp::Asinh
        | ScalarOp::Atan => {
            partial(PartialKind::Max, PartialKind::Max);
            partial(PartialKind::Min, PartialKind::Min);
        }
        _ => {}
    }
    out
}

/// Small helpers for gradient rules: each creates one op.
impl GradCx<'_, '_> {
    /// `a * b`.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Diagnostic> {
        self.rw.create_one(super::Mul {}, &[a, b])
    }
    /// `a / b`.
    pub fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Diagnostic> {
        self.rw.create_one(super::Div {}, &[a, b])
    }
    /// `a + b`.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Diagnostic> {
        self.rw.create_one(super::Add {}, &[a, b])
    }
    /// `a - b`.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Diagnostic> {
        self.rw.create_one(super::Sub {}, &[a, b])
    }
    /// `-a`.
    pub fn neg(&mut self, a: ValueId) -> Result<ValueId, Diagnostic> {
        self.rw.create_one(Neg {}, &[a])
    }
    /// The number `v` in the element type of `like`, rank 0.
    pub fn scalar(&mut self, v: f64, like: ValueId) -> Result<ValueId, Diagnostic> {
        let dtype = self.rw.graph().ty(like).as_tensor().map_or(DType::F32, |t| t.dtype);
        crate::structural::Constant::number(self.rw, v, dtype)
    }
    /// `v - a`.
    pub fn from_scalar_sub(&mut self, v: f64, a: ValueId) -> Result<ValueId, Diagnostic> {
        let c = self.scalar(v, a)?;
        self.sub(c, a)
    }
}

unary! {
    /// |x|
    Abs = "of.abs" Abs Number in -2.0..2.0 ["Abs"] grad |cx, g| {
        let s = cx.rw.create_one(Sign {}, &[cx.operands[0]])?;
        Some(cx.mul(g, s)?)
    };
    /// arccos x
    Acos = "of.acos" Acos Float in -0.9..0.9 ["Acos"] grad |cx, g| {
        // d arccos x = -1 / sqrt(1 - x^2)
        let x2 = cx.mul(cx.operands[0], cx.operands[0])?;
        let d = cx.from_scalar_sub(1.0, x2)?;
        let r = cx.rw.create_one(Rsqrt {}, &[d])?;
        let p = cx.mul(g, r)?;
        Some(cx.neg(p)?)
    };
    /// arcosh x
    Acosh = "of.acosh" Acosh Float in 1.1..3.0 ["Acosh"] grad |cx, g| {
        // 1 / sqrt(x^2 - 1)
        let x2 = cx.mul(cx.operands[0], cx.operands[0])?;
        let one = cx.scalar(1.0, x2)?;
        let d = cx.sub(x2, one)?;
        let r = cx.rw.create_one(Rsqrt {}, &[d])?;
        Some(cx.mul(g, r)?)
    };
    /// arcsin x
    Asin = "of.asin" Asin Float in -0.9..0.9 ["Asin"] grad |cx, g| {
        let x2 = cx.mul(cx.operands[0], cx.operands[0])?;
        let d = cx.from_scalar_sub(1.0, x2)?;
        let r = cx.rw.create_one(Rsqrt {}, &[d])?;
        Some(cx.mul(g, r)?)
    };
    /// arsinh x
    Asinh = "of.asinh" Asinh Float in -2.0..2.0 ["Asinh"] grad |cx, g| {
        let x2 = cx.mul(cx.operands[0], cx.operands[0])?;
        let one = cx.scalar(1.0, x2)?;
        let d = cx.add(x2, one)?;
        let r = cx.rw.create_one(Rsqrt {}, &[d])?;
        Some(cx.mul(g, r)?)
    };
    /// arctan x
    Atan = "of.atan" Atan Float in -2.0..2.0 ["Atan"] grad |cx, g| {
        let x2 = cx.mul(cx.operands[0], cx.operands[0])?;
        let one = cx.scalar(1.0, x2)?;
        let d = cx.add(x2, one)?;
        Some(cx.div(g, d)?)
    };
    /// artanh x
    Atanh = "of.atanh" Atanh Float in -0.9..0.9 ["Atanh"] grad |cx, g| {
        let x2 = cx.mul(cx.operands[0], cx.operands[0])?;
        let d = cx.from_scalar_sub(1.0, x2)?;
        Some(cx.div(g, d)?)
    };
    /// Bitwise complement.
    BitwiseNot = "of.bitwise_not" BitwiseNot Int in -9.0..9.0 ["BitwiseNot"];
    /// Smallest integer not below x.
    Ceil = "of.ceil" Ceil Number in -2.0..2.0 ["Ceil"] grad |_cx, _g| jumps()?;
    /// cos x
    Cos = "of.cos" Cos Float in -4.0..4.0 ["Cos"] grad |cx, g| {
        let s = cx.rw.create_one(Sin {}, &[cx.operands[0]])?;
        let p = cx.mul(g, s)?;
        Some(cx.neg(p)?)
    };
    /// cosh x
    Cosh = "of.cosh" Cosh Float in -2.0..2.0 ["Cosh"] grad |cx, g| {
        let s = cx.rw.create_one(Sinh {}, &[cx.operands[0]])?;
        Some(cx.mul(g, s)?)
    };
    /// The error function.
    Erf = "of.erf" Erf Float in -3.0..3.0 ["Erf"] grad |cx, g| {
        // 2 / sqrt(pi) * exp(-x^2)
        let x2 = cx.mul(cx.operands[0], cx.operands[0])?;
        let n = cx.neg(x2)?;
        let e = cx.rw.create_one(Exp {}, &[n])?;
        let c = cx.scalar(std::f64::consts::FRAC_2_SQRT_PI, e)?;
        let d = cx.mul(e, c)?;
        Some(cx.mul(g, d)?)
    };
    /// e to the power of x
    Exp = "of.exp" Exp Float in -4.0..4.0 ["Exp"] grad |cx, g| Some(cx.mul(g, cx.results[0])?);
    /// Largest integer not above x.
    Floor = "of.floor" Floor Number in -2.0..2.0 ["Floor"] grad |_cx, _g| jumps()?;
    /// Whether x is not a number.
    IsNan = "of.is_nan" IsNan Float in -2.0..2.0 ["IsNaN"];
    /// Natural logarithm.
    Log = "of.log" Log Float in 0.1..4.0 ["Log"] grad |cx, g| Some(cx.div(g, cx.operands[0])?);
    /// -x
    Neg = "of.neg" Neg Number in -2.0..2.0 ["Neg"] grad |cx, g| Some(cx.neg(g)?);
    /// Logical negation.
    Not = "of.not" Not Bool in 0.0..1.0 ["Not"];
    /// 1 / x
    Reciprocal = "of.reciprocal" Reciprocal Float in 0.3..3.0 ["Reciprocal"] grad |cx, g| {
        let y2 = cx.mul(cx.results[0], cx.results[0])?;
        let p = cx.mul(g, y2)?;
        Some(cx.neg(p)?)
    };
    /// Nearest integer, ties to even.
    Round = "of.round" Round Number in -4.0..4.0 ["Round"] grad |_cx, _g| jumps()?;
    /// 1 / sqrt x
    Rsqrt = "of.rsqrt" Rsqrt Float in 0.3..3.0 [] grad |cx, g| {
        // -1/2 y^3
        let y2 = cx.mul(cx.results[0], cx.results[0])?;
        let y3 = cx.mul(y2, cx.results[0])?;
        let c = cx.scalar(-0.5, y3)?;
        let d = cx.mul(y3, c)?;
        Some(cx.mul(g, d)?)
    };
    /// 1 / (1 + exp(-x))
    Sigmoid = "of.sigmoid" Sigmoid Float in -4.0..4.0 ["Sigmoid"] grad |cx, g| {
        let d = cx.from_scalar_sub(1.0, cx.results[0])?;
        let p = cx.mul(cx.results[0], d)?;
        Some(cx.mul(g, p)?)
    };
    /// -1, 0 or 1
    Sign = "of.sign" Sign Number in -2.0..2.0 ["Sign"] grad |_cx, _g| jumps()?;
    /// sin x
    Sin = "of.sin" Sin Float in -4.0..4.0 ["Sin"] grad |cx, g| {
        let c = cx.rw.create_one(Cos {}, &[cx.operands[0]])?;
        Some(cx.mul(g, c)?)
    };
    /// sinh x
    Sinh = "of.sinh" Sinh Float in -2.0..2.0 ["Sinh"] grad |cx, g| {
        let c = cx.rw.create_one(Cosh {}, &[cx.operands[0]])?;
        Some(cx.mul(g, c)?)
    };
    /// Square root.
    Sqrt = "of.sqrt" Sqrt Float in 0.3..4.0 ["Sqrt"] grad |cx, g| {
        // 1 / (2 y)
        let two = cx.add(cx.results[0], cx.results[0])?;
        Some(cx.div(g, two)?)
    };
    /// tan x
    Tan = "of.tan" Tan Float in -1.2..1.2 ["Tan"] grad |cx, g| {
        let y2 = cx.mul(cx.results[0], cx.results[0])?;
        let one = cx.scalar(1.0, y2)?;
        let d = cx.add(y2, one)?;
        Some(cx.mul(g, d)?)
    };
    /// tanh x
    Tanh = "of.tanh" Tanh Float in -3.0..3.0 ["Tanh"] grad |cx, g| {
        let y2 = cx.mul(cx.results[0], cx.results[0])?;
        let d = cx.from_scalar_sub(1.0, y2)?;
        Some(cx.mul(g, d)?)
    };
}
