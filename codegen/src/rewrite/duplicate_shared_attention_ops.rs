//! Gives each recomputed score matrix separate copies of the ops that have other readers.
//!
//! The forward pass and the gradient of attention share the scores. A kernel that recomputes them needs separate ops.

use std::collections::HashMap;

use of_ir::{Func, IdMap, IdSet, OpId, Rewriter, ValueId};

use crate::analysis::roles::{Role, Roles};
use crate::analysis::score_matrix::{ScoreMatrixMatch, find};
use crate::analysis::view::OperandView;
use crate::isa::Isa;
use crate::print::printer;

/// The function with separate ops for every score matrix whose shared ops are those of a softmax along its rows; `None` if there
/// is none, or if the kernels of `isa` do not recompute scores. The movements of their operands are copied, too.
pub fn separated(func: &Func, isa: &Isa) -> Option<Func> {
    if !printer(isa.language).capabilities().recomputed_scores {
        return None;
    }
    let g = &func.graph;
    let roles = Roles::of(g, g.entry(), g.args());
    let is_reduced = |op: &OpId| g.uses(g.op(*op).results[0]).iter().any(|u| *roles.get(u.op) == Role::RowReduce(1));
    let matrices: Vec<ScoreMatrixMatch> =
        find(g, g.entry(), &roles).into_iter().filter(|m| m.shared.iter().any(is_reduced)).collect();
    if matrices.is_empty() {
        return None;
    }
    let mut out = func.clone();
    let mut rw = Rewriter::new(&mut out.graph, "duplicate-shared-attention-ops");
    for matrix in matrices {
        let exclusive: IdSet<OpId> = matrix.ops().into_iter().filter(|op| !matrix.shared.contains(op)).collect();
        let is_shared = |v: &ValueId| g.def_op(*v).is_some_and(|op| matrix.shared.contains(&op));
        // Move their dependencies before all readers.
        let reads = |op: &OpId| exclusive.contains(op) && g.op(*op).operands.iter().any(is_shared);
        let Some(first) = g.region_ops(g.entry()).find(reads) else { continue };
        rw.before(first);
        let mut copies: IdMap<OpId, OpId> = IdMap::default();
        let mut values: IdMap<ValueId, ValueId> = IdMap::default();
        for op in &matrix.shared {
            copies.insert(*op, rw.copy_op(*op, &mut values));
        }
        for op in &exclusive {
            for (i, v) in g.op(*op).operands.iter().enumerate() {
                if let Some(new) = values.get(v) {
                    rw.set_operand(*op, i, *new);
                }
            }
        }
        for (op, i) in matrix.reads() {
            let v = g.op(op).operands[i];
            let root = OperandView::through_shared(g, &roles, v).root;
            let mut chain: Vec<OpId> = Vec::new();
            let mut at = v;
            while let Some(op) = g.def_op(at).filter(|_| at != root) {
                chain.push(op);
                at = g.op(op).operands[0];
            }
            let reader = copies.get(&op).copied().unwrap_or(op);
            rw.before(reader);
            let mut values = HashMap::default();
            for op in chain.into_iter().rev() {
                rw.copy_op(op, &mut values);
            }
            rw.set_operand(reader, i, values.get(&v).copied().unwrap_or(v));
        }
    }
    Some(out)
}
