//! The vector IR: the straight-line program of a loop body, in SSA form. Each value is a vector of 32-bit lanes: floats, integers, or
//! masks (all bits of a lane set or clear).

use std::collections::HashMap;

use of_ir::DType;

use crate::print::x86::asm::{Op, op};

/// A value of a block: the index of the instruction that computes it.
pub type Value = usize;

/// Instructions `dst = first op second`, whose second operand may be in memory.
#[allow(missing_docs, reason = "the names say what they are")]
pub mod two {
    use super::{Op, op};
    pub const ADD: Op = op(0, 1, 0x58);
    pub const MUL: Op = op(0, 1, 0x59);
    pub const SUB: Op = op(0, 1, 0x5c);
    /// The second operand where either is NaN.
    pub const MIN: Op = op(0, 1, 0x5d);
    pub const DIV: Op = op(0, 1, 0x5e);
    /// The second operand where either is NaN.
    pub const MAX: Op = op(0, 1, 0x5f);
    pub const AND: Op = op(1, 1, 0xdb);
    pub const AND_NOT: Op = op(1, 1, 0xdf);
    pub const OR: Op = op(1, 1, 0xeb);
    pub const XOR: Op = op(1, 1, 0xef);
    pub const IADD: Op = op(1, 1, 0xfe);
    pub const ISUB: Op = op(1, 1, 0xfa);
    pub const IMUL: Op = op(1, 2, 0x40);
    pub const IMAX: Op = op(1, 2, 0x3d);
    pub const IMIN: Op = op(1, 2, 0x39);
}

/// Instructions `dst = op source`, whose source may be in memory.
#[allow(missing_docs, reason = "the names say what they are")]
pub mod one {
    use super::{Op, op};
    pub const SQRT: Op = op(0, 1, 0x51);
    /// To the nearest integer, with the rounding of the environment: nearest even.
    pub const ROUND_TO_INT: Op = op(1, 1, 0x5b);
    pub const TRUNCATE_TO_INT: Op = op(2, 1, 0x5b);
    pub const TO_FLOAT: Op = op(0, 1, 0x5b);
    /// An estimate of 14 bits, with AVX-512.
    pub const RECIPROCAL: Op = op(1, 2, 0x4c);
    /// Rounds as the immediate says.
    pub const ROUND: Op = op(1, 3, 0x08);
}

/// Shifts of integer lanes by an immediate; the number in the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// To the left.
    Left = 6,
    /// To the right, filling with zeros.
    Right = 2,
    /// To the right, filling with the sign.
    RightSigned = 4,
}

/// A comparison of floats: the immediate of the instruction. With NaN only `NotEqual` and `NotLess` hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Compare {
    Equal = 0x00,
    Less = 0x11,
    LessEqual = 0x12,
    NotEqual = 0x04,
    NotLess = 0x15,
    Greater = 0x1e,
    GreaterEqual = 0x1d,
}

/// An instruction.
#[derive(Clone, PartialEq, Debug)]
pub enum Inst {
    /// A constant in all lanes.
    Const(u32),
    /// A vector that was computed before the block: a slot of the frame.
    Slot(usize),
    /// Load number `.0` of the kernel.
    Load(usize),
    /// Two operands.
    Two(Op, Value, Value),
    /// One operand and an immediate byte.
    One(Op, Value, Option<u8>),
    /// `a * b + c`, rounded once.
    Fma(Value, Value, Value),
    /// `c - a * b`, rounded once.
    Fnma(Value, Value, Value),
    /// Shifts integers.
    Shift(Shift, Value, u8),
    /// Compares floats.
    Compare(Compare, Value, Value),
    /// Compares integers: whether they are equal, or else whether the first is greater.
    CompareInt(bool, Value, Value),
    /// The second where the mask is set, else the third.
    Select(Value, Value, Value),
    /// `p 2^n`, or 0 where `x < low`: operands p, n, x, low. With AVX-512.
    Scale(Value, Value, Value, Value),
    /// Rounds f32 to f16 and widens it again.
    RoundF16(Value),
    /// Store number `.0` of the kernel, of the type.
    Store(usize, DType, Value),
    /// The accumulator with this number.
    Accumulator(usize),
    /// Writes a slot of the frame.
    Keep(usize, Value),
    /// Exchanges groups of so many lanes with their neighbours.
    Exchange(Value, usize),
    /// Replaces the accumulator with this number.
    Accumulate(usize, Value),
}

