//! Random numbers.

use crate::import::{Fault, Importer, Node, Values, as_is, is_declared};

/// Generators that the IR may or may not have.
pub(super) fn unsupported(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    if is_declared(node.op) {
        return as_is(cx, node);
    }
    Err(Fault::unsupported("there are no random numbers in the IR"))
}
