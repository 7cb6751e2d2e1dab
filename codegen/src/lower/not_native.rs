//! Ops that a backend runs instead of native code.

use of_diag::Location;

use crate::place::INTERPRETED_OPS_PER_SECOND;

/// An op that runs on a backend instead of native code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotNative {
    /// Name of the op.
    pub op: String,
    /// Where it comes from.
    pub location: Location,
    /// Why it has no native code.
    pub reason: String,
    /// The backend that claimed it.
    pub backend: &'static str,
    /// Estimated arithmetic operations of a run; a symbol counts as [`of_ops::work::OPEN`].
    pub flops: u64,
    /// Estimated bytes that a run reads and writes, counted in the same way.
    pub bytes: u64,
    /// Whether the estimates depend on symbols.
    pub open: bool,
}

impl NotNative {
    /// Whether it computes anything but extents: an empty result only binds symbols.
    pub fn computes(&self) -> bool {
        self.bytes > 0
    }

    /// The estimated seconds of a run in the interpreter.
    pub fn seconds(&self) -> f64 {
        (self.flops.max(self.bytes / 4)) as f64 / INTERPRETED_OPS_PER_SECOND
    }
}
