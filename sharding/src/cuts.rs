//! Where a function can be cut: positions in its forward ops at which all that follows needs one value alone, as between
//! the layers of a model.

use std::collections::{HashMap, HashSet};

use of_diag::Location;
use of_ir::{Func, Graph, OpId, ValueId};
use of_ops::training::CARRIED;

/// The two halves of a training step.
pub struct Phases {
    /// What makes the loss, in order; all ops where none is known to be backward.
    pub forward: Vec<OpId>,
    /// What is there for the gradients.
    pub backward: HashSet<OpId>,
}

impl Phases {
    /// The phases of a function. Locations say what `differentiate` and `recompute` made. Where none says so, as in a step
    /// that comes from elsewhere, backward is what only the next step reads.
    pub fn of(func: &Func) -> Phases {
        let g = &func.graph;
        let order = || g.region_ops(g.entry());
        let made: HashSet<OpId> = order().filter(|op| is_derived(&g.op(*op).loc)).collect();
        let backward = if made.is_empty() { for_next_step(func) } else { made };
        let ends = |op: &OpId| g.op(*op).def.traits().terminator;
        let forward = match order().find(|op| backward.contains(op)) {
            None => order().collect(),
            // Behind the first come the backward ops, updates, and of a step from elsewhere perhaps more of the forward ones.
            Some(first) if is_derived(&g.op(first).loc) => order().take_while(|op| *op != first).collect(),
            Some(_) => order().filter(|op| !backward.contains(op) && !ends(op)).collect(),
        };
        Phases { forward, backward }
    }
}

fn is_derived(loc: &Location) -> bool {
    match loc {
        Location::Derived { by, from } => matches!(&**by, "differentiate" | "recompute") || from.iter().any(is_derived),
        _ => false,
    }
}

/// The ops that no output needs but those that are carried to the next step; none where all outputs are of one kind.
fn for_next_step(func: &Func) -> HashSet<OpId> {
    let g = &func.graph;
    let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
    let own = |i: usize| carried.get(i).is_none_or(|input| *input < 0);
    let results = g.outputs();
    if (0..results.len()).all(own) || !(0..results.len()).any(own) {
        return HashSet::new();
    }
    let mut needed: HashSet<ValueId> = results.iter().enumerate().filter(|(i, _)| own(*i)).map(|(_, v)| *v).collect();
    let order: Vec<OpId> = g.region_ops(g.entry()).collect();
    let mut rest = HashSet::new();
    for op in order.into_iter().rev() {
        let data = g.op(op);
        if data.results.iter().any(|v| needed.contains(v)) {
            needed.extend(data.operands.iter().copied().chain(g.captured(op)));
        } else if !data.def.traits().constant && !data.def.traits().terminator {
            rest.insert(op);
        }
    }
    rest
}

/// For each cut the position of the op before it, and the value that crosses it. Constants and inputs are everywhere.
pub fn cuts(g: &Graph, forward: &[OpId]) -> Vec<(usize, ValueId)> {
    let at: HashMap<OpId, usize> = forward.iter().copied().zip(0..).collect();
    // The last forward reader of each value, and the values at their last reader.
    let mut last: HashMap<ValueId, usize> = HashMap::new();
    let mut ends: Vec<Vec<ValueId>> = vec![Vec::new(); forward.len()];
    for op in forward.iter().filter(|op| !g.op(**op).def.traits().constant) {
        for v in &g.op(*op).results {
            if let Some(end) = g.uses(*v).iter().filter_map(|u| at.get(&u.op)).max() {
                ends[*end].push(*v);
                last.insert(*v, *end);
            }
        }
    }
    let mut alive: Vec<ValueId> = Vec::new();
    let mut out = Vec::new();
    for (i, op) in forward.iter().enumerate() {
        alive.retain(|v| !ends[i].contains(v));
        alive.extend(g.op(*op).results.iter().filter(|v| last.contains_key(v)));
        if let [only] = alive.as_slice() {
            out.push((i, *only));
        }
    }
    out
}
