//! Random numbers.

use crate::import::{Fault, Importer, Node, Values};

/// Generators, of which the IR has none.
pub(super) fn unsupported<'m>(_cx: &mut Importer<'m, '_>, _node: Node<'m>) -> Values {
    Err(Fault::unsupported("there are no random numbers in the IR"))
}
