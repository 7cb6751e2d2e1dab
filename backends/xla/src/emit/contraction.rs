//! Matrix products, determinants.

use of_ir::{DType, OpId};

use super::reduction::arg_extremum;
use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[("of.det", det), ("of.matmul", matmul), ("of.matmul_integer", matmul_integer)];

fn matmul(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (a, b) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let (dtype, dims) = e.result(op, 0)?;
    Ok(vec![product(e, &a, &b, dtype, &dims)])
}

fn matmul_integer(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (a, b) = (e.operand(op, 0)?, e.operand(op, 1)?);
    // One zero point for each row of `a`, and one for each column of `b`.
    let a = minus_zero_point(e, op, &a, 2, |n| vec![n, 1])?;
    let b = minus_zero_point(e, op, &b, 3, |n| vec![n])?;
    let (dtype, dims) = e.result(op, 0)?;
    Ok(vec![product(e, &a, &b, dtype, &dims)])
}

/// `x` in i32 minus its zero point; `shape` broadcasts a list of zero points.
pub fn minus_zero_point(
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
    let z = e.broadcast_to(&z, &x.dims);
    Ok(e.binary("subtract", &x, &z))
}

/// The product as in numpy, with broadcast leading axes.
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
        let lead = broadcast_dims(&a.dims[..ra - 2], &b.dims[..rb - 2]);
        let a = e.broadcast_to(&a, &[lead.as_slice(), &a.dims[ra - 2..]].concat());
        let b = e.broadcast_to(&b, &[lead.as_slice(), &b.dims[rb - 2..]].concat());
        dot(e, &a, &b, lead.len(), dtype, &[lead.as_slice(), &[m, n]].concat())
    };
    e.reshape(&out, dims)
}

/// Contracts the last axis of `a` with the second last of `b`; the first `batch` axes are batch dimensions.
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

/// Floats are multiplied at full precision.
pub const PRECISE: &str = "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]";

/// The dimensions that both broadcast to.
fn broadcast_dims(a: &[usize], b: &[usize]) -> Vec<usize> {
    let n = a.len().max(b.len());
    let at = |d: &[usize], i: usize| if i + d.len() < n { 1 } else { d[i + d.len() - n] };
    (0..n).map(|i| if at(a, i) == 1 { at(b, i) } else { at(a, i) }).collect()
}

/// Gaussian elimination with row pivoting, in f64 as the op is defined: each iteration eliminates a column, in all matrices
/// at once. The state is the column, the matrices, the products of pivots, and whether a pivot was zero.
fn det(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let (dtype, dims) = e.result(op, 0)?;
    let (n, count) = (x.dims[x.rank() - 1], dims.iter().product());
    if n == 0 || count == 0 {
        return Ok(vec![e.splat(dtype, &dims, 1.0)]);
    }
    let wide = e.convert(&x, DType::F64);
    let matrices = e.reshape(&wide, &[count, n, n]);
    let (first, product) = (e.splat(DType::I64, &[], 0.0), e.splat(DType::F64, &[count], 1.0));
    let regular = e.splat(DType::Bool, &[count], 0.0);
    let end = e.full_like(&first, n as f64);
    let rows = e.iota(DType::I64, &[count, n], 1);
    let turned = e.while_loop(
        &[first, matrices, product, regular],
        |e, s| Ok(e.compare("LT", &s[0], &end)),
        |e, s| {
            let [k, m, product, singular] = s else { return Err("its loop has another state".into()) };
            let here = e.broadcast_to(k, &rows.dims);
            let column = e.dynamic_index_in_dim(m, 2, k);
            let at = pivot(e, &column, &rows, &here);
            let m = swapped(e, m, &rows, &here, &at);
            let (column, row) = (e.dynamic_index_in_dim(&m, 2, k), e.dynamic_index_in_dim(&m, 1, k));
            let p = e.dynamic_index_in_dim(&column, 1, k);
            let (zero, one) = (e.full_like(&p, 0.0), e.full_like(&p, 1.0));
            let none = e.compare("EQ", &p, &zero);
            let singular = e.binary("or", singular, &none);
            let by = e.select(&none, &one, &p);
            let here = e.broadcast_to(k, &at.dims);
            let moved = e.compare("NE", &at, &here);
            let minus = e.unary("negate", &p);
            let p = e.select(&moved, &minus, &p);
            let product = e.binary("multiply", product, &p);
            // Rows and columns up to this one are not read again, so their contents do not matter.
            let by = e.broadcast_in_dim(&by, &rows.dims, &[0]);
            let factors = e.binary("divide", &column, &by);
            let (factors, row) =
                (e.broadcast_in_dim(&factors, &m.dims, &[0, 1]), e.broadcast_in_dim(&row, &m.dims, &[0, 2]));
            let less = e.binary("multiply", &factors, &row);
            let m = e.binary("subtract", &m, &less);
            let one = e.full_like(k, 1.0);
            Ok(vec![e.binary("add", k, &one), m, product, singular])
        },
    )?;
    let zero = e.full_like(&turned[2], 0.0);
    let y = e.select(&turned[3], &zero, &turned[2]);
    let y = e.convert(&y, dtype);
    Ok(vec![e.reshape(&y, &dims)])
}

/// The first row from `here` on with the largest absolute element of a column; NaN counts only in the first row.
fn pivot(e: &mut Emitter<'_>, column: &Val, rows: &Val, here: &Val) -> Val {
    let (done, first) = (e.compare("LT", rows, here), e.compare("EQ", rows, here));
    let (size, nan) = (e.unary("abs", column), e.compare("NE", column, column));
    let (least, most) = (e.full_like(column, -1.0), e.full_like(column, f64::INFINITY));
    let odd = e.select(&first, &most, &least);
    let size = e.select(&nan, &odd, &size);
    let size = e.select(&done, &least, &size);
    arg_extremum(e, &size, "maximum", 1, false)
}

/// The matrices with rows `here` and `at` swapped.
fn swapped(e: &mut Emitter<'_>, m: &Val, rows: &Val, here: &Val, at: &Val) -> Val {
    let at = e.broadcast_in_dim(at, &rows.dims, &[0]);
    let (is_here, is_there) = (e.compare("EQ", rows, here), e.compare("EQ", rows, &at));
    let from = e.select(&is_there, here, rows);
    let from = e.select(&is_here, &at, &from);
    let (batch, n) = (e.iota(DType::I64, &rows.dims, 0), e.full_like(rows, rows.dims[1] as f64));
    let before = e.binary("multiply", &batch, &n);
    let from = e.binary("add", &before, &from);
    let list = e.reshape(m, &[m.dims[0] * m.dims[1], m.dims[2]]);
    e.take(&list, &from, 0)
}
