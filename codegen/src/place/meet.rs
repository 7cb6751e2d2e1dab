//! Where ranks meet: all of them do a transfer on one backend, or it stays on the host.

use std::collections::BTreeMap;

use of_ir::Func;
use of_ops::boxing::Transfer;
use of_ops::control::Subgraph;
use of_ops::list::as_op;

/// Transfers that some functions of ranks would do on a backend, and others on the host or another backend.
pub(super) fn apart(funcs: &[Func]) -> Vec<i64> {
    let mut known: BTreeMap<i64, Option<String>> = BTreeMap::new();
    let mut out = Vec::new();
    for (id, on) in funcs.iter().flat_map(meetings) {
        if *known.entry(id).or_insert_with(|| on.clone()) != on {
            out.push(id);
        }
    }
    out
}

/// The number of each transfer of a function, and the backend that does it; nothing on the host.
fn meetings(func: &Func) -> Vec<(i64, Option<String>)> {
    let g = &func.graph;
    let mut out = Vec::new();
    for op in g.region_ops(g.entry()) {
        if let Some(t) = as_op::<Transfer>(g, op) {
            out.push((t.id, None));
        } else if let Some(s) = as_op::<Subgraph>(g, op) {
            let inner = g.region_ops(g.op(op).regions[0]).filter_map(|inner| as_op::<Transfer>(g, inner));
            out.extend(inner.map(|t| (t.id, Some(s.backend.to_string()))));
        }
    }
    out
}
