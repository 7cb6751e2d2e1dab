//! Findings of the verifier.

use std::fmt;

/// The class of a finding: which invariant is violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// An id or index names nothing.
    Index,
    /// An id or name occurs twice.
    Duplicate,
    /// Types, kinds or extents contradict each other.
    Type,
    /// A range reaches outside of what holds it.
    Range,
    /// A buffer is not aligned for its elements.
    Alignment,
    /// A register is not produced and consumed as it says.
    Ownership,
    /// The register tokens deadlock.
    Deadlock,
    /// Two registers that share memory can be live at once.
    Overlap,
    /// The declared peak memory is wrong.
    Peak,
    /// A declared lifetime does not cover the register's uses.
    Lifetime,
    /// A kernel is called otherwise than it was compiled for, or its declaration was changed.
    Call,
    /// The bytes of a kernel do not match their hash.
    Code,
    /// The plan uses something that this version reserves for later.
    Reserved,
}

/// A violated invariant: where, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The violated invariant.
    pub kind: FindingKind,
    /// Where: program, task, register.
    pub place: String,
    /// What was expected and what was found.
    pub message: String,
}

impl Finding {
    pub(crate) fn new(kind: FindingKind, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, place: place.into(), message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}
