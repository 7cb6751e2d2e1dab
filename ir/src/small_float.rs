//! The floats of one byte or less: decoding by formula, encoding by search in the table of all values.
//!
//! Source: "FP8 Formats for Deep Learning" (Micikevicius et al., 2022) for E4M3FN and E5M2; "OCP Microscaling Formats
//! (MX) Specification" (2023) for E2M1 and E8M0; the ONNX specification (Cast) for the FNUZ forms and for what becomes
//! of values out of range.

use std::sync::OnceLock;

use crate::DType;

/// How a number that a small float does not have is brought into it. Wider types know one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rounding {
    /// Values out of range become the nearest finite one; otherwise infinity, or NaN where the format has none. A format
    /// without either saturates always.
    pub saturate: bool,
    /// How a value between two powers of two becomes one of them (f8E8M0FNU). Every other format rounds to nearest,
    /// ties to even.
    pub power: Power,
}

impl Rounding {
    /// Saturating, powers of two upwards: what ONNX does where nothing is said.
    pub const DEFAULT: Rounding = Rounding { saturate: true, power: Power::Up };
}

/// Rounding to a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Power {
    /// To the next larger one.
    Up,
    /// To the next smaller one.
    Down,
    /// To the nearest, ties to the larger one.
    Nearest,
}

struct Format {
    mantissa_bits: u32,
    bias: i32,
    /// Codes are a sign bit above the magnitude; otherwise negative numbers are NaN.
    signed: bool,
    /// The magnitude of the largest finite number.
    largest: u8,
    /// The code of positive infinity.
    infinity: Option<u8>,
    /// The code of NaN. It is above `largest`, so that adding a sign keeps it NaN; FNUZ formats have one NaN alone, in
    /// the place of negative zero.
    nan: Option<u8>,
}

fn format(dtype: DType) -> Format {
    let f = |mantissa_bits, bias, largest, infinity, nan| Format {
        mantissa_bits,
        bias,
        signed: true,
        largest,
        infinity,
        nan,
    };
    match dtype {
        DType::F8E4M3FN => f(3, 7, 0x7e, None, Some(0x7f)),
        DType::F8E4M3FNUZ => f(3, 8, 0x7f, None, Some(0x80)),
        DType::F8E5M2FNUZ => f(2, 16, 0x7f, None, Some(0x80)),
        DType::F4E2M1FN => f(1, 1, 7, None, None),
        DType::F8E8M0FNU => Format { signed: false, ..f(0, 127, 0xfe, None, Some(0xff)) },
        _ => f(2, 15, 0x7b, Some(0x7c), Some(0x7f)),
    }
}

impl Format {
    /// The number of a magnitude, special codes left aside: `largest + 1` is what would come next.
    fn number(&self, magnitude: u32) -> f64 {
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let fraction = f64::from(magnitude & ((1 << self.mantissa_bits) - 1)) / f64::from(1u32 << self.mantissa_bits);
        // A format without a sign has no zero either: its lowest exponent is one as any other.
        if exponent == 0 && self.signed {
            fraction * 2f64.powi(1 - self.bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - self.bias)
        }
    }

    fn sign_bit(&self, dtype: DType) -> u8 {
        if self.signed { 1 << (dtype.bits().unwrap_or(8) - 1) } else { 0 }
    }
}

/// The value of a small float, whose code is in the low bits.
pub fn decode(dtype: DType, code: u8) -> f64 {
    let f = format(dtype);
    let sign_bit = f.sign_bit(dtype);
    let magnitude = code & !sign_bit;
    let value = if f.nan == Some(code) {
        f64::NAN
    } else if magnitude <= f.largest {
        f.number(magnitude.into())
    } else if f.infinity == Some(magnitude) {
        f64::INFINITY
    } else {
        f64::NAN
    };
    if code & sign_bit != 0 { -value } else { value }
}

