//! An assembler of the x86-64 instructions that kernels need: general-purpose instructions, and vector instructions with VEX
//! prefixes (AVX2) or EVEX prefixes (AVX-512).
//!
//! Source: Intel's Software Developer's Manual, volume 2.

use std::collections::HashMap;

use crate::toolchain::machine::operation::{self, Cond, Shift, ShiftInt};

/// A general-purpose register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names of the architecture")]
pub enum Gp {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

/// A place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mem {
    /// A base register, an index register with its scale (1, 2, 4 or 8), and a displacement.
    At(Gp, Option<(Gp, u8)>, i32),
    /// A 32-bit constant in every lane.
    Lanes(u32),
    /// A 32-bit constant.
    Word(u32),
    /// Data of [`Asm::data`].
    Data(usize),
}

impl Mem {
    /// A base register and a displacement.
    pub fn at(base: Gp, disp: i32) -> Mem {
        Mem::At(base, None, disp)
    }
}

/// The last operand of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rm {
    /// A register: a vector, mask or general-purpose register by its number.
    Reg(u8),
    /// Memory.
    Mem(Mem),
}

/// The opcode of a vector instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Op {
    /// Implied prefix: 0 none, 1 `66`, 2 `F3`, 3 `F2`.
    pub prefix: u8,
    /// Opcode map: 1 `0F`, 2 `0F38`, 3 `0F3A`.
    pub map: u8,
    /// Opcode.
    pub code: u8,
    /// The bit W of the prefix.
    pub wide: bool,
}

/// The opcode with this prefix, map and number.
pub const fn op(prefix: u8, map: u8, code: u8) -> Op {
    Op { prefix, map, code, wide: false }
}

/// Operands and options of a vector instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Args {
    /// The register in the field reg of ModRM: mostly the result.
    pub reg: u8,
    /// The register in the field vvvv: mostly the first source.
    pub first: u8,
    /// The last operand.
    pub rm: Rm,
    /// The immediate byte.
    pub imm: Option<u8>,
    /// The mask register; 0 for none. With AVX-512 only.
    pub mask: u8,
    /// Whether lanes outside of the mask become 0 instead of keeping their values.
    pub zero: bool,
    /// Bits of the vectors: 512, 256, 128; 0 for all lanes.
    pub bits: u16,
    /// Whether the operand in memory is one number for all lanes. With AVX-512 only.
    pub broadcast: bool,
}

impl Args {
    /// The operands of most instructions.
    pub fn new(reg: u8, first: u8, rm: Rm) -> Args {
        Args { reg, first, rm, imm: None, mask: 0, zero: false, bits: 0, broadcast: false }
    }
}

/// The number of a condition in opcodes.
fn condition(cond: Cond) -> u8 {
    match cond {
        Cond::Below => 0x2,
        Cond::NotBelow => 0x3,
        Cond::Equal => 0x4,
        Cond::NotEqual => 0x5,
        Cond::NotAbove => 0x6,
        Cond::Above => 0x7,
        Cond::Less => 0xc,
        Cond::NotLess => 0xd,
        Cond::LessEqual => 0xe,
        Cond::Greater => 0xf,
    }
}

/// Arithmetic on general-purpose registers: the opcode's number in the first group of instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Alu {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

impl From<operation::Alu> for Alu {
    fn from(alu: operation::Alu) -> Alu {
        match alu {
            operation::Alu::Add => Alu::Add,
            operation::Alu::Or => Alu::Or,
            operation::Alu::And => Alu::And,
            operation::Alu::Sub => Alu::Sub,
            operation::Alu::Xor => Alu::Xor,
        }
    }
}

/// The number of a shift of general-purpose registers in the second group of instructions.
fn shift_number(how: ShiftInt) -> u8 {
    match how {
        ShiftInt::Left => 4,
        ShiftInt::Right => 5,
        ShiftInt::RightSigned => 7,
    }
}

