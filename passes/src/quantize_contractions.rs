//! `quantize-contractions`: rewrites contractions of dequantized operands as integer contractions.
//!
//! With `x = sx (qx - zx)` and `w = sw (qw - zw)`, where `sw` has at most one number per column, `x w = sx sw (qx -
//! zx)(qw - zw)`. The sum is exact in i32, and the rest is elementwise. It runs before constant folding, which would
//! turn quantized weights into floats.
//!
//! Its input is the QDQ form: QuantizeLinear and DequantizeLinear around a contraction.

use std::collections::HashMap;

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{DType, Func, IdMap, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::{Gemm, MatMul};
use of_ops::elementwise::{Add, Cast, Div, Max, Min, Mul, Relu, Round};
use of_ops::list::as_op;
use of_ops::movement::{Flatten, Reshape, Squeeze, Transpose, Unsqueeze};
use of_ops::nn::{Conv, ConvInteger, DequantizeLinear, MatMulInteger, MaxPool, QuantizeLinear};

use crate::builders::{reshape_to, transpose_by};
use crate::matchers::{def, dims, single_use, splat};

/// Rewrites every op that it can.
///
/// # Errors
/// When an op that it makes does not fit, a bug of the pass.
pub fn quantize_contractions(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "quantize-contractions");
    let mut affine = HashMap::default();
    for op in rw.graph().walk() {
        if !rw.graph().is_live(op) {
            continue;
        }
        match rw.graph().op(op).name() {
            Conv::NAME => conv(&mut rw, op, &mut affine)?,
            MatMul::NAME | Gemm::NAME => product(&mut rw, op, &mut affine)?,
            name if commutes_with_dequantize(name) => movement(&mut rw, op)?,
            QuantizeLinear::NAME => quantize(&mut rw, op, &affine)?,
            _ => {}
        }
    }
    crate::dce::dce(func);
    Ok(())
}

/// A dequantization `scale * (number - zero)` of bytes; `axis` is that of the scale where it has several numbers.
#[derive(Clone, Copy)]
struct Quantised {
    number: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    axis: Option<usize>,
}

/// `acc * factor + shift` in f32, with the sum of products `acc` in i32.
#[derive(Clone, Copy)]
struct Affine {
    acc: ValueId,
    factor: ValueId,
    shift: Option<ValueId>,
}

/// The operands of a dequantization to f32 without blocks.
fn quantised(rw: &Rewriter<'_>, v: ValueId) -> Option<Quantised> {
    let g = rw.graph();
    let (op, dq) = def::<DequantizeLinear>(g, v)?;
    let operands = &g.op(op).operands;
    let (number, scale) = (operands[0], operands[1]);
    let t = g.ty(number).as_tensor()?;
    let f32s = |v: ValueId| g.ty(v).as_tensor().is_some_and(|t| t.dtype == DType::F32);
    if dq.block_size != 0 || !matches!(t.dtype, DType::U8 | DType::I8) || !f32s(v) || !f32s(scale) {
        return None;
    }
    let zero = operands.get(2).copied().filter(|z| *g.ty(*z) != Type::None);
    let several = dims(g, scale)?.iter().any(|d| *d != 1);
    let axis = if several { Some(of_ops::shape::axis(dq.axis, t.rank()?).ok()?) } else { None };
    Some(Quantised { number, scale, zero, axis })
}

/// The largest magnitude of a sum of products, and of a bias: both together stay in i32.
const MAX_SUM: usize = 1 << 30;

/// The operands of an integer contraction: a single scale on the left, and constant weights on the right, with columns
/// along `axis`.
fn pair(rw: &Rewriter<'_>, a: ValueId, b: ValueId, axis: usize) -> Option<(Quantised, Quantised)> {
    let (x, w) = (quantised(rw, a)?, quantised(rw, b)?);
    let g = rw.graph();
    let one_scale = x.axis.is_none() && w.axis.is_none_or(|a| a == axis);
    let dims = dims(g, w.number)?;
    let terms: usize = dims.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, d)| *d).product();
    let symmetric = g.ty(w.number).as_tensor()?.dtype == DType::I8 && is_zero(rw, w.zero);
    let largest = if symmetric { 255 * 128 } else { 255 * 255 };
    let sum_fits = terms.saturating_mul(largest) <= MAX_SUM;
    (one_scale && sum_fits && g.constant(w.number).is_some()).then_some((x, w))
}

