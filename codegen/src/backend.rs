//! The interface to subgraph compilers: the reference backend, XLA, TensorRT and third-party backends.

use of_diag::Diagnostic;
use of_ir::{Func, Graph, OpId};
use of_plan::BackendTransfer;

/// A compiler of subgraphs. The run time has a loader of the same name.
pub trait Backend: Send + Sync {
    /// Name in plans and on the command line.
    fn name(&self) -> &'static str;

    /// Whether the backend can run `op`.
    ///
    /// # Errors
    /// The reason for the refusal, as one sentence for the user.
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String>;

    /// Whether the backend executes a rank's share of a transfer (`of.transfer`) inside a compiled function, so that the data
    /// stays in its memory. `mesh` has the number of ranks along each participating axis, and 1 along others. The loader
    /// receives the rank context.
    ///
    /// # Errors
    /// The reason for the refusal, as one sentence for the user.
    fn exchanges(&self, _transfer: &BackendTransfer, _mesh: &[usize]) -> Result<(), String> {
        Err("transfers between ranks go through host memory".into())
    }

    /// Whether a function with transfers compiles to one SPMD program for all participating ranks. Such a program handles
    /// rank-specific work itself. The output of [`Backend::compile`] determines this.
    fn spmd(&self) -> bool {
        false
    }

    /// What the user can change so that the backend claims a refused op, if anything.
    fn remedy(&self, _graph: &Graph, _op: OpId) -> Option<String> {
        None
    }

    /// Whether its executables of fixed extents run asynchronously to the host. Such steps are launched as early as possible,
    /// and readers of their results run late.
    fn is_async(&self) -> bool {
        false
    }

    /// Whether its executables keep variables in the backend's memory between runs: one that computes the next value of a variable
    /// leaves it there, and the value crosses to the host only where something there needs it.
    fn keeps_variables(&self) -> bool {
        false
    }

    /// The cost of a call, excluding its computation.
    fn overhead(&self) -> Overhead {
        Overhead::default()
    }

    /// Constants of up to this many elements are embedded in compiled functions; larger ones are operands, which the plan stores
    /// once. A function is open when some of its extents are unknown before the run.
    fn largest_constant(&self, _open: bool) -> usize {
        crate::extract::MAX_INLINE_ELEMENTS
    }

    /// Compiles a function of claimed ops to the bytes that the loader reads.
    ///
    /// # Errors
    /// When the function cannot be compiled.
    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic>;
}

/// The cost of running a subgraph on a backend.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Overhead {
    /// Seconds of a call.
    pub launch: f64,
    /// Transfer bandwidth to or from the backend's memory, in bytes a second; infinite where it shares host memory.
    pub bandwidth: f64,
}

impl Default for Overhead {
    fn default() -> Self {
        Overhead { launch: 0.0, bandwidth: f64::INFINITY }
    }
}
