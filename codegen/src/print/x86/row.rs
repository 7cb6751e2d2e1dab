//! Loops over the elements of a row: whole vectors, then the rest.

use crate::kernel::extent::Extent;
use crate::print::x86::access::{Access, Base, Part, Step, TAIL, bytes};
use crate::print::x86::asm::Gp::{R8, R9, R10, R12, R13, R14, R15, Rax, Rbx, Rcx, Rdi, Rdx, Rsi};
use crate::print::x86::asm::{Alu, Args, Cond, Gp, Mem, Rm, op};
use crate::print::x86::frame::{Frame, Var};
use crate::print::x86::points::Points;

/// Registers that point to rows. Further rows have their addresses in the frame.
const POINTERS: [Gp; 10] = [Rbx, Rsi, Rdi, R8, R9, R10, R12, R13, R14, R15];

/// The elements of a row.
pub struct Row {
    /// Their number, if it is known.
    pub number: Option<usize>,
    count: Var,
    whole: Var,
    rest: Var,
    /// The mask of the last elements, as lanes.
    pub mask: usize,
    /// Ones, then zeros: masks for AVX2.
    masks: usize,
    lanes: i32,
}

impl Row {
    /// Rows of so many elements.
    pub fn new(f: &mut Frame, number: Option<usize>) -> Row {
        let (count, whole, rest, mask) = (f.var(), f.var(), f.var(), f.vector());
        let masks = if f.asm.evex() { 0 } else { f.asm.data(&[[!0; 8], [0; 8]].concat()) };
        let lanes = if f.asm.evex() { 16 } else { 8 };
        let row = Row { number, count, whole, rest, mask, masks, lanes };
        if let Some(n) = number {
            f.asm.mov_imm(Rax, n as i64);
            row.start(f);
        }
        row
    }

    /// Sets the number of elements to rax.
    pub fn start(&self, f: &mut Frame) {
        f.asm.store(self.count.mem(), Rax);
        f.asm.mov(Rcx, Rax);
        f.asm.alu_imm(Alu::And, Rcx, -self.lanes);
        f.asm.store(self.whole.mem(), Rcx);
        f.asm.alu(Alu::Sub, Rax, Rm::Reg(Rcx as u8));
        f.asm.store(self.rest.mem(), Rax);
        if self.number.is_none_or(|n| !n.is_multiple_of(self.lanes as usize)) {
            self.tail_mask(f);
        }
    }

    /// Sets the mask of the last elements, whose number is in rax.
    fn tail_mask(&self, f: &mut Frame) {
        let spare = if f.asm.evex() { 31 } else { 15 };
        if f.asm.evex() {
            f.asm.mov(Rcx, Rax);
            f.asm.mov_imm(Rdx, 1);
            f.asm.shl_cl(Rdx);
            f.asm.alu_imm(Alu::Sub, Rdx, 1);
            f.asm.kmovw(TAIL, Rdx);
            f.asm.vector(op(2, 2, 0x38), Args::new(spare, 0, Rm::Reg(TAIL)));
            return f.asm.vector(op(0, 1, 0x11), Args::new(spare, 0, Rm::Mem(Frame::vector_mem(self.mask))));
        }
        let table = Mem::Data(self.masks + 4 * self.lanes as usize);
        f.asm.lea(Rcx, table);
        f.asm.shl_imm(Rax, 2);
        f.asm.alu(Alu::Sub, Rcx, Rm::Reg(Rax as u8));
        f.asm.vector(op(0, 1, 0x10), Args::new(spare, 0, Rm::Mem(Mem::at(Rcx, 0))));
        f.asm.vector(op(0, 1, 0x11), Args::new(spare, 0, Rm::Mem(Frame::vector_mem(self.mask))));
    }

    /// The loop over the elements.
    pub fn walk(&self, f: &mut Frame, whole: &Points<'_>, tail: &Points<'_>) {
        let (lanes, number) = (self.lanes as usize, self.number);
        f.asm.mov_imm(Rax, 0);
        if number.is_none_or(|n| n >= lanes) {
            let (top, done) = (f.asm.label(), f.asm.label());
            if number.is_none() {
                f.asm.alu(Alu::Cmp, Rax, Rm::Mem(self.whole.mem()));
                f.asm.jump_if(Cond::NotLess, done);
            }
            f.asm.bind(top);
            whole.emit(f, Part::All);
            f.asm.alu_imm(Alu::Add, Rax, self.lanes);
            f.asm.alu(Alu::Cmp, Rax, Rm::Mem(self.whole.mem()));
            f.asm.jump_if(Cond::Less, top);
            f.asm.bind(done);
        }
        if number.is_some_and(|n| n.is_multiple_of(lanes)) {
            return;
        }
        let done = f.asm.label();
        if number.is_none() {
            f.asm.alu(Alu::Cmp, Rax, Rm::Mem(self.count.mem()));
            f.asm.jump_if(Cond::NotLess, done);
        }
        tail.emit(f, Part::First(self.rest, self.mask));
        f.asm.bind(done);
    }
}

/// The places of `count` rows.
pub fn bases(f: &mut Frame, count: usize) -> Vec<Base> {
    (0..count).map(|i| POINTERS.get(i).map_or_else(|| Base::Frame(f.var()), |r| Base::Register(*r))).collect()
}

/// Sets the address of an access to argument `arg` from its element in rax on.
pub fn point(f: &mut Frame, access: &Access, arg: usize) {
    f.asm.imul_imm(Rax, bytes(access.dtype) as i32);
    f.argument(Rcx, arg);
    f.asm.alu(Alu::Add, Rax, Rm::Reg(Rcx as u8));
    access.base.set(f);
}

impl Base {
    /// Sets the address to rax.
    pub fn set(self, f: &mut Frame) {
        match self {
            Base::Register(r) => f.asm.mov(r, Rax),
            Base::Frame(var) => f.asm.store(var.mem(), Rax),
        }
    }
}

/// The step of an access with a stride in elements.
pub fn step(f: &mut Frame, stride: &Extent, size: usize) -> Step {
    match stride.number() {
        Some(0) => Step::Same,
        Some(1) => Step::Next,
        Some(n) if n * size < 1 << 30 => Step::Bytes((n * size) as i32),
        _ => {
            let var = f.var();
            f.extent(stride);
            f.asm.imul_imm(Rax, size as i32);
            f.asm.store(var.mem(), Rax);
            Step::Open(var)
        }
    }
}