/// The number of a shift of lanes by an immediate, which is in the place of the result: [`Args::reg`].
pub fn lane_shift(how: Shift) -> u8 {
    match how {
        Shift::Left => 6,
        Shift::Right => 2,
        Shift::RightSigned => 4,
    }
}

/// The unit of the short displacements of an instruction with prefix EVEX, where it is used here; else 0.
fn evex_unit(op: Op, a: Args) -> i32 {
    match (op.map, op.code) {
        _ if a.broadcast => 4,
        (1, 0x10 | 0x11) if op.prefix == 0 && a.bits == 0 => 64,
        (1, 0x51..=0x5f) if op.prefix == 0 && a.bits == 0 && !op.wide => 64,
        (2, 0x98 | 0x9a | 0x9c | 0xa8 | 0xaa | 0xac | 0xb8 | 0xba | 0xbc) if a.bits == 0 => 64,
        (2, 0x18) => 4,
        _ => 0,
    }
}

/// A position in the code that jumps refer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// What a 32-bit field of the code refers to.
enum Target {
    Label(usize),
    /// Offset in the constants.
    Data(usize),
}

/// A kernel under construction: code, then constants.
pub struct Asm {
    code: Vec<u8>,
    data: Vec<u8>,
    /// Offsets of constants in `data`.
    lanes: HashMap<u32, usize>,
    labels: Vec<Option<usize>>,
    /// Position of the field, its target, and the end of the instruction.
    fixups: Vec<(usize, Target, usize)>,
    /// Whether vector instructions have EVEX prefixes and 512 bits.
    evex: bool,
}

impl Asm {
    /// An empty kernel for AVX-512 or AVX2.
    pub fn new(evex: bool) -> Asm {
        let (code, data, labels, fixups) = Default::default();
        Asm { code, data, lanes: HashMap::new(), labels, fixups, evex }
    }

    /// Whether it is for AVX-512.
    pub fn evex(&self) -> bool {
        self.evex
    }

    /// The bytes of the kernel: code, and the constants behind it.
    pub fn finish(mut self) -> Vec<u8> {
        let base = self.code.len().next_multiple_of(64);
        for (at, target, end) in std::mem::take(&mut self.fixups) {
            let to = match target {
                Target::Label(l) => self.labels[l].unwrap_or(at),
                Target::Data(offset) => base + offset,
            };
            self.code[at..at + 4].copy_from_slice(&(to as i32 - end as i32).to_le_bytes());
        }
        if !self.data.is_empty() {
            self.code.resize(base, 0);
            self.code.extend_from_slice(&self.data);
        }
        self.code
    }

    /// Adds constants; returns their number for [`Mem::Data`].
    pub fn data(&mut self, bytes: &[u8]) -> usize {
        let at = self.data.len().next_multiple_of(8);
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
        self.labels[label.0] = Some(self.code.len());
    }

    /// The length of the code so far.
    pub fn position(&self) -> usize {
        self.code.len()
    }

    /// Replaces the 32-bit immediate at the end of the instruction that ends at `end`.
    pub fn patch(&mut self, end: usize, value: i32) {
        self.code[end - 4..end].copy_from_slice(&value.to_le_bytes());
    }

    // ---- operands ----

    /// Offset of a constant for all lanes: one word for AVX-512, which broadcasts it, else a whole vector.
    fn constant(&mut self, bits: u32) -> usize {
        if let Some(at) = self.lanes.get(&bits) {
            return *at;
        }
        let at = self.data(&bits.to_le_bytes().repeat(if self.evex { 1 } else { 8 }));
        self.lanes.insert(bits, at);
        at
    }

