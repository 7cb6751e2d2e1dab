//! Matrix products.

use of_ir::{DType, OpId};

use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[("of.matmul", matmul), ("of.matmul_integer", matmul_integer)];

fn matmul(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (a, b) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let (dtype, dims) = e.result(op, 0)?;
    Ok(vec![product(e, &a, &b, dtype, &dims)])
}

fn matmul_integer(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (a, b) = (e.operand(op, 0)?, e.operand(op, 1)?);
    // One zero point a row of `a`, and one a column of `b`.
    let a = shifted(e, op, &a, 2, |n| vec![n, 1])?;
    let b = shifted(e, op, &b, 3, |n| vec![n])?;
    let (dtype, dims) = e.result(op, 0)?;
    Ok(vec![product(e, &a, &b, dtype, &dims)])
}

/// `x` in i32, less its zero point; `shape` is where a list of zero points lies.
pub fn shifted(
    e: &mut Emitter<'_>,
    op: OpId,
    x: &Val,
    zero: usize,
    shape: impl Fn(usize) -> Vec<usize>,
) -> Result<Val, String> {
    let x = e.convert(x, DType::I32);
    let Some(z) = e.optional(op, zero)? else { return Ok(x) };
    let z = e.convert(&z, DType::I32);
    let z = match z.rank() {
        _ if z.elements() == 1 => e.reshape(&z, &[]),
        1 => e.reshape(&z, &shape(z.dims[0])),
        _ => z,
    };
    let z = e.stretch(&z, &x.dims);
    Ok(e.binary("subtract", &x, &z))
}

/// The product as numpy does it; leading axes are stretched.
pub fn product(e: &mut Emitter<'_>, a: &Val, b: &Val, dtype: DType, dims: &[usize]) -> Val {
    // A vector is a row on the left, a column on the right.
    let a = if a.rank() == 1 { e.reshape(a, &[1, a.dims[0]]) } else { a.clone() };
    let b = if b.rank() == 1 { e.reshape(b, &[b.dims[0], 1]) } else { b.clone() };
    let (ra, rb) = (a.rank(), b.rank());
    let (m, n) = (a.dims[ra - 2], b.dims[rb - 1]);
    let out = if rb == 2 {
        let full: Vec<usize> = [&a.dims[..ra - 1], &[n]].concat();
        dot(e, &a, &b, 0, dtype, &full)
    } else {
        let lead = lead(&a.dims[..ra - 2], &b.dims[..rb - 2]);
        let a = e.stretch(&a, &[lead.as_slice(), &a.dims[ra - 2..]].concat());
        let b = e.stretch(&b, &[lead.as_slice(), &b.dims[rb - 2..]].concat());
        dot(e, &a, &b, lead.len(), dtype, &[lead.as_slice(), &[m, n]].concat())
    };
    e.reshape(&out, dims)
}

/// The last axis of `a` with the one before the last of `b`; the first `batch` axes stay.
fn dot(e: &mut Emitter<'_>, a: &Val, b: &Val, batch: usize, dtype: DType, dims: &[usize]) -> Val {
    let axes: Vec<String> = (0..batch).map(|a| a.to_string()).collect();
    let axes = axes.join(", ");
    let attrs = format!(
        "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [{axes}], rhs_batching_dimensions = [{axes}], \
         lhs_contracting_dimensions = [{}], rhs_contracting_dimensions = [{}]>, {PRECISE}",
        a.rank() - 1,
        b.rank() - 2
    );
    e.emit("stablehlo.dot_general", &[a, b], &attrs, dtype, dims)
}

/// Floats are multiplied as what they are: no shorter mantissas.
pub const PRECISE: &str = "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]";

/// The dimensions that both stretch to.
fn lead(a: &[usize], b: &[usize]) -> Vec<usize> {
    let n = a.len().max(b.len());
    let at = |d: &[usize], i: usize| if i + d.len() < n { 1 } else { d[i + d.len() - n] };
    (0..n).map(|i| if at(a, i) == 1 { at(b, i) } else { at(a, i) }).collect()
}
