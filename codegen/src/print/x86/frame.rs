//! The frame of a kernel: its entry and exits, variables of 64 bits, vectors on the stack, and extents that are computed at run time.
//!
//! Variables are below rbp, vectors above rsp, which is a multiple of 64. Scalar code is evaluated in rax, with rcx and rdx as
//! temporaries; it runs once a row, so simplicity counts.

use std::sync::Arc;

use of_ir::{DimFn, Factor};

use crate::kernel::extent::Extent;
use crate::kernel::prologue::{Check, Prologue};
use crate::print::x86::asm::Gp::{R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi, Rsp};
use crate::print::x86::asm::{Alu, Asm, Cond, Gp, Label, Mem, Rm};

/// Bytes of a vector on the stack.
const VECTOR: i32 = 64;

/// Bytes below rbp that hold the caller's registers.
const SAVED: i32 = 40;

/// A variable of 64 bits in the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Var(i32);

impl Var {
    /// Its place in memory.
    pub fn mem(self) -> Mem {
        Mem::at(Rbp, -SAVED - 8 * self.0)
    }
}

/// A kernel under construction and its frame.
pub struct Frame {
    /// The code.
    pub asm: Asm,
    vars: i32,
    vectors: i32,
    /// End of the instruction that reserves the frame.
    reserve: usize,
    symbols: Vec<(Arc<str>, Var)>,
    args: Var,
    /// Scratch memory.
    pub scratch: Var,
    /// The next iteration of the outer loop.
    pub row: Var,
    end: Var,
    exit: Label,
    mismatch: Label,
    /// A symbol that the prologue does not have.
    unbound: Option<Arc<str>>,
}

impl Frame {
    /// The entry of a kernel: reads symbols and checks extents.
    pub fn enter(evex: bool, p: &Prologue) -> Frame {
        let mut asm = Asm::new(evex);
        let (exit, mismatch) = (asm.label(), asm.label());
        asm.push(Rbp);
        asm.mov(Rbp, Rsp);
        [Rbx, R12, R13, R14, R15].into_iter().for_each(|r| asm.push(r));
        asm.alu_imm(Alu::Sub, Rsp, 0);
        let reserve = asm.position();
        asm.alu_imm(Alu::And, Rsp, -VECTOR);
        let (args, row, end, scratch) = (Var(1), Var(2), Var(3), Var(4));
        let (symbols, unbound) = Default::default();
        let mut f =
            Frame { asm, vars: 4, vectors: 1, reserve, symbols, args, scratch, row, end, exit, mismatch, unbound };
        f.asm.store(args.mem(), Rdi);
        f.asm.store(row.mem(), Rsi);
        f.asm.store(end.mem(), Rdx);
        f.asm.store(scratch.mem(), Rcx);
        if !p.symbols.is_empty() {
            f.asm.load(Rcx, Mem::at(Rdi, 8 * p.arguments as i32));
        }
        for (symbol, index) in &p.symbols {
            let var = f.var();
            f.asm.load(Rax, Mem::at(Rcx, 8 * *index as i32));
            f.asm.store(var.mem(), Rax);
            f.symbols.push((symbol.clone(), var));
        }
        p.checks.iter().for_each(|c| f.check(c));
        f
    }

    /// The bytes of the kernel, after its last exit.
    ///
    /// # Errors
    /// When an extent has a symbol that the prologue does not read.
    pub fn finish(mut self) -> Result<Vec<u8>, String> {
        if let Some(symbol) = self.unbound {
            return Err(format!("the prologue does not read the symbol '{symbol}'"));
        }
        let (exit, mismatch) = (self.exit, self.mismatch);
        self.asm.mov_imm(Rax, 0);
        let done = self.asm.label();
        self.asm.jmp(done);
        self.asm.bind(mismatch);
        self.asm.mov_imm(Rax, 2);
        self.asm.jmp(done);
        self.asm.bind(exit);
        self.asm.mov_imm(Rax, 0);
        self.asm.bind(done);
        self.asm.vzeroupper();
        self.asm.lea(Rsp, Mem::at(Rbp, -SAVED));
        [R15, R14, R13, R12, Rbx, Rbp].into_iter().for_each(|r| self.asm.pop(r));
        self.asm.ret();
        // A multiple of a vector is lost to alignment.
        let bytes = 8 * self.vars + VECTOR * (self.vectors + 1);
        self.asm.patch(self.reserve, bytes);
        Ok(self.asm.finish())
    }

