//! An assembler of the AArch64 instructions that kernels need: general-purpose instructions, and NEON.
//!
//! Source: Arm's Architecture Reference Manual for A-profile, chapter C.

use std::collections::HashMap;

use crate::toolchain::machine::operation::{Cond, Shift, ShiftInt};

/// A general-purpose register. Number 31 is the stack pointer in addresses and sums, and zero elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct X(pub u8);

/// The stack pointer, or zero.
pub const SP: X = X(31);
/// See [`SP`].
pub const ZERO: X = X(31);
/// The register of addresses that are too far for an offset.
pub const FAR: X = X(15);

/// A place in memory that an instruction takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mem {
    /// A base register and an offset, which [`fits`] the access.
    At(X, i32),
    /// A base register, and an index register that is shifted to the left.
    Index(X, X, u8),
}

/// Whether an access of so many bytes takes an offset.
pub fn fits(offset: i32, bytes: u8) -> bool {
    let unit = i32::from(bytes);
    (-256..256).contains(&offset) || (0..4096 * unit).contains(&offset) && offset % unit == 0
}

/// The instruction that an access begins with: one with an offset that counts in units of the access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The word of the instruction.
    pub word: u32,
    /// Bytes.
    pub bytes: u8,
}

/// The load of so many bytes to a general-purpose register, extended with the sign or with zeros.
pub fn load(bytes: u8, signed: bool) -> Access {
    let word = match (bytes, signed) {
        (1, false) => 0x3940_0000,
        (1, true) => 0x3980_0000,
        (2, false) => 0x7940_0000,
        (2, true) => 0x7980_0000,
        (4, false) => 0xb940_0000,
        (4, true) => 0xb980_0000,
        _ => 0xf940_0000,
    };
    Access { word, bytes }
}

/// The store of so many bytes of a general-purpose register.
pub fn store(bytes: u8) -> Access {
    let word = match bytes {
        1 => 0x3900_0000,
        2 => 0x7900_0000,
        4 => 0xb900_0000,
        _ => 0xf900_0000,
    };
    Access { word, bytes }
}

/// The load of so many bytes to the low part of a vector register, whose rest becomes 0.
pub fn load_vector(bytes: u8) -> Access {
    let Access { word, bytes } = store_vector(bytes);
    Access { word: word | 1 << 22, bytes }
}

/// The store of the low bytes of a vector register.
pub fn store_vector(bytes: u8) -> Access {
    let word = match bytes {
        1 => 0x3d00_0000,
        2 => 0x7d00_0000,
        4 => 0xbd00_0000,
        8 => 0xfd00_0000,
        _ => 0x3d80_0000,
    };
    Access { word, bytes }
}

/// Instructions of three general-purpose registers: `to = first op second`.
#[allow(missing_docs, reason = "the names of the architecture")]
pub mod general {
    pub const ADD: u32 = 0x8b00_0000;
    pub const SUB: u32 = 0xcb00_0000;
    pub const AND: u32 = 0x8a00_0000;
    pub const ORR: u32 = 0xaa00_0000;
    pub const EOR: u32 = 0xca00_0000;
    /// A comparison, with the result in the register zero.
    pub const SUBS: u32 = 0xeb00_0000;
    pub const MUL: u32 = 0x9b00_7c00;
    pub const SMULH: u32 = 0x9b40_7c00;
    pub const SDIV: u32 = 0x9ac0_0c00;
    pub const UDIV: u32 = 0x9ac0_0800;
}

