//! The vector instructions that translations use.

use crate::toolchain::x86::asm::{Op, op};

/// Instructions `dst = op(first, second)`, whose second operand may be in memory.
#[allow(missing_docs, reason = "the names say what they are")]
pub mod two {
    use crate::toolchain::x86::asm::{Op, op};
    pub const ADD: Op = op(0, 1, 0x58);
    pub const MUL: Op = op(0, 1, 0x59);
    pub const SUB: Op = op(0, 1, 0x5c);
    /// The second operand where either is NaN.
    pub const MIN: Op = op(0, 1, 0x5d);
    pub const DIV: Op = op(0, 1, 0x5e);
    /// The second operand where either is NaN.
    pub const MAX: Op = op(0, 1, 0x5f);
    pub const AND: Op = op(1, 1, 0xdb);
    pub const OR: Op = op(1, 1, 0xeb);
    pub const XOR: Op = op(1, 1, 0xef);
    pub const IADD: Op = op(1, 1, 0xfe);
    pub const ISUB: Op = op(1, 1, 0xfa);
    pub const IADD_64: Op = Op { wide: true, ..op(1, 1, 0xd4) };
    pub const ISUB_64: Op = Op { wide: true, ..op(1, 1, 0xfb) };
    pub const IMUL: Op = op(1, 2, 0x40);
    pub const IMAX: Op = op(1, 2, 0x3d);
    pub const IMIN: Op = op(1, 2, 0x39);
    /// Sums of two products of signed 16-bit parts.
    pub const DOT_WORDS: Op = op(1, 1, 0xf5);
    /// Sums of two products of unsigned bytes by signed ones, saturated to 16 bits.
    pub const BYTE_PAIRS: Op = op(1, 2, 0x04);
    /// Lanes within each 128 bits, as the immediate says.
    pub const SHUFFLE: Op = op(0, 1, 0xc6);
    /// Parts of 128 bits, as the immediate says.
    pub const SHUFFLE_PARTS: Op = op(1, 3, 0x23);
    /// Parts of 128 bits, with AVX2.
    pub const EXCHANGE_PARTS: Op = op(1, 3, 0x06);
    /// Lanes of each 128 bits alternating: the low ones, the high ones.
    pub const UNPACK_LOW: Op = op(0, 1, 0x14);
    pub const UNPACK_HIGH: Op = op(0, 1, 0x15);
    /// Lanes of the second operand at the positions of the first.
    pub const PERMUTE: Op = op(1, 2, 0x16);
}

/// Instructions `dst = op(source)`, whose source may be in memory.
#[allow(missing_docs, reason = "the names say what they are")]
pub mod one {
    use crate::toolchain::x86::asm::{Op, op};
    pub const LOAD: Op = op(0, 1, 0x10);
    pub const STORE: Op = op(0, 1, 0x11);
    pub const MOVE: Op = op(0, 1, 0x28);
    pub const BROADCAST: Op = op(1, 2, 0x18);
    pub const SQRT: Op = op(0, 1, 0x51);
    /// To the nearest integer, with the rounding of the environment: nearest even.
    pub const ROUND_TO_INT: Op = op(1, 1, 0x5b);
    pub const TRUNCATE_TO_INT: Op = op(2, 1, 0x5b);
    pub const TO_FLOAT: Op = op(0, 1, 0x5b);
    /// An estimate of 14 bits, with AVX-512.
    pub const RECIPROCAL: Op = op(1, 2, 0x4c);
    /// Rounds as the immediate says.
    pub const ROUND: Op = op(1, 3, 0x08);
    pub const WIDEN_I8: Op = op(1, 2, 0x21);
    pub const WIDEN_U8: Op = op(1, 2, 0x31);
    pub const WIDEN_I16: Op = op(1, 2, 0x23);
    pub const WIDEN_U16: Op = op(1, 2, 0x33);
    pub const WIDEN_F16: Op = op(1, 2, 0x13);
    /// The low bytes of lanes, with AVX-512.
    pub const NARROW_8: Op = op(2, 2, 0x31);
    pub const NARROW_16: Op = op(2, 2, 0x33);
    pub const NARROW_F16: Op = op(1, 3, 0x1d);
}

/// Instructions of matrix registers.
#[allow(missing_docs, reason = "the names say what they are")]
pub mod matrix {
    use crate::toolchain::x86::asm::{Op, op};
    pub const CONFIG: Op = op(0, 2, 0x49);
    /// Without a memory operand.
    pub const RELEASE: Op = op(0, 2, 0x49);
    pub const ZERO: Op = op(3, 2, 0x49);
    pub const LOAD: Op = op(3, 2, 0x4b);
    pub const STORE: Op = op(2, 2, 0x4b);
    pub const DOT_SIGNED: Op = op(3, 2, 0x5e);
    pub const DOT_UNSIGNED: Op = op(1, 2, 0x5e);
}

/// Lanes of f32 as f64 and back.
pub const TO_F64: Op = op(0, 1, 0x5a);
/// See [`TO_F64`].
pub const FROM_F64: Op = Op { wide: true, ..op(1, 1, 0x5a) };

/// The immediate of the comparison of floats. With NaN only `!=` holds.
pub fn compare(op: &str) -> Option<u8> {
    Some(match op {
        "==" => 0x00,
        "<" => 0x11,
        "<=" => 0x12,
        "!=" => 0x04,
        ">" => 0x1e,
        ">=" => 0x1d,
        _ => return None,
    })
}
