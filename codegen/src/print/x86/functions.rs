//! Approximations of functions as vector programs: the same polynomials and reductions as in `functions.c`, which says where they come
//! from and why they are exact enough.

#![allow(clippy::excessive_precision, clippy::unreadable_literal, reason = "the digits of functions.c")]

use crate::print::x86::block::{Block, Compare, Inst, Shift, Value, one, two};

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;
const LOG_2_HIGH: f32 = 0.693359375;
const LOG_2_LOW: f32 = -2.12194440e-4;

impl Block {
    /// |x|.
    pub fn abs(&mut self, x: Value) -> Value {
        self.two_bits(two::AND, x, !SIGN)
    }

    /// -x.
    pub fn negate(&mut self, x: Value) -> Value {
        self.two_bits(two::XOR, x, SIGN)
    }

    /// |x| with the sign of `s`.
    pub fn copy_sign(&mut self, x: Value, s: Value) -> Value {
        let (size, sign) = (self.abs(x), self.two_bits(two::AND, s, SIGN));
        self.two(two::OR, size, sign)
    }

    /// Whether lanes are NaN.
    pub fn is_nan(&mut self, x: Value) -> Value {
        self.push(Inst::Compare(Compare::NotEqual, x, x))
    }

    /// The larger or smaller of two; NaN where either is NaN.
    pub fn extremum(&mut self, largest: bool, a: Value, b: Value) -> Value {
        let by_hardware = self.two(if largest { two::MAX } else { two::MIN }, a, b);
        let nan = self.is_nan(a);
        self.select(nan, a, by_hardware)
    }

    /// Rounds to nearest even.
    pub fn round(&mut self, x: Value) -> Value {
        const QUIET_NEAREST: u8 = 8;
        self.push(Inst::One(one::ROUND, x, Some(QUIET_NEAREST)))
    }

    /// Rounds down or up. The result has the sign of `x`, so that -0.5 is rounded up to -0.
    pub fn floor_or_ceil(&mut self, x: Value, up: bool) -> Value {
        const QUIET_DOWN: u8 = 9;
        const QUIET_UP: u8 = 10;
        self.push(Inst::One(one::ROUND, x, Some(if up { QUIET_UP } else { QUIET_DOWN })))
    }

    /// Rounds |x| < 2^22 to nearest even: adding 1.5 * 2^23 rounds the fraction away.
    fn round_small(&mut self, x: Value) -> Value {
        let m = self.float(12_582_912.0);
        let r = self.two(two::ADD, x, m);
        self.two(two::SUB, r, m)
    }

    /// `1 / x` for normal numbers whose reciprocals are normal.
    fn reciprocal_of_normal(&mut self, x: Value) -> Value {
        let one_ = self.float(1.0);
        if !self.avx512 {
            return self.two(two::DIV, one_, x);
        }
        let r = self.one(one::RECIPROCAL, x);
        let error = self.fnma(x, r, one_);
        self.fma(r, error, r)
    }

    /// `p 2^n` for whole n from -150 to 128, 0 where x < low.
    fn scale(&mut self, p: Value, n: Value, x: Value, low: Value) -> Value {
        if self.avx512 {
            return self.push(Inst::Scale(p, n, x, low));
        }
        let (zero, less) = (self.bits(0), self.compare(Compare::Less, x, low));
        let p = self.select(less, zero, p);
        let e = self.one(one::TRUNCATE_TO_INT, n);
        let half = self.shift(Shift::RightSigned, e, 1);
        let rest = self.two(two::ISUB, e, half);
        let [half, rest] = [half, rest].map(|e| {
            let biased = self.two_bits(two::IADD, e, 127);
            self.shift(Shift::Left, biased, 23)
        });
        let p = self.two(two::MUL, p, half);
        self.two(two::MUL, p, rest)
    }