impl Inst {
    /// The operands in order; the last may be in memory.
    pub fn operands(&self) -> Vec<Value> {
        match *self {
            Inst::Const(_) | Inst::Slot(_) | Inst::Load(_) | Inst::Accumulator(_) => Vec::new(),
            Inst::One(_, a, _) | Inst::Shift(_, a, _) | Inst::RoundF16(a) => vec![a],
            Inst::Store(_, _, a) | Inst::Accumulate(_, a) | Inst::Keep(_, a) | Inst::Exchange(a, _) => vec![a],
            Inst::Two(_, a, b) | Inst::Compare(_, a, b) | Inst::CompareInt(_, a, b) => vec![a, b],
            Inst::Fma(a, b, c) | Inst::Fnma(a, b, c) | Inst::Select(a, b, c) => vec![a, b, c],
            Inst::Scale(a, b, c, d) => vec![a, b, c, d],
        }
    }

    /// Whether the value can be read from memory wherever it is used.
    pub fn in_memory(&self) -> bool {
        matches!(self, Inst::Const(_) | Inst::Slot(_))
    }
}

/// A straight-line program.
#[derive(Clone, Debug)]
pub struct Block {
    /// Instructions; operands come before their users.
    pub insts: Vec<Inst>,
    constants: HashMap<u32, Value>,
    /// Whether the instructions of AVX-512 may be used, else those of AVX2.
    pub avx512: bool,
}

impl Block {
    /// An empty program.
    pub fn new(avx512: bool) -> Block {
        Block { insts: Vec::new(), constants: HashMap::new(), avx512 }
    }

    /// Adds an instruction.
    pub fn push(&mut self, inst: Inst) -> Value {
        self.insts.push(inst);
        self.insts.len() - 1
    }

    /// A word in all lanes.
    pub fn bits(&mut self, bits: u32) -> Value {
        if let Some(v) = self.constants.get(&bits) {
            return *v;
        }
        let v = self.push(Inst::Const(bits));
        self.constants.insert(bits, v);
        v
    }

    /// A float in all lanes.
    pub fn float(&mut self, x: f32) -> Value {
        self.bits(x.to_bits())
    }

    /// An instruction of two operands.
    pub fn two(&mut self, op: Op, a: Value, b: Value) -> Value {
        self.push(Inst::Two(op, a, b))
    }

    /// An instruction of one operand.
    pub fn one(&mut self, op: Op, a: Value) -> Value {
        self.push(Inst::One(op, a, None))
    }

    /// An instruction of a value and a float in all lanes.
    pub fn two_float(&mut self, op: Op, a: Value, b: f32) -> Value {
        let b = self.float(b);
        self.two(op, a, b)
    }

    /// An instruction of a value and a word in all lanes.
    pub fn two_bits(&mut self, op: Op, a: Value, b: u32) -> Value {
        let b = self.bits(b);
        self.two(op, a, b)
    }

    /// `a * b + c`.
    pub fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.push(Inst::Fma(a, b, c))
    }

    /// `c - a * b`.
    pub fn fnma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.push(Inst::Fnma(a, b, c))
    }

    /// Compares floats.
    pub fn compare(&mut self, how: Compare, a: Value, b: Value) -> Value {
        self.push(Inst::Compare(how, a, b))
    }

    /// Compares with a float in all lanes.
    pub fn compare_float(&mut self, how: Compare, a: Value, b: f32) -> Value {
        let b = self.float(b);
        self.compare(how, a, b)
    }

    /// `mask ? a : b`.
    pub fn select(&mut self, mask: Value, a: Value, b: Value) -> Value {
        self.push(Inst::Select(mask, a, b))
    }

    /// Shifts integers.
    pub fn shift(&mut self, how: Shift, a: Value, by: u8) -> Value {
        self.push(Inst::Shift(how, a, by))
    }

    /// A polynomial by Horner's rule; coefficients from the highest power down.
    pub fn polynomial(&mut self, x: Value, coefficients: &[f32]) -> Value {
        let mut p = self.float(coefficients[0]);
        for c in &coefficients[1..] {
            let c = self.float(*c);
            p = self.fma(p, x, c);
        }
        p
    }
}
