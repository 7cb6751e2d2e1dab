//! Everything unsafe: machine code that is mapped and called, and LLVM's functions that make it.

pub mod code;
#[cfg(feature = "mlir")]
pub mod llvm;
