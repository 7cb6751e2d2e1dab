//! Machine code of a program whose values have places.

mod fused;
mod matrix;

use std::ops::Range;

use crate::toolchain::machine::allocate::{Allocation, Place};
use crate::toolchain::machine::emitter::{Assembler, Emitter, needs_frame};
use crate::toolchain::machine::ir::{Address, Class, Comparison, Form, Inst, Lanes, NONE, Op, Program, Reg, Vector};
use crate::toolchain::machine::operation::{self, Cond, ShiftInt, VectorOp};
use crate::toolchain::machine::x86::asm::Gp::{R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi, Rsp};
use crate::toolchain::machine::x86::asm::{Alu, Args, Asm, Gp, Label, Mem, Op as Code, Rm, lane_shift, op};
use crate::toolchain::machine::x86::opcode::{self, one, two};

/// The general-purpose registers by number.
const ALL: [Gp; 16] = [Rax, Rcx, Rdx, Rbx, Rsp, Rbp, Rsi, Rdi, Gp::R8, Gp::R9, Gp::R10, Gp::R11, R12, R13, R14, R15];

/// Registers that the caller expects to be kept.
const KEPT: [Gp; 6] = [Rbx, Rbp, R12, R13, R14, R15];

/// The mask registers of comparisons, and of parts of vectors.
const COMPARED: u8 = 1;
const PARTS: Range<u8> = 2..8;

const COMPARE: Code = op(0, 1, 0xc2);
const COMPARE_INT: Code = op(1, 3, 0x1f);
const EQUAL_INT: Code = op(1, 1, 0x76);
const GREATER_INT: Code = op(1, 1, 0x66);
const MASK_TO_LANES: Code = op(2, 2, 0x38);
const BLEND: Code = op(1, 3, 0x4a);
const BLEND_MASK: Code = op(1, 2, 0x65);
const SCALE: Code = op(1, 2, 0x2c);
const SHIFT: Code = op(1, 1, 0x72);
const SHIFT_64: Code = Code { wide: true, ..op(1, 1, 0x73) };
const MASKED_LOAD: Code = op(1, 2, 0x2c);
const MASKED_STORE: Code = op(1, 2, 0x2e);
const TO_LANE: Code = op(1, 1, 0x6e);
const FROM_LANE: Code = op(1, 1, 0x7e);
const TEST_LANES: Code = op(1, 2, 0x27);
const SIGNS: Code = op(0, 1, 0x50);

/// What the emitter knows besides places of values.
pub struct State {
    labels: Vec<Label>,
    exit: Label,
    data: Vec<usize>,
    /// Ones, then zeros: masks for AVX2.
    masks: usize,
    /// The counts of lanes, as operand or immediate, whose masks are in the mask registers, and the register for the next.
    masks_held: [Option<(Reg, i64)>; PARTS.end as usize - PARTS.start as usize],
    next_mask: usize,
    /// The registers among those of the caller that hold values.
    kept: Vec<Gp>,
}

impl Assembler for Asm {
    type Gp = Gp;
    type State = State;
    const SLOT: i32 = 64;

    fn gp(number: u8) -> Gp {
        ALL[number as usize]
    }

    fn move_int(&mut self, to: Gp, from: Gp) {
        self.mov(to, from);
    }

    fn number(&mut self, to: Gp, n: i64) {
        self.mov_imm(to, n);
    }

    fn load_int(&mut self, to: Gp, at: i32) {
        self.load(to, Rm::Mem(Mem::at(Rsp, at)), 8, false);
    }

    fn store_int(&mut self, at: i32, from: Gp) {
        self.store(Mem::at(Rsp, at), from, 8);
    }

    fn move_vector(&mut self, to: u8, from: u8) {
        self.vector(one::MOVE, Args::new(to, 0, Rm::Reg(from)));
    }

    fn load_vector(&mut self, to: u8, at: i32) {
        self.vector(one::LOAD, Args::new(to, 0, Rm::Mem(Mem::at(Rsp, at))));
    }

