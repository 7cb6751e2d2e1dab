//! The memory that models and the state of their sequences need together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is in use, and the most that may be.
#[derive(Debug, Default)]
pub struct MemoryBudget {
    /// `None` is no limit.
    limit: Option<u64>,
    /// Bytes of all versions that are loaded.
    models: AtomicU64,
    /// Bytes of the states of all sequences.
    states: AtomicU64,
}

/// Not so many bytes are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Bytes in use.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub fn new(limit: Option<u64>) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget { limit, ..MemoryBudget::default() })
    }

    /// Bytes of all states.
    pub fn states(&self) -> u64 {
        self.states.load(Relaxed)
    }

    /// All versions that are loaded need so many bytes.
    pub fn set_models(&self, bytes: u64) {
        self.models.store(bytes, Relaxed);
    }

    /// Whether so many further bytes are left.
    ///
    /// # Errors
    /// When they are not.
    pub fn check(&self, further: u64) -> Result<(), Exceeded> {
        let Some(limit) = self.limit else { return Ok(()) };
        let used = self.models.load(Relaxed).saturating_add(self.states());
        if used.saturating_add(further) <= limit { Ok(()) } else { Err(Exceeded { used, limit }) }
    }
}

/// The bytes of a state. Dropped, they are free again.
#[derive(Debug)]
pub struct StateMemory {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl StateMemory {
    /// A state without bytes.
    pub fn new(budget: &Arc<MemoryBudget>) -> StateMemory {
        StateMemory { budget: Arc::clone(budget), bytes: 0 }
    }

    /// The state needs so many bytes from now on.
    ///
    /// # Errors
    /// When they are more than before, and not left.
    pub fn resize(&mut self, bytes: u64) -> Result<(), Exceeded> {
        let before = self.bytes;
        self.budget.check(bytes.saturating_sub(before)).or_else(|e| if bytes <= before { Ok(()) } else { Err(e) })?;
        self.budget.states.fetch_add(bytes, Relaxed);
        self.budget.states.fetch_sub(before, Relaxed);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for StateMemory {
    fn drop(&mut self) {
        self.budget.states.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_models_share_the_limit() {
        let budget = MemoryBudget::new(Some(100));
        budget.set_models(60);
        let (mut a, mut b) = (StateMemory::new(&budget), StateMemory::new(&budget));
        assert_eq!((a.resize(30), b.resize(20)), (Ok(()), Err(Exceeded { used: 90, limit: 100 })));
        assert_eq!((b.resize(10), budget.states()), (Ok(()), 40));
        budget.set_models(90);
        assert_eq!(
            (a.resize(30), a.resize(5), budget.states()),
            (Ok(()), Ok(()), 15),
            "what needs no more is never refused"
        );
        drop(a);
        assert_eq!((budget.states(), budget.check(1)), (10, Err(Exceeded { used: 100, limit: 100 })));
        assert_eq!(MemoryBudget::new(None).check(u64::MAX), Ok(()));
    }
}
