//! The C interface of the runtime. `include/of_runtime.h` documents the functions and is what C programs read; a test compares it
//! with these declarations.
//!
//! Every function checks its arguments, catches panics, and returns a [`abi::Status`]. The text of an error is kept for the
//! thread that made it.

mod abi;
mod error;
mod memory;
mod plan;
mod ranks;
mod session;
mod signed;
mod value;
mod variables;
#[cfg(target_family = "wasm")]
mod wasm;
