//! Element types: stable wire numbers and MLIR's names.

use std::fmt;
use std::str::FromStr;

macro_rules! element_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $bits:literal;)*) => {
        /// The type of a tensor's elements. The numbers are the wire format and never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
        #[repr(i32)]
        pub enum ElementType {
            $($(#[$doc])* $variant = $number,)*
        }

        impl ElementType {
            /// Every element type, in the order of the wire numbers.
            pub const ALL: &'static [ElementType] = &[$(ElementType::$variant),*];

            /// The name as MLIR writes it (`f32`, `ui8`, `f8E4M3FN`); `string` and `none` are this project's own.
            pub const fn name(self) -> &'static str {
                match self { $(ElementType::$variant => $name,)* }
            }

            /// Bits an element takes in memory; 0 where the bytes of an element are not fixed (`string`, `none`).
            pub const fn bits(self) -> u32 {
                match self { $(ElementType::$variant => $bits,)* }
            }
        }
    };
}

element_types! {
    /// No element type: sequences, optionals and control edges.
    Unknown = 0, "none", 0;
    /// IEEE double.
    F64 = 1, "f64", 64;
    /// IEEE single.
    F32 = 2, "f32", 32;
    /// IEEE half.
    F16 = 3, "f16", 16;
    /// bfloat16.
    Bf16 = 4, "bf16", 16;
    /// 8-bit float, 4 exponent bits, finite, with NaN.
    F8E4M3FN = 5, "f8E4M3FN", 8;
    /// 8-bit float, 4 exponent bits, finite, no negative zero.
    F8E4M3FNUZ = 6, "f8E4M3FNUZ", 8;
    /// 8-bit float, 5 exponent bits, IEEE-like.
    F8E5M2 = 7, "f8E5M2", 8;
    /// 8-bit float, 5 exponent bits, finite, no negative zero.
    F8E5M2FNUZ = 8, "f8E5M2FNUZ", 8;
    /// Signed 4-bit integer, two in a byte, the low nibble first.
    I4 = 9, "i4", 4;
    /// Signed 8-bit integer.
    I8 = 10, "i8", 8;
    /// Signed 16-bit integer.
    I16 = 11, "i16", 16;
    /// Signed 32-bit integer.
    I32 = 12, "i32", 32;
    /// Signed 64-bit integer.
    I64 = 13, "i64", 64;
    /// Unsigned 4-bit integer, two in a byte, the low nibble first.
    Ui4 = 14, "ui4", 4;
    /// Unsigned 8-bit integer.
    Ui8 = 15, "ui8", 8;
    /// Unsigned 16-bit integer.
    Ui16 = 16, "ui16", 16;
    /// Unsigned 32-bit integer.
    Ui32 = 17, "ui32", 32;
    /// Unsigned 64-bit integer.
    Ui64 = 18, "ui64", 64;
    /// Boolean, one byte an element: 0 or 1.
    I1 = 19, "i1", 8;
    /// Text; such tensors are runtime-owned values.
    String = 20, "string", 0;
    /// 8-bit power of two, NaN, no sign and no zero.
    F8E8M0FNU = 21, "f8E8M0FNU", 8;
    /// 4-bit float, 2 exponent bits, finite, without NaN, packed as 4-bit integers are.
    F4E2M1FN = 22, "f4E2M1FN", 4;
    /// Signed 2-bit integer, four in a byte, the first in the lowest bits.
    I2 = 23, "i2", 2;
    /// Unsigned 2-bit integer, four in a byte, the first in the lowest bits.
    Ui2 = 24, "ui2", 2;
}

impl ElementType {
    /// Bytes of a dense tensor of these extents: sub-byte elements are packed, the last byte is rounded up.
    /// `None` for a negative extent, an overflow, or a type whose elements have no fixed size.
    pub fn byte_len(self, dims: &[i64]) -> Option<u64> {
        let bits = u64::from(self.bits());
        if bits == 0 {
            return None;
        }
        Some(element_count(dims)?.checked_mul(bits)?.div_ceil(8))
    }

    /// The alignment an element needs in memory, in bytes (1 for packed types).
    pub const fn align(self) -> u64 {
        let bytes = self.bits() as u64 / 8;
        if bytes == 0 { 1 } else { bytes }
    }
}

/// The number of elements of a tensor of these extents; `None` for a negative extent or an overflow.
pub(crate) fn element_count(dims: &[i64]) -> Option<u64> {
    // An extent of zero makes the tensor empty whatever the others are, so it must win over their overflow.
    if dims.iter().any(|&dim| dim < 0) {
        return None;
    }
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim as u64))
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ElementType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().copied().find(|dtype| dtype.name() == text);
        found.ok_or_else(|| format!("no element type is named `{text}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique_and_round_trip() {
        for (index, &dtype) in ElementType::ALL.iter().enumerate() {
            assert_eq!(dtype as i32, index as i32);
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(ElementType::try_from(index as i32), Ok(dtype));
        }
        assert!("f33".parse::<ElementType>().is_err());
    }

    #[test]
    fn byte_lengths() {
        assert_eq!(ElementType::F32.byte_len(&[2, 3]), Some(24));
        assert_eq!(ElementType::I4.byte_len(&[3]), Some(2));
        assert_eq!(ElementType::I2.byte_len(&[3, 3]), Some(3));
        assert_eq!(ElementType::F32.byte_len(&[]), Some(4));
        assert_eq!(ElementType::F32.byte_len(&[i64::MAX, i64::MAX, 0]), Some(0));
        assert_eq!(ElementType::F32.byte_len(&[i64::MAX, 8]), None);
        assert_eq!(ElementType::F32.byte_len(&[-1]), None);
        assert_eq!(ElementType::String.byte_len(&[1]), None);
    }
}
