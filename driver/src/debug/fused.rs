//! Faults that no op shows alone: fused groups of the compiled model, and runs of ops.

use std::collections::BTreeSet;

use of_codegen::analysis::roles::{Role, Roles};
use of_codegen::fuse::fuse;
use of_ir::{Func, Graph, OpId};

use super::case::{Case, Values, computing};

/// The groups of ops that share a kernel or a subgraph, in execution order, as code generation makes them.
pub(super) fn groups(func: &Func) -> Vec<Vec<OpId>> {
    let graph = &func.graph;
    let roles = Roles::of(graph, graph.entry(), graph.args());
    let order = computing(graph);
    let in_order = |set: &BTreeSet<OpId>| order.iter().copied().filter(|op| set.contains(op)).collect::<Vec<_>>();
    let groups = fuse(graph, graph.region_ops(graph.entry()), &roles, Vec::new(), true);
    groups
        .iter()
        .map(|group| {
            let parts = group.parts.iter().flat_map(|p| p.ops.iter().chain(&p.recomputed));
            let mut ops: BTreeSet<OpId> = group.ops.iter().chain(&group.recomputed).chain(parts).copied().collect();
            add_aliases(graph, &roles, &order, &mut ops);
            in_order(&ops)
        })
        .filter(|ops| !ops.is_empty())
        .collect()
}

/// Adds the ops that show a value of the group under another type to a reader in the group.
fn add_aliases(graph: &Graph, roles: &Roles, order: &[OpId], ops: &mut BTreeSet<OpId>) {
    for op in order.iter().rev() {
        let data = graph.op(*op);
        let read = data.results.iter().flat_map(|v| graph.uses(*v)).any(|u| ops.contains(&u.op));
        let from = data.operands.first().and_then(|v| graph.def_op(*v));
        let made = from.is_some_and(|d| ops.contains(&d) || *roles.get(d) == Role::Alias);
        if *roles.get(*op) == Role::Alias && read && made {
            ops.insert(*op);
        }
    }
}

/// The smallest run of pieces that still shows a difference, and its case: first the shortest prefix, then the shortest
/// suffix of that. `None` where even all pieces together show none.
pub(super) fn shortest_run(
    graph: &Graph,
    pieces: &[Vec<OpId>],
    values: &Values,
    shows: &dyn Fn(&Case) -> bool,
) -> Option<Vec<OpId>> {
    let ops = |from: usize, to: usize| pieces[from..to].concat();
    let fails = |from: usize, to: usize| Case::of(graph, &ops(from, to), values).is_some_and(|c| shows(&c));
    if !fails(0, pieces.len()) {
        return None;
    }
    // `fails(0, high)` holds throughout, so a difference is there at the end even where it comes and goes.
    let (mut low, mut high) = (0, pieces.len());
    while low + 1 < high {
        let middle = usize::midpoint(low, high);
        if fails(0, middle) { high = middle } else { low = middle }
    }
    let (mut from, mut too_far) = (0, high);
    while from + 1 < too_far {
        let middle = usize::midpoint(from, too_far);
        if fails(middle, high) { from = middle } else { too_far = middle }
    }
    Some(ops(from, high))
}
