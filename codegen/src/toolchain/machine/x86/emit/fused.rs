//! Instructions that replace one of their operands: fused products, and choices by a mask.

use crate::toolchain::machine::allocate::Place;
use crate::toolchain::machine::emitter::Emitter;
use crate::toolchain::machine::ir::{Inst, Lanes, Reg};
use crate::toolchain::machine::x86::asm::Gp::{Rax, Rcx};
use crate::toolchain::machine::x86::asm::{Args, Asm, Op as Code, Rm, op};
use crate::toolchain::machine::x86::opcode::one;

const TERNARY: Code = op(1, 3, 0x25);

impl Emitter<'_, Asm> {
    /// An instruction that replaces the value `old` by the result; `args` are its other operands.
    pub(super) fn replace(&mut self, inst: &Inst, old: Reg, code: Code, args: Args) -> Result<(), String> {
        let own = self.place(inst.dst);
        let reads = |n: u8| args.first == n || args.rm == Rm::Reg(n);
        let to = match own {
            Place::Register(n) if self.place(old) == own || !reads(n) => n,
            _ => self.temporary(inst)?,
        };
        self.load_vector(to, old);
        self.asm.vector(code, Args { reg: to, ..args });
        match own {
            Place::Register(n) if n != to => self.asm.vector(one::MOVE, Args::new(n, 0, Rm::Reg(to))),
            _ => self.put_vector(inst, to),
        }
        Ok(())
    }

    /// A fused product, in the form that replaces an operand which is in the register of the result.
    pub(super) fn fma(&mut self, inst: &Inst, kind: u8, lanes: Lanes) -> Result<(), String> {
        let [a, b, c, _] = inst.args;
        // The forms differ in what they multiply: 213, 231, 132.
        let [onto_factor, onto_sum, onto_other] =
            [[0xa8, 0xb8, 0x98], [0xac, 0xbc, 0x9c], [0xaa, 0xba, 0x9a]][kind as usize];
        let (scalar, wide, bits) = match lanes {
            Lanes::All | Lanes::Half => (0, false, 0),
            Lanes::All64 => (0, true, 0),
            Lanes::One32 => (1, false, 128),
            Lanes::One64 => (1, true, 128),
        };
        let code = |n: u8| Code { wide, ..op(1, 2, n + scalar) };
        let single = !matches!(lanes, Lanes::All | Lanes::All64);
        let own = self.place(inst.dst);
        let in_register = matches!(own, Place::Register(_));
        if let Some(m) = inst.mem {
            let (rm, broadcast) = (Rm::Mem(self.memory(m, [Rax, Rcx])), inst.broadcast);
            if let (Place::Register(to), true) = (own, own == self.place(a) && own != self.place(c)) {
                let sum = self.vector(c, inst)?;
                self.asm.vector(code(onto_other), Args { bits, broadcast, ..Args::new(to, sum, rm) });
                return Ok(());
            }
            let first = self.vector(a, inst)?;
            return self.replace(inst, c, code(onto_sum), Args { bits, broadcast, ..Args::new(0, first, rm) });
        }
        if in_register && own != self.place(c) && (own == self.place(a) || own == self.place(b)) {
            let (a, b) = if own == self.place(a) { (a, b) } else { (b, a) };
            let Place::Register(to) = self.place(a) else { return Ok(()) };
            let (first, rm) = (self.vector(b, inst)?, self.vector_rm(c, single));
            self.asm.vector(code(onto_factor), Args { bits, ..Args::new(to, first, rm) });
            return Ok(());
        }
        let in_memory = |s: &Self, r: Reg| !matches!(s.place(r), Place::Register(_));
        let (a, b) = if in_memory(self, a) { (b, a) } else { (a, b) };
        let first = self.vector(a, inst)?;
        let rm = self.vector_rm(b, single);
        self.replace(inst, c, code(onto_sum), Args { bits, ..Args::new(0, first, rm) })
    }

    /// A choice by a mask of lanes, with the truth table of the operand that is in the register of the result.
    pub(super) fn ternary(&mut self, inst: &Inst) -> Result<(), String> {
        let [mask, a, b, _] = inst.args;
        let own = self.place(inst.dst);
        let (begins, first, last, table) = match own {
            Place::Register(_) if own == self.place(a) && own != self.place(mask) => (a, mask, b, 0b1110_0010),
            Place::Register(_) if own == self.place(b) && own != self.place(mask) => (b, mask, a, 0b1011_1000),
            _ => (mask, a, b, 0b1100_1010),
        };
        let first = self.vector(first, inst)?;
        let rm = self.vector_rm(last, false);
        self.replace(inst, begins, TERNARY, Args { imm: Some(table), ..Args::new(0, first, rm) })
    }
}
