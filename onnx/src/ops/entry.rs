//! A row of the tables of operators.

use crate::import::{ImportResult, Importer, Node};

/// Imports one node.
pub(crate) type ImportFn = for<'m, 'i, 'g> fn(&'i mut Importer<'m, 'g>, Node<'m>) -> ImportResult;

/// One row of the table: operator `op` of `domain` is read by `import` from operator set `since` on, up to the next
/// row of the same operator.
pub(crate) struct ImporterEntry {
    pub domain: &'static str,
    pub op: &'static str,
    pub since: i64,
    pub import: ImportFn,
}