/// Whether a zero point is absent or 0.
fn is_zero(rw: &Rewriter<'_>, zero: Option<ValueId>) -> bool {
    zero.is_none_or(|z| splat(rw.graph(), z) == Some(0.0))
}

fn none(rw: &mut Rewriter<'_>, v: Option<ValueId>) -> Result<ValueId, Diagnostic> {
    match v {
        Some(v) => Ok(v),
        None => rw.create_one(of_ops::structural::NoneValue {}, &[]),
    }
}

/// The quantized form of a bias in units of `sx sw`, as quantizers write it: it is added to the sum in i32.
fn integer_bias(rw: &Rewriter<'_>, bias: ValueId, sx: ValueId, sw: ValueId) -> Option<ValueId> {
    let g = rw.graph();
    let (op, dq) = def::<DequantizeLinear>(g, bias)?;
    let operands = &g.op(op).operands;
    let number = operands[0];
    let zero = operands.get(2).copied().filter(|z| *g.ty(*z) != Type::None);
    if dq.block_size != 0 || g.ty(number).as_tensor()?.dtype != DType::I32 || !is_zero(rw, zero) {
        return None;
    }
    let floats = |v: ValueId| g.constant(v)?.to_f64s();
    let (numbers, units, sw) = (floats(number)?, floats(operands[1])?, floats(sw)?);
    let at = |v: &[f64], i: usize| v.get(if v.len() == 1 { 0 } else { i }).copied();
    let sx = splat(g, sx)?;
    // A last place of the unit is one of the bias.
    let same = |unit: f64, product: f64| (unit - product).abs() <= product.abs() * f64::from(f32::EPSILON);
    let fits = |(i, n): (usize, &f64)| {
        n.abs() < MAX_SUM as f64 && at(&units, i).zip(at(&sw, i)).is_some_and(|(unit, column)| same(unit, sx * column))
    };
    numbers.iter().enumerate().all(fits).then_some(number)
}

/// Replaces `op` by `acc * sx * sw + bias`. Parameters with one number per column get the dimensions `column`.
fn finish(
    rw: &mut Rewriter<'_>,
    op: OpId,
    acc: ValueId,
    (x, w): (Quantised, Quantised),
    bias: Option<ValueId>,
    column: &[usize],
    affine: &mut IdMap<ValueId, Affine>,
) -> Result<(), Diagnostic> {
    let shaped = |rw: &mut Rewriter<'_>, v: ValueId| match dims(rw.graph(), v) {
        Some(d) if d.iter().product::<usize>() == 1 => reshape_to(rw, v, &[]),
        _ => reshape_to(rw, v, column),
    };
    let quantised_bias = bias.and_then(|b| integer_bias(rw, b, x.scale, w.scale));
    let (acc, bias) = match quantised_bias {
        Some(b) => {
            let b = shaped(rw, b)?;
            (rw.create_one(Add {}, &[acc, b])?, None)
        }
        None => (acc, bias),
    };
    let (sx, sw) = (shaped(rw, x.scale)?, shaped(rw, w.scale)?);
    let factor = rw.create_one(Mul {}, &[sx, sw])?;
    let real = rw.create_one(Cast::to(DType::F32), &[acc])?;
    let mut y = rw.create_one(Mul {}, &[real, factor])?;
    let shift = bias.map(|b| shaped(rw, b)).transpose()?;
    if let Some(b) = shift {
        y = rw.create_one(Add {}, &[y, b])?;
    }
    affine.insert(y, Affine { acc, factor, shift });
    rw.replace(op, &[y]);
    Ok(())
}

fn conv(rw: &mut Rewriter<'_>, op: OpId, affine: &mut IdMap<ValueId, Affine>) -> Result<(), Diagnostic> {
    let Some(c) = as_op::<Conv>(rw.graph(), op) else { return Ok(()) };
    let operands = rw.graph().op(op).operands.clone();
    let Some((x, w)) = pair(rw, operands[0], operands[1], 0) else { return Ok(()) };
    let Some(dw) = dims(rw.graph(), w.number) else { return Ok(()) };
    let bias = operands.get(2).copied().filter(|b| *rw.graph().ty(*b) != Type::None);
    rw.rewrite(op, &[]);
    let zeros = [none(rw, x.zero)?, none(rw, w.zero)?];
    let mut column = vec![1; dw.len() - 1];
    column[if c.channels_last { dw.len() - 2 } else { 0 }] = dw[0];
    let Conv { strides, pads, dilations, group, auto_pad, channels_last } = c;
    let integer = ConvInteger { strides, pads, dilations, group, auto_pad, channels_last };
    let acc = rw.create_one(integer, &[x.number, w.number, zeros[0], zeros[1]])?;
    finish(rw, op, acc, (x, w), bias, &column, affine)
}

