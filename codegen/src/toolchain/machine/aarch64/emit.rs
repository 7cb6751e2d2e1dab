//! Machine code of a program whose values have places.

mod memory;

use std::ops::Range;

use crate::toolchain::machine::aarch64::asm::{self, Asm, FAR, Label, Mem, SP, X, ZERO, between, general, neon, wide};
use crate::toolchain::machine::allocate::{Allocation, Place};
use crate::toolchain::machine::emitter::{Assembler, Emitter, needs_frame};
use crate::toolchain::machine::ir::{Class, Comparison, Form, Inst, Lanes, NONE, Op, Program, Reg, Vector};
use crate::toolchain::machine::operation::{Alu, Cond, Dot, FloatCond, VectorOp};

/// Registers that hold no values: addresses and operands of one instruction.
const FIRST: X = X(16);
/// See [`FIRST`].
const SECOND: X = X(17);

/// Registers that the caller expects to be kept; of the vectors the low half.
const KEPT: Range<u8> = 19..29;
/// See [`KEPT`].
const KEPT_VECTORS: Range<u8> = 8..16;

/// What the emitter knows besides places of values.
pub struct State {
    labels: Vec<Label>,
    exit: Label,
    data: Vec<usize>,
    /// Values that only their first lane has: numbers that only factors by a lane read.
    first_lane: Vec<bool>,
    /// The kept registers that hold values: general-purpose and vector registers.
    kept: Vec<u8>,
    kept_vectors: Vec<u8>,
}

impl Assembler for Asm {
    type Gp = X;
    type State = State;
    const SLOT: i32 = 16;

    fn gp(number: u8) -> X {
        X(number)
    }

    fn move_int(&mut self, to: X, from: X) {
        self.mov(to, from);
    }

    fn number(&mut self, to: X, n: i64) {
        self.mov_imm(to, n);
    }

    fn load_int(&mut self, to: X, at: i32) {
        let from = self.in_frame(at, 8);
        self.access(asm::load(8, false), to.0, from);
    }

    fn store_int(&mut self, at: i32, from: X) {
        let to = self.in_frame(at, 8);
        self.access(asm::store(8), from.0, to);
    }

    fn move_vector(&mut self, to: u8, from: u8) {
        self.mov_vector(to, from);
    }

    fn load_vector(&mut self, to: u8, at: i32) {
        let from = self.in_frame(at, 16);
        self.access(asm::load_vector(16), to, from);
    }

    fn store_vector(&mut self, at: i32, from: u8) {
        let to = self.in_frame(at, 16);
        self.access(asm::store_vector(16), from, to);
    }

    fn constant(&mut self, to: u8, bits: u32) {
        self.lanes(to, bits);
    }
}

impl Asm {
    /// A place in the frame.
    fn in_frame(&mut self, at: i32, bytes: u8) -> Mem {
        if asm::fits(at, bytes) {
            return Mem::At(SP, at);
        }
        self.add_imm(FAR, SP, at.into());
        Mem::At(FAR, 0)
    }
}

/// The machine code.
///
/// # Errors
/// When an instruction needs more registers than there are, or has no code.
pub fn emit(p: &Program, allocation: &Allocation) -> Result<Vec<u8>, String> {
    let used = KEPT_VECTORS.filter(|r| !allocation.busy[*r as usize].is_empty()).map(|r| 1 << r).sum();
    if needs_frame(p, allocation) {
        return emit_with(p, allocation, true, used);
    }
    // Whether registers must be put aside is known only afterwards.
    emit_with(p, allocation, false, used).or_else(|_| emit_with(p, allocation, true, used))
}

