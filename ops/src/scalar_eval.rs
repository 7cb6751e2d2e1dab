//! Reference evaluation of the scalar language: floats in f64, integers exactly, rounded to the type at the end.

use of_ir::{DType, Elements, OpError, Tensor};

use crate::scalar::ScalarOp;
use crate::shape::strides;

/// A number of either class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Num {
    /// Float types.
    F(f64),
    /// Integer types and bool.
    I(i128),
}

impl Num {
    fn f(self) -> f64 {
        match self {
            Num::F(x) => x,
            Num::I(x) => x as f64,
        }
    }

    fn truth(self) -> bool {
        match self {
            Num::F(x) => x != 0.0,
            Num::I(x) => x != 0,
        }
    }
}

/// The value of `op`; `dtype` is the element type of the operands. Integer results wrap when they are stored.
pub fn apply(op: ScalarOp, dtype: DType, args: &[Num]) -> Num {
    use ScalarOp::*;
    let a = args[0];
    let b = args.get(1).copied().unwrap_or(Num::I(0));
    let truth = |t: bool| Num::I(i128::from(t));
    if let (Num::I(x), Num::I(y)) = (a, b)
        && let Some(v) = integer(op, dtype, x, y)
    {
        return Num::I(v);
    }
    let (x, y) = (a.f(), b.f());
    Num::F(match op {
        Neg => -x,
        Abs => x.abs(),
        Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        }
        Ceil => x.ceil(),
        Floor => x.floor(),
        Round => x.round_ties_even(),
        Sqrt => x.sqrt(),
        Rsqrt => 1.0 / x.sqrt(),
        Reciprocal => 1.0 / x,
        Exp => x.exp(),
        Log => x.ln(),
        Sin => x.sin(),
        Cos => x.cos(),
        Tan => x.tan(),
        Asin => x.asin(),
        Acos => x.acos(),
        Atan => x.atan(),
        Sinh => x.sinh(),
        Cosh => x.cosh(),
        Tanh => x.tanh(),
        Asinh => x.asinh(),
        Acosh => x.acosh(),
        Atanh => x.atanh(),
        Erf => erf(x),
        Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Add => x + y,
        Sub => x - y,
        Mul => x * y,
        Div => x / y,
        Mod => {
            let r = x % y;
            if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
        }
        Fmod => x % y,
        Pow => x.powf(y),
        Max => {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else {
                x.max(y)
            }
        }
        Min => {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else {
                x.min(y)
            }
        }
        IsNan => return truth(x.is_nan()),
        IsInf => return truth(x.is_infinite()),
        Not => return truth(!a.truth()),
        And => return truth(a.truth() && b.truth()),
        Or => return truth(a.truth() || b.truth()),
        Xor => return truth(a.truth() != b.truth()),
        Eq => return truth(x == y),
        Ne => return truth(x != y),
        Lt => return truth(x < y),
        Le => return truth(x <= y),
        Gt => return truth(x > y),
        Ge => return truth(x >= y),
        Select => return if a.truth() { b } else { args[2] },
        Cast(_) => return a,
        BitwiseNot | BitwiseAnd | BitwiseOr | BitwiseXor | Shl | Shr => f64::NAN,
    })
}

