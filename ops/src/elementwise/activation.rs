//! Activations: elementwise composites of one operand. Each row has its formula in primitives.

use of_diag::Diagnostic;
use of_ir::{DType, OpError, OpView, Rewriter, SbpSignature, Type, ValueId};

use super::{Abs, Add, Div, Erf, Exp, Ge, Gt, Log, Lt, Max, Min, Mul, Neg, Select, Sigmoid, Sub, Tanh};
use crate::build::in_wide;
use crate::sample::Rng;
use crate::structural::Constant;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

type BuildResult = Result<ValueId, Diagnostic>;

/// The expansion of an op with one result.
fn one(make: impl FnOnce() -> BuildResult) -> Expanded {
    Ok(vec![make()?])
}

/// Creates ops on one operand.
struct Cx<'r, 'g> {
    rw: &'r mut Rewriter<'g>,
    x: ValueId,
}

impl Cx<'_, '_> {
    fn c(&mut self, v: f64) -> BuildResult {
        let dtype = self.rw.graph().ty(self.x).as_tensor().map_or(DType::F32, |t| t.dtype);
        Constant::number(self.rw, v, dtype)
    }
    fn add(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        self.rw.create_one(Add {}, &[a, b])
    }
    fn sub(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        self.rw.create_one(Sub {}, &[a, b])
    }
    fn mul(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        self.rw.create_one(Mul {}, &[a, b])
    }
    fn div(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        self.rw.create_one(Div {}, &[a, b])
    }
    fn exp(&mut self, a: ValueId) -> BuildResult {
        self.rw.create_one(Exp {}, &[a])
    }
    /// v * a
    fn scale(&mut self, v: f64, a: ValueId) -> BuildResult {
        if v == 1.0 {
            return Ok(a);
        }
        let c = self.c(v)?;
        self.mul(a, c)
    }
    /// a + v
    fn shift(&mut self, a: ValueId, v: f64) -> BuildResult {
        let c = self.c(v)?;
        self.add(a, c)
    }
    fn max(&mut self, a: ValueId, v: f64) -> BuildResult {
        let c = self.c(v)?;
        self.rw.create_one(Max {}, &[a, c])
    }
    fn min(&mut self, a: ValueId, v: f64) -> BuildResult {
        let c = self.c(v)?;
        self.rw.create_one(Min {}, &[a, c])
    }
    /// exp(min(x, 0)) - 1, scaled: the negative branch of the exponential units, safe for large x.
    fn exp_branch(&mut self, scale: f64, inner: f64) -> BuildResult {
        let n = self.min(self.x, 0.0)?;
        let n = self.scale(inner, n)?;
        let e = self.exp(n)?;
        let e = self.shift(e, -1.0)?;
        self.scale(scale, e)
    }
    /// a where x > 0, else b
    fn positive(&mut self, a: ValueId, b: ValueId) -> BuildResult {
        let zero = self.c(0.0)?;
        let p = self.rw.create_one(Gt {}, &[self.x, zero])?;
        self.rw.create_one(Select {}, &[p, a, b])
    }
    /// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))
    fn softplus(&mut self) -> BuildResult {
        let a = self.rw.create_one(Abs {}, &[self.x])?;
        let n = self.rw.create_one(Neg {}, &[a])?;
        let e = self.exp(n)?;
        let s = self.shift(e, 1.0)?;
        let l = self.rw.create_one(Log {}, &[s])?;
        let m = self.max(self.x, 0.0)?;
        self.add(m, l)
    }
}

fn infer(cx: &OpView<'_>, any_number: bool) -> Inferred {
    let t = cx.tensor(0)?;
    if !(t.dtype.is_float() || any_number && t.dtype.is_int()) {
        return Err(OpError::ty(format!("operands must be floating-point numbers, they are {}", t.dtype)));
    }
    Ok(vec![Type::Tensor(t.with_dtype(t.dtype))])
}

macro_rules! activations {
    ($($(#[doc = $doc:literal])* $name:ident = $opname:literal [$($onnx:literal)?] numbers: $any:literal
       { $($attr:ident: $ty:ty = $value:expr),* } |$s:ident, $c:ident| $expand:expr;)*) => {$(
        op! {
            $(#[doc = $doc])*
            pub struct $name = $opname [Composite $(, onnx: $onnx)?] {
                operands: (x),
                results: (y),
                attrs: { $($attr: $ty),* },
            }
            samples: |seed| {
                let mut r = Rng::new(seed);
                let dims = r.dims(2, 1, 5);
                Some((vec![r.tensor(DType::F32, &dims, -4.0, 4.0).into()], $name { $($attr: $value),* }))
            };
        }

        impl Op for $name {
            op_basics!($name);

            fn infer(&self, cx: &OpView<'_>) -> Inferred {
                infer(cx, $any)
            }

            fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
                let $s = self;
                let _ = &$s;
                let parts = |rw: &mut Rewriter<'_>, operands: &[ValueId]| {
                    let mut $c = Cx { rw, x: operands[0] };
                    one(|| $expand)
                };
                // What takes any number chooses and moves: nothing is rounded.
                if $any { parts(rw, operands) } else { in_wide(rw, operands, parts) }
            }

            fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
                let Ok(Some(s)) = cx.tensor(0).map(|t| t.shape.as_ref()) else { return Vec::new() };
                shape::elementwise_splits(&[s], s)
            }
        }
    )*};
}

