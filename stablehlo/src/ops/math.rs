//! Functions that the IR expresses by several ops.

use of_ir::{DType, ValueId};
use of_ops::elementwise::*;

use super::elementwise::{bits_as, integers_like};
use crate::import::build::Built;
use crate::import::{Call, ImportResult, Importer};

/// Short names for ops on one element type.
struct Math<'i, 'a, 'g> {
    cx: &'i mut Importer<'a, 'g>,
    dtype: DType,
}

impl<'i, 'a, 'g> Math<'i, 'a, 'g> {
    fn n(&mut self, v: f64) -> Built {
        self.cx.number(v, self.dtype)
    }
    fn add(&mut self, a: ValueId, b: ValueId) -> Built {
        self.cx.one(Add {}, &[a, b])
    }
    fn sub(&mut self, a: ValueId, b: ValueId) -> Built {
        self.cx.one(Sub {}, &[a, b])
    }
    fn mul(&mut self, a: ValueId, b: ValueId) -> Built {
        self.cx.one(Mul {}, &[a, b])
    }
    fn div(&mut self, a: ValueId, b: ValueId) -> Built {
        self.cx.one(Div {}, &[a, b])
    }
    fn add_n(&mut self, a: ValueId, v: f64) -> Built {
        let v = self.n(v)?;
        self.add(a, v)
    }
    fn mul_n(&mut self, a: ValueId, v: f64) -> Built {
        let v = self.n(v)?;
        self.mul(a, v)
    }
    fn lt_n(&mut self, a: ValueId, v: f64) -> Built {
        let v = self.n(v)?;
        self.cx.one(Lt {}, &[a, v])
    }
    fn select(&mut self, c: ValueId, a: ValueId, b: ValueId) -> Built {
        self.cx.one(Select {}, &[c, a, b])
    }
    fn abs(&mut self, x: ValueId) -> Built {
        self.cx.one(Abs {}, &[x])
    }
    fn log(&mut self, x: ValueId) -> Built {
        self.cx.one(Log {}, &[x])
    }
    /// A polynomial, the highest coefficient first.
    fn polynomial(&mut self, x: ValueId, coefficients: &[f64]) -> Built {
        let mut y = self.n(coefficients[0])?;
        for c in &coefficients[1..] {
            y = self.mul(y, x)?;
            y = self.add_n(y, *c)?;
        }
        Ok(y)
    }
}