    fn store_vector(&mut self, at: i32, from: u8) {
        self.vector(one::STORE, Args::new(from, 0, Rm::Mem(Mem::at(Rsp, at))));
    }

    fn constant(&mut self, to: u8, bits: u32) {
        match bits {
            0 => self.vector(two::XOR, Args::new(to, to, Rm::Reg(to))),
            _ => self.vector(one::BROADCAST, Args::new(to, 0, Rm::Mem(Mem::Word(bits)))),
        }
    }
}

/// The machine code.
///
/// # Errors
/// When an instruction needs more registers than there are.
pub fn emit(p: &Program, allocation: &Allocation) -> Result<Vec<u8>, String> {
    if needs_frame(p, allocation) {
        return emit_with(p, allocation, true);
    }
    // Whether registers must be put aside is known only afterwards.
    emit_with(p, allocation, false).or_else(|_| emit_with(p, allocation, true))
}

/// The machine code, with a frame or without.
fn emit_with(p: &Program, allocation: &Allocation, frame: bool) -> Result<Vec<u8>, String> {
    let mut asm = Asm::new(p.target.avx512);
    let labels = (0..p.labels).map(|_| asm.label()).collect();
    let exit = asm.label();
    let mut data = Vec::new();
    for bytes in &p.data {
        data.push(asm.data(bytes));
    }
    let masks = if p.target.avx512 { 0 } else { asm.data(&[[0xff; 32], [0; 32]].concat()) };
    let masks_held = [None; PARTS.end as usize - PARTS.start as usize];
    let kept = KEPT.into_iter().filter(|r| allocation.general.contains(&(*r as u8))).collect();
    let own = State { labels, exit, data, masks, masks_held, next_mask: 0, kept };
    let mut e = Emitter::new(p, allocation, asm, own, frame);
    e.enter();
    for (i, inst) in p.insts.iter().enumerate() {
        if e.begin(i) {
            e.own.masks_held.fill(None);
        }
        e.inst(inst)?;
        e.end(inst);
        e.own.masks_held.iter_mut().for_each(|m| *m = m.filter(|(count, _)| *count == NONE || *count != inst.dst));
    }
    e.leave();
    Ok(e.asm.finish())
}

