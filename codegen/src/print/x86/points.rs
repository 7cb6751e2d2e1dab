//! Emits a block for a vector of points.

use crate::print::x86::access::{Access, Memory, Part};
use crate::print::x86::asm::{Args, Mem, Op, Rm, op};
use crate::print::x86::block::{Block, Compare, Inst, Shift, Value};
use crate::print::x86::frame::Frame;
use crate::print::x86::registers::{Pins, Registers, Spill, pins};

const MOVE: Op = op(0, 1, 0x28);
const LOAD: Op = op(0, 1, 0x10);
const STORE: Op = op(0, 1, 0x11);
const BROADCAST: Op = op(1, 2, 0x18);
const COMPARE: Op = op(0, 1, 0xc2);
const COMPARE_INT: Op = op(1, 3, 0x1f);
const EQUAL_INT: Op = op(1, 1, 0x76);
const GREATER_INT: Op = op(1, 1, 0x66);
const MASK_TO_LANES: Op = op(2, 2, 0x38);
const TERNARY: Op = op(1, 3, 0x25);
const BLEND: Op = op(1, 3, 0x4a);
const SCALE: Op = op(1, 2, 0x2c);
const SHIFT: Op = op(1, 1, 0x72);
/// Lanes within each 128 bits, and parts of 128 bits.
const SHUFFLE: Op = op(0, 1, 0xc6);
const SHUFFLE_PARTS: Op = op(1, 3, 0x23);
const EXCHANGE_PARTS: Op = op(1, 3, 0x06);
const NARROW_F16: Op = op(1, 3, 0x1d);
const WIDEN_F16: Op = op(1, 2, 0x13);
/// `dst = first * dst + rm`, and `dst = first * rm + dst`.
const FMA: [Op; 2] = [op(1, 2, 0xa8), op(1, 2, 0xb8)];
/// The same with the product subtracted.
const FNMA: [Op; 2] = [op(1, 2, 0xac), op(1, 2, 0xbc)];
/// The mask register of comparisons.
const COMPARED: u8 = 1;

/// The loop body of a kernel: a block, its accesses, and the registers that it may use.
pub struct Points<'a> {
    /// What is computed.
    pub block: &'a Block,
    /// The loads of the kernel.
    pub loads: &'a [Access],
    /// The stores of the kernel.
    pub stores: &'a [Access],
    /// Registers of the accumulators.
    pub accumulators: &'a [u8],
    pins: Pins,
    free: Vec<u8>,
    spare: u8,
}

impl<'a> Points<'a> {
    /// A loop body whose accumulators have these registers.
    pub fn new(block: &'a Block, loads: &'a [Access], stores: &'a [Access], accumulators: &'a [u8]) -> Points<'a> {
        let spare = if block.avx512 { 31 } else { 15 };
        let free: Vec<u8> = (0..spare).filter(|r| !accumulators.contains(r)).collect();
        let pins = pins(block, &free);
        Points { block, loads, stores, accumulators, pins, free, spare }
    }

    /// The same without registers that the loop keeps.
    pub fn unpinned(self) -> Points<'a> {
        Points { pins: Pins::new(), ..self }
    }

    /// Loads what stays in registers during the loop.
    pub fn load_pins(&self, f: &mut Frame) {
        for (v, register) in &self.pins {
            match self.block.insts[*v] {
                Inst::Const(bits) => f.asm.vector(BROADCAST, Args::new(*register, 0, Rm::Mem(Mem::Word(bits)))),
                Inst::Slot(slot) => f.asm.vector(LOAD, Args::new(*register, 0, Rm::Mem(Frame::vector_mem(slot)))),
                _ => {}
            }
        }
    }

    /// Emits the body for the lanes `part` at the element rax.
    pub fn emit(&self, f: &mut Frame, part: Part) {
        let registers = Registers::new(self.block, &self.free, &self.pins);
        let homes = vec![None; self.block.insts.len()];
        let mut e = Emitter { points: self, f, registers, homes, part, at: 0 };
        for (i, inst) in self.block.insts.iter().enumerate() {
            e.at = i;
            if !inst.in_memory() && (!inst.has_value() || e.registers.is_used(i)) {
                e.inst(inst);
            }
            e.registers.unlock();
        }
    }
}

/// The state during a block.
struct Emitter<'a, 'f> {
    points: &'a Points<'a>,
    f: &'f mut Frame,
    registers: Registers<'a>,
    /// Slots of values that were moved to the stack.
    homes: Vec<Option<usize>>,
    part: Part,
    at: usize,
}

impl Emitter<'_, '_> {
    fn vector(&mut self, op: Op, args: Args) {
        self.f.asm.vector(op, args);
    }

