//! Layers: assigns each op and value to the interval between two cut points that it belongs to, or to the stage that layout
//! annotations choose for it.

use std::collections::HashMap;

use of_ir::{Func, Graph, IdSet, OpId, ValueId};
use of_ops::OpSpec;
use of_ops::structural::{Alternatives, OptimizationBarrier};
use of_ops::training::data_inputs;

use super::Parts;
use crate::cut_points::{self, CutPoint, Phases};

/// The layers of a function.
pub(super) struct Layers {
    /// The ops before the first backward one.
    pub(super) forward: Vec<OpId>,
    /// For each cut point the position of the op before it, and the values that cross it.
    pub(super) cuts: Vec<(usize, Vec<ValueId>)>,
    /// The layer of each op, by position in the arena.
    pub(super) ops: Vec<usize>,
    /// The layer of each value, by position in the arena.
    pub(super) values: Vec<usize>,
    /// Whether there are backward ops.
    pub(super) training: bool,
}

impl Layers {
    /// The layers between the cut points of a function.
    pub(super) fn of(func: &Func) -> Layers {
        let g = &func.graph;
        let phases = Phases::of(func);
        let cuts = cut_points::cut_points(g, &phases.forward);
        let mut ops: Vec<Option<usize>> = vec![None; g.op_slots()];
        let data = of_data(func);
        for (i, op) in phases.forward.iter().enumerate().filter(|(_, op)| data.contains(op)) {
            ops[op.index()] = Some(cuts.partition_point(|cut| cut.after < i));
        }
        let crossing = |cut: CutPoint| (cut.after, std::iter::once(cut.value).chain(cut.shared).collect());
        let cuts = cuts.into_iter().map(crossing).collect();
        Layers::assign(func, phases, cuts, ops, &|_| None)
    }

    /// The stages that annotations choose, as layers. A forward op without one is on the last stage of its operands.
    pub(super) fn placed(func: &Func, parts: &Parts) -> Layers {
        let g = &func.graph;
        let phases = Phases::of(func);
        let fixed = |v: ValueId| parts.stage(&g.ty(v).as_tensor()?.sbp.as_ref()?.mesh);
        let mut ops: Vec<Option<usize>> = vec![None; g.op_slots()];
        for op in &phases.forward {
            let data = g.op(*op);
            let captured = g.captured(*op);
            let read = data.operands.iter().chain(&captured);
            let known = |v: &ValueId| fixed(*v).or_else(|| ops[g.def_op(*v)?.index()]);
            ops[op.index()] = data.results.iter().find_map(|v| fixed(*v)).or_else(|| read.filter_map(known).max());
        }
        for op in phases.forward.iter().rev() {
            let readers = g.op(*op).results.iter().flat_map(|v| g.uses(*v)).filter_map(|u| ops[u.op.index()]);
            ops[op.index()] = ops[op.index()].or_else(|| readers.min());
        }
        let last = |stage: usize| phases.forward.iter().rposition(|op| ops[op.index()] == Some(stage)).unwrap_or(0);
        let stage_of = |op: OpId| ops[op.index()].unwrap_or(0);
        // A value is sent at the first cut between the stage that makes it and one that reads it.
        let sent = |stage: usize| {
            let made = phases.forward.iter().filter(|op| stage_of(**op) == stage && !g.op(**op).def.traits().constant);
            let crosses = |v: &ValueId| g.uses(*v).iter().any(|u| ops[u.op.index()].is_some_and(|s| s > stage));
            made.flat_map(|op| g.op(*op).results.iter().copied()).filter(crosses).collect()
        };
        let cuts = (1..parts.names.len()).map(|next| (last(next - 1), sent(next - 1))).collect();
        Layers::assign(func, phases, cuts, ops.clone(), &fixed)
    }