    /// e^x.
    pub fn exp(&mut self, x: Value) -> Value {
        let (low, high) = (self.float(-103.9720770839918), self.float(89.0));
        let y = self.two(two::MAX, low, x);
        let y = self.two(two::MIN, high, y);
        let n = self.two_float(two::MUL, y, std::f32::consts::LOG2_E);
        let n = self.round_small(n);
        let (ln2_high, ln2_low) = (self.float(LOG_2_HIGH), self.float(LOG_2_LOW));
        let r = self.fnma(n, ln2_high, y);
        let r = self.fnma(n, ln2_low, r);
        let p = self.polynomial(
            r,
            &[1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1],
        );
        let square = self.two(two::MUL, r, r);
        let p = self.fma(p, square, r);
        let p = self.two_float(two::ADD, p, 1.0);
        self.scale(p, n, x, low)
    }

    /// ln x.
    pub fn log(&mut self, x: Value) -> Value {
        let zero = self.bits(0);
        let tiny = self.compare_float(Compare::Less, x, f32::MIN_POSITIVE);
        let scaled = self.two_float(two::MUL, x, 8_388_608.0);
        let s = self.select(tiny, scaled, x);
        let e = self.shift(Shift::RightSigned, s, 23);
        let e = self.two_bits(two::ISUB, e, 126);
        let m = self.two_bits(two::AND, s, 0x007f_ffff);
        let m = self.two_bits(two::OR, m, 0x3f00_0000);
        let low = self.compare_float(Compare::Less, m, std::f32::consts::FRAC_1_SQRT_2);
        let ef = self.one(one::TO_FLOAT, e);
        let one_if_low = self.two_bits(two::AND, low, 1f32.to_bits());
        let shift_if_tiny = self.two_bits(two::AND, tiny, 23f32.to_bits());
        let ef = self.two(two::SUB, ef, one_if_low);
        let ef = self.two(two::SUB, ef, shift_if_tiny);
        let again = self.two(two::AND, low, m);
        let m = self.two(two::ADD, m, again);
        let m = self.two_float(two::SUB, m, 1.0);
        let z = self.two(two::MUL, m, m);
        let p = self.polynomial(
            m,
            &[
                7.0376836292e-2,
                -1.1514610310e-1,
                1.1676998740e-1,
                -1.2420140846e-1,
                1.4249322787e-1,
                -1.6668057665e-1,
                2.0000714765e-1,
                -2.4999993993e-1,
                3.3333331174e-1,
            ],
        );
        let (half, ln2_low, ln2_high) = (self.float(0.5), self.float(LOG_2_LOW), self.float(LOG_2_HIGH));
        let pm = self.two(two::MUL, p, m);
        let tail = self.two(two::MUL, ef, ln2_low);
        let y = self.fma(pm, z, tail);
        let y = self.fnma(half, z, y);
        let r = self.two(two::ADD, m, y);
        let r = self.fma(ef, ln2_high, r);
        self.log_of_special(x, zero, r)
    }

    /// The logarithm `r` of ordinary numbers, with those of infinity, zero, and numbers that have none.
    fn log_of_special(&mut self, x: Value, zero: Value, r: Value) -> Value {
        let inf = self.bits(INFINITY);
        let is_inf = self.compare(Compare::Equal, x, inf);
        let r = self.select(is_inf, inf, r);
        let (is_zero, minus) = (self.compare(Compare::Equal, x, zero), self.bits(INFINITY | SIGN));
        let r = self.select(is_zero, minus, r);
        let (negative, nan) = (self.compare(Compare::Less, x, zero), self.is_nan(x));
        let none = self.two(two::OR, negative, nan);
        let nan = self.float(f32::NAN);
        self.select(none, nan, r)
    }

    /// e^x / (1 + e^x).
    pub fn sigmoid(&mut self, x: Value) -> Value {
        let limit = self.float(40.0);
        let y = self.two(two::MIN, limit, x);
        let e = self.exp(y);
        let d = self.two_float(two::ADD, e, 1.0);
        let r = self.reciprocal_of_normal(d);
        self.two(two::MUL, e, r)
    }

