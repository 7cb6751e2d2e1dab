//! What instructions of programs compute, for all targets.

/// A condition of a jump after a comparison of integers; `Below` and `Above` are those of unsigned ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Cond {
    Below,
    NotBelow,
    Equal,
    NotEqual,
    NotAbove,
    Above,
    Less,
    NotLess,
    LessEqual,
    Greater,
}

impl Cond {
    /// The condition that holds where this one does not.
    pub fn opposite(self) -> Cond {
        use Cond::*;
        match self {
            Below => NotBelow,
            NotBelow => Below,
            Equal => NotEqual,
            NotEqual => Equal,
            NotAbove => Above,
            Above => NotAbove,
            Less => NotLess,
            NotLess => Less,
            LessEqual => Greater,
            Greater => LessEqual,
        }
    }

    /// The same condition with the operands exchanged.
    pub fn swapped(self) -> Cond {
        use Cond::*;
        match self {
            Below => Above,
            NotBelow => NotAbove,
            NotAbove => NotBelow,
            Above => Below,
            Less => Greater,
            NotLess => LessEqual,
            LessEqual => NotLess,
            Greater => Less,
            equality => equality,
        }
    }
}

/// A condition of floats. With NaN only `NotEqual` holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum FloatCond {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl FloatCond {
    /// The condition of an operator.
    pub fn named(op: &str) -> Option<FloatCond> {
        Some(match op {
            "==" => FloatCond::Equal,
            "!=" => FloatCond::NotEqual,
            "<" => FloatCond::Less,
            "<=" => FloatCond::LessEqual,
            ">" => FloatCond::Greater,
            ">=" => FloatCond::GreaterEqual,
            _ => return None,
        })
    }
}

/// Arithmetic on integers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Alu {
    Add,
    Or,
    And,
    Sub,
    Xor,
}

/// Shifts of integers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ShiftInt {
    /// To the left.
    Left,
    /// To the right, filling with zeros.
    Right,
    /// To the right, filling with the sign.
    RightSigned,
}

/// Shifts of integer lanes by an immediate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shift {
    /// To the left.
    Left,
    /// To the right, filling with zeros.
    Right,
    /// To the right, filling with the sign.
    RightSigned,
}

/// Products of parts of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dot {
    /// Four unsigned bytes by four signed ones, exactly.
    Bytes,
    /// Two signed words by two others.
    Words,
    /// Two bf16 by two others.
    Bf16,
}

/// Instructions of matrix registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Matrix {
    Config,
    Release,
    Zero,
    Load,
    Store,
    DotSigned,
    DotUnsigned,
}

/// What a vector instruction computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum VectorOp {
    Add,
    Sub,
    Mul,
    Div,
    /// The second operand where either is NaN.
    Min,
    /// The second operand where either is NaN.
    Max,
    And,
    Or,
    Xor,
    IntAdd,
    IntSub,
    IntMul,
    IntMin,
    IntMax,
    /// Of 64-bit lanes.
    LongAdd,
    /// Of 64-bit lanes.
    LongSub,
    /// Sums of two products of signed 16-bit parts.
    DotWords,
    /// Sums of two products of unsigned bytes by signed ones, saturated to 16 bits.
    BytePairs,
    /// Lanes of the second operand at the positions of the first; with NEON bytes.
    Permute,
    /// The low (false) or high (true) blocks of so many lanes of each pair of blocks: the first operand's at even positions, the
    /// second's at odd ones.
    Blocks(u8, bool),
    /// Blocks of so many lanes exchanged with their neighbours.
    Exchange(u8),
    /// Lanes within each 128 bits, as the immediate of x86 says.
    ShuffleLanes(u8),
    /// Parts of 128 bits, as the immediate of AVX-512 says.
    ShuffleParts(u8),
    /// Parts of 128 bits, as the immediate of AVX2 says.
    ExchangeParts(u8),
    /// Parts of 64 bits, as the immediate of x86 says.
    ShuffleLongs(u8),
    /// Words of both operands, alternating by 128 bits, saturated to 16 bits.
    PackWords,
    /// The same of bytes.
    PackBytes,
    Load,
    Store,
    /// Stores 64 bits.
    StoreLow,
    Broadcast,
    /// Of 64 bits.
    BroadcastLong,
    Sqrt,
    /// To the nearest, or to even.
    Round,
    Floor,
    Ceil,
    /// To the nearest integer, or to an even one.
    RoundToInt,
    TruncateToInt,
    ToFloat,
    /// An estimate of 14 bits.
    Reciprocal,
    /// The low half of the lanes as f64.
    ToDoubles,
    /// Lanes of f64 as the low half of a vector.
    FromDoubles,
    /// A single f32 as f64.
    ToDouble,
    /// A single f64 as f32.
    FromDouble,
    WidenI8,
    WidenU8,
    WidenI16,
    WidenU16,
    WidenF16,
    /// The low bytes of lanes.
    NarrowBytes,
    /// The low words of lanes.
    NarrowWords,
    NarrowF16,
}