    /// A register for a value, or a temporary one.
    fn take(&mut self, v: Option<Value>) -> u8 {
        let (register, spill) = self.registers.take(v, self.at);
        if let Some(Spill { value, register }) = spill
            && self.homes[value].is_none()
        {
            let slot = self.f.vector();
            self.homes[value] = Some(slot);
            self.vector(STORE, Args::new(register, 0, Rm::Mem(Frame::vector_mem(slot))));
        }
        register
    }

    /// An operand: its register, or where memory has it.
    fn operand(&mut self, v: Value) -> Rm {
        if let Some(r) = self.registers.find(v) {
            return Rm::Reg(r);
        }
        match (&self.points.block.insts[v], self.homes[v]) {
            (Inst::Const(bits), _) => Rm::Mem(Mem::Lanes(*bits)),
            (Inst::Slot(slot), _) => Rm::Mem(Frame::vector_mem(*slot)),
            (_, Some(home)) => Rm::Mem(Frame::vector_mem(home)),
            // Operands come before their users, so each has a register or a home.
            (_, None) => Rm::Reg(self.points.spare),
        }
    }

    /// An operand in a register.
    fn register(&mut self, v: Value) -> u8 {
        match self.operand(v) {
            Rm::Reg(r) => r,
            from => {
                let r = self.take(Some(v));
                self.copy(r, from);
                r
            }
        }
    }

    fn copy(&mut self, to: u8, from: Rm) {
        let (op, from) = match from {
            Rm::Reg(_) => (MOVE, from),
            Rm::Mem(Mem::Lanes(bits)) => (BROADCAST, Rm::Mem(Mem::Word(bits))),
            Rm::Mem(_) => (LOAD, from),
        };
        self.vector(op, Args::new(to, 0, from));
    }

    /// The register of the result, after operands were read the last time.
    fn result(&mut self) -> u8 {
        let operands = self.points.block.insts[self.at].operands();
        self.registers.release(self.at, &operands);
        self.registers.unlock();
        self.take(Some(self.at))
    }

    /// The register of a result that starts as a copy of the operand `v`; other operands keep their registers.
    fn result_from(&mut self, v: Value) -> u8 {
        let from = self.operand(v);
        let at = self.at;
        match from {
            Rm::Reg(r) if self.registers.dies(v, at) => {
                self.registers.hand_over(v, at);
                r
            }
            _ => {
                let to = self.take(Some(at));
                self.copy(to, from);
                to
            }
        }
    }

    fn inst(&mut self, inst: &Inst) {
        let operands = inst.operands();
        match *inst {
            Inst::Const(_) | Inst::Slot(_) => {}
            Inst::Load(l) => {
                let to = self.result();
                let access = self.points.loads[l];
                self.memory().load(to, &access);
            }
            Inst::Store(k, dtype, v) => {
                let (from, base) = (self.register(v), self.points.stores[k].base);
                self.memory().store(from, dtype, base);
            }
            Inst::Accumulator(k) => {
                let (to, from) = (self.result(), Rm::Reg(self.points.accumulators[k]));
                self.copy(to, from);
            }
            Inst::Accumulate(k, v) => {
                let from = self.operand(v);
                self.copy(self.points.accumulators[k], from);
            }
            Inst::Keep(slot, v) => {
                let from = self.register(v);
                self.vector(STORE, Args::new(from, 0, Rm::Mem(Frame::vector_mem(slot))));
            }
            Inst::Exchange(v, lanes) => {
                let from = self.register(v);
                let to = self.result();
                self.exchange(to, from, lanes);
            }
            Inst::Two(op, a, b) => {
                let (first, rm) = (self.register(a), self.operand(b));
                let to = self.result();
                self.vector(op, Args::new(to, first, rm));
            }
            Inst::One(op, a, imm) => {
                let rm = self.operand(a);
                let to = self.result();
                self.vector(op, Args { imm, ..Args::new(to, 0, rm) });
            }
            Inst::Shift(how, a, by) => self.shift(how, a, by),
            Inst::Fma(a, b, c) => self.fma(FMA, [a, b, c]),
            Inst::Fnma(a, b, c) => self.fma(FNMA, [a, b, c]),
            Inst::Compare(how, a, b) => self.compare(how, a, b),
            Inst::CompareInt(equal, a, b) => self.compare_int(equal, a, b),
            Inst::Select(m, a, b) => self.select(m, a, b),
            Inst::Scale(p, n, x, low) => {
                let (p, n, x, low) = (self.register(p), self.register(n), self.register(x), self.operand(low));
                let how = Some(Compare::NotLess as u8);
                self.vector(COMPARE, Args { imm: how, ..Args::new(COMPARED, x, low) });
                let to = self.result();
                self.vector(SCALE, Args { mask: COMPARED, zero: true, ..Args::new(to, p, Rm::Reg(n)) });
            }
            Inst::RoundF16(a) => {
                let (from, spare) = (self.register(a), Rm::Reg(self.points.spare));
                let to = self.result();
                self.vector(NARROW_F16, Args { imm: Some(0), ..Args::new(from, 0, spare) });
                self.vector(WIDEN_F16, Args::new(to, 0, spare));
            }
        }
        self.registers.release(self.at, &operands);
    }

