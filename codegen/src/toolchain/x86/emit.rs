//! Machine code of a program whose values have places.

mod fused;
mod loops;
mod matrix;

use std::iter::Peekable;
use std::ops::Range;
use std::slice::Iter;

use crate::toolchain::x86::allocate::{Allocation, PARAMETERS, Place, Split};
use crate::toolchain::x86::asm::Gp::{R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi, Rsp};
use crate::toolchain::x86::asm::{Alu, Args, Asm, Cond, Gp, Label, Mem, Op as Code, Rm, ShiftInt, op};
use crate::toolchain::x86::ir::{Address, Class, Comparison, Form, Inst, Lanes, NONE, Op, Program, Reg, Vector};
use crate::toolchain::x86::opcode::{one, two};

/// The general-purpose registers by number.
const ALL: [Gp; 16] = [Rax, Rcx, Rdx, Rbx, Rsp, Rbp, Rsi, Rdi, Gp::R8, Gp::R9, Gp::R10, Gp::R11, R12, R13, R14, R15];

/// Registers that the caller expects to be kept.
const KEPT: [Gp; 6] = [Rbx, Rbp, R12, R13, R14, R15];

/// The mask registers of comparisons, and of parts of vectors.
const COMPARED: u8 = 1;
const PARTS: Range<u8> = 2..8;

/// The most registers whose values are put aside for an instruction.
const BORROWED: u32 = 4;

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

/// The machine code.
///
/// # Errors
/// When an instruction needs more registers than there are.
pub fn emit(p: &Program, allocation: &Allocation) -> Result<Vec<u8>, String> {
    let parameter = |i: &Inst| i.op == Op::Param && !matches!(allocation.places[i.dst as usize], Place::Register(_));
    let memory = p.frame > 0 || allocation.slots > 0 || allocation.vectors > 0 || p.insts.iter().any(parameter);
    if memory {
        return emit_with(p, allocation, true);
    }
    // Whether registers must be put aside is known only afterwards.
    emit_with(p, allocation, false).or_else(|_| emit_with(p, allocation, true))
}

/// The machine code, with a frame or without.
fn emit_with(p: &Program, allocation: &Allocation, frame: bool) -> Result<Vec<u8>, String> {
    let mut asm = Asm::new(p.avx512);
    let labels = (0..p.labels).map(|_| asm.label()).collect();
    let exit = asm.label();
    let vectors = p.frame.next_multiple_of(64) as i32;
    let slots = vectors + 64 * (allocation.vectors + BORROWED) as i32;
    let mut data = Vec::new();
    for bytes in &p.data {
        data.push(asm.data(bytes));
    }
    let masks = if p.avx512 { 0 } else { asm.data(&[[0xff; 32], [0; 32]].concat()) };
    let cursors = vec![0; allocation.busy.len()];
    let mut e = Emitter {
        p,
        places: allocation.places.clone(),
        allocation,
        cursors,
        asm,
        labels,
        exit,
        data,
        masks,
        vectors,
        slots,
        frame: frame.then_some(slots + 8 * allocation.slots as i32),
        at: 0,
        taken: Vec::new(),
        borrowed: Vec::new(),
        held: Vec::new(),
        constant_reads: constant_reads(p, &allocation.places),
        next_label: 0,
        masks_held: [None; PARTS.end as usize - PARTS.start as usize],
        next_mask: 0,
        splits: allocation.splits.iter().peekable(),
        inside: Vec::new(),
        kept: KEPT.into_iter().filter(|r| allocation.general.contains(&(*r as u8))).collect(),
    };
    e.enter();
    for (i, inst) in p.insts.iter().enumerate() {
        e.at = i as u32;
        if e.at >= e.next_label {
            e.held.clear();
            e.masks_held.fill(None);
            let rest = p.insts[i + 1..].iter().position(|x| matches!(x.op, Op::Label(_)));
            e.next_label = rest.map_or(u32::MAX, |n| (i + 1 + n) as u32);
        }
        e.inst(inst)?;
        e.store_changed(inst.dst);
        e.masks_held.iter_mut().for_each(|m| *m = m.filter(|(count, _)| *count == NONE || *count != inst.dst));
        e.taken.clear();
        while let Some((register, home)) = e.borrowed.pop() {
            e.asm.vector(one::LOAD, Args::new(register, 0, Rm::Mem(Mem::at(Rsp, home))));
        }
    }
    e.leave();
    Ok(e.asm.finish())
}

