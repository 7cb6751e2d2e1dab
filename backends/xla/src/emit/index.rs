//! Gathers and scatters. Negative indices count from the end; an index out of range fails the run.

use of_ir::{DType, OpId};
use of_ops::movement::{Gather, GatherElements, GatherNd, OneHot, ReverseSequence, ScatterElements, ScatterNd};
use of_ops::shape;

use super::build::array;
use super::{Emitter, Table, Typed, Val};

/// Ops of this file.
pub const TABLE: Table = &[
    ("of.gather", gather),
    ("of.gather_elements", gather_elements),
    ("of.gather_nd", gather_nd),
    ("of.one_hot", one_hot),
    ("of.reverse_sequence", reverse_sequence),
    ("of.scatter_elements", scatter_elements),
    ("of.scatter_nd", scatter_nd),
];

fn gather(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (x, indices) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let axis = shape::axis(e.attrs::<Gather>(op)?.axis, x.rank()).map_err(|e| e.message)?;
    let known = e.ints(op, 1).ok().flatten();
    let indices = e.in_range(&indices, x.dims[axis], known.as_deref());
    Ok(vec![e.take(&x, &indices, axis)])
}

fn gather_elements(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (x, indices) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let axis = shape::axis(e.attrs::<GatherElements>(op)?.axis, x.rank()).map_err(|e| e.message)?;
    let at = element_positions(e, op, &x, &indices, axis);
    let flat = e.reshape(&x, &[x.elements()]);
    Ok(vec![e.take(&flat, &at, 0)])
}

/// Positions in the flat `x` of the elements that `indices` select along an axis.
fn element_positions(e: &mut Emitter<'_>, op: OpId, x: &Val, indices: &Val, axis: usize) -> Val {
    let known = e.ints(op, 1).ok().flatten();
    let indices = e.in_range(indices, x.dims[axis], known.as_deref());
    let strides = shape::strides(&x.dims);
    let mut at = e.times(&indices, strides[axis]);
    for a in (0..x.rank()).filter(|a| *a != axis) {
        let own = e.iota(DType::I64, &indices.dims, a);
        let own = e.times(&own, strides[a]);
        at = e.binary("add", &at, &own);
    }
    at
}

/// The flat position of each slice that the last axis of `indices` selects in the axes from `batch` on; both share the first
/// `batch` axes.
fn slice_positions(e: &mut Emitter<'_>, op: OpId, x: &Val, indices: &Val, batch: usize) -> Val {
    let named = *indices.dims.last().unwrap_or(&0);
    let places = &indices.dims[..indices.rank() - 1];
    let sizes = &x.dims[..batch + named];
    let strides = shape::strides(sizes);
    let known = e.ints(op, 1).ok().flatten();
    let mut at = e.splat(DType::I64, places, 0.0);
    for i in 0..named {
        let own = e.slice_in_dim(indices, indices.rank() - 1, i, 1);
        let own = e.reshape(&own, places);
        let list: Option<Vec<i64>> = known.as_ref().map(|k| k.iter().skip(i).step_by(named).copied().collect());
        let own = e.in_range(&own, sizes[batch + i], list.as_deref());
        let own = e.times(&own, strides[batch + i]);
        at = e.binary("add", &at, &own);
    }
    for (a, stride) in strides.iter().enumerate().take(batch) {
        let own = e.iota(DType::I64, places, a);
        let own = e.times(&own, *stride);
        at = e.binary("add", &at, &own);
    }
    at
}

fn gather_nd(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (x, indices) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let batch = e.attrs::<GatherNd>(op)?.batch_dims as usize;
    let (_, dims) = e.result(op, 0)?;
    let named = batch + indices.dims.last().copied().unwrap_or(0);
    let at = slice_positions(e, op, &x, &indices, batch);
    let rows = e.reshape(&x, &[&[x.dims[..named].iter().product()], &x.dims[named..]].concat());
    let y = e.take(&rows, &at, 0);
    Ok(vec![e.reshape(&y, &dims)])
}