activations! {
    /// max(x, 0) + min(alpha (exp(x / alpha) - 1), 0)
    Celu = "of.celu" ["Celu"] numbers: false { alpha: f64 = 1.5 } |s, c| {
        let e = c.exp_branch(s.alpha, 1.0 / s.alpha)?;
        let m = c.max(c.x, 0.0)?;
        let n = c.min(e, 0.0)?;
        c.add(m, n)
    };
    /// x where x > 0, else alpha (exp(x) - 1)
    Elu = "of.elu" ["Elu"] numbers: false { alpha: f64 = 0.7 } |s, c| {
        let e = c.exp_branch(s.alpha, 1.0)?;
        c.positive(c.x, e)
    };
    /// x / 2 (1 + erf(x / sqrt 2)), or with `tanh` its approximation x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
    Gelu = "of.gelu" [] numbers: false { tanh: bool = true } |s, c| {
        let half = c.scale(0.5, c.x)?;
        let inner = if s.tanh {
            let x2 = c.mul(c.x, c.x)?;
            let x3 = c.mul(x2, c.x)?;
            let t = c.scale(0.044715, x3)?;
            let t = c.add(c.x, t)?;
            let t = c.scale((2.0 / std::f64::consts::PI).sqrt(), t)?;
            c.rw.create_one(Tanh {}, &[t])?
        } else {
            let t = c.scale(std::f64::consts::FRAC_1_SQRT_2, c.x)?;
            c.rw.create_one(Erf {}, &[t])?
        };
        let one = c.shift(inner, 1.0)?;
        c.mul(half, one)
    };
    /// max(0, min(1, alpha x + beta))
    HardSigmoid = "of.hard_sigmoid" ["HardSigmoid"] numbers: false { alpha: f64 = 0.2, beta: f64 = 0.5 } |s, c| {
        let y = c.scale(s.alpha, c.x)?;
        let y = c.shift(y, s.beta)?;
        let y = c.min(y, 1.0)?;
        c.max(y, 0.0)
    };
    /// x max(0, min(1, x / 6 + 1/2))
    HardSwish = "of.hard_swish" ["HardSwish"] numbers: false {} |s, c| {
        let y = c.scale(1.0 / 6.0, c.x)?;
        let y = c.shift(y, 0.5)?;
        let y = c.min(y, 1.0)?;
        let y = c.max(y, 0.0)?;
        c.mul(c.x, y)
    };
    /// x where x >= 0, else alpha x
    LeakyRelu = "of.leaky_relu" ["LeakyRelu"] numbers: false { alpha: f64 = 0.1 } |s, c| {
        let n = c.scale(s.alpha, c.x)?;
        let zero = c.c(0.0)?;
        let p = c.rw.create_one(Ge {}, &[c.x, zero])?;
        c.rw.create_one(Select {}, &[p, c.x, n])
    };
    /// x tanh(softplus(x))
    Mish = "of.mish" ["Mish"] numbers: false {} |s, c| {
        let p = c.softplus()?;
        let t = c.rw.create_one(Tanh {}, &[p])?;
        c.mul(c.x, t)
    };
    /// max(x, 0)
    Relu = "of.relu" ["Relu"] numbers: true {} |s, c| c.max(c.x, 0.0);
    /// gamma x where x > 0, else gamma alpha (exp(x) - 1)
    Selu = "of.selu" ["Selu"] numbers: false { alpha: f64 = 1.67326, gamma: f64 = 1.0507 } |s, c| {
        let e = c.exp_branch(s.alpha, 1.0)?;
        let y = c.positive(c.x, e)?;
        c.scale(s.gamma, y)
    };
    /// x + bias below -lambd, x - bias above lambd, else 0
    Shrink = "of.shrink" ["Shrink"] numbers: true { lambd: f64 = 0.5, bias: f64 = 0.25 } |s, c| {
        let (low, high, zero) = (c.c(-s.lambd)?, c.c(s.lambd)?, c.c(0.0)?);
        let below = c.rw.create_one(Lt {}, &[c.x, low])?;
        let above = c.rw.create_one(Gt {}, &[c.x, high])?;
        let bias = c.c(s.bias)?;
        let up = c.add(c.x, bias)?;
        let down = c.sub(c.x, bias)?;
        let y = c.rw.create_one(Select {}, &[above, down, zero])?;
        c.rw.create_one(Select {}, &[below, up, y])
    };
    /// log(1 + exp(x))
    Softplus = "of.softplus" ["Softplus"] numbers: false {} |s, c| c.softplus();
    /// x / (1 + |x|)
    Softsign = "of.softsign" ["Softsign"] numbers: false {} |s, c| {
        let a = c.rw.create_one(Abs {}, &[c.x])?;
        let d = c.shift(a, 1.0)?;
        c.div(c.x, d)
    };
    /// x sigmoid(alpha x)
    Swish = "of.swish" ["Swish"] numbers: false { alpha: f64 = 1.0 } |s, c| {
        let a = c.scale(s.alpha, c.x)?;
        let g = c.rw.create_one(Sigmoid {}, &[a])?;
        c.mul(c.x, g)
    };
    /// x where x > alpha, else 0
    ThresholdedRelu = "of.thresholded_relu" ["ThresholdedRelu"] numbers: false { alpha: f64 = 1.0 } |s, c| {
        let (t, zero) = (c.c(s.alpha)?, c.c(0.0)?);
        let p = c.rw.create_one(Gt {}, &[c.x, t])?;
        c.rw.create_one(Select {}, &[p, c.x, zero])
    };
}