/// Instructions of two or three vector registers. Those of f32 lanes become those of f64 lanes by [`wide`].
#[allow(missing_docs, reason = "the names of the architecture")]
pub mod neon {
    pub const FADD: u32 = 0x4e20_d400;
    pub const FSUB: u32 = 0x4ea0_d400;
    pub const FMUL: u32 = 0x6e20_dc00;
    pub const FDIV: u32 = 0x6e20_fc00;
    pub const FMLA: u32 = 0x4e20_cc00;
    pub const FMLS: u32 = 0x4ea0_cc00;
    /// By the first lane of the last operand.
    pub const FMUL_LANE: u32 = 0x4f80_9000;
    /// See [`FMUL_LANE`].
    pub const FMLA_LANE: u32 = 0x4f80_1000;
    /// See [`FMUL_LANE`].
    pub const FMLS_LANE: u32 = 0x4f80_5000;
    pub const FCMEQ: u32 = 0x4e20_e400;
    pub const FCMGE: u32 = 0x6e20_e400;
    pub const FCMGT: u32 = 0x6ea0_e400;
    pub const FSQRT: u32 = 0x6ea1_f800;
    pub const FRINTN: u32 = 0x4e21_8800;
    pub const FRINTM: u32 = 0x4e21_9800;
    pub const FRINTP: u32 = 0x4ea1_8800;
    pub const FCVTNS: u32 = 0x4e21_a800;
    pub const FCVTZS: u32 = 0x4ea1_b800;
    pub const SCVTF: u32 = 0x4e21_d800;
    pub const FNEG: u32 = 0x6ea0_f800;
    pub const AND: u32 = 0x4e20_1c00;
    pub const ORR: u32 = 0x4ea0_1c00;
    pub const EOR: u32 = 0x6e20_1c00;
    pub const NOT: u32 = 0x6e20_5800;
    /// The first operand where the result is set, else the second.
    pub const BSL: u32 = 0x6e60_1c00;
    /// The first operand where the second is set.
    pub const BIT: u32 = 0x6ea0_1c00;
    /// The first operand where the second is not set.
    pub const BIF: u32 = 0x6ee0_1c00;
    pub const ADD: u32 = 0x4ea0_8400;
    pub const SUB: u32 = 0x6ea0_8400;
    pub const MUL: u32 = 0x4ea0_9c00;
    pub const SMAX: u32 = 0x4ea0_6400;
    pub const SMIN: u32 = 0x4ea0_6c00;
    pub const CMEQ: u32 = 0x6ea0_8c00;
    pub const CMGT: u32 = 0x4ea0_3400;
    pub const ADD_64: u32 = 0x4ee0_8400;
    pub const SUB_64: u32 = 0x6ee0_8400;
    pub const MUL_16: u32 = 0x4e60_9c00;
    pub const ADDP: u32 = 0x4ea0_bc00;
    pub const SMULL: u32 = 0x0e60_c000;
    pub const SMULL_HIGH: u32 = 0x4e60_c000;
    /// Adds pairs of signed words to lanes.
    pub const SADALP: u32 = 0x4e60_6800;
    pub const UMAXV: u32 = 0x6eb0_a800;
    /// f16 to f32, f32 to f16, f32 to f64, f64 to f32.
    pub const FCVTL: u32 = 0x0e21_7800;
    pub const FCVTN: u32 = 0x0e21_6800;
    pub const FCVTL_64: u32 = 0x0e61_7800;
    pub const FCVTN_64: u32 = 0x0e61_6800;
    /// The low words of lanes, the low bytes of words.
    pub const XTN_16: u32 = 0x0e61_2800;
    pub const XTN_8: u32 = 0x0e21_2800;
    /// Words to lanes, bytes to words.
    pub const SXTL_16: u32 = 0x0f10_a400;
    pub const UXTL_16: u32 = 0x2f10_a400;
    pub const SXTL_8: u32 = 0x0f08_a400;
    pub const UXTL_8: u32 = 0x2f08_a400;
    pub const REV64: u32 = 0x4ea0_0800;
    pub const TRN1: u32 = 0x4e80_2800;
    pub const TRN2: u32 = 0x4e80_6800;
    pub const ZIP1_64: u32 = 0x4ec0_3800;
    pub const ZIP2_64: u32 = 0x4ec0_7800;
    /// The bytes of the first operand at the positions of the second.
    pub const TBL: u32 = 0x4e00_0000;
    /// The upper half of the first operand, then the lower half of the second.
    pub const EXT_HALF: u32 = 0x6e00_4000;
    /// The first lane in all lanes: of 32 bits, of 64 bits.
    pub const DUP: u32 = 0x4e04_0400;
    pub const DUP_64: u32 = 0x4e08_0400;
    /// Instructions on the first lane.
    pub const FADD_ONE: u32 = 0x1e20_2800;
    pub const FSUB_ONE: u32 = 0x1e20_3800;
    pub const FMUL_ONE: u32 = 0x1e20_0800;
    pub const FDIV_ONE: u32 = 0x1e20_1800;
    /// `a * b + c`, `c - a * b`, `a * b - c`.
    pub const FMADD: u32 = 0x1f00_0000;
    pub const FMSUB: u32 = 0x1f00_8000;
    pub const FNMSUB: u32 = 0x1f20_8000;
    pub const FCVT_TO_64: u32 = 0x1e22_c000;
    pub const FCVT_FROM_64: u32 = 0x1e62_4000;
}