/// The machine code, with a frame or without. Vector registers with these numbers are kept.
fn emit_with(p: &Program, allocation: &Allocation, frame: bool, vectors: u32) -> Result<Vec<u8>, String> {
    let mut asm = Asm::default();
    let labels = (0..p.labels).map(|_| asm.label()).collect();
    let exit = asm.label();
    let data = p.data.iter().map(|bytes| asm.data(bytes)).collect();
    let kept = KEPT.filter(|r| allocation.general.contains(r)).collect();
    let kept_vectors = KEPT_VECTORS.filter(|r| vectors >> r & 1 > 0).collect();
    let own = State { labels, exit, data, first_lane: first_lane(p), kept, kept_vectors };
    let mut e = Emitter::new(p, allocation, asm, own, frame);
    e.enter();
    for (i, inst) in p.insts.iter().enumerate() {
        e.begin(i);
        e.inst(inst)?;
        e.end(inst);
    }
    e.leave();
    // Which of them are temporaries is known only afterwards, too.
    let all = KEPT_VECTORS.map(|r| 1 << r).sum::<u32>();
    match vectors | e.touched & all {
        more if more != vectors => emit_with(p, allocation, frame, more),
        _ => e.asm.finish(),
    }
}

/// Numbers from memory that only products by a lane read: all lanes of them are not needed.
fn first_lane(p: &Program) -> Vec<bool> {
    let mut definitions = vec![0; p.classes.len()];
    let mut out = vec![false; p.classes.len()];
    for inst in &p.insts {
        definitions[inst.dst as usize] += 1;
        let broadcast = matches!(inst.op, Op::Vector(Vector { op: VectorOp::Broadcast, .. }));
        out[inst.dst as usize] = broadcast && inst.mem.is_some();
    }
    out.iter_mut().zip(&definitions).for_each(|(one, count)| *one &= *count == 1);
    for inst in &p.insts {
        let factors = match inst.op {
            Op::Fma(0 | 1, Lanes::All) => 2,
            Op::Vector(Vector { op: VectorOp::Mul, lanes: Lanes::All, .. }) => 2,
            _ => 0,
        };
        inst.args[factors..].iter().for_each(|r| out[*r as usize] = false);
        if factors > 0 && out[inst.args[1] as usize] {
            out[inst.args[0] as usize] = false;
        }
    }
    out
}

