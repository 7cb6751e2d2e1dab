//! Cut points: positions in the forward ops where one value alone connects what is before with what is behind, as between the layers of a
//! model.

use std::collections::HashSet;

use of_diag::Location;
use of_ir::{Func, Graph, IdMap, IdSet, OpId, ValueId};
use of_ops::training::CARRIED;

/// The forward and backward ops of a training step.
pub struct Phases {
    /// Ops that compute the loss, in order; all ops where no backward op is known.
    pub forward: Vec<OpId>,
    /// Ops that compute gradients.
    pub backward: IdSet<OpId>,
}

impl Phases {
    /// The phases of a function. Locations show which ops `differentiate` and `recompute` made. Without such locations,
    /// as in an imported training step, the backward ops are those that only the next step reads.
    pub fn of(func: &Func) -> Phases {
        let g = &func.graph;
        let order = || g.region_ops(g.entry());
        let made: IdSet<OpId> = order().filter(|op| is_derived(&g.op(*op).loc)).collect();
        let backward = if made.is_empty() { for_next_step(func) } else { made };
        let ends = |op: &OpId| g.op(*op).def.traits().terminator;
        let forward = match order().find(|op| backward.contains(op)) {
            None => order().collect(),
            // After the first backward op come backward ops and updates. In an imported step, forward ops may follow
            // too.
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

/// The ops that only carried outputs need. Empty where all outputs are carried, or none.
fn for_next_step(func: &Func) -> IdSet<OpId> {
    let g = &func.graph;
    let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
    let is_result = |i: usize| carried.get(i).is_none_or(|input| *input < 0);
    let results = g.outputs();
    if (0..results.len()).all(is_result) || !(0..results.len()).any(is_result) {
        return HashSet::default();
    }
    let mut needed: IdSet<ValueId> =
        results.iter().enumerate().filter(|(i, _)| is_result(*i)).map(|(_, v)| *v).collect();
    let order: Vec<OpId> = g.region_ops(g.entry()).collect();
    let mut rest = HashSet::default();
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

/// A cut point.
pub struct CutPoint {
    /// The position of the op before it.
    pub after: usize,
    /// The value that crosses it.
    pub value: ValueId,
    /// Values that cross it, too, but do not connect one layer with the next: they are small, such as the counter of random numbers, or
    /// many layers read them, as a mask.
    pub shared: Vec<ValueId>,
}

/// The most bytes of a value that is small.
const SMALL: f64 = 64.0;

/// The cut points. Constants and inputs are available everywhere.
pub fn cut_points(g: &Graph, forward: &[OpId]) -> Vec<CutPoint> {
    let at: IdMap<OpId, usize> = forward.iter().copied().zip(0..).collect();
    // The last forward reader of each value, and the values by their last reader.
    let mut last: IdMap<ValueId, usize> = IdMap::default();
    let mut ends: Vec<Vec<ValueId>> = vec![Vec::new(); forward.len()];
    for op in forward.iter().filter(|op| !g.op(**op).def.traits().constant) {
        for v in &g.op(*op).results {
            if let Some(end) = g.uses(*v).iter().filter_map(|u| at.get(&u.op)).max() {
                ends[*end].push(*v);
                last.insert(*v, *end);
            }
        }
    }
    let is_shared = |made: usize, v: &ValueId| {
        let lives = last.get(v).map_or(0, |end| end - made);
        of_ops::work::bytes(g.ty(*v)) <= SMALL || 2 * lives > forward.len()
    };
    let (mut live, mut shared): (Vec<ValueId>, Vec<ValueId>) = (Vec::new(), Vec::new());
    let mut out = Vec::new();
    for (i, op) in forward.iter().enumerate() {
        live.retain(|v| !ends[i].contains(v));
        shared.retain(|v| !ends[i].contains(v));
        for v in g.op(*op).results.iter().filter(|v| last.contains_key(v)) {
            if is_shared(i, v) { shared.push(*v) } else { live.push(*v) }
        }
        match (&live[..], &shared[..]) {
            ([value], _) => out.push(CutPoint { after: i, value: *value, shared: shared.clone() }),
            ([], [value]) => out.push(CutPoint { after: i, value: *value, shared: Vec::new() }),
            _ => {}
        }
    }
    out
}
