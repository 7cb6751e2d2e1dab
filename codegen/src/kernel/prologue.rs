//! What stands before the statements of a kernel: symbols that it reads, sizes of its arguments, checks of extents.

use std::sync::Arc;

use super::extent::Extent;

/// The prologue of a kernel.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Prologue {
    /// Number of buffer arguments; the table of symbol values is the argument after them.
    pub arguments: usize,
    /// Symbols that the kernel computes with, sorted by name, and the position of each in the table.
    pub symbols: Vec<(Arc<str>, usize)>,
    /// Bytes of each argument, where that is known.
    pub sizes: Vec<Option<Extent>>,
    /// Checks that end the kernel with status 2.
    pub checks: Vec<Check>,
    /// Whether the number of iterations may be 0. The kernel is called then too, as its operands may contradict its results.
    pub may_be_empty: bool,
}

/// A condition on extents that is not known before the run.
#[derive(Clone, PartialEq, Debug)]
pub enum Check {
    /// The first extent is 1 or equals the second.
    Broadcasts(Extent, Extent),
    /// Both extents are equal.
    Equal(Extent, Extent),
}

impl Check {
    /// The check that `own` elements broadcast to `to`; nothing where that is known.
    pub fn broadcasts(own: &Extent, to: &Extent) -> Option<Check> {
        (own != to && !own.is(1)).then(|| Check::Broadcasts(own.clone(), to.clone()))
    }

    /// The check that two extents are equal; nothing where that is known.
    pub fn equal(a: &Extent, b: &Extent) -> Option<Check> {
        (a != b).then(|| Check::Equal(a.clone(), b.clone()))
    }
}
