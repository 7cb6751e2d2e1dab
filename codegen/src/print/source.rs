//! A printed kernel, before it is compiled.

use crate::kernel::extent::Extent;

/// A kernel before compilation: the statements of its function and how to run it.
///
/// The function is `i32 kernel(void *const *args, i64 begin, i64 end, void *scratch)`; it runs the iterations
/// `[begin, end)` of its outer loop and returns 0, 1 for an index out of range, 2 for extents that
/// do not broadcast, or 7 for a division of an integer by zero. Buffers and scratch are 64-byte aligned. On a GPU an iteration is a block of threads
/// (see [`crate::print::cuda`]).
#[derive(Clone, PartialEq, Debug)]
pub struct Source {
    /// Statements.
    pub body: String,
    /// Iterations of the outer loop.
    pub iterations: Extent,
    /// Minimum iterations of a worker.
    pub grain: i64,
    /// Scratch memory of each worker.
    pub scratch_bytes: u64,
    /// Number of arguments; set when the kernel becomes a step, for printers that must declare them.
    pub args: usize,
    /// Whether mathematical functions are called instead of inlined.
    pub calls_functions: bool,
}

impl Source {
    /// A kernel without scratch memory.
    pub fn new(body: String, iterations: Extent, grain: i64) -> Source {
        let (scratch_bytes, args, calls_functions) = Default::default();
        Source { body, iterations, grain, scratch_bytes, args, calls_functions }
    }
}
