//! All unsafe code: mapping and calling machine code, and bindings of LLVM, which produces it.

pub mod code;
#[cfg(feature = "mlir")]
pub mod llvm;
