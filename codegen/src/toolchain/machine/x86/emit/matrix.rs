//! Instructions of matrix registers.

use crate::toolchain::machine::emitter::Emitter;
use crate::toolchain::machine::ir::Inst;
use crate::toolchain::machine::operation::Matrix;
use crate::toolchain::machine::x86::asm::Gp::{Rax, Rcx};
use crate::toolchain::machine::x86::asm::{Asm, Rm};
use crate::toolchain::machine::x86::opcode::of_matrices;

impl Emitter<'_, Asm> {
    /// An instruction with the numbers of its result and of up to two operands; a load, store or configuration has a place in memory.
    pub(super) fn matrix(&mut self, inst: &Inst, op: Matrix, [to, first, second]: [u8; 3]) {
        let rm = match inst.mem {
            Some(m) => Rm::Mem(self.memory(m, [Rax, Rcx])),
            None => Rm::Reg(first),
        };
        self.asm.matrix(of_matrices(op), to, rm, second);
    }
}
