//! Transfers at a rendezvous of ranks: all ranks run one on the same backend, in the same program where a backend compiles one for
//! many devices, or it stays on the host.

use std::collections::BTreeMap;

use of_ir::Func;
use of_ops::boxing::Transfer;
use of_ops::control::Subgraph;
use of_ops::list::as_op;

use crate::backend::Backend;
use crate::extract::extract_region;

/// Who does a transfer: a backend, in the program of this hash where all ranks have the same; nobody is the host.
type By = Option<(String, Option<blake3::Hash>)>;

/// Transfers that stay on the host, and why: some functions of ranks would do them on a backend, and others on the host, another
/// backend or in another program.
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

/// The number of each transfer of a function, and who does it.
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
            // What does not compile is told of when it is lowered.
            let program = one.and_then(|b| b.compile(&extract_region(g, region, b.largest_constant(false)).func).ok());
            let program = program.map(|bytes| blake3::hash(&bytes));
            out.extend(ids.into_iter().map(|id| (id, Some((s.backend.to_string(), program)))));
        }
    }
    out
}