    /// A new variable.
    pub fn var(&mut self) -> Var {
        self.vars += 1;
        Var(self.vars)
    }

    /// A new vector on the stack; its number for [`Frame::vector_mem`]. Number 0 is the buffer of partial loads and stores.
    pub fn vector(&mut self) -> usize {
        self.vectors += 1;
        self.vectors as usize - 1
    }

    /// The place of a vector in memory.
    pub fn vector_mem(slot: usize) -> Mem {
        Mem::at(Rsp, VECTOR * slot as i32)
    }

    /// The address of argument `arg` in a register.
    pub fn argument(&mut self, to: Gp, arg: usize) {
        self.asm.load(to, self.args.mem());
        self.asm.load(to, Mem::at(to, 8 * arg as i32));
    }

    /// The loop over rows: `body` for each iteration that the caller asked for.
    pub fn rows(&mut self, body: impl FnOnce(&mut Frame)) {
        let (top, exit) = (self.asm.label(), self.exit);
        self.asm.bind(top);
        self.asm.load(Rax, self.row.mem());
        self.asm.alu(Alu::Cmp, Rax, Rm::Mem(self.end.mem()));
        self.asm.jump_if(Cond::NotLess, exit);
        body(self);
        self.asm.load(Rax, self.row.mem());
        self.asm.alu_imm(Alu::Add, Rax, 1);
        self.asm.store(self.row.mem(), Rax);
        self.asm.jmp(top);
    }

    // ---- extents ----

    /// Ends the kernel with status 2 unless the condition holds.
    fn check(&mut self, check: &Check) {
        let fine = self.asm.label();
        let (a, b) = match check {
            Check::Broadcasts(own, to) => (own, to),
            Check::Equal(a, b) => (a, b),
        };
        if matches!(check, Check::Broadcasts(..)) {
            self.extent(a);
            self.asm.alu_imm(Alu::Cmp, Rax, 1);
            self.asm.jump_if(Cond::Equal, fine);
        }
        self.pair(|f| f.extent(a), |f| f.extent(b));
        self.asm.alu(Alu::Cmp, Rax, Rm::Reg(Rcx as u8));
        let mismatch = self.mismatch;
        self.asm.jump_if(Cond::NotEqual, mismatch);
        self.asm.bind(fine);
    }

    /// Two values: the first in rax, the second in rcx.
    fn pair(&mut self, first: impl FnOnce(&mut Frame), second: impl FnOnce(&mut Frame)) {
        first(self);
        self.asm.push(Rax);
        second(self);
        self.asm.mov(Rcx, Rax);
        self.asm.pop(Rax);
    }

    /// The value of an extent, in rax.
    pub fn extent(&mut self, e: &Extent) {
        self.asm.mov_imm(Rax, e.dim().constant());
        let terms: Vec<_> = e.dim().terms().map(|(c, factors)| (c, factors.collect::<Vec<_>>())).collect();
        for (c, factors) in terms {
            self.asm.push(Rax);
            self.asm.mov_imm(Rax, c);
            for factor in factors {
                match factor {
                    Factor::Symbol(s) => match self.symbols.iter().find(|(name, _)| name == s) {
                        Some((_, var)) => self.asm.imul(Rax, Rm::Mem(var.mem())),
                        None => self.unbound = Some(s.clone()),
                    },
                    Factor::Call(g, a, b) => {
                        self.asm.push(Rax);
                        self.pair(|f| f.extent(&a.into()), |f| f.extent(&b.into()));
                        self.call(g);
                        self.asm.pop(Rcx);
                        self.asm.imul(Rax, Rm::Reg(Rcx as u8));
                    }
                }
            }
            self.asm.pop(Rcx);
            self.asm.alu(Alu::Add, Rax, Rm::Reg(Rcx as u8));
        }
    }

