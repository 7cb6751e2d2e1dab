//! The kernel that a user's op brings for GPUs.

use of_ir::DType;

/// A kernel in an op's own words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserKernel {
    /// Its arguments, in order.
    pub arguments: Vec<UserArgument>,
    /// Statements in CUDA C++, as the op gives them.
    pub text: String,
    /// How often they run.
    pub count: usize,
    /// By one thread each time, which is number `i`; else by a block, number `block`.
    pub per_thread: bool,
}

/// An argument of a [`UserKernel`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserArgument {
    /// Name in the statements.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Whether it is written, rather than read.
    pub written: bool,
}
