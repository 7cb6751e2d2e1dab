//! Instructions of matrix registers.

use crate::toolchain::x86::asm::Gp::{Rax, Rcx};
use crate::toolchain::x86::asm::{Op as Code, Rm};
use crate::toolchain::x86::emit::Emitter;
use crate::toolchain::x86::ir::Inst;

impl Emitter<'_> {
    /// An instruction with the numbers of its result and of up to two operands; a load, store or configuration has a place in memory.
    pub(super) fn matrix(&mut self, inst: &Inst, op: Code, [to, first, second]: [u8; 3]) {
        let rm = match inst.mem {
            Some(m) => Rm::Mem(self.memory(m, [Rax, Rcx])),
            None => Rm::Reg(first),
        };
        self.asm.matrix(op, to, rm, second);
    }
}