/// Matrix products; `of.gemm` where its factors are 1 and at most the right operand is transposed.
fn product(rw: &mut Rewriter<'_>, op: OpId, affine: &mut IdMap<ValueId, Affine>) -> Result<(), Diagnostic> {
    let operands = rw.graph().op(op).operands.clone();
    let gemm = as_op::<Gemm>(rw.graph(), op);
    let turned = gemm.as_ref().is_some_and(|g| g.trans_b);
    if gemm.is_some_and(|g| g.alpha != 1.0 || g.beta != 1.0 || g.trans_a) {
        return Ok(());
    }
    let Some(db) = dims(rw.graph(), operands[1]) else { return Ok(()) };
    let rank = |rw: &Rewriter<'_>, v: ValueId| rw.graph().ty(v).as_tensor().and_then(|t| t.rank());
    if db.len() != 2 || rank(rw, operands[0]).is_none_or(|r| r < 2) {
        return Ok(());
    }
    let axis = if turned { 0 } else { 1 };
    let Some((x, w)) = pair(rw, operands[0], operands[1], axis) else { return Ok(()) };
    let bias = operands.get(2).copied().filter(|b| *rw.graph().ty(*b) != Type::None);
    // A bias of any other shape than one number per column is not supported.
    if bias.is_some_and(|b| dims(rw.graph(), b).is_none_or(|d| d != [db[axis]])) {
        return Ok(());
    }
    rw.rewrite(op, &[]);
    let zeros = [none(rw, x.zero)?, none(rw, w.zero)?];
    let b = if turned { rw.create_one(transpose_by(&[1, 0]), &[w.number])? } else { w.number };
    let acc = rw.create_one(MatMulInteger {}, &[x.number, b, zeros[0], zeros[1]])?;
    finish(rw, op, acc, (x, w), bias, &[db[axis]], affine)
}

/// Whether an op of this name commutes with dequantization: it moves elements or takes the maximum.
pub(crate) fn commutes_with_dequantize(name: &str) -> bool {
    matches!(name, MaxPool::NAME | Transpose::NAME | Reshape::NAME | Flatten::NAME | Squeeze::NAME | Unsqueeze::NAME)
}

/// f(dequantize(x)) = dequantize(f(x)) for movements and maxima, with a single positive scale.
fn movement(rw: &mut Rewriter<'_>, op: OpId) -> Result<(), Diagnostic> {
    let data = rw.graph().op(op);
    if data.results.len() != 1 {
        return Ok(());
    }
    let (d, attrs, mut operands) = (data.def, data.attrs.clone(), data.operands.to_vec());
    let Some(x) = quantised(rw, operands[0]) else { return Ok(()) };
    let positive = |t: Tensor| t.to_f64s().is_some_and(|v| v.iter().all(|s| *s > 0.0));
    let known = rw.graph().constant(x.scale).is_some_and(positive);
    if x.axis.is_some() || !known || rw.graph().constant(x.number).is_some() {
        return Ok(());
    }
    if let Some(pool) = as_op::<MaxPool>(rw.graph(), op) {
        let shape = rw.graph().ty(x.number).as_tensor().and_then(|t| t.shape.as_ref());
        // The maximum of padding alone is minus infinity, which no byte represents.
        if !shape.is_some_and(|s| pool.windows_reach(s)) {
            return Ok(());
        }
    }
    rw.rewrite(op, &[]);
    operands[0] = x.number;
    let moved = rw.create_one((d, attrs), &operands)?;
    let zero = none(rw, x.zero)?;
    let dq = DequantizeLinear { axis: 0, block_size: 0, dtype: None };
    let y = rw.create_one(dq, &[moved, x.scale, zero])?;
    rw.replace(op, &[y]);
    Ok(())
}

