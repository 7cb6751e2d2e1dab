//! Where a function can be cut: positions in its forward ops at which all that follows needs one value alone, as between
//! the layers of a model.

use std::collections::HashMap;

use of_diag::Location;
use of_ir::{Graph, OpId, ValueId};

/// Whether an op is there for the gradients: the pass `differentiate` made it, or `recompute`.
pub fn is_backward(g: &Graph, op: OpId) -> bool {
    fn derived(loc: &Location) -> bool {
        match loc {
            Location::Derived { by, from } => {
                matches!(&**by, "differentiate" | "recompute") || from.iter().any(derived)
            }
            _ => false,
        }
    }
    derived(&g.op(op).loc)
}

/// The ops before the first backward one; all where there is none.
pub fn forward(g: &Graph) -> Vec<OpId> {
    g.region_ops(g.entry()).take_while(|op| !is_backward(g, *op)).collect()
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