    /// The layers, where those of forward ops are known. `fixed` gives the layers that are chosen for values.
    fn assign(
        func: &Func,
        Phases { forward, backward }: Phases,
        cuts: Vec<(usize, Vec<ValueId>)>,
        mut ops: Vec<Option<usize>>,
        fixed: &dyn Fn(ValueId) -> Option<usize>,
    ) -> Layers {
        let g = &func.graph;
        // Inputs and constants belong to the layer of their first reader.
        let source = |v: ValueId| g.def_op(v).is_none_or(|op| g.op(op).def.traits().constant);
        let first = |v: ValueId, ops: &[Option<usize>]| {
            fixed(v).or_else(|| g.uses(v).iter().filter_map(|u| ops[u.op.index()]).min())
        };
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        // The terminator carries no information about layers.
        let computes = |op: &OpId| !g.op(*op).def.traits().terminator;
        let forward_set: IdSet<OpId> = forward.iter().copied().filter(|op| ops[op.index()].is_some()).collect();
        // Backward ops, updates, and forward ops that only parameters decide.
        let backward_ops: Vec<OpId> =
            order.iter().copied().filter(|op| !forward_set.contains(op) && computes(op)).collect();
        // Such an op belongs to the layer of the forward values and parameters that it reads, else to that of its
        // gradients.
        let recomputed = Recomputed::of(g, &forward, &backward_ops);
        // A forward op without data, such as the transpose of a parameter, belongs to the layer of its readers.
        let readers = |op: OpId, ops: &[Option<usize>]| {
            g.op(op).results.iter().flat_map(|v| g.uses(*v)).filter_map(|u| ops[u.op.index()]).min()
        };
        for op in forward.iter().rev().filter(|op| !forward_set.contains(op)) {
            ops[op.index()] = readers(*op, &ops);
        }
        // The layer of a parameter that several layers read says nothing about the layer of a gradient.
        let several: IdSet<ValueId> = g
            .args()
            .iter()
            .copied()
            .filter(|v| {
                let mut layers = g.uses(*v).iter().filter_map(|u| ops[u.op.index()]);
                layers.next().is_some_and(|first| layers.any(|layer| layer != first))
            })
            .collect();
        let mut certain = vec![false; g.op_slots()];
        for op in &backward_ops {
            let data = g.op(*op);
            // A recomputed op belongs to the layer of its original, an optimization barrier to that of its readers.
            let first_time = recomputed.originals[op.index()].and_then(|t| ops[t.index()]);
            let held = (data.name() == OptimizationBarrier::NAME)
                .then(|| first(recomputed.original_value(data.operands[0]), &ops))
                .flatten();
            let chosen = data.results.iter().find_map(|v| fixed(*v));
            if let Some(layer) = chosen.or(first_time).or(held) {
                (ops[op.index()], certain[op.index()]) = (Some(layer), true);
                continue;
            }
            // A constant may be shared by unrelated layers.
            let constant = |v: ValueId| g.def_op(v).is_some_and(|d| g.op(d).def.traits().constant);
            let known = |v: &ValueId| !constant(*v) && (!source(*v) || first(*v, &ops).is_some());
            let layer = |v: ValueId| match g.def_op(v) {
                Some(d) if !source(v) => ops[d.index()],
                _ => first(v, &ops),
            };
            let operands = || data.operands.iter().map(|v| recomputed.original_value(*v)).filter(known);
            let kept = |v: &ValueId| source(*v) || g.def_op(*v).is_some_and(|d| !backward.contains(&d));
            let decisive = || operands().filter(|v| !several.contains(v));
            let own = decisive().filter(kept).filter_map(layer).max();
            let gradients = || decisive().filter_map(layer).min();
            ops[op.index()] = own.or_else(gradients).or_else(|| operands().filter_map(layer).min());
        }
        // Ops that only later layers read belong to them, as gradients of parameters do.
        for op in backward_ops.iter().rev().filter(|op| !certain[op.index()]) {
            ops[op.index()] = ops[op.index()].max(readers(*op, &ops));
        }
        let ops: Vec<usize> = ops.into_iter().map(|l| l.unwrap_or(0)).collect();
        let live = |v: &ValueId| g.def_op(*v).is_none_or(|op| g.is_live(op));
        let values = (0..g.value_slots())
            .map(|i| match g.value_at(i).filter(live) {
                None => 0,
                Some(v) if source(v) => {
                    fixed(v).or_else(|| g.uses(v).iter().map(|u| ops[u.op.index()]).min()).unwrap_or(0)
                }
                Some(v) => g.def_op(v).map_or(0, |op| ops[op.index()]),
            })
            .collect();
        Layers { training: !backward.is_empty(), forward, cuts, ops, values }
    }
}

/// The ops that depend on data: on an input that is no variable. The place of the others, such as that of the number of the step, says
/// nothing about their layer: their readers do.
fn of_data(func: &Func) -> IdSet<OpId> {
    let g = &func.graph;
    let mut values: IdSet<ValueId> = data_inputs(func).into_iter().collect();
    let mut ops = IdSet::default();
    for op in g.region_ops(g.entry()) {
        let data = g.op(op);
        if data.operands.iter().chain(&g.captured(op)).any(|v| values.contains(v)) {
            ops.insert(op);
            values.extend(&data.results);
        }
    }
    ops
}

/// Recomputed values: the forward op or value that each backward op or value repeats.
struct Recomputed {
    /// The forward op that each op repeats, by position in the arena.
    originals: Vec<Option<OpId>>,
    /// The forward value that each value equals; `None` for other values.
    values: Vec<Option<ValueId>>,
}

impl Recomputed {
    fn of(g: &Graph, forward: &[OpId], backward_ops: &[OpId]) -> Recomputed {
        let mut out = Recomputed { originals: vec![None; g.op_slots()], values: vec![None; g.value_slots()] };
        let mut seen: HashMap<(&str, Vec<ValueId>), Vec<OpId>> = HashMap::new();
        for op in forward {
            seen.entry((g.op(*op).name(), g.op(*op).operands.to_vec())).or_default().push(*op);
        }
        for op in backward_ops {
            let data = g.op(*op);
            let operands: Vec<ValueId> = data.operands.iter().map(|v| out.original_value(*v)).collect();
            if [OptimizationBarrier::NAME, Alternatives::NAME].contains(&data.name()) {
                out.values[data.results[0].index()] = Some(operands[0]);
                continue;
            }
            let same = |original: &&OpId| data.regions.is_empty() && g.op(**original).attrs == data.attrs;
            let originals = seen.get(&(data.name(), operands));
            let Some(original) = originals.and_then(|list| list.iter().find(same)) else { continue };
            out.originals[op.index()] = Some(*original);
            for (own, first) in data.results.iter().zip(&g.op(*original).results) {
                out.values[own.index()] = Some(*first);
            }
        }
        out
    }

    /// The forward value that this one equals, or itself.
    fn original_value(&self, v: ValueId) -> ValueId {
        self.values[v.index()].unwrap_or(v)
    }
}
