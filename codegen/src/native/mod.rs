//! Native CPU code: fused groups become C on vectors, C becomes position-independent machine code.

pub mod cache;
pub mod contraction;
pub mod copy;
pub mod elementwise;
pub mod expr;
pub mod extent;
pub mod index;
pub mod isa;
pub mod object;
pub mod reduce;
pub mod rowwise;
pub mod schedule;
pub mod space;
pub mod toolchain;
pub mod walk;
pub mod window;
pub mod winograd;

pub use extent::Extent;
pub use isa::Isa;

/// The head of every kernel's text: types, vector helpers, mathematical functions.
const PRELUDE: &str = include_str!("prelude.c");

/// A kernel before compilation: the statements of its function and how to run it.
///
/// The function is `i32 kernel(void *const *args, i64 begin, i64 end, void *scratch)`; it runs the iterations
/// `[begin, end)` of its outer loop and returns 0, 1 for an index out of range, or 2 for
/// extents that do not broadcast. Buffers and scratch are 64-byte aligned.
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
}

impl Source {
    /// The whole C text for `isa`.
    pub fn text(&self, isa: &Isa) -> String {
        format!(
            "#define LANES {}\n{PRELUDE}\ni32 kernel(void *const *restrict args, i64 begin, i64 end, void *restrict scratch) {{\n{}  return 0;\n}}\n",
            isa.lanes, self.body
        )
    }
}
