//! An assembler of the x86-64 instructions that kernels need: general-purpose instructions, and vector instructions with VEX
//! prefixes (AVX2) or EVEX prefixes (AVX-512).
//!
//! Source: Intel's Software Developer's Manual, volume 2. Displacements always have 32 bits, so the length of an instruction does not
//! depend on its operands, and the scaled displacements of EVEX do not occur.

use std::collections::HashMap;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// Whether the instruction works on 128 bits instead of the whole vector. With AVX2 only.
    pub short: bool,
}

impl Args {
    /// The operands of most instructions.
    pub fn new(reg: u8, first: u8, rm: Rm) -> Args {
        Args { reg, first, rm, imm: None, mask: 0, zero: false, short: false }
    }
}

/// A condition of a jump after a comparison of signed integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Cond {
    Equal = 0x4,
    NotEqual = 0x5,
    Less = 0xc,
    NotLess = 0xd,
    LessEqual = 0xe,
    Greater = 0xf,
}

/// Arithmetic on general-purpose registers: the opcode's number in the first group of instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Alu {
    Add = 0,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
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
    pub fn data(&mut self, words: &[u32]) -> usize {
        let at = self.data.len();
        words.iter().for_each(|w| self.data.extend_from_slice(&w.to_le_bytes()));
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
        let at = self.data(&vec![bits; if self.evex { 1 } else { 8 }]);
        self.lanes.insert(bits, at);
        at
    }

    /// ModRM and what follows: SIB, displacement, immediate bytes.
    fn modrm(&mut self, reg: u8, rm: Rm, imm: &[u8]) {
        let reg = (reg & 7) << 3;
        match rm {
            Rm::Reg(r) => self.code.push(0xc0 | reg | r & 7),
            Rm::Mem(Mem::At(base, index, disp)) => {
                let b = base as u8 & 7;
                match index {
                    None if b != 4 => self.code.push(0x80 | reg | b),
                    None => self.code.extend([0x80 | reg | 4, 0x24]),
                    Some((i, scale)) => {
                        let sib = (scale.trailing_zeros() as u8) << 6 | (i as u8 & 7) << 3 | b;
                        self.code.extend([0x80 | reg | 4, sib]);
                    }
                }
                self.code.extend(disp.to_le_bytes());
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
            let broadcast = u8::from(matches!(a.rm, Rm::Mem(Mem::Lanes(_)))) << 4;
            let p0 = high | (a.reg >> 4 & 1 ^ 1) << 4 | op.map;
            let p2 = u8::from(a.zero) << 7 | 0b10 << 5 | broadcast | (a.first >> 4 & 1 ^ 1) << 3 | a.mask;
            self.code.extend([0x62, p0, w | vvvv | 4 | op.prefix, p2, op.code]);
        } else {
            let length = u8::from(!a.short) << 2;
            self.code.extend([0xc4, high | op.map, w | vvvv | length | op.prefix, op.code]);
        }
        let imm = a.imm.map(|i| [i]);
        self.modrm(a.reg, a.rm, imm.as_ref().map_or(&[], |i| i));
    }

    /// Copies the low bits of a general-purpose register to a mask register.
    pub fn kmovw(&mut self, mask: u8, from: Gp) {
        let b = from as u8 >> 3 ^ 1;
        self.code.extend([0xc4, 0xc0 | b << 5 | 1, 0x78, 0x92]);
        self.modrm(mask, Rm::Reg(from as u8), &[]);
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
        self.modrm(reg, rm, imm);
    }

    /// `to = from`.
    pub fn mov(&mut self, to: Gp, from: Gp) {
        self.general(true, &[0x89], from as u8, Rm::Reg(to as u8), &[]);
    }

    /// `to = value`.
    pub fn mov_imm(&mut self, to: Gp, value: i64) {
        match i32::try_from(value) {
            Ok(v) => self.general(true, &[0xc7], 0, Rm::Reg(to as u8), &v.to_le_bytes()),
            Err(_) => {
                self.code.extend([0x48 | to as u8 >> 3, 0xb8 | to as u8 & 7]);
                self.code.extend(value.to_le_bytes());
            }
        }
    }

    /// Loads 64 bits.
    pub fn load(&mut self, to: Gp, from: Mem) {
        self.general(true, &[0x8b], to as u8, Rm::Mem(from), &[]);
    }

    /// Stores 64 bits.
    pub fn store(&mut self, to: Mem, from: Gp) {
        self.general(true, &[0x89], from as u8, Rm::Mem(to), &[]);
    }

    /// Loads an element of 1, 2 or 4 bytes, extended with zeros.
    pub fn load_element(&mut self, to: Gp, from: Mem, bytes: usize) {
        let code: &[u8] = match bytes {
            1 => &[0x0f, 0xb6],
            2 => &[0x0f, 0xb7],
            _ => &[0x8b],
        };
        self.general(false, code, to as u8, Rm::Mem(from), &[]);
    }

    /// Stores the low 1, 2 or 4 bytes of a register.
    pub fn store_element(&mut self, to: Mem, from: Gp, bytes: usize) {
        if bytes == 2 {
            self.code.push(0x66);
        }
        self.general(false, &[if bytes == 1 { 0x88 } else { 0x89 }], from as u8, Rm::Mem(to), &[]);
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
        self.general(true, &[0x81], op as u8, Rm::Reg(to as u8), &value.to_le_bytes());
    }

    /// `to = to * rm`.
    pub fn imul(&mut self, to: Gp, rm: Rm) {
        self.general(true, &[0x0f, 0xaf], to as u8, rm, &[]);
    }

    /// `to = to * value`.
    pub fn imul_imm(&mut self, to: Gp, value: i32) {
        self.general(true, &[0x69], to as u8, Rm::Reg(to as u8), &value.to_le_bytes());
    }

    /// Quotient (rax) and remainder (rdx) of rax by a register, rounded towards zero.
    pub fn idiv(&mut self, by: Gp) {
        self.code.extend([0x48, 0x99]);
        self.general(true, &[0xf7], 7, Rm::Reg(by as u8), &[]);
    }

    /// Shifts left by an immediate.
    pub fn shl_imm(&mut self, to: Gp, by: u8) {
        self.general(true, &[0xc1], 4, Rm::Reg(to as u8), &[by]);
    }

    /// Shifts right by an immediate, filling with the sign.
    pub fn sar_imm(&mut self, to: Gp, by: u8) {
        self.general(true, &[0xc1], 7, Rm::Reg(to as u8), &[by]);
    }

    /// Shifts left by cl.
    pub fn shl_cl(&mut self, to: Gp) {
        self.general(true, &[0xd3], 4, Rm::Reg(to as u8), &[]);
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
        self.code.extend([0x0f, 0x80 | cond as u8]);
        self.jump(to);
    }

    fn jump(&mut self, to: Label) {
        let at = self.code.len();
        self.fixups.push((at, Target::Label(to.0), at + 4));
        self.code.extend([0; 4]);
    }
}
