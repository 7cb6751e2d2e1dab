//! The prologue of a kernel: the symbols that it reads, the sizes of its arguments, and checks of extents.
//!
//! Such a check is a shape guard at run time.

use std::sync::Arc;

use super::extent::Extent;

/// The prologue of a kernel.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Prologue {
    /// Number of buffer arguments; the array of symbol values is the argument after them.
    pub arguments: usize,
    /// Symbols that the kernel uses, sorted by name, and the position of each in the array.
    pub symbols: Vec<(Arc<str>, usize)>,
    /// Size in bytes of each argument, where known.
    pub sizes: Vec<Option<Extent>>,
    /// Checks; a failure ends the kernel with status 2.
    pub checks: Vec<Check>,
    /// Whether the number of iterations may be 0. The kernel is called even then, because its checks may fail.
    pub may_be_empty: bool,
}

/// A condition on extents that is checked at run time.
#[derive(Clone, PartialEq, Debug)]
pub enum Check {
    /// The first extent is 1 or equals the second.
    Broadcasts(Extent, Extent),
    /// Both extents are equal.
    Equal(Extent, Extent),
}

impl Check {
    /// The check that extent `own` broadcasts to `to`; `None` where statically known.
    pub fn broadcasts(own: &Extent, to: &Extent) -> Option<Check> {
        (own != to && !own.is(1)).then(|| Check::Broadcasts(own.clone(), to.clone()))
    }

    /// The check that two extents are equal; `None` where statically known.
    pub fn equal(a: &Extent, b: &Extent) -> Option<Check> {
        (a != b).then(|| Check::Equal(a.clone(), b.clone()))
    }
}