impl Emitter<'_, Asm> {
    fn enter(&mut self) {
        self.own.kept.iter().for_each(|r| self.asm.push(*r));
        if let Some(saved) = self.frame {
            self.asm.mov(Rax, Rsp);
            self.asm.alu_imm(Alu::Sub, Rsp, saved + 8);
            self.asm.alu_imm(Alu::And, Rsp, -64);
            self.asm.store(Mem::at(Rsp, saved), Rax, 8);
        }
        self.parameters(Rax, Asm::exchange);
    }

    fn leave(&mut self) {
        self.asm.bind(self.own.exit);
        self.asm.vzeroupper();
        if let Some(saved) = self.frame {
            self.asm.load(Rsp, Rm::Mem(Mem::at(Rsp, saved)), 8, false);
        }
        self.own.kept.iter().rev().for_each(|r| self.asm.pop(*r));
        self.asm.ret();
    }

    // ---- operands ----

    /// An integer in a register or in memory.
    fn int_rm(&mut self, r: Reg, temporary: Gp) -> Rm {
        match self.place(r) {
            Place::Slot(s) => Rm::Mem(Mem::at(Rsp, self.home(r, s))),
            _ => Rm::Reg(self.int(r, temporary) as u8),
        }
    }

    fn memory(&mut self, m: Address, temporaries: [Gp; 2]) -> Mem {
        let base = self.int(m.base, temporaries[0]);
        let index = (m.index != NONE).then(|| (self.int(m.index, temporaries[1]), m.scale));
        Mem::At(base, index, m.disp)
    }

    /// A vector in a register or memory; `single` if only the first lane is read.
    fn vector_rm(&mut self, r: Reg, single: bool) -> Rm {
        match self.place(r) {
            Place::Register(n) => Rm::Reg(n),
            Place::Slot(s) => Rm::Mem(Mem::at(Rsp, self.home(r, s))),
            Place::Again(bits) => match self.hold(r, bits) {
                Some(n) => Rm::Reg(n),
                None if single => Rm::Mem(Mem::Word(bits as u32)),
                None => Rm::Mem(Mem::Lanes(bits as u32)),
            },
            Place::None => Rm::Reg(0),
        }
    }

    // ---- instructions ----

    fn inst(&mut self, inst: &Inst) -> Result<(), String> {
        match inst.op {
            Op::Label(l) => self.asm.bind(self.own.labels[l as usize]),
            Op::Loop(true) => {
                self.enter_loop();
                if self.is_innermost() {
                    self.asm.align(32);
                }
            }
            Op::Loop(false) => self.leave_loop(),
            Op::Jump(l) => self.asm.jmp(self.own.labels[l as usize]),
            Op::Branch(cond, l) => {
                self.compare_ints(inst);
                self.asm.jump_if(cond, self.own.labels[l as usize]);
            }
            Op::Exit => {
                let status = self.int(inst.args[0], Rax);
                if status != Rax {
                    self.asm.mov(Rax, status);
                }
                if self.at as usize + 1 < self.p.insts.len() {
                    self.asm.jmp(self.own.exit);
                }
            }
            Op::Prefetch(second) => {
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, [Rax, Rcx]);
                self.asm.prefetch(mem, second);
            }
            Op::Matrix(op, numbers) => self.matrix(inst, op, numbers),
            Op::Copy if self.p.classes[inst.dst as usize] == Class::Vector => match self.place(inst.dst) {
                Place::Register(to) => self.load_vector(to, inst.args[0]),
                Place::None => {}
                _ => {
                    let from = self.vector(inst.args[0], inst)?;
                    self.put_vector(inst, from);
                }
            },
            Op::Const
            | Op::Vector(_)
            | Op::Fma(..)
            | Op::ShiftLanes(..)
            | Op::Compare(_)
            | Op::Blend
            | Op::CompareBlend(_)
            | Op::Scale
            | Op::LoadPart(_)
            | Op::StorePart(_)
            | Op::FirstLanes
            | Op::ToLane(_)
            | Op::IntToFloat(_)
            | Op::Dot(_) => {
                return self.lanes(inst);
            }
            _ => self.integers(inst)?,
        }
        Ok(())
    }

    fn compare_ints(&mut self, inst: &Inst) {
        let a = self.int(inst.args[0], Rax);
        if inst.args[1] == NONE {
            return self.asm.alu_imm(Alu::Cmp, a, inst.imm as i32);
        }
        let b = self.int_rm(inst.args[1], Rcx);
        self.asm.alu(Alu::Cmp, a, b);
    }

    /// Instructions with an integer result, and stores of integers.
    fn integers(&mut self, inst: &Inst) -> Result<(), String> {
        let to = self.target(inst.dst, Rax);
        let [a, b, ..] = inst.args;
        match inst.op {
            Op::Imm => {
                if !matches!(self.place(inst.dst), Place::Register(_)) {
                    return Ok(());
                }
                self.asm.mov_imm(to, inst.imm);
            }
            // The entry has moved it.
            Op::Param => return Ok(()),
            Op::Copy => {
                let from = self.int(a, to);
                if from != to {
                    self.asm.mov(to, from);
                }
            }
            Op::Lea => {
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, [Rax, Rcx]);
                self.asm.lea(to, mem);
            }
            Op::Data => self.asm.lea(to, Mem::Data(self.own.data[inst.imm as usize])),
            Op::Load(bytes, signed) => {
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, [Rax, Rcx]);
                self.asm.load(to, Rm::Mem(mem), bytes, signed);
            }
            Op::Store(bytes) => {
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, [Rax, Rcx]);
                let from = self.int(a, Rdx);
                self.asm.store(mem, from, bytes);
                return Ok(());
            }
            Op::Extend(bytes, signed) => {
                let from = self.int(a, Rax);
                self.asm.load(to, Rm::Reg(from as u8), bytes, signed);
            }
            Op::Set(cond) => {
                self.compare_ints(inst);
                self.asm.set_if(cond, Rax);
                self.asm.load(to, Rm::Reg(Rax as u8), 1, false);
            }
            Op::Select(cond) => self.select(inst, cond, to),
            Op::Divide(remainder, signed) => {
                let by = self.int(b, Rcx);
                let from = self.int(a, Rax);
                if from != Rax {
                    self.asm.mov(Rax, from);
                }
                self.asm.divide(by, signed);
                self.put(inst.dst, if remainder { Rdx } else { Rax });
                return Ok(());
            }
            Op::MulHigh => {
                let by = self.int(b, Rax);
                if by != Rax {
                    self.asm.mov(Rax, by);
                }
                let factor = self.int_rm(a, Rcx);
                self.asm.multiply(factor);
                self.put(inst.dst, Rdx);
                return Ok(());
            }
            Op::Alu(_) | Op::Mul | Op::Shift(_) => self.arithmetic(inst, to),
            Op::FromLane(bytes) => {
                let from = self.vector(a, inst)?;
                let code = Code { wide: bytes == 8, ..FROM_LANE };
                self.asm.vector(code, Args { bits: 128, ..Args::new(from, 0, Rm::Reg(to as u8)) });
                if bytes == 4 {
                    self.asm.load(to, Rm::Reg(to as u8), 4, true);
                }
            }
            Op::FloatToInt(bytes) => {
                let from = self.vector(a, inst)?;
                let code = Code { wide: true, ..op(if bytes == 4 { 2 } else { 3 }, 1, 0x2c) };
                self.asm.vector(code, Args { bits: 128, ..Args::new(to as u8, 0, Rm::Reg(from)) });
            }
            Op::Any => {
                let from = self.vector(a, inst)?;
                if self.p.target.avx512 {
                    self.asm.vector(TEST_LANES, Args::new(COMPARED, from, Rm::Reg(from)));
                    self.asm.kmovw_from(to, COMPARED);
                } else {
                    self.asm.vector(SIGNS, Args::new(to as u8, 0, Rm::Reg(from)));
                }
            }
            other => return Err(format!("{other:?} is no integer operation")),
        }
        self.put(inst.dst, to);
        Ok(())
    }

    fn select(&mut self, inst: &Inst, cond: Cond, to: Gp) {
        let [a, b, then, other] = inst.args;
        // The result must not replace what is read after it.
        let read = [a, b, then].into_iter().filter(|r| *r != NONE).any(|r| self.place(r) == Place::Register(to as u8));
        let out = if read || to == Rax { Rdx } else { to };
        let from = self.int(other, out);
        if from != out {
            self.asm.mov(out, from);
        }
        self.compare_ints(inst);
        let then = self.int_rm(then, Rcx);
        self.asm.move_if(cond, out, then);
        if out != to {
            self.asm.mov(to, out);
        }
    }

    fn arithmetic(&mut self, inst: &Inst, to: Gp) {
        let [a, b, ..] = inst.args;
        if b == NONE {
            let value = inst.imm as i32;
            if inst.op == Op::Mul {
                let from = self.int_rm(a, Rax);
                return self.asm.imul_imm(to, from, value);
            }
            let from = self.int(a, to);
            if from != to {
                self.asm.mov(to, from);
            }
            return match inst.op {
                Op::Alu(alu) => self.asm.alu_imm(alu.into(), to, value),
                Op::Shift(how) => self.asm.shift_imm(how, to, value as u8),
                _ => {}
            };
        }
        if let Op::Shift(how) = inst.op {
            let by = self.int(b, Rcx);
            if by != Rcx {
                self.asm.mov(Rcx, by);
            }
            let from = self.int(a, Rax);
            if from != Rax {
                self.asm.mov(Rax, from);
            }
            self.asm.shift_cl(how, Rax);
            return self.asm.mov(to, Rax);
        }
        let commutes = inst.op != Op::Alu(operation::Alu::Sub);
        let in_target = |s: &Self, r: Reg| s.place(r) == Place::Register(to as u8);
        let (a, b) = if commutes && in_target(self, b) { (b, a) } else { (a, b) };
        let out = if in_target(self, b) && a != b { Rax } else { to };
        let from = self.int(a, out);
        if from != out {
            self.asm.mov(out, from);
        }
        let by = self.int_rm(b, Rcx);
        match inst.op {
            Op::Alu(alu) => self.asm.alu(alu.into(), out, by),
            _ => self.asm.imul(out, by),
        }
        if out != to {
            self.asm.mov(to, out);
        }
    }

    /// Instructions on vectors.
    fn lanes(&mut self, inst: &Inst) -> Result<(), String> {
        let [a, b, ..] = inst.args;
        match inst.op {
            Op::Const => {
                if let Place::Register(to) = self.place(inst.dst) {
                    self.asm.constant(to, inst.imm as u32);
                }
                return Ok(());
            }
            Op::Vector(v) if v.form == Form::Store => {
                let from = self.vector(a, inst)?;
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, [Rax, Rcx]);
                let (code, imm, bits) = self.encoding(v)?;
                self.asm.vector(code, Args { imm, bits, ..Args::new(from, 0, Rm::Mem(mem)) });
                return Ok(());
            }
            Op::StorePart(op) => return self.store_part(inst, op),
            Op::Fma(kind, lanes) => return self.fma(inst, kind, lanes),
            Op::Dot(kind) => {
                // The sum is replaced.
                let (first, rm) = (self.vector(inst.args[1], inst)?, self.vector(inst.args[2], inst)?);
                return self.replace(inst, a, opcode::dot(kind), Args::new(0, first, Rm::Reg(rm)));
            }
            Op::Blend if self.p.target.avx512 => return self.ternary(inst),
            _ => {}
        }
        match inst.op {
            Op::Vector(v) => self.vector_inst(inst, v)?,
            Op::ShiftLanes(how, wide) => {
                let from = self.vector(a, inst)?;
                let to = self.vector_target(inst)?;
                let code = if wide { SHIFT_64 } else { SHIFT };
                self.asm
                    .vector(code, Args { imm: Some(inst.imm as u8), ..Args::new(lane_shift(how), to, Rm::Reg(from)) });
                self.put_vector(inst, to);
            }
            Op::Compare(how) => {
                let (first, rm) = (self.vector(a, inst)?, self.compared_operand(b, how, inst)?);
                let to = self.vector_target(inst)?;
                if self.p.target.avx512 {
                    self.compare_to_mask(how, first, rm);
                    let wide = matches!(how, Comparison::Float(_, Lanes::All64));
                    self.asm.vector(Code { wide, ..MASK_TO_LANES }, Args::new(to, 0, Rm::Reg(COMPARED)));
                } else {
                    let (code, imm) = match how {
                        Comparison::Float(how, lanes) => (float_compare(lanes), Some(opcode::compare(how))),
                        Comparison::IntEqual => (EQUAL_INT, None),
                        Comparison::IntGreater => (GREATER_INT, None),
                    };
                    self.asm.vector(code, Args { imm, ..Args::new(to, first, rm) });
                }
                self.put_vector(inst, to);
            }
            Op::CompareBlend(how) => {
                let (first, rm) = (self.vector(a, inst)?, self.compared_operand(b, how, inst)?);
                self.compare_to_mask(how, first, rm);
                let (then, other) = (self.vector_rm(inst.args[2], false), self.vector(inst.args[3], inst)?);
                let to = self.vector_target(inst)?;
                self.asm.vector(BLEND_MASK, Args { mask: COMPARED, ..Args::new(to, other, then) });
                self.put_vector(inst, to);
            }
            Op::Blend => {
                let (mask, other) = (self.vector(a, inst)?, self.vector(inst.args[2], inst)?);
                let then = self.vector_rm(b, false);
                let to = self.vector_target(inst)?;
                self.asm.vector(BLEND, Args { imm: Some(mask << 4), ..Args::new(to, other, then) });
                self.put_vector(inst, to);
            }
            Op::Scale => {
                const NOT_LESS: u8 = 0x15;
                let (p, n, x) = (self.vector(a, inst)?, self.vector(b, inst)?, self.vector(inst.args[2], inst)?);
                let low = self.vector_rm(inst.args[3], false);
                self.asm.vector(COMPARE, Args { imm: Some(NOT_LESS), ..Args::new(COMPARED, x, low) });
                let to = self.vector_target(inst)?;
                self.asm.vector(SCALE, Args { mask: COMPARED, zero: true, ..Args::new(to, p, Rm::Reg(n)) });
                self.put_vector(inst, to);
            }
            Op::LoadPart(op) => {
                let code = opcode::part(op, self.p.target.avx512)?;
                let Some(m) = inst.mem else { return Ok(()) };
                let to = self.vector_target(inst)?;
                let mask = self.part(a, inst)?;
                let mem = Rm::Mem(self.memory(m, [Rax, Rcx]));
                match self.p.target.avx512 {
                    true => self.asm.vector(code, Args { mask, zero: true, ..Args::new(to, 0, mem) }),
                    false => self.asm.vector(MASKED_LOAD, Args::new(to, mask, mem)),
                }
                self.put_vector(inst, to);
            }
            Op::FirstLanes => {
                let mask = self.part(a, inst)?;
                let to = self.vector_target(inst)?;
                let code = if self.p.target.avx512 { MASK_TO_LANES } else { one::MOVE };
                self.asm.vector(code, Args::new(to, 0, Rm::Reg(mask)));
                self.put_vector(inst, to);
            }
            Op::ToLane(bytes) => {
                let from = self.int(a, Rax);
                let to = self.vector_target(inst)?;
                let code = Code { wide: bytes == 8, ..TO_LANE };
                self.asm.vector(code, Args { bits: 128, ..Args::new(to, 0, Rm::Reg(from as u8)) });
                self.put_vector(inst, to);
            }
            Op::IntToFloat(bytes) => {
                let from = self.int(a, Rax);
                let to = self.vector_target(inst)?;
                let code = Code { wide: true, ..op(if bytes == 4 { 2 } else { 3 }, 1, 0x2a) };
                self.asm.vector(code, Args { bits: 128, ..Args::new(to, to, Rm::Reg(from as u8)) });
                self.put_vector(inst, to);
            }
            other => return Err(format!("{other:?} is no vector operation")),
        }
        Ok(())
    }

    /// The opcode of a vector instruction, its immediate byte, and the bits of its vectors.
    fn encoding(&self, v: Vector) -> Result<(Code, Option<u8>, u16), String> {
        let found = opcode::encoding(v, self.p.target.avx512);
        found.ok_or_else(|| format!("{:?} is no instruction of x86", v.op))
    }

    fn vector_inst(&mut self, inst: &Inst, v: Vector) -> Result<(), String> {
        let [a, b, ..] = inst.args;
        let (code, imm, bits) = self.encoding(v)?;
        let mem = inst.mem.map(|m| Rm::Mem(self.memory(m, [Rax, Rcx])));
        let single = bits == 128 || v.op == VectorOp::Broadcast;
        // Only operations on words of 32 bits take a constant for all lanes from memory.
        use VectorOp::{DotWords, PackBytes, PackWords, WidenF16, WidenI8, WidenI16, WidenU8, WidenU16};
        let narrow =
            matches!(v.op, DotWords | WidenI8 | WidenU8 | WidenI16 | WidenU16 | WidenF16 | PackWords | PackBytes);
        let narrow = narrow || code.wide && bits != 128;
        let last = if v.form == Form::Two { b } else { a };
        let rm = match mem {
            Some(mem) => mem,
            None if narrow || v.form == Form::Narrow => Rm::Reg(self.vector(last, inst)?),
            None => self.vector_rm(last, single),
        };
        let first = if v.form == Form::Two { self.vector(a, inst)? } else { 0 };
        let to = self.vector_target(inst)?;
        let args = match (v.form, rm) {
            (Form::Narrow, Rm::Reg(from)) => Args::new(from, 0, Rm::Reg(to)),
            _ => Args::new(to, first, rm),
        };
        self.asm.vector(code, Args { imm, bits, broadcast: inst.broadcast, ..args });
        self.put_vector(inst, to);
        Ok(())
    }

    /// The second operand of a comparison.
    fn compared_operand(&mut self, r: Reg, how: Comparison, inst: &Inst) -> Result<Rm, String> {
        match how {
            Comparison::Float(_, Lanes::One64 | Lanes::All64) => Ok(Rm::Reg(self.vector(r, inst)?)),
            _ => Ok(self.vector_rm(r, false)),
        }
    }

    fn compare_to_mask(&mut self, how: Comparison, first: u8, rm: Rm) {
        let (code, imm) = match how {
            Comparison::Float(how, lanes) => (float_compare(lanes), opcode::compare(how)),
            Comparison::IntEqual => (COMPARE_INT, 0),
            Comparison::IntGreater => (COMPARE_INT, 6),
        };
        self.asm.vector(code, Args { imm: Some(imm), ..Args::new(COMPARED, first, rm) });
    }

    /// The mask of the first lanes: a mask register, or with AVX2 a vector register.
    fn part(&mut self, count: Reg, inst: &Inst) -> Result<u8, String> {
        if self.p.target.avx512 {
            let key = (count, inst.imm);
            if let Some(i) = self.own.masks_held.iter().position(|held| *held == Some(key)) {
                return Ok(PARTS.start + i as u8);
            }
            let oldest = self.own.next_mask;
            self.own.next_mask = (oldest + 1) % PARTS.len();
            self.own.masks_held[oldest] = Some(key);
            if count == NONE {
                self.asm.mov_imm(Rax, (1i64 << inst.imm.clamp(0, 16)) - 1);
            } else {
                let n = self.int(count, Rcx);
                if n != Rcx {
                    self.asm.mov(Rcx, n);
                }
                self.asm.mov_imm(Rax, 1);
                self.asm.shift_cl(ShiftInt::Left, Rax);
                self.asm.alu_imm(Alu::Sub, Rax, 1);
            }
            let mask = PARTS.start + oldest as u8;
            self.asm.kmovw(mask, Rax);
            return Ok(mask);
        }
        let to = self.temporary(inst)?;
        // Ones precede zeros.
        self.asm.lea(Rax, Mem::Data(self.own.masks + 32));
        if count == NONE {
            self.asm.alu_imm(Alu::Sub, Rax, 4 * inst.imm as i32);
        } else {
            let n = self.int(count, Rcx);
            if n != Rcx {
                self.asm.mov(Rcx, n);
            }
            self.asm.shift_imm(ShiftInt::Left, Rcx, 2);
            self.asm.alu(Alu::Sub, Rax, Rm::Reg(Rcx as u8));
        }
        self.asm.vector(one::LOAD, Args::new(to, 0, Rm::Mem(Mem::at(Rax, 0))));
        Ok(to)
    }

    fn store_part(&mut self, inst: &Inst, op: VectorOp) -> Result<(), String> {
        let code = opcode::part(op, self.p.target.avx512)?;
        let Some(m) = inst.mem else { return Ok(()) };
        let from = self.vector(inst.args[0], inst)?;
        let mask = self.part(inst.args[1], inst)?;
        let mem = Rm::Mem(self.memory(m, [Rax, Rcx]));
        match self.p.target.avx512 {
            true => self.asm.vector(code, Args { mask, ..Args::new(from, 0, mem) }),
            false => self.asm.vector(MASKED_STORE, Args::new(from, mask, mem)),
        }
        Ok(())
    }
}

/// The comparison of floats.
fn float_compare(lanes: Lanes) -> Code {
    match lanes {
        Lanes::One64 | Lanes::All64 => Code { wide: true, ..op(1, 1, 0xc2) },
        _ => COMPARE,
    }
}