/// Where constants without a register are read.
fn constant_reads(p: &Program, places: &[Place]) -> Vec<Vec<u32>> {
    let mut out = vec![Vec::new(); places.len()];
    for (i, inst) in p.insts.iter().enumerate() {
        for r in inst.reads() {
            if p.classes[r as usize] == Class::Vector && matches!(places[r as usize], Place::Again(_)) {
                out[r as usize].push(i as u32);
            }
        }
    }
    out
}

struct Emitter<'a> {
    p: &'a Program,
    /// Where values are now.
    places: Vec<Place>,
    allocation: &'a Allocation,
    /// For each vector register the first range that has not ended.
    cursors: Vec<usize>,
    asm: Asm,
    labels: Vec<Label>,
    exit: Label,
    data: Vec<usize>,
    /// Ones, then zeros: masks for AVX2.
    masks: usize,
    /// Offsets in the frame: slots of vectors, slots of integers.
    vectors: i32,
    slots: i32,
    /// Where the frame has the stack pointer of the caller; none without a frame.
    frame: Option<i32>,
    at: u32,
    /// Vector registers that the instruction uses as temporaries.
    taken: Vec<u8>,
    /// Those among them whose values are in the frame meanwhile.
    borrowed: Vec<(u8, i32)>,
    /// Registers that hold constants for now, and the position from which on they hold values again.
    held: Vec<(u8, Reg, u32)>,
    /// Where constants without a register are read, by register of the program.
    constant_reads: Vec<Vec<u32>>,
    /// The position of the next label.
    next_label: u32,
    /// The counts of lanes, as operand or immediate, whose masks are in the mask registers, and the register for the next.
    masks_held: [Option<(Reg, i64)>; PARTS.end as usize - PARTS.start as usize],
    next_mask: usize,
    /// Loops ahead in which values have registers.
    splits: Peekable<Iter<'a, Split>>,
    /// The same of the loops around the instruction, with the places outside of them.
    inside: Vec<(Split, Place)>,
    /// The registers among those of the caller that hold values.
    kept: Vec<Gp>,
}

