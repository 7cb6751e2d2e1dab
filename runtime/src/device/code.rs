//! Entry points of kernels, and why a plan's kernels cannot be loaded.
//!
//! The type of the entry point is the calling convention (ABI) of kernels.

use std::io;

/// A kernel's entry point: runs the iterations `[begin, end)` of its outermost loop and returns a status: 0, or the
/// number of an error, which [`crate::bound_task`] names.
pub(crate) type KernelFn = unsafe extern "C" fn(args: *const *mut u8, begin: i64, end: i64, scratch: *mut u8) -> i32;

/// Why kernels cannot be loaded.
#[derive(Debug)]
pub(crate) enum CodeError {
    /// The system has no such memory.
    #[cfg_attr(target_family = "wasm", allow(dead_code, reason = "modules are not mapped"))]
    Io(io::Error),
    /// The host refuses the module of a kernel, given by its name.
    #[cfg_attr(not(target_family = "wasm"), allow(dead_code, reason = "machine code is no module"))]
    Refused(String),
    /// The bytes of a kernel, given by its name, are not those of its hash.
    Changed(String),
}
