//! The compiler of kernels for x86-64 in process: no other program, no temporary file.
//!
//! It compiles the text that the printer for CPUs prints ([`crate::print::c`]), which is the C of a small language: integers,
//! pointers, vectors of 32-bit lanes, loops, branches, and functions that are inlined. So a kernel has one schedule, and the
//! machine's C compiler is an oracle for this one. What it does not know is left to that compiler, and the summary of a
//! compilation says why.
//!
//! [`front`] translates tokens to a program on virtual registers, whose [`builder`] shares equal computations and moves them out
//! of loops. [`optimize`] removes copies, [`allocate`] chooses registers, and [`emit`] encodes instructions with [`asm`].

mod allocate;
pub mod asm;
mod builder;
mod emit;
mod front;
mod ir;
mod language;
mod lexer;
mod linear;
pub mod opcode;
mod optimize;
mod types;

use crate::isa::Isa;

/// The machine code of a kernel with these statements, which begins with its entry point.
///
/// # Errors
/// The reason why there is none.
pub fn compile(body: &str, isa: &Isa) -> Result<Vec<u8>, String> {
    let avx512 = match isa.name {
        "avx2" => false,
        _ if isa.features.contains(&"avx512dq") => true,
        name => return Err(format!("no code is emitted for the instruction set {name}")),
    };
    let mut program = front::translate(body, &language::LANGUAGE, (avx512, isa.has_byte_dot_product()))?;
    optimize::optimize(&mut program);
    let allocation = allocate::allocate(&program);
    emit::emit(&program, &allocation)
}