/// `f` of the first operand; floats of 16 bits are computed in 32.
fn function(
    cx: &mut Importer<'_, '_>,
    c: &Call<'_>,
    f: impl FnOnce(&mut Math<'_, '_, '_>, ValueId) -> Built,
) -> ImportResult {
    let x = c.operand(0)?;
    let own = cx.dtype(x)?;
    let wide = if own == DType::F64 { own } else { DType::F32 };
    let x = cx.cast(x, wide)?;
    let y = f(&mut Math { cx, dtype: wide }, x)?;
    Ok(vec![if cx.dtype(y)? == wide { cx.cast(y, own)? } else { y }])
}

/// `e^x - 1`; near 0 as `2 t / (1 - t)` with `t = tanh(x / 2)`.
pub(super) fn expm1(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    function(cx, c, |m, x| {
        let half = m.mul_n(x, 0.5)?;
        let t = m.cx.one(Tanh {}, &[half])?;
        let (twice, one) = (m.add(t, t)?, m.n(1.0)?);
        let rest = m.sub(one, t)?;
        let near = m.div(twice, rest)?;
        let e = m.cx.one(Exp {}, &[x])?;
        let far = m.add_n(e, -1.0)?;
        let size = m.abs(x)?;
        let small = m.lt_n(size, 0.5)?;
        m.select(small, near, far)
    })
}

/// `ln(1 + x)`; near 0 as `2 atanh(x / (2 + x))`.
pub(super) fn log1p(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    function(cx, c, |m, x| {
        let sum = m.add_n(x, 2.0)?;
        let z = m.div(x, sum)?;
        let a = m.cx.one(Atanh {}, &[z])?;
        let near = m.add(a, a)?;
        let y = m.add_n(x, 1.0)?;
        let far = m.log(y)?;
        let size = m.abs(x)?;
        let small = m.lt_n(size, 0.5)?;
        m.select(small, near, far)
    })
}

/// The cube root: a power, and a step of Newton's method that makes cubes exact.
pub(super) fn cbrt(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    function(cx, c, |m, x| {
        let size = m.abs(x)?;
        let third = m.n(1.0 / 3.0)?;
        let y = m.cx.one(Pow {}, &[size, third])?;
        // y - (y^3 - a) / (3 y^2), which is not a number at 0 and infinity.
        let square = m.mul(y, y)?;
        let cube = m.mul(square, y)?;
        let error = m.sub(cube, size)?;
        let slope = m.mul_n(square, 3.0)?;
        let step = m.div(error, slope)?;
        let better = m.sub(y, step)?;
        let same = m.cx.one(Eq {}, &[better, better])?;
        let y = m.select(same, better, y)?;
        let sign = m.cx.one(Sign {}, &[x])?;
        m.mul(sign, y)
    })
}

/// Neither infinite nor NaN.
pub(super) fn is_finite(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    function(cx, c, |m, x| {
        let size = m.abs(x)?;
        m.lt_n(size, f64::INFINITY)
    })
}

/// Rounding to nearest, ties away from zero: exact, as `trunc(x)` plus one where the rest is a half or more.
pub(super) fn round_afz(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    function(cx, c, |m, x| {
        let size = m.abs(x)?;
        let floor = m.cx.one(Floor {}, &[size])?;
        let rest = m.sub(size, floor)?;
        let below = m.lt_n(rest, 0.5)?;
        let up = m.add_n(floor, 1.0)?;
        let y = m.select(below, floor, up)?;
        let sign = m.cx.one(Sign {}, &[x])?;
        m.mul(sign, y)
    })
}

/// `1 - erf x`.
pub(super) fn erfc(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    function(cx, c, |m, x| {
        let e = m.cx.one(Erf {}, &[x])?;
        let one = m.n(1.0)?;
        m.sub(one, e)
    })
}

/// The inverse of the error function. Source: Giles, "Approximating the erfinv function" (2010), single precision.
pub(super) fn erf_inv(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    const CENTRAL: [f64; 9] = [
        2.810_226_36e-8,
        3.432_739_39e-7,
        -3.523_387_7e-6,
        -4.391_506_54e-6,
        0.000_218_580_87,
        -0.001_253_725_03,
        -0.004_177_681_64,
        0.246_640_727,
        1.501_409_41,
    ];
    const TAIL: [f64; 9] = [
        -0.000_200_214_257,
        0.000_100_950_558,
        0.001_349_343_22,
        -0.003_673_428_44,
        0.005_739_507_73,
        -0.007_622_461_3,
        0.009_438_870_47,
        1.001_674_06,
        2.832_976_82,
    ];
    function(cx, c, |m, x| {
        // w = -ln((1 - x) (1 + x)).
        let one = m.n(1.0)?;
        let (low, high) = (m.sub(one, x)?, m.add(one, x)?);
        let product = m.mul(low, high)?;
        let log = m.log(product)?;
        let w = m.cx.one(Neg {}, &[log])?;
        let central = m.add_n(w, -2.5)?;
        let central = m.polynomial(central, &CENTRAL)?;
        let root = m.cx.one(Sqrt {}, &[w])?;
        let tail = m.add_n(root, -3.0)?;
        let tail = m.polynomial(tail, &TAIL)?;
        let is_central = m.lt_n(w, 5.0)?;
        let factor = m.select(is_central, central, tail)?;
        let y = m.mul(factor, x)?;
        // At -1 and 1 the logarithm is infinite.
        let infinity = m.mul_n(x, f64::INFINITY)?;
        let size = m.abs(x)?;
        let at_end = m.cx.one(Eq {}, &[size, one])?;
        m.select(at_end, infinity, y)
    })
}

/// Lanczos' approximation. Source: XLA's `math.cc` (g = 7, n = 9), which follows Godfrey.
const LANCZOS: [f64; 8] = [
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_571e-6,
    1.505_632_735_149_311_6e-7,
];
const LANCZOS_BASE: f64 = 0.999_999_999_999_809_9;
const LANCZOS_G: f64 = 7.0;

/// `ln |Gamma(x)|`.
pub(super) fn lgamma(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    function(cx, c, |m, x| {
        let reflect = m.lt_n(x, 0.5)?;
        let negative = m.cx.one(Neg {}, &[x])?;
        let less = m.add_n(x, -1.0)?;
        let z = m.select(reflect, negative, less)?;
        let mut sum = m.n(LANCZOS_BASE)?;
        for (i, coefficient) in LANCZOS.iter().enumerate() {
            let (top, bottom) = (m.n(*coefficient)?, m.add_n(z, i as f64 + 1.0)?);
            let term = m.div(top, bottom)?;
            sum = m.add(sum, term)?;
        }
        // ln t = ln(g + 1/2) + ln(1 + z / (g + 1/2)).
        let t = m.add_n(z, LANCZOS_G + 0.5)?;
        let log_t = m.log(t)?;
        let ratio = m.div(t, log_t)?;
        let inner = m.add_n(z, 0.5)?;
        let inner = m.sub(inner, ratio)?;
        let main = m.mul(inner, log_t)?;
        let log_sum = m.log(sum)?;
        let y = m.add(main, log_sum)?;
        let y = m.add_n(y, (2.0 * std::f64::consts::PI).ln() / 2.0)?;
        // Below 1/2: ln(pi / |sin(pi x)|) - lgamma(1 - x).
        let size = m.abs(x)?;
        let whole = m.cx.one(Floor {}, &[size])?;
        let part = m.sub(size, whole)?;
        let mirrored = m.n(1.0)?;
        let mirrored = m.sub(mirrored, part)?;
        let upper = m.lt_n(part, 0.5)?;
        let part = m.select(upper, part, mirrored)?;
        let angle = m.mul_n(part, std::f64::consts::PI)?;
        let sine = m.cx.one(Sin {}, &[angle])?;
        let log_sine = m.log(sine)?;
        let pi = m.n(std::f64::consts::PI.ln())?;
        let reflected = m.sub(pi, log_sine)?;
        let reflected = m.sub(reflected, y)?;
        let y = m.select(reflect, reflected, y)?;
        // Infinite arguments.
        let finite = m.lt_n(size, f64::INFINITY)?;
        let not_a_number = m.cx.one(Ne {}, &[x, x])?;
        let y = m.select(finite, y, size)?;
        m.select(not_a_number, x, y)
    })
}

/// The derivative of [`lgamma`].
pub(super) fn digamma(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    function(cx, c, |m, x| {
        let reflect = m.lt_n(x, 0.5)?;
        let negative = m.cx.one(Neg {}, &[x])?;
        let less = m.add_n(x, -1.0)?;
        let z = m.select(reflect, negative, less)?;
        let (mut numerator, mut denominator) = (m.n(0.0)?, m.n(LANCZOS_BASE)?);
        for (i, coefficient) in LANCZOS.iter().enumerate() {
            let (top, bottom) = (m.n(*coefficient)?, m.add_n(z, i as f64 + 1.0)?);
            let term = m.div(top, bottom)?;
            denominator = m.add(denominator, term)?;
            let steeper = m.div(term, bottom)?;
            numerator = m.sub(numerator, steeper)?;
        }
        let t = m.add_n(z, LANCZOS_G + 0.5)?;
        let log_t = m.log(t)?;
        let slope = m.div(numerator, denominator)?;
        let g = m.n(LANCZOS_G)?;
        let correction = m.div(g, t)?;
        let y = m.add(log_t, slope)?;
        let y = m.sub(y, correction)?;
        // Below 1/2: digamma(1 - x) - pi / tan(pi x), with pi x reduced to half a period.
        let half = m.add_n(x, 0.5)?;
        let whole = m.cx.one(Floor {}, &[half])?;
        let part = m.sub(x, whole)?;
        let angle = m.mul_n(part, std::f64::consts::PI)?;
        let (cos, sin) = (m.cx.one(Cos {}, &[angle])?, m.cx.one(Sin {}, &[angle])?);
        let cotangent = m.div(cos, sin)?;
        let cotangent = m.mul_n(cotangent, std::f64::consts::PI)?;
        let reflected = m.sub(y, cotangent)?;
        let y = m.select(reflect, reflected, y)?;
        // Poles at 0, -1, -2, …
        let pole_at = m.cx.one(Floor {}, &[x])?;
        let is_whole = m.cx.one(Eq {}, &[pole_at, x])?;
        let zero = m.n(0.0)?;
        let below = m.cx.one(Le {}, &[x, zero])?;
        let pole = m.cx.one(And {}, &[is_whole, below])?;
        let nan = m.n(f64::NAN)?;
        m.select(pole, nan, y)
    })
}

/// The angle of the point `(x, y)`; the first operand is `y`.
pub(super) fn atan2(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(1)?;
    function(cx, c, |m, y| {
        let x = m.cx.cast(x, m.dtype)?;
        let (size_x, size_y) = (m.abs(x)?, m.abs(y)?);
        let steep = m.cx.one(Gt {}, &[size_y, size_x])?;
        let (short, long) = (m.select(steep, size_x, size_y)?, m.select(steep, size_y, size_x)?);
        // 0 / 0 and infinity / infinity are 0 and 1.
        let equal = m.cx.one(Eq {}, &[short, long])?;
        let (zero, one) = (m.n(0.0)?, m.n(1.0)?);
        let nothing = m.cx.one(Eq {}, &[long, zero])?;
        let ratio = m.div(short, long)?;
        let ratio = m.select(equal, one, ratio)?;
        let ratio = m.select(nothing, zero, ratio)?;
        let angle = m.cx.one(Atan {}, &[ratio])?;
        let quarter = m.n(std::f64::consts::FRAC_PI_2)?;
        let complement = m.sub(quarter, angle)?;
        let angle = m.select(steep, complement, angle)?;
        // The sign of 0 counts, which only the reciprocal shows.
        let behind = sign_bit(m, x)?;
        let half = m.n(std::f64::consts::PI)?;
        let other = m.sub(half, angle)?;
        let angle = m.select(behind, other, angle)?;
        let below = sign_bit(m, y)?;
        let mirrored = m.cx.one(Neg {}, &[angle])?;
        let angle = m.select(below, mirrored, angle)?;
        // NaN of either.
        let sum = m.add(x, y)?;
        let (nan_x, nan_y) = (m.cx.one(IsNan {}, &[x])?, m.cx.one(IsNan {}, &[y])?);
        let nan = m.cx.one(Or {}, &[nan_x, nan_y])?;
        m.select(nan, sum, angle)
    })
}

/// Whether a float is below 0, or the 0 whose reciprocal is.
fn sign_bit(m: &mut Math<'_, '_, '_>, x: ValueId) -> Built {
    let one = m.n(1.0)?;
    let reciprocal = m.div(one, x)?;
    let (below, under) = (m.lt_n(x, 0.0)?, m.lt_n(reciprocal, 0.0)?);
    m.cx.one(Or {}, &[below, under])
}

/// The number of bits that are set: sums of neighbours, pairs, nibbles.
pub(super) fn popcnt(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    Ok(vec![count_bits(cx, x)?])
}

fn count_bits(cx: &mut Importer<'_, '_>, x: ValueId) -> Built {
    let own = cx.dtype(x)?;
    let bits = own.bits().unwrap_or(64) as u32;
    let kind = integers_like(own)?[0];
    // 64 bits hold every type without a sign.
    let x = bits_as(cx, x, kind)?;
    let mut x = cx.cast(x, DType::U64)?;
    let mut width = 1;
    while width < bits {
        // Fields of `width` bits, each second one: 0b0101…, 0b0011…, …
        let mask = u64::MAX / ((1u64 << width) + 1);
        let mask = cx.constant(of_ir::Tensor::scalar(mask))?;
        let by = cx.constant(of_ir::Tensor::scalar(u64::from(width)))?;
        let low = cx.one(BitwiseAnd {}, &[x, mask])?;
        let high = cx.one(Shr {}, &[x, by])?;
        let high = cx.one(BitwiseAnd {}, &[high, mask])?;
        x = cx.one(Add {}, &[low, high])?;
        width *= 2;
    }
    cx.cast(x, own)
}

/// The number of zeros before the first bit that is set: all bits after it are set, and what is left is counted.
pub(super) fn count_leading_zeros(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let own = cx.dtype(x)?;
    let kind = integers_like(own)?[0];
    let bits = own.bits().unwrap_or(64);
    let mut x = bits_as(cx, x, kind)?;
    let mut by = 1;
    while by < bits {
        let n = cx.number(by as f64, kind)?;
        let shifted = cx.one(Shr {}, &[x, n])?;
        x = cx.one(BitwiseOr {}, &[x, shifted])?;
        by *= 2;
    }
    let x = cx.one(BitwiseNot {}, &[x])?;
    let count = count_bits(cx, x)?;
    Ok(vec![bits_as(cx, count, own)?])
}
