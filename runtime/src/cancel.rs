//! Cancellation: how another thread, or a condition, ends runs early.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the runs of a session between two tasks. The programs of branches and loops share it with their session.
#[derive(Default)]
pub struct Canceller {
    cancelled: AtomicBool,
    poll: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl Canceller {
    /// While set, runs end with [`crate::RunError::Cancelled`] before their next task. The session can run again once it is
    /// unset.
    pub fn set(&self, cancelled: bool) {
        self.cancelled.store(cancelled, Ordering::Release);
    }

    /// A condition that ends a run as well. It is evaluated before each task, by the thread that executes the task. Only the
    /// first condition is kept; returns whether this one is.
    pub fn poll_with(&self, condition: Box<dyn Fn() -> bool + Send + Sync>) -> bool {
        self.poll.set(condition).is_ok()
    }

    /// Whether a run must end.
    #[inline]
    pub(crate) fn ends_run(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || self.poll.get().is_some_and(|condition| condition())
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}