/// Integer results; `None` for functions that are computed in floating point.
fn integer(op: ScalarOp, dtype: DType, x: i128, y: i128) -> Option<i128> {
    use ScalarOp::*;
    let bits = dtype.bits().unwrap_or(64) as u32;
    Some(match op {
        Neg => -x,
        Abs => x.abs(),
        Sign => x.signum(),
        Ceil | Floor | Round => x,
        Add => x + y,
        Sub => x - y,
        Mul => x * y,
        Div => x.checked_div(y).unwrap_or(0),
        Mod => {
            let r = x.checked_rem(y).unwrap_or(0);
            if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
        }
        Fmod => x.checked_rem(y).unwrap_or(0),
        Pow if y >= 0 => {
            // Repeated squaring; the result wraps to the type when stored, so wrapping at 128 bits is exact enough.
            let (mut base, mut exp, mut acc) = (x, y, 1i128);
            while exp > 0 {
                if exp & 1 == 1 {
                    acc = acc.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                exp >>= 1;
            }
            acc
        }
        Max => x.max(y),
        Min => x.min(y),
        And => i128::from(x != 0 && y != 0),
        Or => i128::from(x != 0 || y != 0),
        Xor => i128::from((x != 0) != (y != 0)),
        Not => i128::from(x == 0),
        BitwiseNot => !x,
        BitwiseAnd => x & y,
        BitwiseOr => x | y,
        BitwiseXor => x ^ y,
        // A shift by the width or more leaves nothing but the sign.
        Shl => {
            if (0..i128::from(bits)).contains(&y) {
                x << y
            } else {
                0
            }
        }
        Shr => {
            if (0..i128::from(bits)).contains(&y) {
                x >> y
            } else if x < 0 {
                -1
            } else {
                0
            }
        }
        Eq => i128::from(x == y),
        Ne => i128::from(x != y),
        Lt => i128::from(x < y),
        Le => i128::from(x <= y),
        Gt => i128::from(x > y),
        Ge => i128::from(x >= y),
        _ => return None,
    })
}

/// The error function, to double precision: series near zero, continued fraction beyond.
///
/// Source: Abramowitz and Stegun, 7.1.6 (series) and 7.1.14 (continued fraction of erfc).
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    let value = if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > sum.abs() * 1e-17 {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        2.0 / std::f64::consts::PI.sqrt() * (-a * a).exp() * sum
    } else if a < 6.5 {
        let mut f = 0.0;
        for k in (1..=60).rev() {
            f = f64::from(k) / 2.0 / (a + f);
        }
        1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + f)
    } else {
        1.0
    };
    value.copysign(x)
}

/// Reads elements of either class by position.
fn at(e: &Elements, i: usize) -> Num {
    match e {
        Elements::Float(v) => Num::F(v[i]),
        Elements::Int(v) => Num::I(v[i]),
        Elements::Str(_) => Num::I(0),
    }
}

/// Applies `op` to broadcast operands; the result has dimensions `dims`.
///
/// # Errors
/// For operands that do not broadcast to `dims`, and strings outside comparisons of equality and selection.
pub fn broadcast(op: ScalarOp, operands: &[&Tensor], dims: &[usize]) -> Result<Tensor, OpError> {
    let choice = if op == ScalarOp::Select { 1 } else { 0 };
    let dtype = operands.get(choice).ok_or_else(|| OpError::eval("an operand is missing"))?.dtype();
    if operands.iter().any(|t| t.dtype() == DType::String) {
        return strings(op, operands, dims);
    }
    let index = Broadcast::new(operands, dims)?;
    if let Some(values) = singles(op, operands, &index) {
        return Ok(Tensor::from_slice(dims, &values)?);
    }
    let elements: Vec<Elements> = operands.iter().map(|t| t.elements()).collect();
    let n: usize = dims.iter().product();
    let out_type = op.result_type(dtype);
    let mut args = [Num::I(0); 3];
    let mut positions = vec![0; operands.len()];
    let mut compute = |i: usize| {
        index.positions(i, &mut positions);
        for (a, (e, p)) in args.iter_mut().zip(elements.iter().zip(&positions)) {
            *a = at(e, *p);
        }
        apply(op, dtype, &args[..operands.len()])
    };
    // The class of the result is that of its type, but for integers that a float function was applied to.
    let elements = if out_type.is_float() {
        Elements::Float((0..n).map(|i| compute(i).f()).collect())
    } else {
        let all: Vec<Num> = (0..n).map(&mut compute).collect();
        if all.iter().any(|x| matches!(x, Num::F(_))) {
            Elements::Float(all.into_iter().map(Num::f).collect())
        } else {
            Elements::Int(all.into_iter().map(|x| if let Num::I(v) = x { v } else { 0 }).collect())
        }
    };
    Ok(Tensor::from_elements(out_type, dims.to_vec(), elements)?)
}

