//! Native code: fused groups become loop nests ([`nest`]), nests become text, on the CPU C on vectors, and C becomes
//! position-independent machine code. What is particular to GPUs is in [`crate::cuda`].

pub mod attention;
pub mod cache;
pub mod contraction;
pub mod copy;
pub mod elementwise;
pub mod expr;
pub mod extent;
pub mod index;
pub mod isa;
pub mod nest;
pub mod object;
pub mod reduce;
pub mod region;
pub mod rowwise;
pub mod schedule;
pub mod space;
pub mod table;
pub mod toolchain;
pub mod walk;
pub mod window;
pub mod winograd;
pub mod zeroed;

pub use extent::Extent;
pub use isa::{Isa, Language};
pub use nest::Nest;
pub use zeroed::Zeroed;

use crate::cuda;

/// The head of every kernel's text: types, vector helpers, mathematical functions.
const PRELUDE: &str = concat!(include_str!("prelude.c"), include_str!("../functions.c"));

/// A kernel before compilation: the statements of its function and how to run it.
///
/// The function is `i32 kernel(void *const *args, i64 begin, i64 end, void *scratch)`; it runs the iterations
/// `[begin, end)` of its outer loop and returns 0, 1 for an index out of range, or 2 for
/// extents that do not broadcast. Buffers and scratch are 64-byte aligned. On a GPU an iteration is a block of threads
/// (see [`cuda::text`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Statements.
    pub body: String,
    /// Iterations of the outer loop.
    pub iterations: Extent,
    /// The fewest iterations worth handing to a worker.
    pub grain: i64,
    /// Scratch memory of each worker.
    pub scratch_bytes: u64,
    /// Arguments; counted when the kernel becomes a step, and read by printers that must declare them.
    pub args: usize,
}

impl Source {
    /// A kernel without scratch memory.
    pub fn new(body: String, iterations: Extent, grain: i64) -> Source {
        Source { body, iterations, grain, scratch_bytes: 0, args: 0 }
    }

    /// The whole text for `isa`.
    pub fn text(&self, isa: &Isa) -> String {
        if isa.is_gpu() {
            return cuda::text(self, isa);
        }
        format!(
            "#define LANES {}\n{PRELUDE}\ni32 kernel(void *const *restrict args, i64 begin, i64 end, void *restrict scratch) {{\n{}  return 0;\n}}\n",
            isa.lanes, self.body
        )
    }
}
