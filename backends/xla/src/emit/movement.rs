//! Ops that move elements to positions known at compile time.

use of_ir::{DType, OpId};
use of_ops::movement::{Compress, Concat, EyeLike, Pad, Split, Transpose, Trilu};
use of_ops::shape;

use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[
    ("of.compress", compress),
    ("of.concat", concat),
    ("of.expand", expand),
    ("of.eye_like", eye_like),
    ("of.pad", pad),
    ("of.range", range),
    ("of.reshape", reshape),
    ("of.slice", slice),
    ("of.split", split),
    ("of.tile", tile),
    ("of.transpose", transpose),
    ("of.trilu", trilu),
];

fn reshape(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (x, (_, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    Ok(vec![e.reshape(&x, &dims)])
}

fn expand(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (x, (_, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    Ok(vec![e.broadcast_to(&x, &dims)])
}

fn transpose(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let perm = match e.attrs::<Transpose>(op)?.perm {
        Some(p) => p.iter().map(|a| shape::axis(*a, x.rank()).map_err(|e| e.message)).collect::<Result<Vec<_>, _>>()?,
        None => (0..x.rank()).rev().collect(),
    };
    Ok(vec![e.transpose(&x, &perm)])
}

/// The condition is a compile-time constant, because the extents of the result depend on it.
fn compress(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let (x, axis) = match e.attrs::<Compress>(op)?.axis {
        Some(a) => (x.clone(), shape::axis(a, x.rank()).map_err(|e| e.message)?),
        None => (e.reshape(&x, &[x.elements()]), 0),
    };
    let there = e.ints(op, 1)?.unwrap_or_default();
    let kept: Vec<i64> = (0..).zip(&there).filter(|(_, t)| **t != 0).map(|(i, _)| i).collect();
    if kept.last().is_some_and(|i| *i >= x.dims[axis] as i64) {
        return Err("its condition is longer than its axis".into());
    }
    let kept = e.int_list(&kept)?;
    Ok(vec![e.take(&x, &kept, axis)])
}

fn concat(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let xs = e.operands(op)?;
    let axis = shape::axis(e.attrs::<Concat>(op)?.axis, xs[0].rank()).map_err(|e| e.message)?;
    Ok(vec![e.concat(&xs.iter().collect::<Vec<_>>(), axis)])
}

fn split(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let axis = shape::axis(e.attrs::<Split>(op)?.axis, x.rank()).map_err(|e| e.message)?;
    let mut start = 0;
    let mut out = Vec::new();
    for i in 0..e.g.op(op).results.len() {
        let (_, dims) = e.result(op, i)?;
        out.push(e.slice_in_dim(&x, axis, start, dims[axis]));
        start += dims[axis];
    }
    Ok(out)
}

/// Python's `start:end:step` of each axis.
fn slice(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let (_, dims) = e.result(op, 0)?;
    let starts = e.ints(op, 1)?.unwrap_or_default();
    let axes = e.ints(op, 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = e.ints(op, 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let (mut from, mut to, mut by) = (vec![0; x.rank()], x.dims.clone(), vec![1; x.rank()]);
    let mut backwards = Vec::new();
    for ((start, axis), step) in starts.iter().zip(&axes).zip(&steps) {
        let a = shape::axis(*axis, x.rank()).map_err(|e| e.message)?;
        let (n, len) = (x.dims[a] as i64, dims[a]);
        let start = if *start < 0 { start.saturating_add(n) } else { *start };
        let first = if *step > 0 { start.clamp(0, n) } else { start.clamp(-1, n - 1) };
        if len == 0 {
            (from[a], to[a]) = (0, 0);
            continue;
        }
        // `len` elements lie inside the axis, so that a large step says nothing beyond the first.
        let step = if len == 1 { step.signum() } else { *step };
        let last = first + (len as i64 - 1) * step;
        if step < 0 {
            backwards.push(a);
        }
        let (low, high) = (first.min(last), first.max(last));
        (from[a], to[a], by[a]) = (low as usize, high as usize + 1, step.unsigned_abs() as usize);
    }
    let y = e.slice(&x, &from, &to, &by);
    Ok(vec![if backwards.is_empty() { y } else { e.reverse(&y, &backwards) }])
}

fn pad(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let mode = e.attrs::<Pad>(op)?.mode;
    let x = e.operand(op, 0)?;
    let given = e.ints(op, 1)?.unwrap_or_default();
    let axes = e.ints(op, 3)?.unwrap_or_else(|| (0..x.rank() as i64).collect());
    let mut pads = vec![(0i64, 0i64); x.rank()];
    for (i, axis) in axes.iter().enumerate() {
        let a = shape::axis(*axis, x.rank()).map_err(|e| e.message)?;
        pads[a] = (given[i], given[i + axes.len()]);
    }
    if &*mode == "constant" {
        let value = match e.optional(op, 2)? {
            Some(v) => e.reshape(&v, &[]),
            None => e.splat(x.dtype, &[], 0.0),
        };
        return Ok(vec![e.pad(&x, &value, &pads)]);
    }
    // Truncated first, then padded with existing elements.
    let cut: Vec<(i64, i64)> = pads.iter().map(|(l, h)| ((*l).min(0), (*h).min(0))).collect();
    let zero = e.splat(x.dtype, &[], 0.0);
    let mut y = e.pad(&x, &zero, &cut);
    for (axis, (low, high)) in pads.iter().enumerate() {
        let (low, high, n) = ((*low).max(0), (*high).max(0), y.dims[axis] as i64);
        if low == 0 && high == 0 {
            continue;
        }
        let at = |i: i64| match &*mode {
            "edge" => i.clamp(0, n - 1),
            "wrap" => i.rem_euclid(n),
            _ if n == 1 => 0,
            _ => {
                let period = 2 * (n - 1);
                let i = i.rem_euclid(period);
                if i < n { i } else { period - i }
            }
        };
        let places: Vec<i64> = (-low..n + high).map(at).collect();
        let places = e.int_list(&places)?;
        y = e.take(&y, &places, axis);
    }
    Ok(vec![y])
}

fn tile(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (x, (_, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    // Each axis becomes two: the repeat count, and the axis itself.
    let repeats: Vec<usize> = match e.ints(op, 1)? {
        Some(r) => r.iter().map(|r| *r as usize).collect(),
        None => return Err("operand 1 is left out".into()),
    };
    let full: Vec<usize> = repeats.iter().zip(&x.dims).flat_map(|(r, d)| [*r, *d]).collect();
    let axes: Vec<usize> = (0..x.rank()).map(|a| 2 * a + 1).collect();
    let y = e.broadcast_in_dim(&x, &full, &axes);
    Ok(vec![e.reshape(&y, &dims)])
}

fn range(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (dtype, dims) = e.result(op, 0)?;
    let (start, delta) = (e.operand(op, 0)?, e.operand(op, 2)?);
    let (start, delta) = (e.reshape(&start, &[]), e.reshape(&delta, &[]));
    let (start, delta) = (e.broadcast_to(&start, &dims), e.broadcast_to(&delta, &dims));
    let at = e.iota(dtype, &dims, 0);
    let steps = e.binary("multiply", &at, &delta);
    Ok(vec![e.binary("add", &start, &steps)])
}

/// Row and column of every element of the matrices in the last two axes.
fn row_and_column(e: &mut Emitter<'_>, dims: &[usize]) -> (Val, Val) {
    let rank = dims.len();
    (e.iota(DType::I64, dims, rank - 2), e.iota(DType::I64, dims, rank - 1))
}

fn trilu(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let upper = e.attrs::<Trilu>(op)?.upper;
    let x = e.operand(op, 0)?;
    let k = match e.optional(op, 1)? {
        Some(k) => {
            let k = e.reshape(&k, &[]);
            let k = e.convert(&k, DType::I64);
            e.broadcast_to(&k, &x.dims)
        }
        None => e.splat(DType::I64, &x.dims, 0.0),
    };
    let (row, column) = row_and_column(e, &x.dims);
    let diagonal = e.binary("subtract", &column, &row);
    let inside = e.compare(if upper { "GE" } else { "LE" }, &diagonal, &k);
    let zero = e.full_like(&x, 0.0);
    Ok(vec![e.select(&inside, &x, &zero)])
}

fn eye_like(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let k = e.attrs::<EyeLike>(op)?.k;
    let (dtype, dims) = e.result(op, 0)?;
    let (row, column) = row_and_column(e, &dims);
    let diagonal = e.binary("subtract", &column, &row);
    let k = e.full_like(&diagonal, k as f64);
    let ones = e.compare("EQ", &diagonal, &k);
    Ok(vec![e.convert(&ones, dtype)])
}