    /// tanh x.
    pub fn tanh(&mut self, x: Value) -> Value {
        let (a, z) = (self.abs(x), self.two(two::MUL, x, x));
        let p = self.polynomial(
            z,
            &[-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1],
        );
        let pz = self.two(two::MUL, p, z);
        let p = self.fma(pz, x, x);
        let (twice, limit) = (self.two(two::ADD, a, a), self.float(40.0));
        let y = self.two(two::MIN, limit, twice);
        let e = self.exp(y);
        let d = self.two_float(two::ADD, e, 1.0);
        let r = self.reciprocal_of_normal(d);
        let (one_, two_) = (self.float(1.0), self.float(2.0));
        let big = self.fnma(two_, r, one_);
        let big = self.copy_sign(big, x);
        let large = self.compare_float(Compare::GreaterEqual, a, 0.625);
        self.select(large, big, p)
    }

    /// The error function.
    pub fn erf(&mut self, x: Value) -> Value {
        let (low, high) = (self.float(-3.8325068), self.float(3.8325068));
        let y = self.two(two::MAX, low, x);
        let y = self.two(two::MIN, high, y);
        let z = self.two(two::MUL, y, y);
        let p = self.polynomial(
            z,
            &[
                -2.72614225801306e-10,
                2.77068142495902e-08,
                -2.10102402082508e-06,
                -5.69250639462346e-05,
                -7.34990630326855e-04,
                -2.95459980854025e-03,
                -1.60960333262415e-02,
            ],
        );
        let q = self.polynomial(
            z,
            &[
                -1.45660718464996e-05,
                -2.13374055278905e-04,
                -1.68282697438203e-03,
                -7.37332916720468e-03,
                -1.42647390514189e-02,
            ],
        );
        let r = self.reciprocal_of_normal(q);
        let quotient = self.two(two::MUL, p, r);
        let usual = self.two(two::MUL, y, quotient);
        let (a, one_) = (self.abs(x), self.float(1.0));
        let (far, limit) = (self.compare_float(Compare::Greater, a, 3.9192059), self.copy_sign(one_, x));
        self.select(far, limit, usual)
    }

    /// -1, 0 or 1 with the sign of x, and x itself where it is zero or NaN.
    pub fn sign(&mut self, x: Value) -> Value {
        let zero = self.bits(0);
        let ordinary = [Compare::Less, Compare::Greater].map(|how| self.compare(how, x, zero));
        let ordinary = self.two(two::OR, ordinary[0], ordinary[1]);
        let one_ = self.float(1.0);
        let signed = self.copy_sign(one_, x);
        self.select(ordinary, signed, x)
    }

    /// Rounds towards zero and saturates; NaN gives 0.
    pub fn to_int(&mut self, x: Value) -> Value {
        let (low, high) = (self.float(-2_147_483_648.0), self.float(2_147_483_520.0));
        let y = self.two(two::MAX, x, low);
        let y = self.two(two::MIN, high, y);
        let v = self.one(one::TRUNCATE_TO_INT, y);
        let (large, most) = (self.compare_float(Compare::GreaterEqual, x, 2_147_483_648.0), self.bits(0x7fff_ffff));
        let v = self.select(large, most, v);
        let number = self.compare(Compare::Equal, x, x);
        self.two(two::AND, v, number)
    }

    /// Rounds towards zero and saturates to the range of a narrower type; NaN gives 0.
    pub fn to_narrow(&mut self, x: Value, low: f32, high: f32) -> Value {
        let number = self.compare(Compare::Equal, x, x);
        let x = self.two(two::AND, x, number);
        let (low, high) = (self.float(low), self.float(high));
        let y = self.two(two::MAX, x, low);
        let y = self.two(two::MIN, high, y);
        self.one(one::TRUNCATE_TO_INT, y)
    }

    /// The upper 16 bits of f32, rounded to nearest even; NaN stays NaN.
    pub fn to_bf16(&mut self, x: Value) -> Value {
        let high = self.shift(Shift::Right, x, 16);
        let odd = self.two_bits(two::AND, high, 1);
        let sum = self.two_bits(two::IADD, x, 0x7fff);
        let sum = self.two(two::IADD, sum, odd);
        let rounded = self.shift(Shift::Right, sum, 16);
        let (number, quiet) = (self.compare(Compare::Equal, x, x), self.two_bits(two::OR, high, 64));
        self.select(number, rounded, quiet)
    }
}