    /// ModRM and what follows: SIB, displacement, immediate bytes. A displacement is short where it is a multiple of `unit` and
    /// the quotient fits a byte; 0 for long ones.
    fn modrm(&mut self, reg: u8, rm: Rm, imm: &[u8], unit: i32) {
        let reg = (reg & 7) << 3;
        match rm {
            Rm::Reg(r) => self.code.push(0xc0 | reg | r & 7),
            Rm::Mem(Mem::At(base, index, disp)) => {
                let b = base as u8 & 7;
                let short = if unit > 0 && disp % unit == 0 { i8::try_from(disp / unit).ok() } else { None };
                let mode = match short {
                    Some(0) if b != 5 => 0,
                    Some(_) => 0x40,
                    None => 0x80,
                };
                match index {
                    None if b != 4 => self.code.push(mode | reg | b),
                    None => self.code.extend([mode | reg | 4, 0x24]),
                    Some((i, scale)) => {
                        let sib = (scale.trailing_zeros() as u8) << 6 | (i as u8 & 7) << 3 | b;
                        self.code.extend([mode | reg | 4, sib]);
                    }
                }
                match (mode, short) {
                    (0, _) => {}
                    (0x40, Some(n)) => self.code.push(n as u8),
                    _ => self.code.extend(disp.to_le_bytes()),
                }
            }
            Rm::Mem(m) => {
                let offset = match m {
                    Mem::Lanes(bits) | Mem::Word(bits) => self.constant(bits),
                    Mem::Data(at) => at,
                    Mem::At(..) => 0,
                };
                self.code.push(reg | 5);
                let at = self.code.len();
                self.fixups.push((at, Target::Data(offset), at + 4 + imm.len()));
                self.code.extend([0; 4]);
            }
        }
        self.code.extend(imm);
    }

    // ---- vector instructions ----

    /// A vector instruction.
    pub fn vector(&mut self, op: Op, a: Args) {
        // The third bit of each number, and the fourth of base or register and of the index; stored inverted.
        let (b, x) = match a.rm {
            Rm::Reg(r) => (r >> 3 & 1, if self.evex { r >> 4 & 1 } else { 0 }),
            Rm::Mem(Mem::At(base, index, _)) => (base as u8 >> 3, index.map_or(0, |(i, _)| i as u8 >> 3)),
            Rm::Mem(_) => (0, 0),
        };
        let r = a.reg >> 3 & 1;
        let high = (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5;
        let vvvv = (!a.first & 15) << 3;
        let w = u8::from(op.wide) << 7;
        if self.evex {
            let broadcast = u8::from(a.broadcast || matches!(a.rm, Rm::Mem(Mem::Lanes(_)))) << 4;
            let p0 = high | (a.reg >> 4 & 1 ^ 1) << 4 | op.map;
            let length = match a.bits {
                128 => 0,
                256 => 1 << 5,
                _ => 0b10 << 5,
            };
            let p2 = u8::from(a.zero) << 7 | length | broadcast | (a.first >> 4 & 1 ^ 1) << 3 | a.mask;
            self.code.extend([0x62, p0, w | vvvv | 4 | op.prefix, p2, op.code]);
        } else {
            let length = u8::from(a.bits != 128) << 2;
            self.code.extend([0xc4, high | op.map, w | vvvv | length | op.prefix, op.code]);
        }
        let imm = a.imm.map(|i| [i]);
        let unit = if self.evex { evex_unit(op, a) } else { 1 };
        self.modrm(a.reg, a.rm, imm.as_ref().map_or(&[], |i| i), unit);
    }

    /// An instruction of matrix registers: the result, the operand in ModRM and the one in the field vvvv.
    pub fn matrix(&mut self, op: Op, reg: u8, rm: Rm, second: u8) {
        let (b, x) = match rm {
            Rm::Mem(Mem::At(base, index, _)) => (base as u8 >> 3, index.map_or(0, |(i, _)| i as u8 >> 3)),
            _ => (0, 0),
        };
        let high = 1 << 7 | (x ^ 1) << 6 | (b ^ 1) << 5;
        self.code.extend([0xc4, high | op.map, (!second & 15) << 3 | op.prefix, op.code]);
        self.modrm(reg, rm, &[], 1);
    }

    /// Copies the low bits of a general-purpose register to a mask register.
    pub fn kmovw(&mut self, mask: u8, from: Gp) {
        let b = from as u8 >> 3 ^ 1;
        self.code.extend([0xc4, 0xc0 | b << 5 | 1, 0x78, 0x92]);
        self.modrm(mask, Rm::Reg(from as u8), &[], 1);
    }

    /// Copies a mask register to a general-purpose register.
    pub fn kmovw_from(&mut self, to: Gp, mask: u8) {
        let r = to as u8 >> 3 ^ 1;
        self.code.extend([0xc5, r << 7 | 0x78, 0x93]);
        self.modrm(to as u8, Rm::Reg(mask), &[], 1);
    }

    /// Clears the upper parts of the vector registers, as the calling convention of code without VEX prefixes expects.
    pub fn vzeroupper(&mut self) {
        self.code.extend([0xc5, 0xf8, 0x77]);
    }

    // ---- general-purpose instructions ----

    /// An instruction on general-purpose registers, with the prefix REX.
    fn general(&mut self, wide: bool, code: &[u8], reg: u8, rm: Rm, imm: &[u8]) {
        let (b, x) = match rm {
            Rm::Reg(r) => (r >> 3, 0),
            Rm::Mem(Mem::At(base, index, _)) => (base as u8 >> 3, index.map_or(0, |(i, _)| i as u8 >> 3)),
            Rm::Mem(_) => (0, 0),
        };
        self.code.push(0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | x << 1 | b);
        self.code.extend(code);
        self.modrm(reg, rm, imm, 1);
    }

    /// The code ends a multiple of so many bytes from its start, after instructions that do nothing.
    pub fn align(&mut self, to: usize) {
        const NOTHING: [&[u8]; 9] = [
            &[0x90],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x00],
            &[0x0f, 0x1f, 0x40, 0x00],
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
            &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        ];
        while !self.code.len().is_multiple_of(to) {
            let missing = (to - self.code.len() % to).min(NOTHING.len());
            self.code.extend(NOTHING[missing - 1]);
        }
    }

