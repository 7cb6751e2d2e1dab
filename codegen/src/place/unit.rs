//! Units of placement: ops that native code would fuse, which go to a backend as a whole.

use of_ir::OpId;

use crate::backend::Backend;

/// Ops that are placed together, with their costs.
pub(crate) struct Unit<'a> {
    /// The ops, in the order of the function.
    pub ops: Vec<OpId>,
    /// The backend that claimed them.
    pub on: Option<&'a dyn Backend>,
    /// Whether a pin chose the backend.
    pub pinned: bool,
    /// Modelled seconds of native code.
    pub native: f64,
    /// Whether the unit computes anything: views and shapes alone do not make a subgraph.
    pub computes: bool,
}
