//! Rendezvous of ranks: all ranks run a transfer on the same backend, within the same program for an SPMD backend; otherwise it
//! stays on the host.

use std::collections::BTreeMap;

use of_ir::Func;
use of_ops::boxing::Transfer;
use of_ops::control::Subgraph;
use of_ops::list::as_op;

use crate::backend::Backend;
use crate::extract::extract_region;

/// The executor of a transfer: a backend, with the hash of its program if it is SPMD; `None` is the host.
type By = Option<(String, Option<blake3::Hash>)>;

/// Transfers that stay on the host, and why: the functions of ranks would run them on different backends, in different programs,
/// or partly on the host.
pub(crate) fn conflicts(funcs: &[Func], known: &[&dyn Backend]) -> BTreeMap<i64, &'static str> {
    let mut first: BTreeMap<i64, By> = BTreeMap::new();
    let mut out = BTreeMap::new();
    for (id, by) in funcs.iter().flat_map(|func| transfers(func, known)) {
        let first = first.entry(id).or_insert_with(|| by.clone());
        if first.as_ref().map(|(name, _)| name) != by.as_ref().map(|(name, _)| name) {
            out.insert(id, "not all ranks would do it in the same way");
        } else if *first != by {
            out.insert(id, "the programs of the ranks around it are not the same");
        }
    }
    out
}

/// The id of each transfer of a function, and its executor.
fn transfers(func: &Func, known: &[&dyn Backend]) -> Vec<(i64, By)> {
    let g = &func.graph;
    let mut out = Vec::new();
    for op in g.region_ops(g.entry()) {
        if let Some(t) = as_op::<Transfer>(g, op) {
            out.push((t.id, None));
        } else if let Some(s) = as_op::<Subgraph>(g, op) {
            let region = g.op(op).regions[0];
            let ids: Vec<i64> =
                g.region_ops(region).filter_map(|inner| as_op::<Transfer>(g, inner)).map(|t| t.id).collect();
            let one = known.iter().find(|b| b.name() == &*s.backend && b.spmd() && !ids.is_empty());
            // Lowering reports functions that do not compile.
            let program = one.and_then(|b| b.compile(&extract_region(g, region, b.largest_constant(false)).func).ok());
            let program = program.map(|bytes| blake3::hash(&bytes));
            out.extend(ids.into_iter().map(|id| (id, Some((s.backend.to_string(), program)))));
        }
    }
    out
}
