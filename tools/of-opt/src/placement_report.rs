//! Text about placement: which ops each backend executes, and why it does not execute others.

use of_codegen::place::Placement;
use of_driver::count;
use of_ops::OpSpec;
use of_ops::boxing::Transfer;

/// The report of a placement: a line for each backend; with `all`, every cluster and every op that was left out, and why.
pub fn lines(p: &Placement, all: bool) -> Vec<String> {
    let mut names: Vec<&str> = p.subgraphs.iter().map(|r| r.backend.as_str()).collect();
    names.extend(p.rejected.iter().map(|r| r.backend.as_str()));
    names.sort_unstable();
    names.dedup();
    let mut out = Vec::new();
    for name in names {
        let subgraphs: Vec<_> = p.subgraphs.iter().filter(|r| r.backend == name).collect();
        let ops: usize = subgraphs.iter().map(|r| r.ops.len()).sum();
        let refused: Vec<_> = p.rejected.iter().filter(|r| r.backend == name).collect();
        let more = if all || refused.is_empty() { "" } else { "; -v says which and why" };
        let left = if refused.is_empty() { "nothing is".into() } else { count(refused.len(), "op") };
        let (ops, subgraphs_of) = (count(ops, "op"), count(subgraphs.len(), "subgraph"));
        let met: usize = subgraphs.iter().map(|r| r.rendezvous.len()).sum();
        let met = if met > 0 { format!(" with {} between ranks", count(met, "transfer")) } else { String::new() };
        out.push(format!("  {name}: {ops} in {subgraphs_of}{met}, {left} left out{more}"));
        if !all {
            continue;
        }
        for (i, r) in subgraphs.iter().enumerate() {
            let (native, call) = (r.native * 1e6, r.overhead * 1e6);
            out.push(format!(
                "    subgraph {i}: {}; native code {native:.0} us, calling {name} {call:.0} us (modelled)",
                count(r.ops.len(), "op")
            ));
            let stays = format!("by {name}, from its memory to that of other ranks");
            out.extend(r.rendezvous.iter().map(|at| format!("    {} at {at}: {stays}", Transfer::NAME)));
        }
        for r in refused {
            let fix = r.fix.as_ref().map_or(String::new(), |f| format!("; {f}"));
            out.push(format!("    {} at {}: {}{fix}", r.op, r.location, r.reason));
        }
    }
    out
}

/// The report of the placements of ranks, once for ranks with equal reports. `ranks` gives for each rank the index of its
/// placement.
pub fn by_rank(placements: &[Placement], ranks: &[usize], all: bool) -> Vec<String> {
    let mut reports: Vec<(Vec<String>, Vec<usize>)> = Vec::new();
    let placed = ranks.iter().enumerate().filter_map(|(rank, func)| Some((rank, placements.get(*func)?)));
    for (rank, placement) in placed {
        let lines = lines(placement, all);
        match reports.iter_mut().find(|(other, _)| *other == lines) {
            Some((_, ranks)) => ranks.push(rank),
            None => reports.push((lines, vec![rank])),
        }
    }
    let text = |(lines, ranks): (Vec<String>, Vec<usize>)| {
        let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
        let word = if ranks.len() == 1 { "rank" } else { "ranks" };
        std::iter::once(format!("{word} {}:", names.join(", "))).chain(lines)
    };
    reports.into_iter().flat_map(text).collect()
}
