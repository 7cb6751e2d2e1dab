//! Matrix products.

use of_ir::{DType, OpId};

use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[("of.matmul", matmul), ("of.matmul_integer", matmul_integer)];

fn matmul(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (a, b) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let (dtype, dims) = e.result(op, 0)?;
    Ok(vec![product(e, &a, &b, dtype, &dims)?])
}

fn matmul_integer(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let (a, b) = (e.operand(op, 0)?, e.operand(op, 1)?);
    // One zero point for each row of `a`, and one for each column of `b`.
    let a = shifted(e, op, &a, 2, |n| vec![n, 1])?;
    let b = shifted(e, op, &b, 3, |n| vec![n])?;
    let (dtype, dims) = e.result(op, 0)?;
    Ok(vec![product(e, &a, &b, dtype, &dims)?])
}

/// `x` in i32 minus its zero point; `shape` broadcasts a list of zero points.
pub fn shifted(
    e: &mut Emitter<'_>,
    op: OpId,
    x: &Val,
    zero: usize,
    shape: impl Fn(usize) -> Vec<usize>,
) -> Result<Val, String> {
    let Some(z) = e.optional(op, zero)? else { return e.convert(x, DType::I32) };
    let z = match z.rank() {
        _ if z.elements() == 1 => e.reshape(&z, &[]),
        1 => e.reshape(&z, &shape(z.dims[0])),
        _ => z,
    };
    e.pointwise(&[x, &z], DType::I32, &x.dims, |s, items| {
        let (x, z) = (s.cast(&items[0], DType::I32)?, s.cast(&items[1], DType::I32)?);
        Ok(s.op("arith.subi", &[&x, &z]))
    })
}

/// The product as in numpy, with broadcast leading axes. Products of 16-bit floats accumulate in f32.
pub fn product(e: &mut Emitter<'_>, a: &Val, b: &Val, dtype: DType, dims: &[usize]) -> Result<Val, String> {
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let (a, b) = (e.convert(a, wide)?, e.convert(b, wide)?);
    // A vector is a row on the left, a column on the right.
    let a = if a.rank() == 1 { e.reshape(&a, &[1, a.dims[0]]) } else { a };
    let b = if b.rank() == 1 { e.reshape(&b, &[b.dims[0], 1]) } else { b };
    let (ra, rb) = (a.rank(), b.rank());
    let (m, k, n) = (a.dims[ra - 2], a.dims[ra - 1], b.dims[rb - 1]);
    let y = if rb == 2 {
        // All leading axes are rows.
        let rows = a.dims[..ra - 1].iter().product();
        let a = e.reshape(&a, &[rows, k]);
        let zero = e.splat(wide, &[rows, n], 0.0);
        e.matmul(&a, &b, &zero)
    } else {
        let lead = lead(&a.dims[..ra - 2], &b.dims[..rb - 2]);
        let count = lead.iter().product();
        let a = e.broadcast_to(&a, &[lead.as_slice(), &[m, k]].concat())?;
        let b = e.broadcast_to(&b, &[lead.as_slice(), &[k, n]].concat())?;
        let (a, b) = (e.reshape(&a, &[count, m, k]), e.reshape(&b, &[count, k, n]));
        let zero = e.splat(wide, &[count, m, n], 0.0);
        e.matmul(&a, &b, &zero)
    };
    let y = e.reshape(&y, dims);
    e.convert(&y, dtype)
}

/// The extents that both broadcast to.
fn lead(a: &[usize], b: &[usize]) -> Vec<usize> {
    let n = a.len().max(b.len());
    let at = |d: &[usize], i: usize| if i + d.len() < n { 1 } else { d[i + d.len() - n] };
    (0..n).map(|i| if at(a, i) == 1 { at(b, i) } else { at(a, i) }).collect()
}