    /// `to = from`.
    pub fn mov(&mut self, to: Gp, from: Gp) {
        self.general(true, &[0x89], from as u8, Rm::Reg(to as u8), &[]);
    }

    /// `to = value`.
    pub fn mov_imm(&mut self, to: Gp, value: i64) {
        match (u32::try_from(value), i32::try_from(value)) {
            (Ok(v), _) => {
                self.code.extend([0x40 | to as u8 >> 3, 0xb8 | to as u8 & 7]);
                self.code.extend(v.to_le_bytes());
            }
            (_, Ok(v)) => self.general(true, &[0xc7], 0, Rm::Reg(to as u8), &v.to_le_bytes()),
            _ => {
                self.code.extend([0x48 | to as u8 >> 3, 0xb8 | to as u8 & 7]);
                self.code.extend(value.to_le_bytes());
            }
        }
    }

    /// Loads so many bytes, extended with the sign or with zeros.
    pub fn load(&mut self, to: Gp, from: Rm, bytes: u8, signed: bool) {
        let (wide, code): (bool, &[u8]) = match (bytes, signed) {
            (1, false) => (false, &[0x0f, 0xb6]),
            (1, true) => (true, &[0x0f, 0xbe]),
            (2, false) => (false, &[0x0f, 0xb7]),
            (2, true) => (true, &[0x0f, 0xbf]),
            (4, false) => (false, &[0x8b]),
            (4, true) => (true, &[0x63]),
            _ => (true, &[0x8b]),
        };
        self.general(wide, code, to as u8, from, &[]);
    }

    /// Stores the low bytes of a register.
    pub fn store(&mut self, to: Mem, from: Gp, bytes: u8) {
        if bytes == 2 {
            self.code.push(0x66);
        }
        self.general(bytes == 8, &[if bytes == 1 { 0x88 } else { 0x89 }], from as u8, Rm::Mem(to), &[]);
    }

    /// The address of a place in memory.
    pub fn lea(&mut self, to: Gp, from: Mem) {
        self.general(true, &[0x8d], to as u8, Rm::Mem(from), &[]);
    }

