//! ONNX operators: what differs between versions, and what differs from the IR.
//!
//! An importer changes a node into the form of the newest operator set and emits it, or makes several ops. Operators
//! that never changed have no importer: the declaration of the op in the IR is enough.

/// The rows of a domain: each operator with the operator sets in which its reading changes.
macro_rules! table {
    ($domain:expr; $($op:literal: $($since:literal $import:path),+;)*) => {
        &[$($($crate::ops::entry::ImporterEntry { domain: $domain, op: $op, since: $since, import: $import },)+)*]
    };
}

mod axes;
mod compose;
mod contrib;
mod control;
mod elementwise;
mod entry;
mod legacy;
mod ml;
mod normalization;
mod preview;
mod random;
mod resize;
pub(crate) mod schema;
mod softmax;
mod structure;
mod support;
mod table;
mod tensors;

use std::collections::HashMap;
use std::sync::OnceLock;

pub(crate) use support::why_not;
pub use support::{Operator, Support, operators};

use crate::import::{as_is, is_declared};
pub(crate) use entry::ImportFn;
use entry::ImporterEntry;

/// The rows of every domain.
const TABLES: [&[ImporterEntry]; 4] = [table::TABLE, contrib::TABLE, ml::TABLE, preview::TABLE];

/// The importer of an operator in the given version; `None` where the operator is not known.
pub(crate) fn find(domain: &str, op: &str, version: i64) -> Option<ImportFn> {
    static ROWS: OnceLock<HashMap<(&str, &str), Vec<&ImporterEntry>>> = OnceLock::new();
    let rows = ROWS.get_or_init(|| {
        let mut rows: HashMap<_, Vec<&ImporterEntry>> = HashMap::new();
        for entry in TABLES.iter().copied().flatten() {
            rows.entry((entry.domain, entry.op)).or_default().push(entry);
        }
        rows
    });
    let row =
        rows.get(&(domain, op)).and_then(|list| list.iter().filter(|e| e.since <= version).max_by_key(|e| e.since));
    match row {
        Some(entry) => Some(entry.import),
        None if domain == contrib::DOMAIN && contrib::REFUSED.iter().any(|row| row.0 == op) => Some(contrib::refused),
        None if domain.is_empty() => is_declared(op).then_some(as_is as ImportFn),
        None => is_declared(&format!("{domain}::{op}")).then_some(as_is as ImportFn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_unique() {
        for pair in TABLES.iter().flat_map(|t| t.windows(2)) {
            let [a, b] = [0, 1].map(|i| (pair[i].domain, pair[i].op, pair[i].since));
            assert!(a < b, "{b:?}");
        }
    }
}
