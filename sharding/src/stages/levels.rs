//! Levels: between which two places of a function at which it can be cut each op belongs.

use std::collections::{HashMap, HashSet};

use of_ir::{Func, Graph, OpId, ValueId};
use of_ops::OpSpec;
use of_ops::structural::{Alternatives, OptimizationBarrier};

use crate::cuts::{self, Phases};

/// Between which two cuts everything belongs.
pub(super) struct Levels {
    /// The ops before the first backward one.
    pub(super) forward: Vec<OpId>,
    /// For each cut the position of the op before it, and the value that crosses it.
    pub(super) cuts: Vec<(usize, ValueId)>,
    /// The number of cuts before each op, by its position in the arena.
    pub(super) ops: Vec<usize>,
    /// The same of each value.
    pub(super) values: Vec<usize>,
    /// Whether there are backward ops.
    pub(super) training: bool,
}

impl Levels {
    pub(super) fn of(func: &Func) -> Levels {
        let g = &func.graph;
        let Phases { forward, backward } = Phases::of(func);
        let cuts = cuts::cuts(g, &forward);
        let mut ops: Vec<Option<usize>> = vec![None; g.op_slots()];
        for (i, op) in forward.iter().enumerate() {
            ops[op.index()] = Some(cuts.partition_point(|(at, _)| *at < i));
        }
        // Inputs and constants belong to their first reader.
        let source = |v: ValueId| g.def_op(v).is_none_or(|op| g.op(op).def.traits().constant);
        let first = |v: ValueId, ops: &[Option<usize>]| g.uses(v).iter().filter_map(|u| ops[u.op.index()]).min();
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        // What is returned says nothing of where it is made.
        let computes = |op: &OpId| !g.op(*op).def.traits().terminator;
        let ahead: HashSet<OpId> = forward.iter().copied().collect();
        let behind: Vec<OpId> = order.iter().copied().filter(|op| !ahead.contains(op) && computes(op)).collect();
        // A backward op belongs to what it reads of the forward ops and of the parameters, or to where its gradients come from.
        let again = Again::of(g, &forward, &behind);
        let mut certain = vec![false; g.op_slots()];
        for op in &behind {
            let data = g.op(*op);
            // What is computed again belongs where it was computed first, and what is held for it where it is read.
            let first_time = again.twins[op.index()].and_then(|t| ops[t.index()]);
            let held = (data.name() == OptimizationBarrier::NAME)
                .then(|| first(again.meaning(data.operands[0]), &ops))
                .flatten();
            if let Some(level) = first_time.or(held) {
                (ops[op.index()], certain[op.index()]) = (Some(level), true);
                continue;
            }
            // Constants are everywhere: layers that share one have nothing in common.
            let constant = |v: ValueId| g.def_op(v).is_some_and(|d| g.op(d).def.traits().constant);
            let known = |v: &ValueId| !constant(*v) && (!source(*v) || first(*v, &ops).is_some());
            let level = |v: ValueId| match g.def_op(v) {
                Some(d) if !source(v) => ops[d.index()],
                _ => first(v, &ops),
            };
            let operands = || data.operands.iter().map(|v| again.meaning(*v)).filter(known);
            let kept = |v: &ValueId| source(*v) || g.def_op(*v).is_some_and(|d| !backward.contains(&d));
            let own = operands().filter(kept).filter_map(level).max();
            ops[op.index()] = own.or_else(|| operands().filter_map(level).min());
        }
        // What only later levels read belongs to them: the gradients of parameters.
        for op in behind.iter().rev().filter(|op| !certain[op.index()]) {
            let readers = g.op(*op).results.iter().flat_map(|v| g.uses(*v)).filter_map(|u| ops[u.op.index()]);
            ops[op.index()] = ops[op.index()].max(readers.min());
        }
        let ops: Vec<usize> = ops.into_iter().map(|l| l.unwrap_or(0)).collect();
        let live = |v: &ValueId| g.def_op(*v).is_none_or(|op| g.is_live(op));
        let values = (0..g.value_slots())
            .map(|i| match g.value_at(i).filter(live) {
                None => 0,
                Some(v) if source(v) => g.uses(v).iter().map(|u| ops[u.op.index()]).min().unwrap_or(0),
                Some(v) => g.def_op(v).map_or(0, |op| ops[op.index()]),
            })
            .collect();
        Levels { training: !behind.is_empty(), forward, cuts, ops, values }
    }
}

/// What backward ops compute again of the forward ones, so that it makes no difference to where they belong whether they do.
struct Again {
    /// The forward op whose results each op computes again, by its position in the arena.
    twins: Vec<Option<OpId>>,
    /// The forward value that each one equals; others equal themselves.
    values: Vec<Option<ValueId>>,
}

impl Again {
    fn of(g: &Graph, forward: &[OpId], behind: &[OpId]) -> Again {
        let mut out = Again { twins: vec![None; g.op_slots()], values: vec![None; g.value_slots()] };
        let mut seen: HashMap<(&str, Vec<ValueId>), Vec<OpId>> = HashMap::new();
        for op in forward {
            seen.entry((g.op(*op).name(), g.op(*op).operands.to_vec())).or_default().push(*op);
        }
        for op in behind {
            let data = g.op(*op);
            let operands: Vec<ValueId> = data.operands.iter().map(|v| out.meaning(*v)).collect();
            if [OptimizationBarrier::NAME, Alternatives::NAME].contains(&data.name()) {
                out.values[data.results[0].index()] = Some(operands[0]);
                continue;
            }
            let same = |twin: &&OpId| data.regions.is_empty() && g.op(**twin).attrs == data.attrs;
            let twins = seen.get(&(data.name(), operands));
            let Some(twin) = twins.and_then(|list| list.iter().find(same)) else { continue };
            out.twins[op.index()] = Some(*twin);
            for (own, first) in data.results.iter().zip(&g.op(*twin).results) {
                out.values[own.index()] = Some(*first);
            }
        }
        out
    }

    /// The forward value that this one equals, or itself.
    fn meaning(&self, v: ValueId) -> ValueId {
        self.values[v.index()].unwrap_or(v)
    }
}