    /// `to = to op rm`, or a comparison.
    pub fn alu(&mut self, op: Alu, to: Gp, rm: Rm) {
        self.general(true, &[(op as u8) << 3 | 3], to as u8, rm, &[]);
    }

    /// `to = to op value`, or a comparison.
    pub fn alu_imm(&mut self, op: Alu, to: Gp, value: i32) {
        match i8::try_from(value) {
            Ok(v) => self.general(true, &[0x83], op as u8, Rm::Reg(to as u8), &v.to_le_bytes()),
            Err(_) => self.general(true, &[0x81], op as u8, Rm::Reg(to as u8), &value.to_le_bytes()),
        }
    }

    /// `to = to * rm`.
    pub fn imul(&mut self, to: Gp, rm: Rm) {
        self.general(true, &[0x0f, 0xaf], to as u8, rm, &[]);
    }

    /// `to = from * value`.
    pub fn imul_imm(&mut self, to: Gp, from: Rm, value: i32) {
        self.general(true, &[0x69], to as u8, from, &value.to_le_bytes());
    }

    /// Quotient (rax) and remainder (rdx) of rax by a register, rounded towards zero.
    pub fn divide(&mut self, by: Gp, signed: bool) {
        if signed {
            self.code.extend([0x48, 0x99]);
        } else {
            self.mov_imm(Gp::Rdx, 0);
        }
        self.general(true, &[0xf7], if signed { 7 } else { 6 }, Rm::Reg(by as u8), &[]);
    }

    /// The signed product of rax and a factor: its high half in rdx, its low half in rax.
    pub fn multiply(&mut self, by: Rm) {
        self.general(true, &[0xf7], 5, by, &[]);
    }

    /// Shifts by an immediate.
    pub fn shift_imm(&mut self, how: ShiftInt, to: Gp, by: u8) {
        self.general(true, &[0xc1], shift_number(how), Rm::Reg(to as u8), &[by]);
    }

    /// Shifts by cl.
    pub fn shift_cl(&mut self, how: ShiftInt, to: Gp) {
        self.general(true, &[0xd3], shift_number(how), Rm::Reg(to as u8), &[]);
    }

    /// `to = from` if the condition holds.
    pub fn move_if(&mut self, cond: Cond, to: Gp, from: Rm) {
        self.general(true, &[0x0f, 0x40 | condition(cond)], to as u8, from, &[]);
    }

    /// 1 in the low byte if the condition holds, else 0.
    pub fn set_if(&mut self, cond: Cond, to: Gp) {
        self.general(false, &[0x0f, 0x90 | condition(cond)], 0, Rm::Reg(to as u8), &[]);
    }

    /// Reads a cache line ahead, into all caches or from the second on.
    pub fn prefetch(&mut self, at: Mem, second: bool) {
        self.general(false, &[0x0f, 0x18], if second { 2 } else { 1 }, Rm::Mem(at), &[]);
    }

    /// Exchanges registers.
    pub fn exchange(&mut self, a: Gp, b: Gp) {
        self.general(true, &[0x87], a as u8, Rm::Reg(b as u8), &[]);
    }

    /// Pushes a register.
    pub fn push(&mut self, r: Gp) {
        self.code.extend([0x40 | r as u8 >> 3, 0x50 | r as u8 & 7]);
    }

    /// Pops a register.
    pub fn pop(&mut self, r: Gp) {
        self.code.extend([0x40 | r as u8 >> 3, 0x58 | r as u8 & 7]);
    }

    /// Returns.
    pub fn ret(&mut self) {
        self.code.push(0xc3);
    }

    /// Jumps.
    pub fn jmp(&mut self, to: Label) {
        self.code.push(0xe9);
        self.jump(to);
    }

    /// Jumps if the condition holds.
    pub fn jump_if(&mut self, cond: Cond, to: Label) {
        self.code.extend([0x0f, 0x80 | condition(cond)]);
        self.jump(to);
    }

    fn jump(&mut self, to: Label) {
        let at = self.code.len();
        self.fixups.push((at, Target::Label(to.0), at + 4));
        self.code.extend([0; 4]);
    }
}