fn scatter_elements(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let ScatterElements { axis, reduction } = e.attrs(op)?;
    let (x, indices, updates) = (e.operand(op, 0)?, e.operand(op, 1)?, e.operand(op, 2)?);
    let axis = shape::axis(axis, x.rank()).map_err(|e| e.message)?;
    let at = element_positions(e, op, &x, &indices, axis);
    let (flat, at) = (e.reshape(&x, &[x.elements(), 1]), e.reshape(&at, &[indices.elements()]));
    let updates = e.reshape(&updates, &[indices.elements(), 1]);
    let y = e.scatter(&flat, &at, &updates, &reduction)?;
    Ok(vec![e.reshape(&y, &x.dims)])
}

fn scatter_nd(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let ScatterNd { reduction } = e.attrs(op)?;
    let (x, indices, updates) = (e.operand(op, 0)?, e.operand(op, 1)?, e.operand(op, 2)?);
    let named = indices.dims.last().copied().unwrap_or(0);
    let (rows, inner) = (x.dims[..named].iter().product(), x.dims[named..].iter().product());
    let at = slice_positions(e, op, &x, &indices, 0);
    let at = e.reshape(&at, &[at.elements()]);
    let flat = e.reshape(&x, &[rows, inner]);
    let updates = e.reshape(&updates, &[at.elements(), inner]);
    let y = e.scatter(&flat, &at, &updates, &reduction)?;
    Ok(vec![e.reshape(&y, &x.dims)])
}

fn one_hot(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (indices, values) = (e.operand(op, 0)?, e.operand(op, 2)?);
    let (_, dims) = e.result(op, 0)?;
    let axis = shape::axis(e.attrs::<OneHot>(op)?.axis, dims.len()).map_err(|e| e.message)?;
    let others: Vec<usize> = (0..dims.len()).filter(|a| *a != axis).collect();
    // An index that is not a whole number selects no position.
    let wide = e.convert(&indices, if indices.dtype.is_float() { DType::F64 } else { DType::I64 });
    let index = e.broadcast_in_dim(&wide, &dims, &others);
    let at = e.iota(wide.dtype, &dims, axis);
    let depth = e.full_like(&at, dims[axis] as f64);
    let from_end = e.binary("subtract", &at, &depth);
    let (here, there) = (e.compare("EQ", &index, &at), e.compare("EQ", &index, &from_end));
    let on = e.binary("or", &here, &there);
    let mut value = |i: usize| {
        let v = e.slice_in_dim(&values, 0, i, 1);
        let v = e.reshape(&v, &[]);
        e.broadcast_to(&v, &dims)
    };
    let (off, hit) = (value(0), value(1));
    Ok(vec![e.select(&on, &hit, &off)])
}

fn reverse_sequence(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let ReverseSequence { batch_axis, time_axis } = e.attrs(op)?;
    let (x, lengths) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let axis = |a| shape::axis(a, x.rank()).map_err(|e| e.message);
    let (batch, time) = (axis(batch_axis)?, axis(time_axis)?);
    if batch.max(time) != 1 {
        return Err("its batch and time axes are not the first two".into());
    }
    let two = &x.dims[..2];
    let lengths = e.convert(&lengths, DType::I64);
    // A length beyond the axis is an index out of range as well.
    let zero = e.full_like(&lengths, 0.0);
    let most = e.full_like(&lengths, x.dims[time] as f64);
    let (low, high) = (e.compare("GE", &lengths, &zero), e.compare("LE", &lengths, &most));
    e.check(&[&low, &high]);
    let lengths = e.broadcast_in_dim(&lengths, two, &[batch]);
    let at = e.iota(DType::I64, two, time);
    let one = e.full_like(&at, 1.0);
    let last = e.binary("subtract", &lengths, &one);
    let turned = e.binary("subtract", &last, &at);
    let inside = e.compare("LT", &at, &lengths);
    let from = e.select(&inside, &turned, &at);
    let strides = shape::strides(two);
    let (from, own) = (e.times(&from, strides[time]), e.iota(DType::I64, two, batch));
    let own = e.times(&own, strides[batch]);
    let from = e.binary("add", &from, &own);
    let rows = e.reshape(&x, &[&[two[0] * two[1]], &x.dims[2..]].concat());
    Ok(vec![e.take(&rows, &from, 0)])
}