/// quantize(max(x, c)) = quantize(x) where c becomes the smallest byte, and likewise for min: casts to bytes saturate,
/// and rounding is monotonic. Returns the value to quantize instead of `v`.
fn unclipped(rw: &Rewriter<'_>, v: ValueId, scale: ValueId, zero: Option<ValueId>, to: DType) -> ValueId {
    let g = rw.graph();
    let zero = zero.map_or(Some(0.0), |z| splat(g, z));
    let (Some(scale), Some(zero), Some((low, high))) = (splat(g, scale), zero, to.int_range()) else { return v };
    let mut v = v;
    loop {
        let Some(op) = g.def_op(v) else { return v };
        let data = g.op(op);
        // Bounds are quantized in f32, as any other value.
        let becomes = |c: f64| f64::from((c as f32 / scale as f32).round_ties_even()) + zero;
        let bound = |i: usize| data.operands.get(i).and_then(|c| splat(g, *c));
        let ends = |c: f64| match data.name() {
            Relu::NAME | Max::NAME => becomes(c) <= low as f64,
            _ => becomes(c) >= high as f64,
        };
        let next = match data.name() {
            Relu::NAME if ends(0.0) => data.operands[0],
            Max::NAME | Min::NAME if bound(1).is_some_and(ends) => data.operands[0],
            Max::NAME | Min::NAME if bound(0).is_some_and(ends) => data.operands[1],
            _ => return v,
        };
        // Values with other readers are computed anyway.
        if !single_use(g, v) || g.ty(next) != g.ty(v) {
            return v;
        }
        v = next;
    }
}

/// quantize(dequantize(x)) = x with the same parameters; quantize(x) = round(x / s) + zero with a constant scale s.
///
/// A contraction a x + b becomes (a/s) x + b/s, one product for each element instead of two. The model leaves the order of
/// the contraction's terms open, so no quotient near a tie is defined; kernels of other runtimes do the same.
fn quantize(rw: &mut Rewriter<'_>, op: OpId, affine: &IdMap<ValueId, Affine>) -> Result<(), Diagnostic> {
    let Some(q) = as_op::<QuantizeLinear>(rw.graph(), op) else { return Ok(()) };
    let operands = rw.graph().op(op).operands.clone();
    let (x, scale, result) = (operands[0], operands[1], rw.graph().op(op).results[0]);
    let zero = operands.get(2).copied().filter(|z| *rw.graph().ty(*z) != Type::None);
    let g = rw.graph();
    let Some(to) = g.ty(result).as_tensor().map(|t| t.dtype) else { return Ok(()) };
    let f32s = |v: ValueId| g.ty(v).as_tensor().is_some_and(|t| t.dtype == DType::F32);
    let single = |v: ValueId| g.constant(v).is_some_and(|t| t.len() == 1);
    let floats = f32s(x) && f32s(scale) && single(scale);
    let bytes = matches!(to, DType::U8 | DType::I8) && zero.is_none_or(single);
    if q.block_size != 0 || !floats || !bytes {
        return Ok(());
    }
    let same =
        |a: ValueId, b: ValueId| a == b || matches!((g.constant(a), g.constant(b)), (Some(a), Some(b)) if a == b);
    if let Some(d) = quantised(rw, x)
        && g.ty(d.number) == g.ty(result)
        && same(d.scale, scale)
        && matches!((d.zero, zero), (Some(a), Some(b)) if same(a, b))
    {
        rw.replace(op, &[d.number]);
        return Ok(());
    }
    let x = unclipped(rw, x, scale, zero, to);
    rw.rewrite(op, &[]);
    let divisor = reshape_to(rw, scale, &[])?;
    let mut v = match affine.get(&x).filter(|_| single_use(rw.graph(), x)) {
        Some(a) => {
            let factor = rw.create_one(Div {}, &[a.factor, divisor])?;
            let real = rw.create_one(Cast::to(DType::F32), &[a.acc])?;
            let v = rw.create_one(Mul {}, &[real, factor])?;
            match a.shift {
                Some(b) => {
                    let b = rw.create_one(Div {}, &[b, divisor])?;
                    rw.create_one(Add {}, &[v, b])?
                }
                None => v,
            }
        }
        // A quotient, as the op defines it: the product with the reciprocal is a step off near ties.
        None => rw.create_one(Div {}, &[x, divisor])?,
    };
    v = rw.create_one(Round {}, &[v])?;
    if let Some(z) = zero {
        let z = reshape_to(rw, z, &[])?;
        let z = rw.create_one(Cast::to(DType::F32), &[z])?;
        v = rw.create_one(Add {}, &[v, z])?;
    }
    // Casts saturate.
    let y = rw.create_one(Cast::to(to), &[v])?;
    rw.replace(op, &[y]);
    Ok(())
}
