//! Rules of `canonicalize` for quantized products: zero points become corrections.
//!
//! What remains is a plain product with signed bytes, for which machines have instructions.

use of_diag::Diagnostic;
use of_ir::{OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::elementwise::{Add, Cast, Mul, Neg};
use of_ops::movement::Pad;
use of_ops::nn::{Conv, ConvInteger, MatMulInteger};
use of_ops::structural::Constant;

use crate::builders::reshape_to;
use crate::matchers::{dims, splat};

/// The operand, where it is given.
fn given(rw: &Rewriter<'_>, op: OpId, i: usize) -> Option<ValueId> {
    let g = rw.graph();
    g.op(op).operands.get(i).copied().filter(|v| *g.ty(*v) != Type::None)
}

/// A zero point that is given and not known to be 0.
fn zero_point(rw: &Rewriter<'_>, op: OpId, i: usize) -> Option<ValueId> {
    given(rw, op, i).filter(|z| splat(rw.graph(), *z) != Some(0.0))
}

/// Elements of an 8-bit tensor.
fn bytes(t: &Tensor) -> Option<Vec<i32>> {
    let signed = t.as_slice::<i8>().map(|v| v.iter().map(|x| i32::from(*x)).collect());
    signed.or_else(|| t.as_slice::<u8>().map(|v| v.iter().map(|x| i32::from(*x)).collect()))
}

/// Weights without a zero point: `w - zero` as one tensor of signed bytes, or as a sum of several where it takes nine
/// bits.
struct Plain {
    parts: Vec<Tensor>,
    /// `w - zero`.
    centred: Vec<i32>,
}

/// `at(i)` is the index of the zero point of element `i`, where there are several.
fn plain(rw: &Rewriter<'_>, w: ValueId, zero: Option<ValueId>, at: impl Fn(usize) -> usize) -> Option<Plain> {
    let w = rw.graph().constant(w)?;
    let mut centred = bytes(&w)?;
    if let Some(z) = zero {
        let z = bytes(&rw.graph().constant(z)?)?;
        for (i, v) in centred.iter_mut().enumerate() {
            *v -= *z.get(if z.len() == 1 { 0 } else { at(i) })?;
        }
    }
    let (mut parts, mut rest) = (Vec::new(), centred.clone());
    while parts.is_empty() || rest.iter().any(|v| *v != 0) {
        let part: Vec<i8> = rest.iter().map(|v| (*v).clamp(-128, 127) as i8).collect();
        rest.iter_mut().zip(&part).for_each(|(r, p)| *r -= i32::from(*p));
        parts.push(Tensor::from_slice(w.dims(), &part).ok()?);
    }
    Some(Plain { parts, centred })
}

/// The sum of the products with each part, minus `zero * sums`.
fn corrected(
    rw: &mut Rewriter<'_>,
    parts: Vec<Tensor>,
    zero: Option<ValueId>,
    sums: Tensor,
    product: impl Fn(&mut Rewriter<'_>, ValueId) -> Result<ValueId, Diagnostic>,
) -> Result<ValueId, Diagnostic> {
    let sums = rw.create_one(Constant { value: sums }, &[])?;
    let mut y: Option<ValueId> = None;
    if let Some(zero) = zero {
        let zero = rw.create_one(Cast::to(of_ir::DType::I32), &[zero])?;
        let scaled = rw.create_one(Mul {}, &[zero, sums])?;
        y = Some(rw.create_one(Neg {}, &[scaled])?);
    }
    for value in parts {
        let w = rw.create_one(Constant { value }, &[])?;
        let p = product(rw, w)?;
        y = Some(match y {
            Some(y) => rw.create_one(Add {}, &[p, y])?,
            None => p,
        });
    }
    Ok(y.unwrap_or(sums))
}

/// (a - za) (b - zb) = a b' - za sums(b'), where b' = b - zb is known and sums(b') adds the rows of b'
pub fn matmul_zero_points(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if rw.graph().op(op).name() != <MatMulInteger as of_ops::OpSpec>::NAME {
        return Ok(false);
    }
    let (a, b) = (rw.graph().op(op).operands[0], rw.graph().op(op).operands[1]);
    let (za, zb) = (zero_point(rw, op, 2), zero_point(rw, op, 3));
    let any = given(rw, op, 2).is_some() || given(rw, op, 3).is_some();
    if !any && rw.graph().constant(b).is_none_or(|t| t.dtype() == of_ir::DType::I8) {
        return Ok(false);
    }
    let (Some(da), Some(db)) = (rw.graph().ty(a).as_tensor().and_then(|t| t.rank()), dims(rw.graph(), b)) else {
        return Ok(false);
    };
    let za_rank = za.and_then(|z| dims(rw.graph(), z)).map_or(0, |d| d.len());
    // A zero point per column is along the last axis; other shapes are rare.
    let per_column = zb.is_none_or(|z| dims(rw.graph(), z).is_some_and(|d| d.len() <= 1));
    if da < 2 || db.len() < 2 || !per_column || za.is_some_and(|z| dims(rw.graph(), z).is_none()) {
        return Ok(false);
    }
    let (k, n) = (db[db.len() - 2], db[db.len() - 1]);
    let Some(p) = plain(rw, b, zb, |i| i % n) else { return Ok(false) };
    let mut sums = vec![0i32; p.centred.len() / k.max(1)];
    for (row, values) in p.centred.chunks_exact(n.max(1)).enumerate() {
        let to = &mut sums[row / k.max(1) * n..][..n];
        to.iter_mut().zip(values).for_each(|(s, v)| *s = s.wrapping_add(*v));
    }
    let shape = [&db[..db.len() - 2], &[1, n]].concat();
    let Ok(sums) = Tensor::from_slice(&shape, &sums) else { return Ok(false) };
    rw.rewrite(op, &[]);
    let za = match za {
        // One zero point a row.
        Some(z) if za_rank == 1 => {
            let len = dims(rw.graph(), z).map_or(1, |d| d[0]);
            Some(reshape_to(rw, z, &[len, 1])?)
        }
        z => z,
    };
    let y = corrected(rw, p.parts, za, sums, |rw, w| rw.create_one(MatMulInteger {}, &[a, w]))?;
    rw.replace(op, &[y]);
    Ok(true)
}

/// conv(x - zx, w - zw) = conv(pad(x, zx), w') - zx sums(w'), where w' = w - zw is known and sums(w') adds each filter
pub fn conv_zero_points(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(conv) = of_ops::list::as_op::<ConvInteger>(rw.graph(), op) else { return Ok(false) };
    let (x, w) = (rw.graph().op(op).operands[0], rw.graph().op(op).operands[1]);
    let (zx, zw) = (zero_point(rw, op, 2), zero_point(rw, op, 3));
    let any = given(rw, op, 2).is_some() || given(rw, op, 3).is_some();
    if !any && rw.graph().constant(w).is_none_or(|t| t.dtype() == of_ir::DType::I8) {
        return Ok(false);
    }
    let shape = |v: ValueId| rw.graph().ty(v).as_tensor().and_then(|t| t.shape.clone());
    let (Some(dx), Some(dw)) = (shape(x), dims(rw.graph(), w)) else { return Ok(false) };
    let dtype = |v: ValueId| rw.graph().ty(v).as_tensor().map(|t| t.dtype);
    if zx.is_some_and(|z| dtype(z) != dtype(x) || dims(rw.graph(), z).is_none_or(|d| d.iter().any(|n| *n != 1))) {
        return Ok(false);
    }
    let (rank, cout) = (dw.len(), dw[0]);
    let filter: usize = dw[1..].iter().product();
    let Some(p) = plain(rw, w, zw, |i| i / filter.max(1)) else { return Ok(false) };
    let sums: Vec<i32> =
        p.centred.chunks_exact(filter.max(1)).map(|f| f.iter().fold(0i32, |s, v| s.wrapping_add(*v))).collect();
    let mut column = vec![1; rank - 1];
    column[if conv.channels_last { rank - 2 } else { 0 }] = cout;
    let Ok(sums) = Tensor::from_slice(&column, &sums) else { return Ok(false) };
    let mut conv = conv;
    let mut padded = None;
    if let Some(z) = zx {
        let first = if conv.channels_last { 1 } else { 2 };
        let spatial = &dx[first..first + rank - 2];
        let kernel: Vec<i64> = dw[2..].iter().map(|d| *d as i64).collect();
        let Some(pads) = pads(&conv, spatial, &kernel) else { return Ok(false) };
        if pads.iter().any(|p| *p != 0) {
            let mut all = vec![0; 2 * rank];
            all[first..first + rank - 2].copy_from_slice(&pads[..rank - 2]);
            all[rank + first..][..rank - 2].copy_from_slice(&pads[rank - 2..]);
            padded = Some((all, z));
        }
        conv.pads = vec![0; pads.len()];
        conv.auto_pad = "NOTSET".into();
    }
    rw.rewrite(op, &[]);
    let x = match padded {
        Some((pads, z)) => {
            let pads = rw.create_one(Constant { value: Tensor::from_i64s(&pads) }, &[])?;
            let value = if dims(rw.graph(), z).is_some_and(|d| d.is_empty()) { z } else { reshape_to(rw, z, &[])? };
            rw.create_one(Pad { mode: "constant".into() }, &[x, pads, value])?
        }
        None => x,
    };
    let zx = match zx {
        Some(z) => Some(reshape_to(rw, z, &[])?),
        None => None,
    };
    let y = corrected(rw, p.parts, zx, sums, |rw, w| rw.create_one(conv.clone(), &[x, w]))?;
    rw.replace(op, &[y]);
    Ok(true)
}

/// Pads before and after every spatial axis as numbers.
fn pads(conv: &ConvInteger, spatial: &[of_ir::Dim], kernel: &[i64]) -> Option<Vec<i64>> {
    let ConvInteger { strides, pads, dilations, group, auto_pad, channels_last } = conv.clone();
    let plain = Conv { strides, pads, dilations, group, auto_pad, channels_last };
    plain.resolved_pads(spatial, kernel).ok()?.iter().map(of_ir::Dim::as_const).collect()
}
