//! The header that emulates a GPU on a CPU, and its scratch memory.

/// The header before a kernel's text.
pub const HEADER: &str = include_str!("emulator.h");

/// Scratch memory of a worker: aligned stacks of a block's threads, shared memory, the block state.
pub const SCRATCH: u64 = (256 + 1) * (16 << 10) + (48 << 10) + (32 << 10);
