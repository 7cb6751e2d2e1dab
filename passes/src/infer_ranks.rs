//! Ranks that follow from the readers of a value.
//!
//! A branch that drops an axis of extent 1 gives a result whose rank is unknown while that extent is. Readers may accept
//! one rank only: an LSTM reads three axes. A value of another rank fails at its reader, or where it is stored, so the rank
//! may be supposed.

use of_ir::{Dim, Graph, OpId, OpView, Rewriter, TensorType, Type, ValueId};
use of_ops::structural::Constant;

/// Ranks below this are tried.
const RANKS: usize = 16;

/// A trial copies the types of all operands: readers with more of them say nothing.
const MAX_OPERANDS: usize = 64;

/// Sets the ranks of results that have none and whose readers accept just one. Returns whether there were any.
pub(crate) fn infer_ranks(rw: &mut Rewriter<'_>) -> bool {
    let unranked: Vec<(OpId, ValueId)> = rw.graph().walk().into_iter().flat_map(|op| results(rw.graph(), op)).collect();
    let mut changed = false;
    // From the end: readers come first.
    for (op, v) in unranked.into_iter().rev() {
        let g = rw.graph();
        let Some(dtype) = rank_is_unknown(g, v) else { continue };
        let parent = g.op(op).parent;
        // A reader within a branch need not run.
        let readers = || g.uses(v).iter().map(|u| u.op).filter(|r| g.op(*r).parent == parent);
        let mut accepted = (0..RANKS).filter(|rank| readers().all(|reader| accepts(g, reader, v, *rank)));
        if let (Some(rank), None) = (accepted.next(), accepted.next()) {
            rw.set_type(v, Type::tensor(dtype, vec![Dim::unknown(); rank]));
            changed = true;
        }
    }
    changed
}

fn results(g: &Graph, op: OpId) -> Vec<(OpId, ValueId)> {
    g.op(op).results.iter().filter(|v| rank_is_unknown(g, **v).is_some()).map(|v| (op, *v)).collect()
}

/// The element type of a tensor without rank.
fn rank_is_unknown(g: &Graph, v: ValueId) -> Option<of_ir::DType> {
    g.ty(v).as_tensor().filter(|t| t.shape.is_none()).map(|t| t.dtype)
}

/// Whether `reader` accepts `v` with this rank, and has results of the ranks that they are known to have.
fn accepts(g: &Graph, reader: OpId, v: ValueId, rank: usize) -> bool {
    let data = g.op(reader);
    let asked = !data.def.traits().terminator && data.regions.is_empty() && data.operands.len() <= MAX_OPERANDS;
    !asked || infers(g, reader, v, rank).unwrap_or(true)
}

/// As [`accepts`]; `None` where an operand cannot be copied for the trial.
fn infers(g: &Graph, reader: OpId, v: ValueId, rank: usize) -> Option<bool> {
    let data = g.op(reader);
    let mut scratch = Graph::new();
    let entry = scratch.entry();
    let mut rw = Rewriter::new(&mut scratch, "infer-ranks");
    rw.number_symbols_above(g);
    let mut operands = Vec::with_capacity(data.operands.len());
    for operand in &data.operands {
        operands.push(match (g.constant(*operand), g.ty(*operand)) {
            (Some(value), _) => rw.create_one(Constant { value }, &[]).ok()?,
            (None, ty) if *operand == v => {
                let dtype = ty.as_tensor()?.dtype;
                rw.add_arg(entry, Type::tensor(dtype, vec![Dim::unknown(); rank]), None)
            }
            (None, ty) => rw.add_arg(entry, ty.clone(), None),
        });
    }
    let inferred = data.def.infer(&OpView { graph: rw.graph(), operands: &operands, attrs: &data.attrs, regions: &[] });
    let rank_of = |t: &Type| t.as_tensor().and_then(TensorType::rank);
    let agree = |(own, ty): (&ValueId, &Type)| match (rank_of(g.ty(*own)), rank_of(ty)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    Some(inferred.is_ok_and(|types| data.results.iter().zip(&types).all(agree)))
}
