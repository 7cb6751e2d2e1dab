//! The interface to compilers of subgraphs: the reference backend, XLA, TensorRT and those of third parties.

use of_diag::Diagnostic;
use of_ir::{Func, Graph, OpId};

/// A compiler of subgraphs. Its counterpart at run time is a loader of the same name.
pub trait Backend: Send + Sync {
    /// Name in plans and on the command line.
    fn name(&self) -> &'static str;

    /// Whether it can run `op`.
    ///
    /// # Errors
    /// The reason why not, one sentence for people.
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String>;

    /// Compiles a function whose ops it claimed to the bytes that its loader takes.
    ///
    /// # Errors
    /// When the function cannot be compiled.
    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic>;
}
