//! The four 8-bit float formats: decoding by formula, encoding by search in the table of all values.
//!
//! Source: "FP8 Formats for Deep Learning" (Micikevicius et al., 2022) for E4M3FN and E5M2; the ONNX specification
//! (float8 types) for the FNUZ forms and for saturation.

use std::sync::OnceLock;

use crate::DType;

struct Format {
    mantissa_bits: u32,
    bias: i32,
    /// FN and FNUZ formats have no infinity.
    has_infinity: bool,
    /// FNUZ: one zero, and `0x80` is the only NaN.
    unsigned_zero: bool,
}

const fn format(dtype: DType) -> Format {
    match dtype {
        DType::F8E4M3FN => Format { mantissa_bits: 3, bias: 7, has_infinity: false, unsigned_zero: false },
        DType::F8E4M3FNUZ => Format { mantissa_bits: 3, bias: 8, has_infinity: false, unsigned_zero: true },
        DType::F8E5M2FNUZ => Format { mantissa_bits: 2, bias: 16, has_infinity: false, unsigned_zero: true },
        _ => Format { mantissa_bits: 2, bias: 15, has_infinity: true, unsigned_zero: false },
    }
}

/// The value of an 8-bit float.
pub fn decode(dtype: DType, byte: u8) -> f64 {
    let f = format(dtype);
    let sign = if byte & 0x80 != 0 { -1.0 } else { 1.0 };
    let magnitude = u32::from(byte & 0x7f);
    if f.unsigned_zero && byte == 0x80 {
        return f64::NAN;
    }
    if !f.unsigned_zero && !f.has_infinity && magnitude == 0x7f {
        return f64::NAN;
    }
    if f.has_infinity && magnitude >= 0x7c {
        return if magnitude == 0x7c { sign * f64::INFINITY } else { f64::NAN };
    }
    let exponent = (magnitude >> f.mantissa_bits) as i32;
    let fraction = f64::from(magnitude & ((1 << f.mantissa_bits) - 1)) / f64::from(1u32 << f.mantissa_bits);
    let value =
        if exponent == 0 { fraction * 2f64.powi(1 - f.bias) } else { (1.0 + fraction) * 2f64.powi(exponent - f.bias) };
    sign * value
}

/// Rounds to nearest even; out of range and infinities saturate to the largest finite value, NaN stays NaN.
pub fn encode(dtype: DType, value: f64) -> u8 {
    static TABLES: [OnceLock<Vec<f64>>; 4] = [const { OnceLock::new() }; 4];
    let f = format(dtype);
    if value.is_nan() {
        return if f.unsigned_zero { 0x80 } else { 0x7f };
    }
    let slot = match dtype {
        DType::F8E4M3FN => 0,
        DType::F8E4M3FNUZ => 1,
        DType::F8E5M2 => 2,
        _ => 3,
    };
    // Finite magnitudes in increasing order; the code is the index.
    let table =
        TABLES[slot].get_or_init(|| (0..=0x7f).map(|b| decode(dtype, b)).take_while(|v| v.is_finite()).collect());
    let magnitude = value.abs();
    let above = table.partition_point(|v| *v < magnitude);
    let code = if above == table.len() {
        above - 1
    } else if above == 0 {
        0
    } else {
        let (low, high) = (magnitude - table[above - 1], table[above] - magnitude);
        if low < high || (low == high && (above - 1) % 2 == 0) { above - 1 } else { above }
    };
    let negative = value.is_sign_negative() && !(f.unsigned_zero && code == 0);
    code as u8 | if negative { 0x80 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        for dtype in [DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ] {
            for b in 0..=255u8 {
                let v = decode(dtype, b);
                if v.is_finite() {
                    assert_eq!(encode(dtype, v), b, "{dtype} {b:#x} = {v}");
                }
            }
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(decode(DType::F8E4M3FN, 0x7e), 448.0);
        assert_eq!(decode(DType::F8E4M3FNUZ, 0x7f), 240.0);
        assert_eq!(decode(DType::F8E5M2, 0x7b), 57344.0);
        assert_eq!(decode(DType::F8E5M2FNUZ, 0x7f), 57344.0);
        assert_eq!(encode(DType::F8E4M3FN, 1e9), 0x7e);
        assert_eq!(encode(DType::F8E4M3FN, -1e9), 0xfe);
    }
}
