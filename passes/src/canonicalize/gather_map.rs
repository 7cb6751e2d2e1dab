//! The rule of `canonicalize` for tables that are stored narrow and read by row, such as quantized embeddings.

use of_diag::Diagnostic;
use of_ir::{Attr, Graph, OpId, Rewriter, Type, Use, ValueId};
use of_ops::list::{self, as_op};
use of_ops::movement::Gather;
use of_ops::nn::DequantizeLinear;
use of_ops::{OpSpec, work};

use crate::matchers::dims;

/// Elementwise ops between a table and its rows, at most.
const MAX_DEPTH: usize = 8;

/// gather(map(table, y), i) = map(gather(table, i), y) where `map` widens elements and no more rows are read than there are: the
/// plan then stores the narrow table, and a run widens the rows that it reads
pub fn gather_map(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    let Some(gather) = as_op::<Gather>(g, op) else { return Ok(false) };
    let [data, indices] = g.op(op).operands[..] else { return Ok(false) };
    let Some(map) = g.def_op(data).filter(|m| moves(g, &[*m])) else { return Ok(false) };
    let (def, mut attrs, mut operands) = (g.op(map).def, g.op(map).attrs.clone(), g.op(map).operands.clone());
    if let (Some(dequantize), Some((axis, rank, to))) = (as_op::<DequantizeLinear>(g, map), ranks(g, op)) {
        // A scale for each element of an axis: the rows' axes stand in the place of the table's.
        let own = of_ops::shape::axis(dequantize.axis, rank).unwrap_or(axis);
        attrs.set("axis", Attr::Int(if own > axis { own + to - rank } else { own } as i64));
    }
    rw.rewrite(op, &[map]);
    operands[0] = rw.create_one(gather, &[operands[0], indices])?;
    rw.replace_with(op, (def, attrs), &operands)?;
    Ok(true)
}

/// Whether `gather_map` will move the op behind all gathers that read it, directly or after other elementwise ops.
pub fn moves_behind_gathers(g: &Graph, op: OpId) -> bool {
    moves(g, &[op])
}

/// Whether the last of `maps`, each of which reads the one before, moves behind all that reads it.
fn moves(g: &Graph, maps: &[OpId]) -> bool {
    let Some([v]) = maps.last().map(|m| &g.op(*m).results[..]) else { return false };
    let reader = |u: &Use| match g.op(u.op).results[..] {
        _ if u.operand != 0 => false,
        _ if as_op::<Gather>(g, u.op).is_some() => maps.iter().all(|m| reads_rows_of(g, u.op, *m)),
        [_] if maps.len() < MAX_DEPTH && is_map(g, u.op) => moves(g, &[maps, &[u.op]].concat()),
        _ => false,
    };
    widens(g, *v) && !g.uses(*v).is_empty() && g.uses(*v).iter().all(reader)
}

fn is_map(g: &Graph, op: OpId) -> bool {
    g.op(op).name() == DequantizeLinear::NAME || list::get(g, op).is_some_and(|o| o.scalar().is_some())
}

/// Whether `v` is a table that elementwise ops make of a constant of narrower elements.
fn widens(g: &Graph, v: ValueId) -> bool {
    let bits = |v: ValueId| g.ty(v).as_tensor().and_then(|t| t.dtype.bits()).unwrap_or(0);
    let mut from = v;
    for _ in 0..=MAX_DEPTH {
        if g.constant(from).is_some() {
            return (1..bits(v)).contains(&bits(from)) && dims(g, from) == dims(g, v);
        }
        let Some(op) = g.def_op(from).filter(|op| is_map(g, *op) && g.op(*op).results.len() == 1) else { return false };
        let Some(first) = g.op(op).operands.first() else { return false };
        from = *first;
    }
    false
}

/// The axis of a gather, the rank of what it reads, and that of its result.
fn ranks(g: &Graph, gather: OpId) -> Option<(usize, usize, usize)> {
    let rank = |v: ValueId| g.ty(v).as_tensor()?.rank();
    let (from, to) = (rank(g.op(gather).operands[0])?, rank(g.op(gather).results[0])?);
    Some((of_ops::shape::axis(as_op::<Gather>(g, gather)?.axis, from).ok()?, from, to))
}

/// Whether a gather may read the first operand of `map` in the place of its result: the others do not vary along the axis, and
/// the gather is not known to read more elements than there are.
fn reads_rows_of(g: &Graph, gather: OpId, map: OpId) -> bool {
    let Some((axis, rank, to)) = ranks(g, gather) else { return false };
    let data = g.op(map);
    let table = work::elements(g.ty(data.operands[0]));
    if dims(g, g.op(gather).results[0]).is_some_and(|d| d.iter().product::<usize>() as f64 > table) {
        return false;
    }
    let dequantize = as_op::<DequantizeLinear>(g, map);
    data.operands[1..].iter().all(|v| match (g.ty(*v), &dequantize) {
        (Type::None, _) => true,
        (ty, Some(d)) => match ty.as_tensor().and_then(|t| t.rank()) {
            Some(0) => true,
            Some(1) => d.block_size == 0 && of_ops::shape::axis(d.axis, rank).is_ok_and(|a| a != axis),
            _ => false,
        },
        (_, None) => {
            dims(g, *v).is_some_and(|d| d.len() < rank - axis || d.len() <= to.min(1) && d.iter().all(|n| *n == 1))
        }
    })
}
