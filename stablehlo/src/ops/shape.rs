//! Operations that move elements by fixed rules.

use of_ops::movement::{Concat, Pad};

use super::axes;
use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::Attr;

/// Axis `i` of the operand becomes axis `dims[i]` of the result.
pub(super) fn broadcast_in_dim(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let (from, to) = (cx.dims(x)?, c.dims(0)?);
    let map = c.axes(&["dims", "broadcast_dimensions"], to.len())?;
    if map.len() != from.len() {
        return Err(ImportError::invalid(format!("{} axes are given for a tensor of rank {}", map.len(), from.len())));
    }
    // In the order of the result.
    let mut order: Vec<usize> = (0..map.len()).collect();
    order.sort_by_key(|i| map[*i]);
    let sorted = cx.transpose(x, &order)?;
    let mut aligned = vec![1; to.len()];
    map.iter().zip(&from).for_each(|(axis, n)| aligned[*axis] = *n);
    // Axes in front come by themselves.
    let first = map.iter().min().copied().unwrap_or(to.len());
    let aligned = cx.reshape(sorted, &aligned[first..])?;
    let y = cx.expand(aligned, &to)?;
    // An iota that is broadcast still counts along its axis.
    if let Some(axis) = cx.iotas.get(&x).copied() {
        cx.iotas.insert(y, map[axis]);
    }
    Ok(vec![y])
}

/// New axes in front.
pub(super) fn broadcast(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    Ok(vec![cx.expand(c.operand(0)?, &c.dims(0)?)?])
}

/// Operands one after the other.
pub(super) fn concatenate(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let axis = c.int(&["dim", "dimension"])?;
    match c.operands.as_slice() {
        [one] => Ok(vec![*one]),
        all => Ok(vec![cx.one(Concat { axis }, all)?]),
    }
}

/// Numbers that count along an axis.
pub(super) fn iota(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (dims, dtype) = (c.dims(0)?, c.ty(0)?.dtype);
    let axis = axes(&[c.int(&["dim", "iota_dimension"])?], dims.len())?[0];
    let v = cx.count_along(&dims, axis, dtype, true)?;
    cx.iotas.insert(v, axis);
    Ok(vec![v])
}

/// The same elements with other extents.
pub(super) fn reshape(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let to = c.dims(0)?;
    let y = cx.reshape(x, &to)?;
    // Axes of extent 1 that come or go do not matter to an iota.
    let axis = cx.iotas.get(&x).copied();
    if let Some(axis) = axis {
        let from = cx.dims(x)?;
        let core = |dims: &[i64]| dims.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
        let before = core(&from[..axis]).len();
        let position = to.iter().enumerate().filter(|(_, d)| **d != 1).nth(before).map(|p| p.0);
        if let Some(position) = position.filter(|_| core(&from) == core(&to) && from[axis] != 1) {
            cx.iotas.insert(y, position);
        }
    }
    Ok(vec![y])
}

/// The order of elements turned over.
pub(super) fn reverse(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let axes = c.ints(&["dims", "dimensions"])?;
    Ok(vec![cx.reverse(x, &axes)?])
}

/// `[start:limit:stride]` of each axis.
pub(super) fn slice(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let rank = cx.dims(x)?.len();
    let (starts, ends, steps) = match c.attr(&["bounds"]) {
        Some(Attr::List(triples)) => {
            let triples: Option<Vec<Vec<i64>>> = triples.iter().map(Attr::ints).collect();
            let triples = triples.filter(|t| t.iter().all(|t| t.len() == 3));
            let triples =
                triples.ok_or_else(|| ImportError::invalid("bounds must be start:limit or start:limit:stride"))?;
            let of = |i: usize| triples.iter().map(|t| t[i]).collect::<Vec<_>>();
            (of(0), of(1), of(2))
        }
        _ if rank == 0 => return Ok(vec![x]),
        _ => (c.ints(&["start_indices"])?, c.ints(&["limit_indices"])?, c.ints(&["strides"])?),
    };
    if [&starts, &ends, &steps].iter().any(|l| l.len() != rank) {
        return Err(ImportError::invalid(format!("{} bounds of a tensor of rank {rank}", starts.len())));
    }
    Ok(vec![cx.slice(x, &starts, &ends, &steps)?])
}

/// Axes in another order.
pub(super) fn transpose(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let perm = c.axes(&["dims", "permutation"], cx.dims(x)?.len())?;
    if cx.readers(c.op) == 1
        && let Some(y) = super::dot::transposed(cx, x, &perm)?
    {
        return Ok(vec![y]);
    }
    Ok(vec![cx.transpose(x, &perm)?])
}

/// Elements before, after and between those of an axis.
pub(super) fn pad(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (x, value) = (c.operand(0)?, c.operand(1)?);
    let low = c.ints(&["low", "edge_padding_low"])?;
    let high = c.ints(&["high", "edge_padding_high"])?;
    let interior = c.ints(&["interior", "interior_padding"])?;
    let rank = cx.dims(x)?.len();
    if [&low, &high, &interior].iter().any(|l| l.len() != rank) || interior.iter().any(|i| *i < 0) {
        return Err(ImportError::invalid(format!(
            "low, high and interior must be {rank} numbers each, of a tensor of rank {rank}"
        )));
    }
    Ok(vec![padded(cx, x, value, &low, &high, &interior)?])
}

/// `x` with padding, which may be negative at its ends.
pub(super) fn padded(
    cx: &mut Importer<'_, '_>,
    x: of_ir::ValueId,
    value: of_ir::ValueId,
    low: &[i64],
    high: &[i64],
    interior: &[i64],
) -> Built {
    let mut x = x;
    for (axis, between) in interior.iter().enumerate() {
        let dims = cx.dims(x)?;
        if *between == 0 || dims[axis] < 2 {
            continue;
        }
        // Each element becomes a row of itself and what follows it; the end of the last row is cut off.
        let mut split = dims.clone();
        split.insert(axis + 1, 1);
        let rows = cx.reshape(x, &split)?;
        let mut after = vec![0; split.len()];
        after[axis + 1] = *between;
        let rows = plain_pad(cx, rows, value, &vec![0; split.len()], &after)?;
        let mut joined = dims;
        joined[axis] *= between + 1;
        let joined_value = cx.reshape(rows, &joined)?;
        let mut ends = joined.clone();
        ends[axis] -= between;
        x = cx.slice(joined_value, &vec![0; ends.len()], &ends, &vec![1; ends.len()])?;
    }
    let part = |list: &[i64], f: fn(i64) -> i64| list.iter().map(|v| f(*v)).collect::<Vec<_>>();
    x = plain_pad(cx, x, value, &part(low, |v| v.max(0)), &part(high, |v| v.max(0)))?;
    let dims = cx.dims(x)?;
    let starts = part(low, |v| (-v).max(0));
    let ends: Vec<i64> = dims.iter().zip(high).map(|(d, h)| d + h.min(&0)).collect();
    cx.slice(x, &starts, &ends, &vec![1; dims.len()])
}

fn plain_pad(cx: &mut Importer<'_, '_>, x: of_ir::ValueId, value: of_ir::ValueId, low: &[i64], high: &[i64]) -> Built {
    if low.iter().chain(high).all(|v| *v == 0) {
        return Ok(x);
    }
    let pads = cx.ints(&[low, high].concat())?;
    cx.one(Pad { mode: "constant".into() }, &[x, pads, value])
}
