//! Which transfers can take place while the device computes: those of variables, which are there when a step begins, and those of
//! gradients, which only updates read. `overlap.rs` orders the ops of a step so that they do.

use of_ir::{Func, Graph, OpId, ValueId};
use of_ops::training::{CARRIED, VARIABLES};
use of_ops::work;

/// Operations for each byte that an op reads or writes, from which on it takes more time than a pass over its operands.
const HEAVY: f64 = 8.0;

/// For each value, by position in the arena, whether its transfers can overlap with computation. None can in a function that keeps nothing
/// for the next step.
pub(crate) fn overlappable(func: &Func) -> Vec<bool> {
    let g = &func.graph;
    let none = vec![false; g.value_slots()];
    let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
    let ops: Vec<OpId> = g.region_ops(g.entry()).collect();
    let has_effects = || ops.iter().any(|op| g.op(*op).def.traits().effect);
    if carried.iter().all(|input| *input < 0) || has_effects() {
        return none;
    }
    let early = early(func, &ops, &carried);
    let late = late(g, &ops, &carried);
    early.into_iter().zip(late).map(|(early, late)| early || late).collect()
}

/// Whether an op takes more time than a pass over its operands, as products do.
pub(crate) fn is_heavy(g: &Graph, op: OpId) -> bool {
    let work = work::of(g, op);
    !g.op(op).regions.is_empty() || work.flops > HEAVY * work.bytes()
}

/// Variables, and what is made of one of them alone without much work, such as a transposed one. Those that are read before anything is
/// computed are none: a step would wait for them.
fn early(func: &Func, ops: &[OpId], carried: &[i64]) -> Vec<bool> {
    let g = &func.graph;
    // The variable that a value is made of.
    let mut variable: Vec<Option<ValueId>> = vec![None; g.value_slots()];
    let variables: Vec<i64> = func.attrs.typed(VARIABLES).unwrap_or_default();
    let inputs = carried.iter().chain(&variables).filter_map(|input| usize::try_from(*input).ok());
    inputs.filter_map(|input| g.args().get(input)).for_each(|v| variable[v.index()] = Some(*v));
    let is_constant = |v: &ValueId| g.def_op(*v).is_some_and(|op| g.op(op).def.traits().constant);
    let mut awaited: Vec<ValueId> = Vec::new();
    let mut is_computing = false;
    for op in ops {
        let data = g.op(*op);
        let mut operands = data.operands.iter().filter(|v| !is_constant(v));
        let only = operands.next().filter(|_| operands.next().is_none());
        match only.and_then(|v| variable[v.index()]).filter(|_| !is_heavy(g, *op)) {
            Some(of) => data.results.iter().for_each(|v| variable[v.index()] = Some(of)),
            None if !is_computing => awaited.extend(data.operands.iter().filter_map(|v| variable[v.index()])),
            None => {}
        }
        is_computing |= is_heavy(g, *op);
    }
    variable.into_iter().map(|of| of.is_some_and(|v| !awaited.contains(&v))).collect()
}

/// Values of which only outputs that are carried to the next step are made, without much work: gradients of variables, and what
/// updates make of them.
fn late(g: &Graph, ops: &[OpId], carried: &[i64]) -> Vec<bool> {
    let mut late = vec![true; g.value_slots()];
    for (output, v) in g.outputs().iter().enumerate() {
        late[v.index()] &= carried.get(output).is_some_and(|input| *input >= 0);
    }
    for op in ops.iter().rev().filter(|op| !g.op(**op).def.traits().terminator) {
        let data = g.op(*op);
        if is_heavy(g, *op) || !data.results.iter().all(|v| late[v.index()]) {
            data.operands.iter().copied().chain(g.captured(*op)).for_each(|v| late[v.index()] = false);
        }
    }
    late
}
