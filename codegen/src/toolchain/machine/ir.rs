//! The program of a kernel: instructions on virtual registers in the order of the code, with labels and jumps. A register has one
//! definition, except those that merge the values of a variable at a join or a loop.

use crate::toolchain::machine::operation::{Alu, Cond, Dot, FloatCond, Matrix, Shift, ShiftInt, VectorOp};
use crate::toolchain::machine::target::Target;

/// A virtual register.
pub type Reg = u32;

/// No register.
pub const NONE: Reg = 0;
/// The address of the frame.
pub const FRAME: Reg = 1;

/// What a register holds: an integer or address of 64 bits, or a vector (a single float is its first lane).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Class {
    Int,
    Vector,
}

/// A place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The base register.
    pub base: Reg,
    /// The index register, or none.
    pub index: Reg,
    /// The factor of the index: 1, 2, 4 or 8.
    pub scale: u8,
    /// The displacement.
    pub disp: i32,
}

/// The operands of a vector instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// `dst = op(first, second)`; the second may be in memory.
    Two,
    /// `dst = op(source)`; the source may be in memory.
    One,
    /// `dst = op(source)`, where the encoding has the result in the place of the source.
    Narrow,
    /// `memory = op(source)`.
    Store,
}

/// A vector instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Vector {
    /// What it computes.
    pub op: VectorOp,
    /// The operands.
    pub form: Form,
    /// The lanes that it computes.
    pub lanes: Lanes,
}

/// An operation. Integer operations take an immediate instead of a second register that is [`NONE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// An integer.
    Imm,
    /// A parameter of the kernel.
    Param,
    /// A copy.
    Copy,
    /// The address of a place in memory.
    Lea,
    /// Arithmetic.
    Alu(Alu),
    /// A product.
    Mul,
    /// The high half of a signed product.
    MulHigh,
    /// A quotient (false) or remainder (true), and whether it is signed.
    Divide(bool, bool),
    /// A shift.
    Shift(ShiftInt),
    /// The low bytes, extended with the sign or with zeros.
    Extend(u8, bool),
    /// Loads so many bytes, extended with the sign or with zeros.
    Load(u8, bool),
    /// Stores so many bytes.
    Store(u8),
    /// 1 if the comparison holds, else 0.
    Set(Cond),
    /// The third operand if the comparison of the first two holds, else the fourth.
    Select(Cond),
    /// A position that jumps refer to.
    Label(u32),
    /// A jump.
    Jump(u32),
    /// A jump if the comparison holds.
    Branch(Cond, u32),
    /// The end of the kernel with a status.
    Exit,
    /// The begin or end of a loop.
    Loop(bool),
    /// A 32-bit word in all lanes.
    Const,
    /// The address of the constants with this number.
    Data,
    /// A vector instruction.
    Vector(Vector),
    /// `a * b + c` (0), `c - a * b` (1) or `a * b - c` (2); for one f32, one f64, or all lanes.
    Fma(u8, Lanes),
    /// Shifts integer lanes by an immediate; whether lanes have 64 bits.
    ShiftLanes(Shift, bool),
    /// Compares lanes; the result is a mask.
    Compare(Comparison),
    /// The second operand where the mask is set, else the third.
    Blend,
    /// The third operand where the comparison of the first two holds, else the fourth. With AVX-512.
    CompareBlend(Comparison),
    /// `p 2^n`, or 0 where `x < low`: operands p, n, x, low. With AVX-512.
    Scale,
    /// Loads the first lanes; the operand or immediate says how many.
    LoadPart(VectorOp),
    /// Stores the first lanes of the first operand; the second operand or the immediate says how many.
    StorePart(VectorOp),
    /// A mask of the first lanes.
    FirstLanes,
    /// An integer in the first lane: its 4 or 8 bytes.
    ToLane(u8),
    /// The first lane as an integer: its 4 or 8 bytes, extended with the sign.
    FromLane(u8),
    /// Converts an integer to a single float of so many bytes.
    IntToFloat(u8),
    /// Converts a single float of so many bytes to an integer, towards zero.
    FloatToInt(u8),
    /// Whether any lane of a mask is set, as a number that is not 0.
    Any,
    /// Adds products of parts of lanes to the first operand.
    Dot(Dot),
    /// Reads a cache line ahead; whether into the L2 cache only.
    Prefetch(bool),
    /// An instruction of matrix registers, and the numbers of the result and of up to two operands.
    Matrix(Matrix, [u8; 3]),
}

/// Which lanes an instruction computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Lanes {
    All,
    All64,
    Half,
    One32,
    One64,
}

/// How lanes are compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Comparison {
    /// Floats.
    Float(FloatCond, Lanes),
    /// Whether integers are equal.
    IntEqual,
    /// Whether the first signed integers are greater.
    IntGreater,
}

/// An instruction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Inst {
    /// The operation.
    pub op: Op,
    /// The result.
    pub dst: Reg,
    /// The operands.
    pub args: [Reg; 4],
    /// The operand in memory.
    pub mem: Option<Address>,
    /// Whether that is one number for all lanes.
    pub broadcast: bool,
    /// The immediate operand.
    pub imm: i64,
    /// The number of the sequence of instructions that it belongs to: all of a sequence are executed, or none.
    pub sequence: u32,
}

impl Inst {
    /// An instruction on registers.
    pub fn new(op: Op, dst: Reg, args: &[Reg]) -> Inst {
        let mut all = [NONE; 4];
        all[..args.len()].copy_from_slice(args);
        Inst { op, dst, args: all, mem: None, broadcast: false, imm: 0, sequence: 0 }
    }

    /// The registers that it reads.
    pub fn reads(&self) -> impl Iterator<Item = Reg> + use<> {
        let (base, index) = self.mem.map_or((NONE, NONE), |m| (m.base, m.index));
        self.args.into_iter().chain([base, index]).filter(|r| *r != NONE)
    }

    /// Replaces a register.
    pub fn replace(&mut self, from: Reg, to: Reg) {
        let swap = |r: &mut Reg| *r = if *r == from { to } else { *r };
        swap(&mut self.dst);
        self.args.iter_mut().for_each(swap);
        if let Some(m) = &mut self.mem {
            swap(&mut m.base);
            swap(&mut m.index);
        }
    }

    /// Whether it has no effect but its result.
    pub fn is_pure(&self) -> bool {
        self.dst != NONE && !matches!(self.op, Op::Copy | Op::Param)
    }
}

/// A whole kernel.
pub struct Program {
    /// Instructions in the order of the code.
    pub insts: Vec<Inst>,
    /// What each register holds.
    pub classes: Vec<Class>,
    /// Number of labels.
    pub labels: usize,
    /// Bytes of arrays in the frame.
    pub frame: usize,
    /// Constants in memory.
    pub data: Vec<Vec<u8>>,
    /// The processors that it is for.
    pub target: &'static Target,
}
