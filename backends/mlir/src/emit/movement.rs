//! Ops that move elements.

use of_ir::{DType, OpId, Tensor};
use of_ops::movement::{Concat, EyeLike, Gather, Pad, Split, Transpose, Trilu};
use of_ops::shape;

use super::arith::{Item, Scalars};
use super::build::{Axis, axes};
use super::{Emitter, Table, Typed, Val};

/// Ops of this file.
pub const TABLE: Table = &[
    ("of.concat", concat),
    ("of.expand", expand),
    ("of.eye_like", eye_like),
    ("of.gather", gather),
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
    Ok(vec![e.broadcast_to(&x, &dims)?])
}

fn transpose(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let perm = match e.attrs::<Transpose>(op)?.perm {
        Some(p) => p.iter().map(|a| shape::axis(*a, x.rank()).map_err(|e| e.message)).collect::<Result<Vec<_>, _>>()?,
        None => (0..x.rank()).rev().collect(),
    };
    Ok(vec![e.transpose(&x, &perm)])
}

fn concat(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let xs = e.operands(op)?;
    let (dtype, dims) = e.result(op, 0)?;
    let axis = shape::axis(e.attrs::<Concat>(op)?.axis, xs[0].rank()).map_err(|e| e.message)?;
    let mut y = e.empty(dtype, &dims);
    let mut start = vec![0; dims.len()];
    for x in &xs {
        y = e.insert(x, &y, &start);
        start[axis] += x.dims[axis];
    }
    Ok(vec![y])
}

fn split(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let axis = shape::axis(e.attrs::<Split>(op)?.axis, x.rank()).map_err(|e| e.message)?;
    let mut start = vec![0; x.rank()];
    let mut out = Vec::new();
    for i in 0..e.g.op(op).results.len() {
        let (_, dims) = e.result(op, i)?;
        out.push(e.slice(&x, &start, &dims, &vec![1; x.rank()]));
        start[axis] += dims[axis];
    }
    Ok(out)
}

