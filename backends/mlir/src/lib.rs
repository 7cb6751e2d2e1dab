//! MLIR as a backend: subgraphs become linalg on tensors, as text ([`emit`]), which MLIR and LLVM compile in process to
//! machine code. That code is the payload, so only compiling needs them (cargo feature `mlir`): every build runs plans.

mod backend;
#[cfg(feature = "mlir")]
pub mod compile;
#[cfg(not(feature = "mlir"))]
#[path = "without.rs"]
pub mod compile;
pub mod emit;
mod ffi;
#[cfg(any(feature = "mlir", test))]
mod memory;
mod payload;
pub mod vector;

pub use backend::{COMPILES, HINT, Mlir, NAME, evaluate};
pub use payload::{Compiled, Kernel};
