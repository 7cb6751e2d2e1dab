//! Rematerialization: a group recomputes cheap values from its other operands instead of reading them.
//!
//! A backward group that reads x, 0.5 x and x^2 of the forward pass recomputes the latter two. That costs an instruction each,
//! and saves a store, a load and the memory in between. Where a value is not stored then, groups read other operands instead of it: the
//! gradient of a batch normalization reads x and its mean instead of their difference.

use std::cmp::Reverse;

use of_ir::{IdMap, IdSet, OpId, ValueId};
use of_ops::work::scalar_flops;

use crate::analysis::constant::number;
use crate::analysis::roles::Role;
use crate::fuse::{Fuser, GroupKind, MAX_FUSED_ELEMENTWISE_OPS};

impl Fuser<'_> {
    /// Lets groups recompute values that cost one instruction, and drops results without remaining readers.
    pub(super) fn rematerialize(&mut self) {
        let mut readers: IdMap<ValueId, Vec<Reader>> = IdMap::default();
        for g in 0..self.groups.len() {
            for (op, reads) in self.computable(g) {
                readers.entry(self.graph.op(op).results[0]).or_default().push(Reader { group: g, reads });
            }
        }
        let mut recomputed: Vec<Vec<OpId>> = vec![Vec::new(); self.groups.len()];
        for (v, list) in &readers {
            let Some(op) = self.graph.def_op(*v) else { continue };
            let Some(maker) = self.group_of.get(&op).copied() else { continue };
            // In ascending order.
            let reads = |g: &usize| list.binary_search_by_key(g, |reader| reader.group).is_ok();
            let computes = |op: OpId| self.group_of.get(&op).is_some_and(|g| *g == maker || reads(g));
            let all = self.prints_body(maker) && self.graph.uses(*v).iter().all(|u| computes(u.op));
            // Other operands are read instead of the value where it is not stored then.
            let instead = all && self.has_operands_in_memory(op, maker, &readers);
            let taken: Vec<usize> =
                list.iter().filter(|reader| reader.reads == Reads::Nothing || instead).map(|r| r.group).collect();
            if all && taken.len() == list.len() {
                self.groups[maker].unstored.insert(*v);
            }
            taken.into_iter().for_each(|g| recomputed[g].push(op));
        }
        for (g, mut ops) in recomputed.into_iter().enumerate() {
            of_ir::sort::by_key(&mut ops, |op| self.position[op]);
            ops.iter().for_each(|op| {
                let deps = self.producer_groups(*op);
                self.add_deps(g, deps.into_iter().filter(|d| *d != g));
            });
            self.groups[g].recomputed = ops;
        }
        for g in 0..self.groups.len() {
            let kept = |v: &ValueId| !self.groups[g].unstored.contains(v);
            if !self.groups[g].unstored.is_empty() && !self.results(g).iter().any(kept) {
                self.groups[g].ops.clear();
            }
        }
    }

    /// Whether the operands of an op in group `maker` are in memory: no group computes them only for itself, or recomputes them.
    fn has_operands_in_memory(&self, op: OpId, maker: usize, recomputed: &IdMap<ValueId, Vec<Reader>>) -> bool {
        self.graph.op(op).operands.iter().all(|v| {
            let own = self.graph.def_op(self.alias_root(*v)).and_then(|op| self.group_of.get(&op)) == Some(&maker);
            !own && !recomputed.contains_key(v)
        })
    }

    /// Whether the kernel of a group is printed from the body of its ops.
    fn prints_body(&self, g: usize) -> bool {
        use GroupKind::*;
        matches!(self.groups[g].kind, Elementwise | Rowwise(_) | Columnwise(_) | Anchor)
    }

    /// Ops of other groups whose results group `g` reads and can compute, and what it reads for that beyond its own operands.
    fn computable(&self, g: usize) -> Vec<(OpId, Reads)> {
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
        let bits = |v: &ValueId| self.graph.ty(*v).as_tensor().and_then(|t| t.dtype.bits());
        let short = |v: &ValueId| bits(v).is_some_and(|b| b <= 32);
        let computable = |op: OpId| {
            let data = self.graph.op(op);
            let y = data.results[0];
            let fits = matches!(self.roles.get(op), Role::Map(scalar) if scalar_flops(*scalar) <= 1.0)
                && self.group_of.get(&op).is_some_and(|maker| *maker != g)
                && self.dims(op) == group.space
                && !whole.contains(&y)
                && data.operands.iter().chain(&data.results).all(short);
            let is_read = |v: &ValueId| read.contains(v) && !whole.contains(v);
            let other = |v: &&ValueId| !is_read(v) && number(self.graph, **v).is_none();
            let others: Vec<&ValueId> = data.operands.iter().filter(other).collect();
            if !fits || others.is_empty() && !data.operands.iter().any(is_read) {
                return None;
            }
            if others.is_empty() {
                return Some((op, Reads::Nothing));
            }
            // About as many bytes as the value has, and lines of it, which every kernel can read.
            let (full, parts): (Vec<&ValueId>, Vec<&ValueId>) =
                others.iter().copied().partition(|v| self.value_dims(**v) == group.space);
            let is_line = |v: &ValueId| self.value_dims(*v).iter().rev().skip(1).all(|d| d.is(1));
            let instead: usize = full.into_iter().filter_map(bits).sum();
            let as_many = bits(&y).is_some_and(|own| instead <= own + MASK_BITS) && parts.into_iter().all(is_line);
            // The kernel of the group knows the symbols of its own ops.
            let fixed = |v: &ValueId| self.value_dims(*v).iter().all(|d| d.number().is_some());
            let as_many = as_many && others.iter().all(|v| fixed(v));
            (as_many && !others.iter().any(|v| whole.contains(*v))).then_some((op, Reads::Instead))
        };
        let mut ops: Vec<(OpId, Reads)> =
            read.iter().filter_map(|v| self.graph.def_op(*v)).filter_map(computable).collect();
        of_ir::sort::by_key(&mut ops, |(op, _)| Reverse(self.position[op]));
        ops.truncate(MAX_FUSED_ELEMENTWISE_OPS.saturating_sub(group.ops.len()));
        ops
    }
}

/// Bits of an element of a mask.
const MASK_BITS: usize = 8;

/// A group that can recompute a value.
struct Reader {
    group: usize,
    reads: Reads,
}

/// What a group reads to recompute a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Nothing beyond its own operands.
    Nothing,
    /// Other values instead of it.
    Instead,
}
