//! Groups that reduce columns: elementwise ops and reductions over the first axes of their space, in one pass over memory.
//!
//! The statistics of a batch and the gradients of what is broadcast over it, such as biases and scales, are such sums. Those that read
//! the same values share a kernel, and what is computed only for them is never stored.

use std::collections::HashMap;

use of_ir::{OpId, ValueId};

use crate::analysis::roles::Role;
use crate::fuse::{Fuser, Group, GroupKind};

/// The most reductions of a group: each keeps its accumulators in registers.
const MAX_REDUCTIONS: usize = 4;

impl Fuser<'_> {
    /// Adds a reduction over the first `outer` axes to the group that computes its operand, or starts one.
    pub(super) fn add_column_reduction(&mut self, op: OpId, outer: usize) {
        let space = self.value_dims(self.graph.op(op).operands[0]);
        let join = self.joinable(op, |g| {
            // Where the first axes have one element, a reduction has the dimensions of what it reduces.
            if self.reads_reductions(op, g) {
                return false;
            }
            let kind = g.kind == GroupKind::Columnwise(outer)
                || g.kind == GroupKind::Elementwise && g.ops.iter().all(|op| self.has_lanes(*op));
            kind && g.space == space && self.reductions(g) < MAX_REDUCTIONS
        });
        match join {
            Some(g) => {
                self.groups[g].kind = GroupKind::Columnwise(outer);
                self.join(op, g);
            }
            None => {
                self.start(op, GroupKind::Columnwise(outer));
                let g = self.group_of[&op];
                self.groups[g].space = space;
            }
        }
    }

    /// Whether an op reads a reduction of a group: it is there only after the pass.
    pub(super) fn reads_reductions(&self, op: OpId, group: &Group) -> bool {
        let reduction = |v: &ValueId| {
            self.graph.def_op(self.alias_root(*v)).filter(|op| matches!(self.roles.get(*op), Role::ColumnReduce(_)))
        };
        self.graph.op(op).operands.iter().filter_map(reduction).any(|op| group.ops.contains(&op))
    }

    fn reductions(&self, group: &Group) -> usize {
        group.ops.iter().filter(|op| matches!(self.roles.get(**op), Role::ColumnReduce(_))).count()
    }

    /// Whether the values of an op fit lanes of 32 bits.
    fn has_lanes(&self, op: OpId) -> bool {
        let data = self.graph.op(op);
        let bits = |v: &ValueId| self.graph.ty(*v).as_tensor().and_then(|t| t.dtype.bits());
        data.operands.iter().chain(&data.results).all(|v| bits(v).is_some_and(|bits| bits <= 32))
    }

    /// Merges groups that reduce the same columns and read a value of them in common, where neither depends on the other.
    pub(super) fn merge_columns(&mut self) {
        let mut readers: HashMap<ValueId, usize> = HashMap::new();
        for g in 0..self.groups.len() {
            if !matches!(self.groups[g].kind, GroupKind::Columnwise(_)) {
                continue;
            }
            let read = self.columns_read(g);
            let other = read.iter().filter_map(|v| readers.get(v).copied()).find(|other| self.are_mergeable(*other, g));
            let into = other.inspect(|other| self.merge(*other, g)).unwrap_or(g);
            readers.extend(read.into_iter().map(|v| (v, into)));
        }
    }

    /// The values of the group's space that it reads.
    fn columns_read(&self, g: usize) -> Vec<ValueId> {
        let group = &self.groups[g];
        let outside = |v: &ValueId| self.graph.def_op(*v).is_none_or(|op| self.group_of.get(&op) != Some(&g));
        let operands = group.ops.iter().flat_map(|op| self.graph.op(*op).operands.iter().copied());
        operands.filter(|v| outside(v) && self.value_dims(*v) == group.space).collect()
    }

    fn are_mergeable(&self, a: usize, b: usize) -> bool {
        let (first, second) = (&self.groups[a], &self.groups[b]);
        first.kind == second.kind
            && first.space == second.space
            && self.reductions(first) + self.reductions(second) <= MAX_REDUCTIONS
            && self.has_room(a, second.ops.len())
            && !self.depends(a, b)
            && !self.depends(b, a)
    }

    /// Moves the ops of group `b`, which neither depends on `a` nor the other way round, to group `a`.
    fn merge(&mut self, a: usize, b: usize) {
        let ops = std::mem::take(&mut self.groups[b].ops);
        ops.iter().for_each(|op| _ = self.group_of.insert(*op, a));
        self.groups[a].ops.extend(ops);
        let deps = std::mem::take(&mut self.groups[b].deps);
        deps.iter().for_each(|d| self.readers[*d].retain(|r| *r != b));
        let readers = std::mem::take(&mut self.readers[b]);
        readers.iter().for_each(|r| _ = self.groups[*r].deps.remove(&b));
        self.add_deps(a, deps);
        readers.into_iter().for_each(|r| self.add_deps(r, [a]));
    }
}