    /// A function of rax and rcx, in rax; divisors are positive.
    fn call(&mut self, g: DimFn) {
        let done = self.asm.label();
        match g {
            DimFn::Max | DimFn::Min => {
                self.asm.alu(Alu::Cmp, Rax, Rm::Reg(Rcx as u8));
                self.asm.jump_if(if g == DimFn::Max { Cond::NotLess } else { Cond::LessEqual }, done);
                self.asm.mov(Rax, Rcx);
            }
            DimFn::FloorDiv | DimFn::CeilDiv => {
                self.asm.idiv(Rcx);
                self.asm.alu_imm(Alu::Cmp, Rdx, 0);
                let (exact, by) = if g == DimFn::FloorDiv { (Cond::NotLess, -1) } else { (Cond::LessEqual, 1) };
                self.asm.jump_if(exact, done);
                self.asm.alu_imm(Alu::Add, Rax, by);
            }
            DimFn::Mod => {
                self.asm.idiv(Rcx);
                self.asm.mov(Rax, Rdx);
                self.asm.alu_imm(Alu::Cmp, Rax, 0);
                self.asm.jump_if(Cond::NotLess, done);
                self.asm.alu(Alu::Add, Rax, Rm::Reg(Rcx as u8));
            }
        }
        self.asm.bind(done);
    }

    /// Limits rax.
    pub fn at_most(&mut self, most: usize) {
        let done = self.asm.label();
        self.asm.alu_imm(Alu::Cmp, Rax, most as i32);
        self.asm.jump_if(Cond::LessEqual, done);
        self.asm.mov_imm(Rax, most as i64);
        self.asm.bind(done);
    }

    /// Multiplies rax by an extent.
    pub fn times(&mut self, by: &Extent) {
        match by.number() {
            Some(1) => {}
            Some(n) if i32::try_from(n).is_ok() => self.asm.imul_imm(Rax, n as i32),
            _ => {
                self.asm.push(Rax);
                self.extent(by);
                self.asm.pop(Rcx);
                self.asm.imul(Rax, Rm::Reg(Rcx as u8));
            }
        }
    }

    /// The quotient of rax, which is not negative, by an extent; or else the remainder.
    fn divide(&mut self, by: &Extent, remainder: bool) {
        match by.number() {
            Some(1) if !remainder => {}
            Some(n) if n.is_power_of_two() && n < 1 << 30 => match remainder {
                true => self.asm.alu_imm(Alu::And, Rax, n as i32 - 1),
                false => self.asm.sar_imm(Rax, n.trailing_zeros() as u8),
            },
            _ => {
                self.asm.push(Rax);
                self.extent(by);
                self.asm.mov(Rcx, Rax);
                self.asm.pop(Rax);
                self.asm.idiv(Rcx);
                if remainder {
                    self.asm.mov(Rax, Rdx);
                }
            }
        }
    }

    /// The offset of an access at the position `row` of the space `dims`, in rax.
    pub fn offset(&mut self, dims: &[Extent], strides: &[Extent]) {
        self.asm.mov_imm(Rax, 0);
        let mut below = Extent::from(1usize);
        for axis in (0..dims.len()).rev() {
            if !strides[axis].is(0) && !dims[axis].is(1) {
                self.asm.push(Rax);
                self.asm.load(Rax, self.row.mem());
                self.divide(&below, false);
                if axis > 0 {
                    self.divide(&dims[axis], true);
                }
                self.times(&strides[axis]);
                self.asm.pop(Rcx);
                self.asm.alu(Alu::Add, Rax, Rm::Reg(Rcx as u8));
            }
            below = below * &dims[axis];
        }
    }
}