impl Emitter<'_> {
    /// `x` times a number.
    pub fn times(&mut self, x: &Val, by: usize) -> Val {
        let n = self.full_like(x, by as f64);
        self.binary("multiply", x, &n)
    }

    /// Adds checks: all elements must be true.
    pub fn check(&mut self, conditions: &[&Val]) {
        for c in conditions {
            let all = self.reduce("and", c, &(0..c.rank()).collect::<Vec<_>>(), 1.0);
            self.checks.push(all);
        }
    }

    /// Indices along an axis of length `n` as i64, made non-negative. Indices unknown at compile time are checked at run
    /// time.
    fn in_range(&mut self, indices: &Val, n: usize, known: Option<&[i64]>) -> Val {
        let i = self.convert(indices, DType::I64);
        let end = n as i64;
        if known.is_some_and(|k| k.iter().all(|k| (0..end).contains(k))) {
            return i;
        }
        let (zero, count) = (self.full_like(&i, 0.0), self.full_like(&i, n as f64));
        let negative = self.compare("LT", &i, &zero);
        let from_end = self.binary("add", &i, &count);
        let i = self.select(&negative, &from_end, &i);
        if !known.is_some_and(|k| k.iter().all(|k| (-end..end).contains(k))) {
            let (low, high) = (self.compare("GE", &i, &zero), self.compare("LT", &i, &count));
            self.check(&[&low, &high]);
        }
        i
    }

    /// The slices of an axis that `indices` select; the index axes replace the axis.
    pub fn take(&mut self, x: &Val, indices: &Val, axis: usize) -> Val {
        let dims = [&x.dims[..axis], &indices.dims, &x.dims[axis + 1..]].concat();
        let mut sizes = x.dims.clone();
        sizes[axis] = 1;
        let offset: Vec<usize> = (0..axis).chain(axis + indices.rank()..dims.len()).collect();
        let attrs = format!(
            "dimension_numbers = #stablehlo.gather<offset_dims = {}, collapsed_slice_dims = [{axis}], \
             start_index_map = [{axis}], index_vector_dim = {}>, slice_sizes = {}, indices_are_sorted = false",
            of_emit::list(&offset),
            indices.rank(),
            array(&sizes)
        );
        self.emit("stablehlo.gather", &[x, indices], &attrs, x.dtype, &dims)
    }

    /// Combines `x[at[i], :]` with `updates[i, :]`; positions out of range are skipped.
    pub fn scatter(&mut self, x: &Val, at: &Val, updates: &Val, reduction: &str) -> Result<Val, String> {
        let combine = match reduction {
            "none" => None,
            "add" => Some("add"),
            "mul" => Some("multiply"),
            "max" => Some("maximum"),
            "min" => Some("minimum"),
            other => return Err(format!("reduction '{other}' is unknown")),
        };
        let out = Val { name: self.fresh(), ..x.clone() };
        let text = format!(
            "{} = \"stablehlo.scatter\"({}, {}, {}) {} {{scatter_dimension_numbers = \
             #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], \
             index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}} : ({}, {}, {}) -> {}",
            out.name,
            x.name,
            at.name,
            updates.name,
            self.combiner(combine, x.dtype),
            x.ty(),
            at.ty(),
            updates.ty(),
            out.ty()
        );
        self.line(&text);
        Ok(out)
    }
}
