//! Element types of tensors.

use std::fmt;

/// The element type of a tensor.
///
/// Elements narrower than a byte are stored packed, the first in the lowest bits (the layout of ONNX).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DType {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// 8-bit float, 4 exponent bits, finite, NaN is `S.1111.111`.
    F8E4M3FN,
    /// 8-bit float, 4 exponent bits, finite, unsigned zero, NaN is `0x80`.
    F8E4M3FNUZ,
    /// 8-bit float, 5 exponent bits, with infinities.
    F8E5M2,
    /// 8-bit float, 5 exponent bits, finite, unsigned zero, NaN is `0x80`.
    F8E5M2FNUZ,
    /// 8-bit power of two: an exponent alone, no sign, no zero, NaN is `0xff`.
    F8E8M0FNU,
    /// 4-bit float, 2 exponent bits, finite, without NaN.
    F4E2M1FN,
    /// Signed 2-bit integer.
    I2,
    /// Signed 4-bit integer.
    I4,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 2-bit integer.
    U2,
    /// Unsigned 4-bit integer.
    U4,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Truth value, one byte each, 0 or 1.
    Bool,
    /// UTF-8 string of any length.
    String,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 24] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3FN,
        DType::F8E4M3FNUZ,
        DType::F8E5M2,
        DType::F8E5M2FNUZ,
        DType::F8E8M0FNU,
        DType::F4E2M1FN,
        DType::I2,
        DType::I4,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U2,
        DType::U4,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
        DType::String,
    ];

    /// The type in MLIR text, e.g. `f32`, `ui8`, `i1` for bool.
    pub const fn mlir_name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3FN => "f8E4M3FN",
            DType::F8E4M3FNUZ => "f8E4M3FNUZ",
            DType::F8E5M2 => "f8E5M2",
            DType::F8E5M2FNUZ => "f8E5M2FNUZ",
            DType::F8E8M0FNU => "f8E8M0FNU",
            DType::F4E2M1FN => "f4E2M1FN",
            DType::I2 => "i2",
            DType::I4 => "i4",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U2 => "ui2",
            DType::U4 => "ui4",
            DType::U8 => "ui8",
            DType::U16 => "ui16",
            DType::U32 => "ui32",
            DType::U64 => "ui64",
            DType::Bool => "i1",
            DType::String => "!of.string",
        }
    }

    /// The inverse of [`DType::mlir_name`].
    pub fn from_mlir_name(s: &str) -> Option<DType> {
        Self::ALL.into_iter().find(|d| d.mlir_name() == s)
    }

    /// Bits of one element; `None` for strings, which have no fixed size.
    pub const fn bits(self) -> Option<usize> {
        Some(match self {
            DType::F64 | DType::I64 | DType::U64 => 64,
            DType::F32 | DType::I32 | DType::U32 => 32,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 16,
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ | DType::F8E8M0FNU => 8,
            DType::I8 | DType::U8 | DType::Bool => 8,
            DType::F4E2M1FN | DType::I4 | DType::U4 => 4,
            DType::I2 | DType::U2 => 2,
            DType::String => return None,
        })
    }

    /// Whether several elements share a byte.
    pub const fn is_packed(self) -> bool {
        matches!(self.bits(), Some(bits) if bits < 8)
    }

    /// Bytes that `n` elements occupy, packed; `None` for strings or on overflow.
    pub fn byte_len(self, n: usize) -> Option<usize> {
        Some(n.checked_mul(self.bits()?)?.div_ceil(8))
    }

    /// Floating point of any width.
    pub const fn is_float(self) -> bool {
        (self as u8) <= (DType::F4E2M1FN as u8)
    }

    /// Signed or unsigned integer; bool is not one.
    pub const fn is_int(self) -> bool {
        (self as u8) >= (DType::I2 as u8) && (self as u8) <= (DType::U64 as u8)
    }

    /// Signed integer.
    pub const fn is_signed_int(self) -> bool {
        (self as u8) >= (DType::I2 as u8) && (self as u8) <= (DType::I64 as u8)
    }

    /// Smallest and largest value of an integer type or bool.
    pub fn int_range(self) -> Option<(i128, i128)> {
        if self == DType::Bool {
            return Some((0, 1));
        }
        if !self.is_int() {
            return None;
        }
        let bits = self.bits()? as u32;
        Some(if self.is_signed_int() {
            (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
        } else {
            (0, (1i128 << bits) - 1)
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mlir_name())
    }
}
