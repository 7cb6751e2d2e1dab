//! Rematerialization: a group recomputes cheap values from its other operands instead of reading them.
//!
//! A backward group that reads x, 0.5 x and x^2 of the forward pass recomputes the latter two. That costs an instruction each,
//! and saves a store, a load and the memory in between.

use std::cmp::Reverse;

use of_ir::{IdMap, IdSet, OpId, ValueId};
use of_ops::work::scalar_flops;

use crate::analysis::constant::number;
use crate::analysis::roles::Role;
use crate::fuse::{Fuser, GroupKind, MAX_FUSED_ELEMENTWISE_OPS};

impl Fuser<'_> {
    /// Lets groups recompute values that cost one instruction, and drops results without remaining readers.
    pub(super) fn rematerialize(&mut self) {
        let mut readers: IdMap<ValueId, Vec<usize>> = IdMap::default();
        for g in 0..self.groups.len() {
            let recomputed = self.computable(g);
            recomputed.iter().for_each(|op| readers.entry(self.graph.op(*op).results[0]).or_default().push(g));
            self.groups[g].recomputed = recomputed;
        }
        for (v, readers) in readers {
            let Some(maker) = self.graph.def_op(v).and_then(|op| self.group_of.get(&op).copied()) else { continue };
            // In ascending order.
            let reads = |g: &usize| readers.binary_search(g).is_ok();
            let computes = |op: OpId| self.group_of.get(&op).is_some_and(|g| *g == maker || reads(g));
            if self.prints_body(maker) && self.graph.uses(v).iter().all(|u| computes(u.op)) {
                self.groups[maker].unstored.insert(v);
            }
        }
        for g in 0..self.groups.len() {
            let kept = |v: &ValueId| !self.groups[g].unstored.contains(v);
            if !self.groups[g].unstored.is_empty() && !self.results(g).iter().any(kept) {
                self.groups[g].ops.clear();
            }
        }
    }

    /// Whether the kernel of a group is printed from the body of its ops.
    fn prints_body(&self, g: usize) -> bool {
        matches!(self.groups[g].kind, GroupKind::Elementwise | GroupKind::Rowwise(_) | GroupKind::Anchor)
    }

    /// Ops of other groups, in order, whose results group `g` reads and can compute from its other operands.
    fn computable(&self, g: usize) -> Vec<OpId> {
        if !self.prints_body(g) {
            return Vec::new();
        }
        let group = &self.groups[g];
        let operands = |anchor: bool| {
            let ops = group.ops.iter().filter(move |op| (*self.roles.get(**op) == Role::Anchor) == anchor);
            ops.flat_map(|op| self.graph.op(*op).operands.iter().copied()).collect::<IdSet<ValueId>>()
        };
        // An anchor's operands are not read pointwise.
        let (read, whole) = (operands(false), operands(true));
        let short = |v: &ValueId| self.graph.ty(*v).as_tensor().and_then(|t| t.dtype.bits()).is_some_and(|b| b <= 32);
        let computable = |op: &OpId| {
            let data = self.graph.op(*op);
            let is_read = |v: &ValueId| read.contains(v) && !whole.contains(v);
            matches!(self.roles.get(*op), Role::Map(scalar) if scalar_flops(*scalar) <= 1.0)
                && self.group_of.get(op).is_some_and(|maker| *maker != g)
                && self.dims(*op) == group.space
                && !whole.contains(&data.results[0])
                && data.operands.iter().chain(&data.results).all(short)
                && data.operands.iter().any(is_read)
                && data.operands.iter().all(|v| is_read(v) || number(self.graph, *v).is_some())
        };
        let mut recomputed: Vec<OpId> = read.iter().filter_map(|v| self.graph.def_op(*v)).filter(computable).collect();
        of_ir::sort::by_key(&mut recomputed, |op| Reverse(self.position[op]));
        recomputed.truncate(MAX_FUSED_ELEMENTWISE_OPS.saturating_sub(group.ops.len()));
        recomputed.reverse();
        recomputed
    }
}