impl Emitter<'_, Asm> {
    fn enter(&mut self) {
        let count = self.own.kept.len() + self.own.kept_vectors.len();
        if count > 0 {
            self.asm.add_imm(SP, SP, -(8 * count.next_multiple_of(2) as i64));
        }
        for (i, r) in self.own.kept.iter().enumerate() {
            self.asm.access(asm::store(8), *r, Mem::At(SP, 8 * i as i32));
        }
        for (i, r) in self.own.kept_vectors.iter().enumerate() {
            self.asm.access(asm::store_vector(8), *r, Mem::At(SP, 8 * (self.own.kept.len() + i) as i32));
        }
        if let Some(saved) = self.frame {
            self.asm.mov(FIRST, SP);
            self.asm.add_imm(SECOND, FIRST, -i64::from(saved + 8));
            self.asm.align_stack(SECOND);
            self.asm.store_int(saved, FIRST);
        }
        self.parameters(FIRST, |asm, a, b| {
            asm.mov(FIRST, a);
            asm.mov(a, b);
            asm.mov(b, FIRST);
        });
    }

    fn leave(&mut self) {
        self.asm.bind(self.own.exit);
        if let Some(saved) = self.frame {
            self.asm.load_int(FIRST, saved);
            self.asm.mov(SP, FIRST);
        }
        for (i, r) in self.own.kept.iter().enumerate() {
            self.asm.access(asm::load(8, false), *r, Mem::At(SP, 8 * i as i32));
        }
        for (i, r) in self.own.kept_vectors.iter().enumerate() {
            self.asm.access(asm::load_vector(8), *r, Mem::At(SP, 8 * (self.own.kept.len() + i) as i32));
        }
        let count = self.own.kept.len() + self.own.kept_vectors.len();
        if count > 0 {
            self.asm.add_imm(SP, SP, 8 * count.next_multiple_of(2) as i64);
        }
        self.asm.ret();
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), String> {
        match inst.op {
            Op::Label(l) => self.asm.bind(self.own.labels[l as usize]),
            Op::Loop(true) => self.enter_loop(),
            Op::Loop(false) => self.leave_loop(),
            Op::Jump(l) => self.asm.jmp(self.own.labels[l as usize]),
            Op::Branch(cond @ (Cond::Equal | Cond::NotEqual), l) if inst.args[1] == NONE && inst.imm == 0 => {
                let (r, to) = (self.integer(inst.args[0], FIRST), self.own.labels[l as usize]);
                self.asm.jump_if_zero(r, cond == Cond::Equal, to);
            }
            Op::Branch(cond, l) => {
                self.compare_ints(inst);
                self.asm.jump_if(cond, self.own.labels[l as usize]);
            }
            Op::Exit => {
                let status = self.integer(inst.args[0], FIRST);
                if status != X(0) {
                    self.asm.mov(X(0), status);
                }
                if self.at as usize + 1 < self.p.insts.len() {
                    self.asm.jmp(self.own.exit);
                }
            }
            Op::Prefetch(second) => {
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, 8);
                self.asm.prefetch(mem, second);
            }
            Op::Copy if self.p.classes[inst.dst as usize] == Class::Vector => match self.place(inst.dst) {
                Place::Register(to) => self.load_vector(to, inst.args[0]),
                Place::None => {}
                _ => {
                    let from = self.vector(inst.args[0], inst)?;
                    self.put_vector(inst, from);
                }
            },
            Op::LoadPart(op) => return self.load_part(inst, op),
            Op::StorePart(op) => return self.store_part(inst, op),
            Op::Vector(v) if v.form == Form::Store => return self.store_lanes(inst, v),
            Op::Vector(v) if inst.mem.is_some() => return self.load_lanes(inst, v),
            Op::Vector(v) => return self.vector_inst(inst, v),
            Op::Const
            | Op::Fma(..)
            | Op::ShiftLanes(..)
            | Op::Compare(_)
            | Op::Blend
            | Op::FirstLanes
            | Op::ToLane(_)
            | Op::IntToFloat(_)
            | Op::Dot(_) => return self.lanes(inst),
            _ => return self.integers(inst),
        }
        Ok(())
    }

    // ---- integers ----

    /// An integer in a register that is not the stack pointer.
    fn integer(&mut self, r: Reg, temporary: X) -> X {
        let found = self.int(r, temporary);
        if found != SP {
            return found;
        }
        self.asm.mov(temporary, SP);
        temporary
    }

    fn compare_ints(&mut self, inst: &Inst) {
        let a = self.integer(inst.args[0], FIRST);
        if inst.args[1] == NONE {
            return self.asm.cmp_imm(a, inst.imm, SECOND);
        }
        let b = self.integer(inst.args[1], SECOND);
        self.asm.three(general::SUBS, ZERO, a, b);
    }

    /// Instructions with an integer result, and stores of integers.
    fn integers(&mut self, inst: &Inst) -> Result<(), String> {
        let to = self.target(inst.dst, FIRST);
        let [a, b, c, d] = inst.args;
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
                let mut base = self.int(m.base, FIRST);
                if m.index != NONE {
                    let index = self.integer(m.index, SECOND);
                    self.asm.add_shifted(to, base, index, m.scale.trailing_zeros() as u8);
                    base = to;
                }
                if base != to || m.disp != 0 {
                    self.asm.add_imm(to, base, m.disp.into());
                }
            }
            Op::Data => self.asm.address(to, self.own.data[inst.imm as usize]),
            Op::Load(bytes, signed) => {
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, bytes);
                self.asm.access(asm::load(bytes, signed), to.0, mem);
            }
            Op::Store(bytes) => {
                let Some(m) = inst.mem else { return Ok(()) };
                let mem = self.memory(m, bytes);
                let from = self.integer(a, FAR);
                self.asm.access(asm::store(bytes), from.0, mem);
                return Ok(());
            }
            Op::Extend(bytes, signed) => {
                let from = self.integer(a, FIRST);
                self.asm.extend(to, from, bytes, signed);
            }
            Op::Set(cond) => {
                self.compare_ints(inst);
                self.asm.set_if(cond, to);
            }
            Op::Select(cond) => {
                self.compare_ints(inst);
                let (then, other) = (self.integer(c, FIRST), self.integer(d, SECOND));
                self.asm.select(cond, to, then, other);
            }
            Op::Divide(remainder, signed) => {
                let (from, by) = (self.integer(a, FIRST), self.integer(b, SECOND));
                let quotient = if remainder { FAR } else { to };
                self.asm.three(if signed { general::SDIV } else { general::UDIV }, quotient, from, by);
                if remainder {
                    self.asm.msub(to, quotient, by, from);
                }
            }
            Op::MulHigh => {
                let (a, b) = (self.integer(a, FIRST), self.integer(b, SECOND));
                self.asm.three(general::SMULH, to, a, b);
            }
            Op::Alu(_) | Op::Mul | Op::Shift(_) => self.arithmetic(inst, to),
            Op::FromLane(bytes) => {
                let from = self.vector(a, inst)?;
                self.asm.two(if bytes == 4 { between::SMOV } else { between::FMOV_FROM_D }, to.0, from);
            }
            Op::FloatToInt(bytes) => {
                let from = self.vector(a, inst)?;
                self.asm.two(if bytes == 4 { between::FCVTZS } else { wide(between::FCVTZS) }, to.0, from);
            }
            Op::Any => {
                let (from, most) = (self.vector(a, inst)?, self.temporary(inst)?);
                self.asm.two(neon::UMAXV, most, from);
                self.asm.two(between::FMOV_FROM_S, to.0, most);
            }
            other => return Err(format!("{other:?} has no code for AArch64")),
        }
        self.put(inst.dst, to);
        Ok(())
    }

    fn arithmetic(&mut self, inst: &Inst, to: X) {
        let [a, b, ..] = inst.args;
        let from = self.integer(a, FIRST);
        let by = match (b, inst.op) {
            (NONE, Op::Alu(Alu::Add)) => return self.asm.add_imm(to, from, inst.imm),
            (NONE, Op::Alu(Alu::Sub)) => return self.asm.add_imm(to, from, -inst.imm),
            (NONE, Op::Shift(how)) => return self.asm.shift_imm(how, to, from, inst.imm as u8),
            (NONE, _) => {
                self.asm.mov_imm(SECOND, inst.imm);
                SECOND
            }
            _ => self.integer(b, SECOND),
        };
        let word = match inst.op {
            Op::Shift(how) => return self.asm.shift(how, to, from, by),
            Op::Alu(Alu::Add) => general::ADD,
            Op::Alu(Alu::Sub) => general::SUB,
            Op::Alu(Alu::And) => general::AND,
            Op::Alu(Alu::Or) => general::ORR,
            Op::Alu(Alu::Xor) => general::EOR,
            _ => general::MUL,
        };
        self.asm.three(word, to, from, by);
    }

    // ---- vectors ----

    /// A register for a result that begins as the value `old` and is none of the registers of `others`.
    fn begin_as(&mut self, inst: &Inst, old: Reg, others: &[u8]) -> Result<u8, String> {
        let own = self.place(inst.dst);
        let to = match own {
            Place::Register(n) if self.place(old) == own || !others.contains(&n) => n,
            _ => self.temporary(inst)?,
        };
        self.load_vector(to, old);
        Ok(to)
    }

    /// Puts a vector result where it belongs.
    fn finish(&mut self, inst: &Inst, from: u8) {
        match self.place(inst.dst) {
            Place::Register(n) if n != from => self.asm.mov_vector(n, from),
            _ => self.put_vector(inst, from),
        }
    }

    /// Instructions on vectors other than [`Op::Vector`].
    fn lanes(&mut self, inst: &Inst) -> Result<(), String> {
        let [a, b, c, _] = inst.args;
        match inst.op {
            Op::Const => {
                if let Place::Register(to) = self.place(inst.dst) {
                    self.asm.lanes(to, inst.imm as u32);
                }
                return Ok(());
            }
            Op::Fma(kind, lanes) => return self.fma(inst, kind, lanes),
            Op::Dot(kind) => return self.dot(inst, kind),
            Op::Blend => {
                let (mask, then, other) = (self.vector(a, inst)?, self.vector(b, inst)?, self.vector(c, inst)?);
                return self.choose(inst, mask, then, other);
            }
            _ => {}
        }
        let to = match inst.op {
            Op::ShiftLanes(how, long) => {
                let (bits, from) = (if long { 64 } else { 32 }, self.vector(a, inst)?);
                let by = u8::try_from(inst.imm).ok().filter(|n| *n < bits);
                let by = by.ok_or_else(|| format!("a shift of lanes of {bits} bits by {}", inst.imm))?;
                let to = self.vector_target(inst)?;
                self.asm.shift_lanes(how, bits, to, from, by);
                to
            }
            Op::Compare(how) => {
                let (a, b) = (self.vector(a, inst)?, self.vector(b, inst)?);
                let to = self.vector_target(inst)?;
                self.compare(how, to, a, b);
                to
            }
            Op::FirstLanes => {
                const NUMBERS: u128 = 3 << 96 | 2 << 64 | 1 << 32;
                let (to, numbers) = (self.vector_target(inst)?, self.temporary(inst)?);
                match a {
                    NONE => self.asm.lanes(to, inst.imm as u32),
                    count => {
                        let n = self.integer(count, FIRST);
                        self.asm.two(between::DUP, to, n.0);
                    }
                }
                self.asm.table(numbers, NUMBERS);
                self.asm.vectors(neon::CMGT, to, to, numbers);
                to
            }
            Op::ToLane(bytes) | Op::IntToFloat(bytes) => {
                let from = self.integer(a, FIRST);
                let to = self.vector_target(inst)?;
                let word = match (inst.op, bytes) {
                    (Op::ToLane(_), 4) => between::FMOV_TO_S,
                    (Op::ToLane(_), _) => between::FMOV_TO_D,
                    (_, 4) => between::SCVTF,
                    _ => wide(between::SCVTF),
                };
                self.asm.two(word, to, from.0);
                to
            }
            other => return Err(format!("{other:?} has no code for AArch64")),
        };
        self.put_vector(inst, to);
        Ok(())
    }

    fn compare(&mut self, how: Comparison, to: u8, a: u8, b: u8) {
        let (cond, lanes) = match how {
            Comparison::IntEqual => return self.asm.vectors(neon::CMEQ, to, a, b),
            Comparison::IntGreater => return self.asm.vectors(neon::CMGT, to, a, b),
            Comparison::Float(cond, lanes) => (cond, lanes),
        };
        let (word, a, b) = match cond {
            FloatCond::Equal | FloatCond::NotEqual => (neon::FCMEQ, a, b),
            FloatCond::Less => (neon::FCMGT, b, a),
            FloatCond::LessEqual => (neon::FCMGE, b, a),
            FloatCond::Greater => (neon::FCMGT, a, b),
            FloatCond::GreaterEqual => (neon::FCMGE, a, b),
        };
        self.asm.vectors(if matches!(lanes, Lanes::All64 | Lanes::One64) { wide(word) } else { word }, to, a, b);
        if cond == FloatCond::NotEqual {
            self.asm.two(neon::NOT, to, to);
        }
    }

    /// The lanes of `then` where the mask is set, else those of `other`.
    fn choose(&mut self, inst: &Inst, mask: u8, then: u8, other: u8) -> Result<(), String> {
        let to = self.vector_target(inst)?;
        if to == other {
            self.asm.vectors(neon::BIT, to, then, mask);
        } else if to == then {
            self.asm.vectors(neon::BIF, to, other, mask);
        } else {
            if to != mask {
                self.asm.mov_vector(to, mask);
            }
            self.asm.vectors(neon::BSL, to, then, other);
        }
        self.put_vector(inst, to);
        Ok(())
    }

    /// A fused product.
    fn fma(&mut self, inst: &Inst, kind: u8, lanes: Lanes) -> Result<(), String> {
        let [a, b, c, _] = inst.args;
        let (first, second) = (self.vector(a, inst)?, self.vector(b, inst)?);
        let is_wide = matches!(lanes, Lanes::All64 | Lanes::One64);
        let of_size = |word: u32| if is_wide { wide(word) } else { word };
        if matches!(lanes, Lanes::One32 | Lanes::One64) {
            let sum = self.vector(c, inst)?;
            let to = self.vector_target(inst)?;
            let word = [neon::FMADD, neon::FMSUB, neon::FNMSUB][kind as usize];
            self.asm.fused(of_size(word), to, [first, second, sum]);
            self.put_vector(inst, to);
            return Ok(());
        }
        let to = self.begin_as(inst, c, &[first, second])?;
        if kind == 2 {
            self.asm.two(of_size(neon::FNEG), to, to);
        }
        let by_lane = [a, b].map(|r| self.own.first_lane[r as usize]);
        let (whole, lane, negated) = match by_lane {
            [true, _] => (neon::FMLA_LANE, neon::FMLS_LANE, (second, first)),
            [_, true] => (neon::FMLA_LANE, neon::FMLS_LANE, (first, second)),
            _ => (of_size(neon::FMLA), of_size(neon::FMLS), (first, second)),
        };
        self.asm.vectors(if kind == 1 { lane } else { whole }, to, negated.0, negated.1);
        self.finish(inst, to);
        Ok(())
    }

    /// Products of parts of lanes, added to the first operand.
    fn dot(&mut self, inst: &Inst, kind: Dot) -> Result<(), String> {
        let [sum, a, b, _] = inst.args;
        let (a, b) = (self.vector(a, inst)?, self.vector(b, inst)?);
        match kind {
            Dot::Bytes => {
                let to = self.begin_as(inst, sum, &[a, b])?;
                let (x, y) = (self.temporary(inst)?, self.temporary(inst)?);
                use crate::toolchain::machine::operation::Shift::{Left, Right, RightSigned};
                // Products of the even bytes fit words, as do those of the odd ones; pairs of them are added to lanes.
                self.asm.shift_lanes(Left, 16, x, a, 8);
                self.asm.shift_lanes(Right, 16, x, x, 8);
                self.asm.shift_lanes(Left, 16, y, b, 8);
                self.asm.shift_lanes(RightSigned, 16, y, y, 8);
                self.asm.vectors(neon::MUL_16, x, x, y);
                self.asm.two(neon::SADALP, to, x);
                self.asm.shift_lanes(Right, 16, x, a, 8);
                self.asm.shift_lanes(RightSigned, 16, y, b, 8);
                self.asm.vectors(neon::MUL_16, x, x, y);
                self.asm.two(neon::SADALP, to, x);
                self.finish(inst, to);
            }
            Dot::Words => {
                let sum = self.vector(sum, inst)?;
                let (x, y) = (self.temporary(inst)?, self.temporary(inst)?);
                self.asm.vectors(neon::SMULL, x, a, b);
                self.asm.vectors(neon::SMULL_HIGH, y, a, b);
                self.asm.vectors(neon::ADDP, x, x, y);
                let to = self.vector_target(inst)?;
                self.asm.vectors(neon::ADD, to, sum, x);
                self.put_vector(inst, to);
            }
            Dot::Bf16 => return Err("products of bf16 have no code for AArch64".into()),
        }
        Ok(())
    }

    /// A vector instruction on registers.
    fn vector_inst(&mut self, inst: &Inst, v: Vector) -> Result<(), String> {
        let [a, b, ..] = inst.args;
        let first = self.vector(a, inst)?;
        if v.form == Form::Two {
            let second = self.vector(b, inst)?;
            return self.two_operands(inst, v, first, second);
        }
        let to = self.vector_target(inst)?;
        let word = match v.op {
            VectorOp::Sqrt => neon::FSQRT,
            VectorOp::Round => neon::FRINTN,
            VectorOp::Floor => neon::FRINTM,
            VectorOp::Ceil => neon::FRINTP,
            VectorOp::RoundToInt => neon::FCVTNS,
            VectorOp::TruncateToInt => neon::FCVTZS,
            VectorOp::ToFloat => neon::SCVTF,
            VectorOp::ToDoubles => neon::FCVTL_64,
            VectorOp::FromDoubles => neon::FCVTN_64,
            VectorOp::Broadcast => neon::DUP,
            VectorOp::BroadcastLong => neon::DUP_64,
            VectorOp::WidenF16 => neon::FCVTL,
            VectorOp::NarrowF16 => neon::FCVTN,
            VectorOp::NarrowWords => neon::XTN_16,
            VectorOp::WidenI16 => neon::SXTL_16,
            VectorOp::WidenU16 => neon::UXTL_16,
            other => return Err(format!("{other:?} has no code for AArch64")),
        };
        self.asm.two(word, to, first);
        self.put_vector(inst, to);
        Ok(())
    }

    fn two_operands(&mut self, inst: &Inst, v: Vector, first: u8, second: u8) -> Result<(), String> {
        let by_lane = [0, 1].map(|i| self.own.first_lane[inst.args[i] as usize]);
        let arithmetic = |all: u32, one: u32| match v.lanes {
            Lanes::All | Lanes::Half => all,
            Lanes::All64 => wide(all),
            Lanes::One32 => one,
            Lanes::One64 => wide(one),
        };
        let (word, first, second) = match v.op {
            VectorOp::Max | VectorOp::Min => {
                let mask = self.temporary(inst)?;
                let (greater, less) = if v.op == VectorOp::Max { (first, second) } else { (second, first) };
                self.asm.vectors(neon::FCMGT, mask, greater, less);
                return self.choose(inst, mask, first, second);
            }
            VectorOp::Mul if by_lane[0] => (neon::FMUL_LANE, second, first),
            VectorOp::Mul if by_lane[1] => (neon::FMUL_LANE, first, second),
            // The bytes are the second operand of the instruction, and their positions the first of this.
            VectorOp::Permute => (neon::TBL, second, first),
            VectorOp::Exchange(1) => (neon::REV64, first, 0),
            op => (
                match op {
                    VectorOp::Add => arithmetic(neon::FADD, neon::FADD_ONE),
                    VectorOp::Sub => arithmetic(neon::FSUB, neon::FSUB_ONE),
                    VectorOp::Mul => arithmetic(neon::FMUL, neon::FMUL_ONE),
                    VectorOp::Div => arithmetic(neon::FDIV, neon::FDIV_ONE),
                    VectorOp::And => neon::AND,
                    VectorOp::Or => neon::ORR,
                    VectorOp::Xor => neon::EOR,
                    VectorOp::IntAdd => neon::ADD,
                    VectorOp::IntSub => neon::SUB,
                    VectorOp::IntMul => neon::MUL,
                    VectorOp::IntMin => neon::SMIN,
                    VectorOp::IntMax => neon::SMAX,
                    VectorOp::LongAdd => neon::ADD_64,
                    VectorOp::LongSub => neon::SUB_64,
                    VectorOp::Exchange(2) => neon::EXT_HALF,
                    VectorOp::Blocks(1, false) => neon::TRN1,
                    VectorOp::Blocks(1, true) => neon::TRN2,
                    VectorOp::Blocks(2, false) => neon::ZIP1_64,
                    VectorOp::Blocks(2, true) => neon::ZIP2_64,
                    VectorOp::ToDouble => neon::FCVT_TO_64,
                    VectorOp::FromDouble => neon::FCVT_FROM_64,
                    other => return Err(format!("{other:?} has no code for AArch64")),
                },
                first,
                // Conversions have one operand.
                if matches!(op, VectorOp::ToDouble | VectorOp::FromDouble) { 0 } else { second },
            ),
        };
        let to = self.vector_target(inst)?;
        self.asm.vectors(word, to, first, second);
        self.put_vector(inst, to);
        Ok(())
    }
}