/// Instructions between general-purpose and vector registers.
#[allow(missing_docs, reason = "the names of the architecture")]
pub mod between {
    /// The low 4 bytes of a register in all lanes.
    pub const DUP: u32 = 0x4e04_0c00;
    /// A register in the first lane: 4 bytes, 8 bytes.
    pub const FMOV_TO_S: u32 = 0x1e27_0000;
    pub const FMOV_TO_D: u32 = 0x9e67_0000;
    /// The first lane: 4 bytes with zeros, 4 bytes with the sign, 8 bytes.
    pub const FMOV_FROM_S: u32 = 0x1e26_0000;
    pub const SMOV: u32 = 0x4e04_2c00;
    pub const FMOV_FROM_D: u32 = 0x9e66_0000;
    /// A register as f32 and back, towards zero.
    pub const SCVTF: u32 = 0x9e22_0000;
    pub const FCVTZS: u32 = 0x9e38_0000;
}

/// The instruction on f64 instead of f32.
pub fn wide(word: u32) -> u32 {
    word | 1 << 22
}

/// The number of a condition.
fn condition(cond: Cond) -> u32 {
    match cond {
        Cond::Equal => 0,
        Cond::NotEqual => 1,
        Cond::NotBelow => 2,
        Cond::Below => 3,
        Cond::Above => 8,
        Cond::NotAbove => 9,
        Cond::NotLess => 10,
        Cond::Less => 11,
        Cond::Greater => 12,
        Cond::LessEqual => 13,
    }
}

/// A position in the code that jumps refer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// What the offset of an instruction refers to.
enum Target {
    Label(usize),
    /// Offset in the constants.
    Data(usize),
}

/// The field of an instruction that has the offset.
#[derive(Clone, Copy)]
enum Field {
    /// 26 bits, in instructions.
    Jump,
    /// 19 bits from the fifth, in instructions.
    Branch,
    /// 14 bits from the fifth, in instructions.
    Test,
    /// 21 bits in two parts, in bytes.
    Address,
}

/// A kernel under construction: code, then constants.
#[derive(Default)]
pub struct Asm {
    code: Vec<u32>,
    data: Vec<u8>,
    /// Offsets of constants in `data`.
    lanes: HashMap<u128, usize>,
    labels: Vec<Option<usize>>,
    fixups: Vec<(usize, Target, Field)>,
}

impl Asm {
    /// The bytes of the kernel: code, and the constants behind it.
    ///
    /// # Errors
    /// When a jump or a constant is too far.
    pub fn finish(mut self) -> Result<Vec<u8>, String> {
        let base = (4 * self.code.len()).next_multiple_of(16);
        for (at, target, field) in std::mem::take(&mut self.fixups) {
            let to = match target {
                Target::Label(l) => self.labels[l].ok_or("a label has no position")?,
                Target::Data(offset) => base + offset,
            };
            let bytes = to as i64 - 4 * at as i64;
            let (bits, shift, n) = match field {
                Field::Jump => (26, 0, bytes / 4),
                Field::Branch => (19, 5, bytes / 4),
                Field::Test => (14, 5, bytes / 4),
                Field::Address => (21, 5, bytes),
            };
            if n < -(1 << (bits - 1)) || n >= 1 << (bits - 1) {
                return Err(format!("a kernel of {} instructions is too long for its jumps", self.code.len()));
            }
            let n = n as u32 & ((1 << bits) - 1);
            self.code[at] |= match field {
                Field::Address => (n & 3) << 29 | (n >> 2) << 5,
                _ => n << shift,
            };
        }
        let mut bytes: Vec<u8> = self.code.iter().flat_map(|word| word.to_le_bytes()).collect();
        if !self.data.is_empty() {
            bytes.resize(base, 0);
            bytes.extend_from_slice(&self.data);
        }
        Ok(bytes)
    }