/// Python's `start:end:step` of each axis.
fn slice(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let (_, dims) = e.result(op, 0)?;
    let starts = e.ints(op, 1)?.unwrap_or_default();
    let given = e.ints(op, 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = e.ints(op, 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let (mut from, mut by) = (vec![0; x.rank()], vec![1; x.rank()]);
    let mut backwards = Vec::new();
    for ((start, axis), step) in starts.iter().zip(&given).zip(&steps) {
        let a = shape::axis(*axis, x.rank()).map_err(|e| e.message)?;
        let n = x.dims[a] as i64;
        let start = if *start < 0 { start.saturating_add(n) } else { *start };
        let first = if *step > 0 { start.clamp(0, n) } else { start.clamp(-1, n - 1) };
        if dims[a] == 0 {
            continue;
        }
        // Clamping the step to the extent does not change the result.
        let step = if dims[a] == 1 { step.signum() } else { *step };
        let last = first + (dims[a] as i64 - 1) * step;
        if step < 0 {
            backwards.push(a);
        }
        (from[a], by[a]) = (first.min(last) as usize, step.unsigned_abs() as usize);
    }
    let y = e.slice(&x, &from, &dims, &by);
    if backwards.is_empty() || y.elements() == 0 {
        return Ok(vec![y]);
    }
    let turned =
        |(a, n): (usize, &usize)| if backwards.contains(&a) { format!("{} - d{a}", n - 1) } else { format!("d{a}") };
    let map = dims.iter().enumerate().map(turned).collect();
    let out = e.empty(y.dtype, &dims);
    let kinds = vec![Axis::Parallel; dims.len()];
    Ok(vec![e.generic(&[(&y, map)], (&out, axes(0..dims.len())), &kinds, |_, items, _| Ok(items[0].clone()))?])
}

fn pad(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let mode = e.attrs::<Pad>(op)?.mode;
    let x = e.operand(op, 0)?;
    let given = e.ints(op, 1)?.unwrap_or_default();
    let at = e.ints(op, 3)?.unwrap_or_else(|| (0..x.rank() as i64).collect());
    let mut pads = vec![(0i64, 0i64); x.rank()];
    for (i, axis) in at.iter().enumerate() {
        let a = shape::axis(*axis, x.rank()).map_err(|e| e.message)?;
        pads[a] = (given[i], given[i + at.len()]);
    }
    // Truncated first.
    let start: Vec<usize> = pads.iter().map(|(low, _)| (-low).max(0) as usize).collect();
    let rest = |(n, (low, high)): (&usize, &(i64, i64))| (*n as i64 + low.min(&0) + high.min(&0)).max(0) as usize;
    let dims: Vec<usize> = x.dims.iter().zip(&pads).map(rest).collect();
    let mut y = e.slice(&x, &start, &dims, &vec![1; x.rank()]);
    if &*mode == "constant" {
        let (dtype, dims) = e.result(op, 0)?;
        let low: Vec<usize> = pads.iter().map(|(low, _)| (*low).max(0) as usize).collect();
        let border = match e.optional(op, 2)? {
            Some(v) => e.splat_of(&v, &dims),
            None => e.splat(dtype, &dims, 0.0),
        };
        return Ok(vec![e.insert(&y, &border, &low)]);
    }
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
        let places = e.constant(&Tensor::from_i64s(&places))?;
        y = e.take(&y, &places, axis)?;
    }
    Ok(vec![y])
}

fn tile(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (x, (_, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    let repeats = e.ints(op, 1)?.ok_or("operand 1 is left out")?;
    // Each axis becomes two: the repeat count, and the axis itself.
    let full: Vec<usize> = repeats.iter().zip(&x.dims).flat_map(|(r, d)| [*r as usize, *d]).collect();
    let once: Vec<usize> = x.dims.iter().flat_map(|d| [1, *d]).collect();
    let x = e.reshape(&x, &once);
    let y = e.broadcast_to(&x, &full)?;
    Ok(vec![e.reshape(&y, &dims)])
}

/// Negative indices count from the end; an index out of range fails the run.
fn gather(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (x, indices) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let axis = shape::axis(e.attrs::<Gather>(op)?.axis, x.rank()).map_err(|e| e.message)?;
    let end = x.dims[axis] as i64;
    let known = e.ints(op, 1).ok().flatten();
    if end == 0 {
        return Err("its axis has no elements".into());
    }
    if !known.is_some_and(|k| k.iter().all(|i| (-end..end).contains(i))) {
        let yes = e.splat(DType::Bool, &[], 1.0);
        let kinds = vec![Axis::Reduction; indices.rank()];
        let own = axes(0..indices.rank());
        let held = e.generic(&[(&indices, own)], (&yes, vec![]), &kinds, |s, items, so_far| {
            let i = s.cast(&items[0], DType::I64)?;
            let (low, high) = (s.number(DType::I64, -end as f64), s.number(DType::I64, end as f64));
            let (above, below) = (s.compare("sge", &i, &low), s.compare("slt", &i, &high));
            let inside = s.op("arith.andi", &[&above, &below]);
            Ok(s.op("arith.andi", &[so_far, &inside]))
        })?;
        e.checks.push(held);
    }
    Ok(vec![e.take(&x, &indices, axis)?])
}

fn range(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (dtype, dims) = e.result(op, 0)?;
    let (start, delta) = (e.operand(op, 0)?, e.operand(op, 2)?);
    let (start, delta) = (e.reshape(&start, &[]), e.reshape(&delta, &[]));
    let y = e.pointwise(&[&start, &delta], dtype, &dims, |s, items| {
        let at = s.index(0);
        let at = s.cast(&at, dtype)?;
        let steps = s.apply(of_ops::scalar::ScalarOp::Mul, &[at, items[1].clone()])?;
        s.apply(of_ops::scalar::ScalarOp::Add, &[items[0].clone(), steps])
    })?;
    Ok(vec![y])
}

/// Column minus row of an element of the matrices in the last two axes.
fn diagonal(s: &mut Scalars<'_>, rank: usize) -> Item {
    let (row, column) = (s.index(rank - 2), s.index(rank - 1));
    s.op("arith.subi", &[&column, &row])
}

fn trilu(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let upper = e.attrs::<Trilu>(op)?.upper;
    let x = e.operand(op, 0)?;
    let k = match e.optional(op, 1)? {
        Some(k) => e.reshape(&k, &[]),
        None => e.constant(
            &Tensor::from_elements(DType::I64, vec![], of_ir::Elements::Int(vec![0])).map_err(|e| e.to_string())?,
        )?,
    };
    let rank = x.rank();
    let y = e.pointwise(&[&x, &k], x.dtype, &x.dims, |s, items| {
        let (at, k) = (diagonal(s, rank), s.cast(&items[1], DType::I64)?);
        let inside = s.compare(if upper { "sge" } else { "sle" }, &at, &k);
        let zero = s.number(items[0].dtype, 0.0);
        Ok(s.select(&inside, &items[0], &zero))
    })?;
    Ok(vec![y])
}

fn eye_like(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let k = e.attrs::<EyeLike>(op)?.k;
    let (dtype, dims) = e.result(op, 0)?;
    let rank = dims.len();
    let y = e.pointwise(&[], dtype, &dims, |s, _| {
        let (at, k) = (diagonal(s, rank), s.number(DType::I64, k as f64));
        let on = s.compare("eq", &at, &k);
        s.cast(&on, dtype)
    })?;
    Ok(vec![y])
}

impl Emitter<'_> {
    /// The slices of an axis that `indices` select; negative indices count from the end. The index axes replace the axis.
    /// Indices out of range are clamped.
    fn take(&mut self, x: &Val, indices: &Val, axis: usize) -> Result<Val, String> {
        let dims = [&x.dims[..axis], &indices.dims, &x.dims[axis + 1..]].concat();
        let out = self.empty(x.dtype, &dims);
        let kinds = vec![Axis::Parallel; dims.len()];
        let n = x.dims[axis] as f64;
        let read = [(indices, axes(axis..axis + indices.rank()))];
        let out_map = axes(0..dims.len());
        self.generic(&read, (&out, out_map), &kinds, |s, items, _| {
            let i = s.cast(&items[0], DType::I64)?;
            let (zero, count, last) =
                (s.number(DType::I64, 0.0), s.number(DType::I64, n), s.number(DType::I64, n - 1.0));
            let negative = s.compare("slt", &i, &zero);
            let from_end = s.op("arith.addi", &[&i, &count]);
            let i = s.select(&negative, &from_end, &i);
            let i = s.op("arith.maxsi", &[&i, &zero]);
            let i = s.op("arith.minsi", &[&i, &last]);
            let own = (0..x.rank()).map(|a| match a {
                a if a < axis => Err(a),
                a if a == axis => Ok(i.clone()),
                a => Err(a + indices.rank() - 1),
            });
            Ok(s.extract(x, &own.collect::<Vec<_>>()))
        })
    }
}

impl Scalars<'_> {
    /// The index along an axis of the iteration space, i64.
    fn index(&mut self, axis: usize) -> Item {
        let at = self.line(DType::I64, &format!("linalg.index {axis} : index"));
        self.line(DType::I64, &format!("arith.index_cast {} : index to i64", at.name))
    }

    /// The element of a tensor at these indices: constants, or axes of the iteration space.
    fn extract(&mut self, x: &Val, indices: &[Result<Item, usize>]) -> Item {
        let at: Vec<String> = indices
            .iter()
            .map(|p| match p {
                Ok(i) => self.line(DType::I64, &format!("arith.index_cast {} : i64 to index", i.name)).name,
                Err(axis) => self.line(DType::I64, &format!("linalg.index {axis} : index")).name,
            })
            .collect();
        let element = self.line(x.dtype, &format!("tensor.extract {}[{}] : {}", x.name, at.join(", "), x.ty()));
        self.loaded(element)
    }
}
