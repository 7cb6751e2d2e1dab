//! Kernels for x86-64 as machine code, emitted in process: no compiler, no text, no temporary file.
//!
//! A kernel has the entry point, the iterations and the scratch memory of its C form ([`crate::print::c`]), so either may run. What has
//! no emitted form yet is compiled from C, and the summary of a compilation says why.
//!
//! [`asm`] encodes instructions. [`block`] is the IR of loop bodies, which [`body`] makes of scalar programs and [`functions`] of
//! mathematical functions; [`registers`] and [`points`] make instructions of it. [`frame`] and [`row`] are the loops around.

pub mod access;
pub mod asm;
pub mod block;
pub mod body;
mod elementwise;
pub mod frame;
pub mod functions;
pub mod points;
pub mod registers;
pub mod row;
mod rows;

use crate::isa::Isa;
use crate::kernel::nest::Nest;
use crate::kernel::prologue::Prologue;

/// The machine code of a kernel, which begins with its entry point.
///
/// # Errors
/// The reason why there is none.
pub fn emit(nest: &Nest, prologue: &Prologue, isa: &Isa) -> Result<Vec<u8>, String> {
    let avx512 = match isa.name {
        "avx2" => false,
        _ if isa.features.contains(&"avx512dq") => true,
        name => return Err(format!("no code is emitted for the instruction set {name}")),
    };
    match nest {
        Nest::Elementwise { body, dims } => elementwise::elementwise(body, dims, prologue, avx512),
        Nest::RowWise { body, dims, inner } => rows::rows(body, dims, *inner, prologue, avx512),
        _ => Err(format!("no code is emitted for kernels of the kind {}", nest.kind())),
    }
}