/// The code of `value`. A NaN becomes NaN, or zero where the format has none; a negative number in a format without a
/// sign becomes NaN.
pub fn encode(dtype: DType, value: f64, rounding: Rounding) -> u8 {
    static TABLES: [OnceLock<Vec<f64>>; DType::ALL.len()] = [const { OnceLock::new() }; DType::ALL.len()];
    let f = format(dtype);
    let sign_bit = f.sign_bit(dtype);
    let sign = if value.is_sign_negative() { sign_bit } else { 0 };
    // Without NaN it is negative zero that ONNX's conversions give.
    let nan = f.nan.unwrap_or(sign_bit);
    if value.is_nan() || value < 0.0 && !f.signed {
        return nan;
    }
    // Magnitudes in increasing order, the index is the code. The last one is out of range already.
    let table = TABLES[dtype as usize].get_or_init(|| (0..=u32::from(f.largest) + 1).map(|m| f.number(m)).collect());
    let magnitude = value.abs();
    let above = table.partition_point(|v| *v < magnitude).min(table.len() - 1);
    let code = if above == 0 || magnitude >= table[above] {
        above
    } else {
        let (low, high) = (magnitude - table[above - 1], table[above] - magnitude);
        let down = match rounding.power {
            _ if f.signed => low < high || low == high && (above - 1) % 2 == 0,
            Power::Up => false,
            Power::Down => true,
            Power::Nearest => low < high,
        };
        if down { above - 1 } else { above }
    };
    let largest = usize::from(f.largest);
    // Powers of two are compared with the range before they are rounded, other numbers after.
    let outside = if f.signed { code > largest } else { magnitude < table[0] || magnitude > table[largest] };
    if outside && !rounding.saturate && f.nan.is_some() {
        return f.infinity.map_or(nan, |i| i | sign);
    }
    let code = code.min(largest) as u8;
    // Zero with a sign would be the NaN of an FNUZ format.
    if f.nan == Some(code | sign) { code } else { code | sign }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> impl Iterator<Item = DType> {
        DType::ALL.into_iter().filter(|d| d.is_float() && d.bits() <= Some(8))
    }

    /// Every code of a type and its value.
    fn codes(dtype: DType) -> impl Iterator<Item = (u8, f64)> {
        (0..=255u8).take(1 << dtype.bits().unwrap()).map(move |c| (c, decode(dtype, c)))
    }

    #[test]
    fn every_code_round_trips() {
        let ways = [true, false]
            .into_iter()
            .flat_map(|saturate| [Power::Up, Power::Down, Power::Nearest].map(|power| Rounding { saturate, power }));
        for (dtype, way) in small().flat_map(|d| ways.clone().map(move |w| (d, w))) {
            for (code, v) in codes(dtype) {
                if v.is_finite() {
                    assert_eq!(encode(dtype, v, way), code, "{dtype} {code:#x} = {v}");
                } else {
                    let back = decode(dtype, encode(dtype, v, way));
                    assert!(back.is_nan() == v.is_nan(), "{dtype} {code:#x} = {v}, {back}");
                }
            }
        }
    }

    #[test]
    fn small_floats_encode_known_values() {
        for (dtype, code, value) in [
            (DType::F8E4M3FN, 0x7e, 448.0),
            (DType::F8E4M3FNUZ, 0x7f, 240.0),
            (DType::F8E5M2, 0x7b, 57344.0),
            (DType::F8E5M2FNUZ, 0x7f, 57344.0),
            (DType::F4E2M1FN, 0x7, 6.0),
            (DType::F4E2M1FN, 0x9, -0.5),
            (DType::F8E8M0FNU, 0x7f, 1.0),
            (DType::F8E8M0FNU, 0xfe, 2f64.powi(127)),
            (DType::F8E8M0FNU, 0x00, 2f64.powi(-127)),
        ] {
            assert_eq!(decode(dtype, code), value, "{dtype} {code:#x}");
        }
        assert!(decode(DType::F8E8M0FNU, 0xff).is_nan() && decode(DType::F8E5M2FNUZ, 0x80).is_nan());
    }

    /// The nearest code, found by looking at all of them: smallest distance, then even.
    fn nearest(dtype: DType, x: f64) -> f64 {
        let finite =
            codes(dtype).filter(|(_, v)| v.is_finite() && (*v == 0.0 || v.is_sign_negative() == x.is_sign_negative()));
        let near = finite.min_by(|(c, v), (d, w)| (v - x).abs().total_cmp(&(w - x).abs()).then((c % 2).cmp(&(d % 2))));
        near.map_or(0.0, |n| n.1)
    }

    #[test]
    fn rounding_is_to_the_nearest_of_all_values() {
        let mut rng = fastrand::Rng::with_seed(5);
        for dtype in small().filter(|d| *d != DType::F8E8M0FNU) {
            let values: Vec<f64> = codes(dtype).map(|c| c.1).filter(|v| v.is_finite()).collect();
            let middles = values.iter().flat_map(|a| values.iter().map(move |b| (a + b) / 2.0)).step_by(97);
            let random = (0..2000).map(|_| (rng.f64() - 0.5) * 2f64.powi(rng.i32(-20..18)));
            for x in middles.chain(random.collect::<Vec<_>>()) {
                let got = decode(dtype, encode(dtype, x, Rounding::DEFAULT));
                assert_eq!(got, nearest(dtype, x), "{dtype} {x}");
            }
        }
    }

    #[test]
    fn powers_of_two_follow_the_rounding_mode() {
        let e = |x: f64, saturate, power| {
            decode(DType::F8E8M0FNU, encode(DType::F8E8M0FNU, x, Rounding { saturate, power }))
        };
        for k in [-126, -3, 0, 5, 126] {
            let p = 2f64.powi(k);
            for (f, up, down, near) in [(1.0, 1., 1., 1.), (1.25, 2., 1., 1.), (1.5, 2., 1., 2.), (1.75, 2., 1., 2.)] {
                assert_eq!(e(p * f, true, Power::Up), p * up);
                assert_eq!(e(p * f, true, Power::Down), p * down);
                assert_eq!(e(p * f, false, Power::Nearest), p * near);
            }
        }
        let (least, most) = (2f64.powi(-127), 2f64.powi(127));
        for (x, saturated) in [(0.0, least), (-0.0, least), (1e-60, least), (f64::INFINITY, most), (1e60, most)] {
            assert_eq!(e(x, true, Power::Up), saturated, "{x}");
            assert!(e(x, false, Power::Nearest).is_nan(), "{x}");
        }
        assert!(e(-1.0, true, Power::Up).is_nan() && e(f64::NAN, true, Power::Up).is_nan());
    }

    #[test]
    fn out_of_range_values_follow_the_rounding_mode() {
        let all = [f64::INFINITY, 1e9, f64::NEG_INFINITY, -1e9];
        for (dtype, largest, beyond) in [
            (DType::F8E4M3FN, 448.0, f64::NAN),
            (DType::F8E4M3FNUZ, 240.0, f64::NAN),
            (DType::F8E5M2, 57344.0, f64::INFINITY),
            (DType::F8E5M2FNUZ, 57344.0, f64::NAN),
            (DType::F4E2M1FN, 6.0, 6.0),
        ] {
            for x in all {
                let with = |saturate| decode(dtype, encode(dtype, x, Rounding { saturate, power: Power::Up }));
                assert_eq!(with(true), largest * x.signum(), "{dtype} {x}");
                assert_eq!(with(false).to_string(), (beyond * x.signum()).to_string(), "{dtype} {x}");
            }
        }
        // Half a step above the largest is a tie that goes to even, the next number is out of range.
        let open =
            |x| decode(DType::F8E4M3FN, encode(DType::F8E4M3FN, x, Rounding { saturate: false, power: Power::Up }));
        assert!(open(464.0) == 448.0 && open(464.1).is_nan());
        assert_eq!(encode(DType::F4E2M1FN, f64::NAN, Rounding::DEFAULT), 8);
    }
}