/// Sums, differences, products and quotients of f32, for weights of millions of elements; `None` for anything else. The bits are
/// those of f64 rounded to f32, which has more than twice the digits. Source: S. A. Figueroa, "When is double rounding innocuous?",
/// 1995.
fn singles(op: ScalarOp, operands: &[&Tensor], index: &Broadcast) -> Option<Vec<f32>> {
    let [a, b] = operands else { return None };
    let (x, y) = (a.as_slice::<f32>()?, b.as_slice::<f32>()?);
    match op {
        ScalarOp::Add => Some(index.zip(&x, &y, |x, y| x + y)),
        ScalarOp::Sub => Some(index.zip(&x, &y, |x, y| x - y)),
        ScalarOp::Mul => Some(index.zip(&x, &y, |x, y| x * y)),
        ScalarOp::Div => Some(index.zip(&x, &y, |x, y| x / y)),
        _ => None,
    }
}

/// Equality and selection: the only ops defined on strings.
fn strings(op: ScalarOp, operands: &[&Tensor], dims: &[usize]) -> Result<Tensor, OpError> {
    let index = Broadcast::new(operands, dims)?;
    let n: usize = dims.iter().product();
    let mut p = vec![0; operands.len()];
    match (op, operands) {
        (ScalarOp::Eq | ScalarOp::Ne, [a, b]) => {
            let (Some(x), Some(y)) = (a.strings(), b.strings()) else {
                return Err(OpError::eval("one operand has strings, the other numbers"));
            };
            let out = (0..n).map(|i| {
                index.positions(i, &mut p);
                i128::from((x[p[0]] == y[p[1]]) == (op == ScalarOp::Eq))
            });
            Ok(Tensor::from_elements(DType::Bool, dims.to_vec(), Elements::Int(out.collect()))?)
        }
        (ScalarOp::Select, [c, a, b]) => {
            let (Some(x), Some(y)) = (a.strings(), b.strings()) else {
                return Err(OpError::eval("one operand has strings, the other numbers"));
            };
            let c = c.to_i64s().ok_or_else(|| OpError::eval("the condition must be bool"))?;
            let out = (0..n).map(|i| {
                index.positions(i, &mut p);
                if c[p[0]] != 0 { x[p[1]].clone() } else { y[p[2]].clone() }
            });
            Ok(Tensor::from_strings(dims.to_vec(), out.collect())?)
        }
        _ => Err(OpError::eval(format!("{op:?} is not defined for strings"))),
    }
}

/// Maps positions of a result to positions of operands that broadcast to it.
struct Broadcast {
    dims: Vec<usize>,
    /// Stride of each operand along each result axis; 0 where it is broadcast.
    steps: Vec<Vec<usize>>,
}

impl Broadcast {
    fn new(operands: &[&Tensor], dims: &[usize]) -> Result<Self, OpError> {
        let mut steps = Vec::new();
        for t in operands {
            let own = t.dims();
            let lead = dims
                .len()
                .checked_sub(own.len())
                .ok_or_else(|| OpError::eval(format!("{own:?} does not broadcast to {dims:?}")))?;
            let st = strides(own);
            let mut s = vec![0; dims.len()];
            for (i, d) in own.iter().enumerate() {
                if *d == dims[lead + i] {
                    s[lead + i] = st[i];
                } else if *d != 1 {
                    return Err(OpError::eval(format!("{own:?} does not broadcast to {dims:?}")));
                }
            }
            steps.push(s);
        }
        Ok(Self { dims: dims.to_vec(), steps })
    }

