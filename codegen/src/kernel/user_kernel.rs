//! The GPU kernel of a user op.

use of_ir::DType;

/// A kernel whose text the user op supplies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserKernel {
    /// Its arguments, in order.
    pub arguments: Vec<UserArgument>,
    /// Statements in CUDA C++, as the op supplies them.
    pub text: String,
    /// How many times they run.
    pub count: usize,
    /// Whether each run is a thread, with index `i`; else it is a block, with index `block`.
    pub per_thread: bool,
}

/// An argument of a [`UserKernel`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserArgument {
    /// Name in the statements.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Whether it is written; otherwise it is read.
    pub written: bool,
}