impl Emitter<'_> {
    fn enter(&mut self) {
        self.kept.iter().for_each(|r| self.asm.push(*r));
        if let Some(saved) = self.frame {
            self.asm.mov(Rax, Rsp);
            self.asm.alu_imm(Alu::Sub, Rsp, saved + 8);
            self.asm.alu_imm(Alu::And, Rsp, -64);
            self.asm.store(Mem::at(Rsp, saved), Rax, 8);
        }
        self.parameters();
    }

    /// Moves the parameters, which come in registers, where they belong.
    fn parameters(&mut self) {
        let mut moves: Vec<(Gp, Reg)> = Vec::new();
        for inst in self.p.insts.iter().filter(|i| i.op == Op::Param) {
            let from = PARAMETERS[inst.imm as usize];
            match self.place(inst.dst) {
                Place::Register(to) if ALL[to as usize] == from => {}
                Place::Register(_) => moves.push((from, inst.dst)),
                _ => self.put(inst.dst, from),
            }
        }
        while let Some(i) = (0..moves.len()).find(|i| {
            let to = self.target(moves[*i].1, Rax);
            !moves.iter().any(|(from, _)| *from == to)
        }) {
            let (from, value) = moves.swap_remove(i);
            self.put(value, from);
        }
        // What is left are exchanges of two.
        if let [(a, value), _] = moves[..] {
            self.asm.exchange(a, self.target(value, Rax));
        }
    }

    fn leave(&mut self) {
        self.asm.bind(self.exit);
        self.asm.vzeroupper();
        if let Some(saved) = self.frame {
            self.asm.load(Rsp, Rm::Mem(Mem::at(Rsp, saved)), 8, false);
        }
        self.kept.iter().rev().for_each(|r| self.asm.pop(*r));
        self.asm.ret();
    }

    // ---- operands ----

    fn place(&self, r: Reg) -> Place {
        self.places[r as usize]
    }

    /// Where memory holds a value in a slot.
    fn home(&self, r: Reg, slot: u32) -> Mem {
        match self.p.classes[r as usize] {
            Class::Int => Mem::at(Rsp, self.slots + 8 * slot as i32),
            Class::Vector => Mem::at(Rsp, self.vectors + 64 * slot as i32),
        }
    }

    /// An integer in a register: its own, or else the temporary.
    fn int(&mut self, r: Reg, temporary: Gp) -> Gp {
        match self.place(r) {
            Place::Register(n) => ALL[n as usize],
            Place::Slot(s) => {
                let from = self.home(r, s);
                self.asm.load(temporary, Rm::Mem(from), 8, false);
                temporary
            }
            Place::Again(n) => {
                self.asm.mov_imm(temporary, n);
                temporary
            }
            Place::None => temporary,
        }
    }

    /// An integer in a register or in memory.
    fn int_rm(&mut self, r: Reg, temporary: Gp) -> Rm {
        match self.place(r) {
            Place::Slot(s) => Rm::Mem(self.home(r, s)),
            _ => Rm::Reg(self.int(r, temporary) as u8),
        }
    }

    /// The register of an integer result: its own, or else the temporary, which [`Emitter::put`] stores.
    fn target(&self, r: Reg, temporary: Gp) -> Gp {
        match self.place(r) {
            Place::Register(n) => ALL[n as usize],
            _ => temporary,
        }
    }

    /// Puts an integer result where it belongs.
    fn put(&mut self, r: Reg, from: Gp) {
        match self.place(r) {
            Place::Register(n) if ALL[n as usize] != from => self.asm.mov(ALL[n as usize], from),
            Place::Slot(s) => {
                let to = self.home(r, s);
                self.asm.store(to, from, 8);
            }
            _ => {}
        }
    }

    fn memory(&mut self, m: Address, temporaries: [Gp; 2]) -> Mem {
        let base = self.int(m.base, temporaries[0]);
        let index = (m.index != NONE).then(|| (self.int(m.index, temporaries[1]), m.scale));
        Mem::At(base, index, m.disp)
    }

    /// The position from which on a vector register holds a value; now or earlier if it does already.
    fn next_value(&mut self, r: u8) -> u32 {
        let ranges = &self.allocation.busy[r as usize];
        let cursor = &mut self.cursors[r as usize];
        while ranges.get(*cursor).is_some_and(|range| range.1 < self.at) {
            *cursor += 1;
        }
        ranges.get(*cursor).map_or(u32::MAX, |range| range.0)
    }

    /// A register with a constant, if one is free until the next reader, which comes before the next label.
    fn hold(&mut self, r: Reg, bits: i64) -> Option<u8> {
        self.held.retain(|h| h.2 > self.at);
        if let Some((register, ..)) = self.held.iter().find(|h| h.1 == r) {
            self.taken.push(*register);
            return Some(*register);
        }
        let reads = &self.constant_reads[r as usize];
        let next = *reads.get(reads.partition_point(|i| *i <= self.at)).filter(|next| **next < self.next_label)?;
        let free =
            |s: &mut Self, r: u8| s.next_value(r) > next && !s.taken.contains(&r) && s.held.iter().all(|h| h.0 != r);
        let register = (0..self.cursors.len() as u8).rev().find(|r| free(self, *r))?;
        self.constant(register, bits as u32);
        let until = self.next_value(register);
        self.held.push((register, r, until));
        self.taken.push(register);
        Some(register)
    }

    /// A vector register that holds nothing, or whose value is put aside.
    fn temporary(&mut self, inst: &Inst) -> Result<u8, String> {
        let count = self.cursors.len();
        // Those with constants last.
        for holds in [false, true] {
            for r in (0..count as u8).rev() {
                let holds_constant = self.held.iter().any(|h| h.0 == r);
                if holds_constant == holds && self.next_value(r) > self.at && !self.taken.contains(&r) {
                    self.held.retain(|h| h.0 != r);
                    self.taken.push(r);
                    return Ok(r);
                }
            }
        }
        let used: Vec<Place> = inst.reads().chain([inst.dst]).map(|r| self.place(r)).collect();
        let other = (0..count as u8).find(|r| !used.contains(&Place::Register(*r)) && !self.taken.contains(r));
        let register = other.ok_or("an instruction has too many operands")?;
        let home = self.vectors + 64 * (self.allocation.vectors as i32 + self.borrowed.len() as i32);
        if self.borrowed.len() == BORROWED as usize || self.frame.is_none() {
            return Err("an instruction needs too many temporary registers".into());
        }
        self.asm.vector(one::STORE, Args::new(register, 0, Rm::Mem(Mem::at(Rsp, home))));
        self.borrowed.push((register, home));
        self.taken.push(register);
        Ok(register)
    }

    /// A vector in a register: its own, or a temporary.
    fn vector(&mut self, r: Reg, inst: &Inst) -> Result<u8, String> {
        match self.place(r) {
            Place::Register(n) => return Ok(n),
            Place::Again(bits) => {
                if let Some(n) = self.hold(r, bits) {
                    return Ok(n);
                }
            }
            _ => {}
        }
        let to = self.temporary(inst)?;
        self.load_vector(to, r);
        Ok(to)
    }

    /// Loads a vector from where it is.
    fn load_vector(&mut self, to: u8, r: Reg) {
        match self.place(r) {
            Place::Register(n) if n != to => self.asm.vector(one::MOVE, Args::new(to, 0, Rm::Reg(n))),
            Place::Slot(s) => {
                let from = self.home(r, s);
                self.asm.vector(one::LOAD, Args::new(to, 0, Rm::Mem(from)));
            }
            Place::Again(bits) => match self.held.iter().find(|h| h.1 == r && h.2 > self.at).map(|h| h.0) {
                Some(n) if n != to => {
                    self.asm.vector(one::MOVE, Args::new(to, 0, Rm::Reg(n)));
                }
                _ => self.constant(to, bits as u32),
            },
            _ => {}
        }
    }

    /// A word in all lanes of a register.
    fn constant(&mut self, to: u8, bits: u32) {
        match bits {
            0 => self.asm.vector(two::XOR, Args::new(to, to, Rm::Reg(to))),
            _ => self.asm.vector(one::BROADCAST, Args::new(to, 0, Rm::Mem(Mem::Word(bits)))),
        }
    }

    /// A vector in a register or memory; `single` if only the first lane is read.
    fn vector_rm(&mut self, r: Reg, single: bool) -> Rm {
        match self.place(r) {
            Place::Register(n) => Rm::Reg(n),
            Place::Slot(s) => Rm::Mem(self.home(r, s)),
            Place::Again(bits) => match self.hold(r, bits) {
                Some(n) => Rm::Reg(n),
                None if single => Rm::Mem(Mem::Word(bits as u32)),
                None => Rm::Mem(Mem::Lanes(bits as u32)),
            },
            Place::None => Rm::Reg(0),
        }
    }

    /// The register of a vector result: its own, or a temporary, which [`Emitter::put_vector`] stores.
    fn vector_target(&mut self, inst: &Inst) -> Result<u8, String> {
        match self.place(inst.dst) {
            Place::Register(n) => Ok(n),
            _ => self.temporary(inst),
        }
    }

    fn put_vector(&mut self, inst: &Inst, from: u8) {
        if let Place::Slot(s) = self.place(inst.dst) {
            let to = self.home(inst.dst, s);
            self.asm.vector(one::STORE, Args::new(from, 0, Rm::Mem(to)));
        }
    }

    // ---- instructions ----

    fn inst(&mut self, inst: &Inst) -> Result<(), String> {
        match inst.op {
            Op::Label(l) => self.asm.bind(self.labels[l as usize]),
            Op::Loop(true) => {
                self.enter_loop();
                if self.is_innermost() {
                    self.asm.align(32);
                }
            }
            Op::Loop(false) => self.leave_loop(),
            Op::Jump(l) => self.asm.jmp(self.labels[l as usize]),
            Op::Branch(cond, l) => {
                self.compare_ints(inst);
                self.asm.jump_if(cond, self.labels[l as usize]);
            }
            Op::Exit => {
                let status = self.int(inst.args[0], Rax);
                if status != Rax {
                    self.asm.mov(Rax, status);
                }
                if self.at as usize + 1 < self.p.insts.len() {
                    self.asm.jmp(self.exit);
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

    /// Whether no other loop begins before this one ends.
    fn is_innermost(&self) -> bool {
        let rest = &self.p.insts[self.at as usize + 1..];
        rest.iter().find_map(|i| if let Op::Loop(begin) = i.op { Some(!begin) } else { None }).unwrap_or(false)
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
            Op::Data => self.asm.lea(to, Mem::Data(self.data[inst.imm as usize])),
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
                if self.p.avx512 {
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
                Op::Alu(alu) => self.asm.alu_imm(alu, to, value),
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
        let commutes = inst.op != Op::Alu(Alu::Sub);
        let in_target = |s: &Self, r: Reg| s.place(r) == Place::Register(to as u8);
        let (a, b) = if commutes && in_target(self, b) { (b, a) } else { (a, b) };
        let out = if in_target(self, b) && a != b { Rax } else { to };
        let from = self.int(a, out);
        if from != out {
            self.asm.mov(out, from);
        }
        let by = self.int_rm(b, Rcx);
        match inst.op {
            Op::Alu(alu) => self.asm.alu(alu, out, by),
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
                    self.constant(to, inst.imm as u32);
                }
                return Ok(());
            }
            Op::Vector(v) if v.form == Form::Store => {
                let from = self.vector(a, inst)?;
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, [Rax, Rcx]);
                self.asm.vector(v.op, Args { imm: v.imm, bits: v.bits, ..Args::new(from, 0, Rm::Mem(mem)) });
                return Ok(());
            }
            Op::StorePart(code) => return self.store_part(inst, code),
            Op::Fma(kind, lanes) => return self.fma(inst, kind, lanes),
            Op::Dot(code) => {
                // The sum is replaced.
                let (first, rm) = (self.vector(inst.args[1], inst)?, self.vector(inst.args[2], inst)?);
                return self.replace(inst, a, code, Args::new(0, first, Rm::Reg(rm)));
            }
            Op::Blend if self.p.avx512 => return self.ternary(inst),
            _ => {}
        }
        match inst.op {
            Op::Vector(v) => self.vector_inst(inst, v)?,
            Op::ShiftLanes(how, wide) => {
                let from = self.vector(a, inst)?;
                let to = self.vector_target(inst)?;
                let code = if wide { SHIFT_64 } else { SHIFT };
                self.asm.vector(code, Args { imm: Some(inst.imm as u8), ..Args::new(how as u8, to, Rm::Reg(from)) });
                self.put_vector(inst, to);
            }
            Op::Compare(how) => {
                let (first, rm) = (self.vector(a, inst)?, self.compared_operand(b, how, inst)?);
                let to = self.vector_target(inst)?;
                if self.p.avx512 {
                    self.compare_to_mask(how, first, rm);
                    let wide = matches!(how, Comparison::Float(_, Lanes::All64));
                    self.asm.vector(Code { wide, ..MASK_TO_LANES }, Args::new(to, 0, Rm::Reg(COMPARED)));
                } else {
                    let (code, imm) = match how {
                        Comparison::Float(how, lanes) => (float_compare(lanes), Some(how)),
                        Comparison::Int(0) => (EQUAL_INT, None),
                        Comparison::Int(_) => (GREATER_INT, None),
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
            Op::LoadPart(code) => {
                let Some(m) = inst.mem else { return Ok(()) };
                let to = self.vector_target(inst)?;
                let mask = self.part(a, inst)?;
                let mem = Rm::Mem(self.memory(m, [Rax, Rcx]));
                match self.p.avx512 {
                    true => self.asm.vector(code, Args { mask, zero: true, ..Args::new(to, 0, mem) }),
                    false => self.asm.vector(MASKED_LOAD, Args::new(to, mask, mem)),
                }
                self.put_vector(inst, to);
            }
            Op::FirstLanes => {
                let mask = self.part(a, inst)?;
                let to = self.vector_target(inst)?;
                let code = if self.p.avx512 { MASK_TO_LANES } else { one::MOVE };
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

    fn vector_inst(&mut self, inst: &Inst, v: Vector) -> Result<(), String> {
        let [a, b, ..] = inst.args;
        let mem = inst.mem.map(|m| Rm::Mem(self.memory(m, [Rax, Rcx])));
        let single = v.bits == 128 || v.op == one::BROADCAST;
        // Only operations on words of 32 bits take a constant for all lanes from memory.
        let narrow = matches!(
            v.op,
            two::DOT_WORDS | one::WIDEN_I8 | one::WIDEN_U8 | one::WIDEN_I16 | one::WIDEN_U16 | one::WIDEN_F16
        );
        let narrow = narrow || matches!((v.op.map, v.op.code), (2, 0x2b) | (1, 0x67)) || v.op.wide && v.bits != 128;
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
        self.asm.vector(v.op, Args { imm: v.imm, bits: v.bits, broadcast: inst.broadcast, ..args });
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
            Comparison::Float(how, lanes) => (float_compare(lanes), how),
            Comparison::Int(how) => (COMPARE_INT, how),
        };
        self.asm.vector(code, Args { imm: Some(imm), ..Args::new(COMPARED, first, rm) });
    }

    /// The mask of the first lanes: a mask register, or with AVX2 a vector register.
    fn part(&mut self, count: Reg, inst: &Inst) -> Result<u8, String> {
        if self.p.avx512 {
            let key = (count, inst.imm);
            if let Some(i) = self.masks_held.iter().position(|held| *held == Some(key)) {
                return Ok(PARTS.start + i as u8);
            }
            let oldest = self.next_mask;
            self.next_mask = (oldest + 1) % PARTS.len();
            self.masks_held[oldest] = Some(key);
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
        self.asm.lea(Rax, Mem::Data(self.masks + 32));
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

    fn store_part(&mut self, inst: &Inst, code: Code) -> Result<(), String> {
        let Some(m) = inst.mem else { return Ok(()) };
        let from = self.vector(inst.args[0], inst)?;
        let mask = self.part(inst.args[1], inst)?;
        let mem = Rm::Mem(self.memory(m, [Rax, Rcx]));
        match self.p.avx512 {
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
