//! The header that emulates a GPU on a CPU, and the scratch memory that it needs.

/// The header that stands before a kernel's text.
pub const HEADER: &str = include_str!("shim.h");

/// Scratch memory of a worker: the stacks of a block's threads and room to align them, shared memory, the block.
pub const SCRATCH: u64 = (256 + 1) * (16 << 10) + (48 << 10) + (32 << 10);
