//! Random numbers.

use crate::import::{Fault, Importer, Node, Values};

/// Why they are not read.
pub(super) const REASON: &str = "there are no random numbers in the IR";

/// Generators, of which the IR has none.
pub(super) fn unsupported<'m>(_cx: &mut Importer<'m, '_>, _node: Node<'m>) -> Values {
    Err(Fault::unsupported(REASON))
}
