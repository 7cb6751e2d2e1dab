//! The interface to compilers of subgraphs: the reference backend, XLA, TensorRT and those of third parties.

use of_diag::Diagnostic;
use of_ir::{Func, Graph, OpId};
use of_plan::Rendezvous;

/// A compiler of subgraphs. Its counterpart at run time is a loader of the same name.
pub trait Backend: Send + Sync {
    /// Name in plans and on the command line.
    fn name(&self) -> &'static str;

    /// Whether it can run `op`.
    ///
    /// # Errors
    /// The reason why not, one sentence for people.
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String>;

    /// Whether it does a rank's share in a transfer (`of.transfer`) by itself, as a step among others of a function: what is
    /// transferred then stays in its memory. `mesh` has the ranks along each axis that takes part, and 1 along others. The
    /// loader gets the rank's seat.
    ///
    /// # Errors
    /// The reason why not, one sentence for people.
    fn exchanges(&self, _transfer: &Rendezvous, _mesh: &[usize]) -> Result<(), String> {
        Err("what passes between ranks goes through the memory of the host".into())
    }

    /// Whether functions with transfers are one program for all ranks that meet there, as a compiler makes for many devices: then
    /// ranks do by themselves what is not the same on all of them. What [`Backend::compile`] gives tells.
    fn spmd(&self) -> bool {
        false
    }

    /// What the user can do so that it claims an op that it refuses, where there is something.
    fn remedy(&self, _graph: &Graph, _op: OpId) -> Option<String> {
        None
    }

    /// Whether its executables of fixed extents work beside the host. Then they are begun as early as they can be, and what
    /// reads their results comes late.
    fn is_async(&self) -> bool {
        false
    }

    /// What a call costs beside the work that it does.
    fn overhead(&self) -> Overhead {
        Overhead::default()
    }

    /// Constants of up to so many elements are part of the functions that it compiles; larger ones are operands, which
    /// the plan holds once for all. A function is open where some of its extents are not known before the run.
    fn largest_constant(&self, _open: bool) -> usize {
        crate::extract::LARGEST_INLINE
    }

    /// Compiles a function whose ops it claimed to the bytes that its loader takes.
    ///
    /// # Errors
    /// When the function cannot be compiled.
    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic>;
}

/// What a region pays for running on a backend.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Overhead {
    /// Seconds of a call.
    pub launch: f64,
    /// Bytes a second that enter or leave the backend's memory; infinite where it shares that of the host.
    pub bandwidth: f64,
}

impl Default for Overhead {
    fn default() -> Self {
        Overhead { launch: 0.0, bandwidth: f64::INFINITY }
    }
}