    /// Applies a function to the elements of two operands, row by row.
    fn zip(&self, x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        let n: usize = self.dims.iter().product();
        let row = self.dims.last().copied().unwrap_or(1);
        let step = |operand: usize| self.steps[operand].last().copied().unwrap_or(0);
        let (a, b) = (step(0), step(1));
        let mut out = Vec::with_capacity(n);
        let mut at = [0; 2];
        for start in (0..n).step_by(row.max(1)) {
            self.positions(start, &mut at);
            out.extend((0..row).map(|i| f(x[at[0] + i * a], y[at[1] + i * b])));
        }
        out
    }

    fn positions(&self, flat: usize, out: &mut [usize]) {
        out.fill(0);
        let mut rest = flat;
        for axis in (0..self.dims.len()).rev() {
            let i = rest % self.dims[axis];
            rest /= self.dims[axis];
            for (o, s) in out.iter_mut().zip(&self.steps) {
                *o += i * s[axis];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_tables() {
        // Abramowitz and Stegun, table 7.1.
        for (x, y) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - y).abs() < 1e-15, "{x}");
            assert!((erf(-x) + y).abs() < 1e-15, "-{x}");
        }
    }

    /// Against the arithmetic in f64, bit for bit.
    #[test]
    fn singles_have_the_bits_of_rounded_doubles() {
        let mut random = crate::sample::Rng::new(1);
        let mut any = |n: usize| -> Vec<f32> {
            let special = [0.0, -0.0, f32::INFINITY, f32::MIN_POSITIVE / 4.0, f32::MAX, 1.0];
            let mut one =
                |i: usize| if i.is_multiple_of(7) { special[i / 7 % 6] } else { f32::from_bits(random.bits() as u32) };
            (0..n).map(&mut one).map(|x| if x.is_nan() { 0.1 } else { x }).collect()
        };
        let shapes: [(&[usize], &[usize], &[usize]); 5] = [
            (&[40, 30], &[40, 30], &[40, 30]),
            (&[40, 3, 3], &[40, 1, 1], &[40, 3, 3]),
            (&[5, 1, 7], &[1, 6, 1], &[5, 6, 7]),
            (&[], &[9], &[9]),
            (&[0, 3], &[3], &[0, 3]),
        ];
        for (a, b, dims) in shapes {
            let (x, y) = (any(a.iter().product()), any(b.iter().product()));
            let (tx, ty) = (Tensor::from_slice(a, &x).unwrap(), Tensor::from_slice(b, &y).unwrap());
            let index = Broadcast::new(&[&tx, &ty], dims).unwrap();
            for op in [ScalarOp::Add, ScalarOp::Sub, ScalarOp::Mul, ScalarOp::Div] {
                let got = broadcast(op, &[&tx, &ty], dims).unwrap();
                let got = got.as_slice::<f32>().unwrap().into_owned();
                assert_eq!(got.len(), dims.iter().product::<usize>());
                let mut at = [0; 2];
                for (i, got) in got.iter().enumerate() {
                    index.positions(i, &mut at);
                    let args = [Num::F(x[at[0]].into()), Num::F(y[at[1]].into())];
                    let expected = apply(op, DType::F32, &args).f() as f32;
                    let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
                    assert!(same, "{op:?} {args:?}: {got} and {expected}");
                }
            }
        }
    }

    #[test]
    fn integers_are_exact() {
        let i = |op, x, y| apply(op, DType::I64, &[Num::I(x), Num::I(y)]);
        assert_eq!(i(ScalarOp::Div, -7, 2), Num::I(-3));
        assert_eq!(i(ScalarOp::Mod, -7, 2), Num::I(1));
        assert_eq!(i(ScalarOp::Fmod, -7, 2), Num::I(-1));
        assert_eq!(i(ScalarOp::Div, 1, 0), Num::I(0));
        assert_eq!(i(ScalarOp::Pow, 3, 4), Num::I(81));
    }
}