    fn memory(&mut self) -> Memory<'_> {
        Memory { frame: self.f, spare: self.points.spare, part: self.part }
    }

    fn exchange(&mut self, to: u8, from: u8, lanes: usize) {
        const OPPOSITE: u8 = 0b0100_1110;
        const NEXT: u8 = 0b1011_0001;
        let (op, imm) = match lanes {
            1 => (SHUFFLE, NEXT),
            2 => (SHUFFLE, OPPOSITE),
            4 if self.points.block.avx512 => (SHUFFLE_PARTS, NEXT),
            4 => (EXCHANGE_PARTS, 1),
            _ => (SHUFFLE_PARTS, OPPOSITE),
        };
        self.vector(op, Args { imm: Some(imm), ..Args::new(to, from, Rm::Reg(from)) });
    }

    fn shift(&mut self, how: Shift, a: Value, by: u8) {
        let from = self.register(a);
        let to = self.result();
        self.vector(SHIFT, Args { imm: Some(by), ..Args::new(how as u8, to, Rm::Reg(from)) });
    }

    /// The form of a fused product whose overwritten operand is read no more, or else a copy of the first.
    fn fma(&mut self, [onto_factor, onto_sum]: [Op; 2], [a, b, c]: [Value; 3]) {
        let in_register = |s: &mut Self, v| matches!(s.operand(v), Rm::Reg(_)) && s.registers.dies(v, s.at);
        let (a_free, b_free, c_free) = (in_register(self, a), in_register(self, b), in_register(self, c));
        let (a, b) = if b_free && !a_free { (b, a) } else { (a, b) };
        if c_free && !a_free && !b_free && c != a && c != b {
            // One factor may be in memory.
            let (a, b) = if matches!(self.operand(b), Rm::Reg(_)) { (b, a) } else { (a, b) };
            let (first, rm) = (self.register(a), self.operand(b));
            let to = self.result_from(c);
            return self.vector(onto_sum, Args::new(to, first, rm));
        }
        let (first, rm) = (self.register(b), self.operand(c));
        let to = self.result_from(a);
        self.vector(onto_factor, Args::new(to, first, rm));
    }

    fn compare(&mut self, how: Compare, a: Value, b: Value) {
        let (first, rm, imm) = (self.register(a), self.operand(b), Some(how as u8));
        if self.points.block.avx512 {
            self.vector(COMPARE, Args { imm, ..Args::new(COMPARED, first, rm) });
            return self.mask_to_lanes();
        }
        let to = self.result();
        self.vector(COMPARE, Args { imm, ..Args::new(to, first, rm) });
    }

    fn compare_int(&mut self, equal: bool, a: Value, b: Value) {
        let (first, rm) = (self.register(a), self.operand(b));
        if self.points.block.avx512 {
            const GREATER: u8 = 6;
            let imm = Some(if equal { 0 } else { GREATER });
            self.vector(COMPARE_INT, Args { imm, ..Args::new(COMPARED, first, rm) });
            return self.mask_to_lanes();
        }
        let to = self.result();
        self.vector(if equal { EQUAL_INT } else { GREATER_INT }, Args::new(to, first, rm));
    }

    fn mask_to_lanes(&mut self) {
        let to = self.result();
        self.vector(MASK_TO_LANES, Args::new(to, 0, Rm::Reg(COMPARED)));
    }

    fn select(&mut self, m: Value, a: Value, b: Value) {
        if self.points.block.avx512 {
            /// The table of `m ? a : b`.
            const SELECT: u8 = 0b1100_1010;
            let (first, rm) = (self.register(a), self.operand(b));
            let to = self.result_from(m);
            return self.vector(TERNARY, Args { imm: Some(SELECT), ..Args::new(to, first, rm) });
        }
        let (mask, first, rm) = (self.register(m), self.register(b), self.operand(a));
        let to = self.result();
        self.vector(BLEND, Args { imm: Some(mask << 4), ..Args::new(to, first, rm) });
    }
}
