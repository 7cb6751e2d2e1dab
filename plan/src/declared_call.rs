//! The calls that a kernel was compiled for: how far it reaches into each argument.
//!
//! Machine code cannot be checked. What it may access is therefore declared by the compiler, next to the code and apart from
//! the tasks: the memory of each argument, who writes to it, and the iterations of the loop. The verifier compares each call of
//! a program with these declarations, so a register that shrank, a loop that grew or an argument that names another
//! buffer is refused before the kernel runs. The declaration itself is trusted, as the machine code is.

use crate::Extent;

/// A call that a kernel was compiled for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeclaredCall {
    /// The arguments.
    #[prost(message, repeated, tag = "1")]
    pub args: Vec<DeclaredArg>,
    /// Iterations of the outermost loop; 0 where they depend on symbols.
    #[prost(int64, tag = "2")]
    pub iterations: i64,
    /// Parts of the loop are multiples of it.
    #[prost(int64, tag = "3")]
    pub grain: i64,
    /// Scratch memory that each worker needs.
    #[prost(uint64, tag = "4")]
    pub scratch_bytes: u64,
    /// Iterations as a function of the symbols, where they depend on them.
    #[prost(message, optional, tag = "5")]
    pub dynamic: Option<Extent>,
    /// Values in the table of symbols; 0 without one.
    #[prost(uint32, tag = "6")]
    pub symbols: u32,
}

/// What a kernel may access of an argument.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeclaredArg {
    /// Bytes from its address on, for a buffer.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// Alignment of its address, a power of two; 0 for an object.
    #[prost(uint64, tag = "2")]
    pub align: u64,
    /// Whether it is written.
    #[prost(bool, tag = "3")]
    pub writes: bool,
    /// Element type of an object.
    #[prost(int32, tag = "4")]
    pub dtype: i32,
    /// Extents of an object as functions of the symbols.
    #[prost(message, repeated, tag = "5")]
    pub extents: Vec<Extent>,
}
