//! The vector instructions that translations use.

use crate::toolchain::machine::ir::{Form, Lanes, Vector};
use crate::toolchain::machine::operation::{Dot, FloatCond, Matrix, VectorOp};
use crate::toolchain::machine::x86::asm::{Op, op};

/// Instructions `dst = op(first, second)`, whose second operand may be in memory.
#[allow(missing_docs, reason = "the names say what they are")]
pub mod two {
    use crate::toolchain::machine::x86::asm::{Op, op};
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
    use crate::toolchain::machine::x86::asm::{Op, op};
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
    use crate::toolchain::machine::x86::asm::{Op, op};
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
const PACK_WORDS: Op = op(1, 2, 0x2b);
const PACK_BYTES: Op = op(1, 1, 0x67);
const STORE_64: Op = op(1, 1, 0xd6);
const SHUFFLE_64: Op = Op { wide: true, ..op(1, 3, 0x00) };
const BROADCAST_64: Op = op(1, 2, 0x19);
const FROM_ONE: Op = op(2, 1, 0x5a);
const FROM_ONE_64: Op = Op { wide: true, ..op(3, 1, 0x5a) };

/// An instruction on all lanes, as one on these.
fn of_lanes(base: Op, lanes: Lanes) -> Op {
    match lanes {
        Lanes::All | Lanes::Half => base,
        Lanes::All64 => Op { prefix: 1, wide: true, ..base },
        Lanes::One32 => Op { prefix: 2, ..base },
        Lanes::One64 => Op { prefix: 3, wide: true, ..base },
    }
}

/// The opcode of a vector instruction, its immediate byte, and the bits of its vectors; `None` where x86 has no such instruction.
pub fn encoding(v: Vector, avx512: bool) -> Option<(Op, Option<u8>, u16)> {
    let bits = match v.lanes {
        Lanes::All | Lanes::All64 => 0,
        Lanes::Half if avx512 => 256,
        Lanes::Half | Lanes::One32 | Lanes::One64 => 128,
    };
    let plain = |op| Some((op, None, bits));
    let with = |op, imm| Some((op, Some(imm), bits));
    const QUIET_NEAREST: u8 = 8;
    const QUIET_DOWN: u8 = 9;
    const QUIET_UP: u8 = 10;
    match v.op {
        VectorOp::Add => plain(of_lanes(two::ADD, v.lanes)),
        VectorOp::Sub => plain(of_lanes(two::SUB, v.lanes)),
        VectorOp::Mul => plain(of_lanes(two::MUL, v.lanes)),
        VectorOp::Div => plain(of_lanes(two::DIV, v.lanes)),
        VectorOp::Min => plain(two::MIN),
        VectorOp::Max => plain(two::MAX),
        VectorOp::And => plain(two::AND),
        VectorOp::Or => plain(two::OR),
        VectorOp::Xor => plain(two::XOR),
        VectorOp::IntAdd => plain(two::IADD),
        VectorOp::IntSub => plain(two::ISUB),
        VectorOp::IntMul => plain(two::IMUL),
        VectorOp::IntMin => plain(two::IMIN),
        VectorOp::IntMax => plain(two::IMAX),
        VectorOp::LongAdd => plain(two::IADD_64),
        VectorOp::LongSub => plain(two::ISUB_64),
        VectorOp::DotWords => plain(two::DOT_WORDS),
        VectorOp::BytePairs => plain(two::BYTE_PAIRS),
        VectorOp::Permute => plain(two::PERMUTE),
        VectorOp::ShuffleLanes(imm) => with(two::SHUFFLE, imm),
        VectorOp::ShuffleParts(imm) => with(two::SHUFFLE_PARTS, imm),
        VectorOp::ExchangeParts(imm) => with(two::EXCHANGE_PARTS, imm),
        VectorOp::ShuffleLongs(imm) => with(SHUFFLE_64, imm),
        VectorOp::PackWords => plain(PACK_WORDS),
        VectorOp::PackBytes => plain(PACK_BYTES),
        VectorOp::Load => plain(of_lanes(one::LOAD, v.lanes)),
        VectorOp::Store => plain(of_lanes(one::STORE, v.lanes)),
        VectorOp::StoreLow => plain(STORE_64),
        VectorOp::Broadcast => plain(one::BROADCAST),
        // The prefix VEX has one form for both sizes of lanes.
        VectorOp::BroadcastLong => plain(Op { wide: avx512, ..BROADCAST_64 }),
        VectorOp::Sqrt => plain(one::SQRT),
        VectorOp::Round => with(one::ROUND, QUIET_NEAREST),
        VectorOp::Floor => with(one::ROUND, QUIET_DOWN),
        VectorOp::Ceil => with(one::ROUND, QUIET_UP),
        VectorOp::RoundToInt => plain(one::ROUND_TO_INT),
        VectorOp::TruncateToInt => plain(one::TRUNCATE_TO_INT),
        VectorOp::ToFloat => plain(one::TO_FLOAT),
        VectorOp::Reciprocal => plain(one::RECIPROCAL),
        VectorOp::ToDoubles => plain(TO_F64),
        VectorOp::FromDoubles => plain(FROM_F64),
        VectorOp::ToDouble => plain(FROM_ONE),
        VectorOp::FromDouble => plain(FROM_ONE_64),
        VectorOp::WidenI8 => plain(one::WIDEN_I8),
        VectorOp::WidenU8 => plain(one::WIDEN_U8),
        VectorOp::WidenI16 => plain(one::WIDEN_I16),
        VectorOp::WidenU16 => plain(one::WIDEN_U16),
        VectorOp::WidenF16 => plain(one::WIDEN_F16),
        VectorOp::NarrowBytes => plain(one::NARROW_8),
        VectorOp::NarrowWords => plain(one::NARROW_16),
        VectorOp::NarrowF16 => with(one::NARROW_F16, 0),
        VectorOp::Blocks(..) | VectorOp::Exchange(_) => None,
    }
}

/// The opcode of a load or store of the first lanes.
pub fn part(op: VectorOp, avx512: bool) -> Result<Op, String> {
    let v = Vector { op, form: Form::One, lanes: Lanes::All };
    Ok(encoding(v, avx512).ok_or_else(|| format!("{op:?} is no instruction of x86"))?.0)
}

/// The opcode of products of parts of lanes.
pub fn dot(kind: Dot) -> Op {
    match kind {
        Dot::Bytes => op(1, 2, 0x50),
        Dot::Words => op(1, 2, 0x52),
        Dot::Bf16 => op(2, 2, 0x52),
    }
}

/// The opcode of an instruction of matrix registers.
pub fn of_matrices(kind: Matrix) -> Op {
    match kind {
        Matrix::Config => matrix::CONFIG,
        Matrix::Release => matrix::RELEASE,
        Matrix::Zero => matrix::ZERO,
        Matrix::Load => matrix::LOAD,
        Matrix::Store => matrix::STORE,
        Matrix::DotSigned => matrix::DOT_SIGNED,
        Matrix::DotUnsigned => matrix::DOT_UNSIGNED,
    }
}

/// The immediate of the comparison of floats.
pub fn compare(cond: FloatCond) -> u8 {
    match cond {
        FloatCond::Equal => 0x00,
        FloatCond::Less => 0x11,
        FloatCond::LessEqual => 0x12,
        FloatCond::NotEqual => 0x04,
        FloatCond::Greater => 0x1e,
        FloatCond::GreaterEqual => 0x1d,
    }
}