    /// The length of the code so far, in bytes.
    pub fn position(&self) -> usize {
        4 * self.code.len()
    }

    /// Adds constants; returns their offset for [`Asm::address`].
    pub fn data(&mut self, bytes: &[u8]) -> usize {
        let at = self.data.len().next_multiple_of(16);
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        at
    }

    /// A label that [`Asm::bind`] places.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label here.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.position());
    }

    /// Appends an instruction.
    fn emit(&mut self, word: u32) {
        self.code.push(word);
    }

    /// Appends an instruction whose offset is known in the end.
    fn refer(&mut self, word: u32, target: Target, field: Field) {
        self.fixups.push((self.code.len(), target, field));
        self.emit(word);
    }

    // ---- general-purpose instructions ----

    /// An instruction of three registers.
    pub fn three(&mut self, word: u32, to: X, first: X, second: X) {
        self.emit(word | u32::from(second.0) << 16 | u32::from(first.0) << 5 | u32::from(to.0));
    }

    /// `to = first + (second << shift)`; the first may be the stack pointer.
    pub fn add_shifted(&mut self, to: X, first: X, second: X, shift: u8) {
        self.three(0x8b20_6000 | u32::from(shift) << 10, to, first, second);
    }

    /// `to = from`, of which either may be the stack pointer.
    pub fn mov(&mut self, to: X, from: X) {
        if to == SP || from == SP {
            self.add_imm(to, from, 0);
        } else {
            self.three(general::ORR, to, ZERO, from);
        }
    }

    /// `to = value`.
    pub fn mov_imm(&mut self, to: X, value: i64) {
        let part = |k: u32| (value >> (16 * k)) as u32 & 0xffff;
        let count = |skipped: u32| (0..4).filter(|k| part(*k) != skipped).count();
        let inverted = count(0xffff) < count(0);
        let skipped = if inverted { 0xffff } else { 0 };
        let mut first = true;
        for k in (0..4).filter(|k| part(*k) != skipped) {
            let (word, bits) = match (std::mem::take(&mut first), inverted) {
                (true, true) => (0x9280_0000, part(k) ^ 0xffff),
                (true, false) => (0xd280_0000, part(k)),
                _ => (0xf280_0000, part(k)),
            };
            self.emit(word | k << 21 | bits << 5 | u32::from(to.0));
        }
        if first {
            let word = if inverted { 0x9280_0000 } else { 0xd280_0000 };
            self.emit(word | u32::from(to.0));
        }
    }

    /// A sum or comparison with a number, if one instruction does that: of 12 bits, which may be shifted by 12.
    fn twelve(&mut self, plus: u32, minus: u32, to: X, from: X, value: i64) -> bool {
        let (word, n) = if value < 0 { (minus, value.unsigned_abs()) } else { (plus, value as u64) };
        let (n, high) = if n >= 1 << 12 && n & 0xfff == 0 { (n >> 12, 1 << 22) } else { (n, 0) };
        if n < 1 << 12 {
            self.emit(word | high | (n as u32) << 10 | u32::from(from.0) << 5 | u32::from(to.0));
        }
        n < 1 << 12
    }

    /// `to = from + value`, where either may be the stack pointer; larger numbers are in `to` first, or in [`FAR`] if that is `from`
    /// or the stack pointer.
    pub fn add_imm(&mut self, to: X, from: X, value: i64) {
        if !self.twelve(0x9100_0000, 0xd100_0000, to, from, value) {
            let by = if to == from || to == SP { FAR } else { to };
            self.mov_imm(by, value);
            self.add_shifted(to, from, by, 0);
        }
    }

    /// Compares with a number; larger numbers are in `spare` first.
    pub fn cmp_imm(&mut self, a: X, value: i64, spare: X) {
        if !self.twelve(0xf100_0000, 0xb100_0000, ZERO, a, value) {
            self.mov_imm(spare, value);
            self.three(general::SUBS, ZERO, a, spare);
        }
    }

    /// `to = minus - first * second`.
    pub fn msub(&mut self, to: X, first: X, second: X, minus: X) {
        self.three(0x9b00_8000 | u32::from(minus.0) << 10, to, first, second);
    }

    /// The low bytes of a register, extended with the sign or with zeros.
    pub fn extend(&mut self, to: X, from: X, bytes: u8, signed: bool) {
        let word = if signed { 0x9340_0000 } else { 0xd340_0000 };
        self.two(word | u32::from(8 * bytes - 1) << 10, to.0, from.0);
    }

    /// Shifts by a number from 0 to 63.
    pub fn shift_imm(&mut self, how: ShiftInt, to: X, from: X, by: u8) {
        let by = u32::from(by & 63);
        let (word, first, last) = match how {
            ShiftInt::Left => (0xd340_0000, (64 - by) % 64, 63 - by),
            ShiftInt::Right => (0xd340_0000, by, 63),
            ShiftInt::RightSigned => (0x9340_0000, by, 63),
        };
        self.two(word | first << 16 | last << 10, to.0, from.0);
    }

    /// Shifts by a register, modulo 64.
    pub fn shift(&mut self, how: ShiftInt, to: X, from: X, by: X) {
        let word = match how {
            ShiftInt::Left => 0x9ac0_2000,
            ShiftInt::Right => 0x9ac0_2400,
            ShiftInt::RightSigned => 0x9ac0_2800,
        };
        self.three(word, to, from, by);
    }

    /// `then` if the condition holds, else `other`.
    pub fn select(&mut self, cond: Cond, to: X, then: X, other: X) {
        self.three(0x9a80_0000 | condition(cond) << 12, to, then, other);
    }

    /// 1 if the condition holds, else 0.
    pub fn set_if(&mut self, cond: Cond, to: X) {
        self.three(0x9a80_0400 | condition(cond.opposite()) << 12, to, ZERO, ZERO);
    }

    /// The address of constants.
    pub fn address(&mut self, to: X, data: usize) {
        self.refer(0x1000_0000 | u32::from(to.0), Target::Data(data), Field::Address);
    }

    /// The stack pointer, down to a multiple of 64.
    pub fn align_stack(&mut self, from: X) {
        self.two(0x927a_e400, SP.0, from.0);
    }

    /// Jumps.
    pub fn jmp(&mut self, to: Label) {
        self.refer(0x1400_0000, Target::Label(to.0), Field::Jump);
    }

    /// Jumps if the condition holds.
    pub fn jump_if(&mut self, cond: Cond, to: Label) {
        self.refer(0x5400_0000 | condition(cond), Target::Label(to.0), Field::Branch);
    }

    /// Jumps if a register is 0, or if it is not.
    pub fn jump_if_zero(&mut self, r: X, zero: bool, to: Label) {
        let word = if zero { 0xb400_0000 } else { 0xb500_0000 };
        self.refer(word | u32::from(r.0), Target::Label(to.0), Field::Branch);
    }

    /// Jumps if one of the low 32 bits is clear.
    pub fn jump_if_clear(&mut self, r: X, bit: u8, to: Label) {
        self.refer(0x3600_0000 | u32::from(bit) << 19 | u32::from(r.0), Target::Label(to.0), Field::Test);
    }

    /// Returns.
    pub fn ret(&mut self) {
        self.emit(0xd65f_03c0);
    }

    // ---- memory ----

    /// A load or store of a general-purpose or vector register.
    pub fn access(&mut self, access: Access, r: u8, at: Mem) {
        let Access { word, bytes } = access;
        let unit = i32::from(bytes);
        // An offset in bytes, which may be negative, and an index have another form.
        let other = word & !(1 << 24);
        let (word, base) = match at {
            Mem::At(base, offset) if offset >= 0 && offset % unit == 0 => (word | ((offset / unit) as u32) << 10, base),
            Mem::At(base, offset) => (other | (offset as u32 & 0x1ff) << 12, base),
            Mem::Index(base, index, shift) => {
                (other | 0x0020_6800 | u32::from(shift > 0) << 12 | u32::from(index.0) << 16, base)
            }
        };
        self.two(word, r, base.0);
    }

    /// The same, after which the base register moves by so many bytes.
    pub fn access_and_move(&mut self, access: Access, r: u8, base: X, by: i32) {
        self.two(access.word & !(1 << 24) | 0x400 | (by as u32 & 0x1ff) << 12, r, base.0);
    }

    /// Loads or stores the third element of so many bytes.
    pub fn third(&mut self, loads: bool, bytes: u8, r: u8, at: X) {
        let word = match bytes {
            1 => 0x0d00_0800,
            2 => 0x0d00_5000,
            _ => 0x4d00_8000,
        };
        self.two(word | u32::from(loads) << 22, r, at.0);
    }

    /// Loads a word to all lanes.
    pub fn load_broadcast(&mut self, to: u8, at: X) {
        self.two(0x4d40_c800, to, at.0);
    }

    /// Reads a cache line ahead, into all caches or from the second on. The address has an offset that is a multiple of 8.
    pub fn prefetch(&mut self, at: Mem, second: bool) {
        self.access(Access { word: 0xf980_0000, bytes: 8 }, if second { 2 } else { 0 }, at);
    }

    // ---- vectors ----

    /// An instruction of two registers.
    pub fn two(&mut self, word: u32, to: u8, from: u8) {
        self.emit(word | u32::from(from) << 5 | u32::from(to));
    }

    /// An instruction of three vector registers.
    pub fn vectors(&mut self, word: u32, to: u8, first: u8, second: u8) {
        self.emit(word | u32::from(second) << 16 | u32::from(first) << 5 | u32::from(to));
    }

    /// An instruction of the first lanes of four registers; the last is the summand.
    pub fn fused(&mut self, word: u32, to: u8, [first, second, sum]: [u8; 3]) {
        self.vectors(word | u32::from(sum) << 10, to, first, second);
    }

    /// Copies a vector.
    pub fn mov_vector(&mut self, to: u8, from: u8) {
        self.vectors(neon::ORR, to, from, from);
    }

    /// Shifts lanes of so many bits by a number that is less.
    pub fn shift_lanes(&mut self, how: Shift, bits: u8, to: u8, from: u8, by: u8) {
        let (word, n) = match how {
            _ if by == 0 => return self.mov_vector(to, from),
            Shift::Left => (0x4f00_5400, bits + by),
            Shift::Right => (0x6f00_0400, 2 * bits - by),
            Shift::RightSigned => (0x4f00_0400, 2 * bits - by),
        };
        self.two(word | u32::from(n) << 16, to, from);
    }

    /// A word in all lanes.
    pub fn lanes(&mut self, to: u8, bits: u32) {
        let byte = |n: u32| (n & 0xe0) << 11 | (n & 0x1f) << 5;
        for (word, bits) in [(0x4f00_0400, bits), (0x6f00_0400, !bits)] {
            // One of the bytes is not 0, or the inverse is so.
            let k = bits.trailing_zeros() % 32 / 8;
            if bits & !(0xff << (8 * k)) == 0 {
                return self.emit(word | k << 13 | byte(bits >> (8 * k)) | u32::from(to));
            }
        }
        // A float of three bits of exponent and four of mantissa.
        let exponent = bits >> 25 & 0x3f;
        if bits & 0x7_ffff == 0 && (exponent == 0x20 || exponent == 0x1f) {
            let n = bits >> 24 & 0x80 | bits >> 19 & 0x7f;
            return self.emit(0x4f00_f400 | byte(n) | u32::from(to));
        }
        self.table(to, u128::from(bits) * 0x1_0000_0001_0000_0001_0000_0001);
    }

    /// A known vector.
    pub fn table(&mut self, to: u8, bits: u128) {
        let at = match self.lanes.get(&bits) {
            Some(at) => *at,
            None => {
                let at = self.data(&bits.to_le_bytes());
                self.lanes.insert(bits, at);
                at
            }
        };
        self.refer(0x9c00_0000 | u32::from(to), Target::Data(at), Field::Branch);
    }
}
