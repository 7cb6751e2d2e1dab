//! Rules of `canonicalize` for pads: those of nothing go, and those of zeros before a convolution become its own.

use of_diag::Diagnostic;
use of_ir::{Graph, OpId, Rewriter, Type, ValueId};
use of_ops::movement::Pad;
use of_ops::nn::Conv;

use super::{as_op, replace, same_tensor_type};
use crate::matchers::{def, ints, splat};

/// The elements that a pad adds before and after each axis of an operand of this rank, where they are known.
fn ends(g: &Graph, pad: OpId, rank: usize) -> Option<Vec<(i64, i64)>> {
    let operands = &g.op(pad).operands;
    let pads = ints(g, operands[1])?;
    let axes = match operands.get(3).filter(|v| *g.ty(**v) != Type::None) {
        Some(axes) => ints(g, *axes)?,
        None => (0..rank as i64).collect(),
    };
    let mut out = vec![(0, 0); rank];
    for (i, axis) in axes.iter().enumerate() {
        let axis = if *axis < 0 { axis + rank as i64 } else { *axis };
        *out.get_mut(usize::try_from(axis).ok()?)? = (*pads.get(i)?, *pads.get(i + axes.len())?);
    }
    Some(out)
}

/// The rank of `v`, where it is known.
fn rank(g: &Graph, v: ValueId) -> Option<usize> {
    g.ty(v).as_tensor()?.rank()
}

/// pad(x, 0…) = x
pub(super) fn pad_nothing(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if as_op::<Pad>(rw, op).is_none() {
        return Ok(false);
    }
    let g = rw.graph();
    let (x, y) = (g.op(op).operands[0], g.op(op).results[0]);
    let nothing = rank(g, x).and_then(|rank| ends(g, op, rank)).is_some_and(|e| e.iter().all(|e| *e == (0, 0)));
    if !nothing || !same_tensor_type(rw, x, y) {
        return Ok(false);
    }
    replace(rw, op, x)
}

/// conv(pad(x, zeros along spatial axes), w) = conv(x, w) with these pads. The sign of a zero may change, and an infinite weight times
/// padding is no NaN where a kernel skips the padding.
pub(super) fn conv_pad(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(conv) = as_op::<Conv>(rw, op).filter(|c| &*c.auto_pad == "NOTSET" || &*c.auto_pad == "VALID") else {
        return Ok(false);
    };
    let operands = rw.graph().op(op).operands.clone();
    let Some((pad, pads)) = padded_zeros(rw.graph(), operands[0], &conv) else { return Ok(false) };
    let x = rw.graph().op(pad).operands[0];
    rw.rewrite(op, &[pad]);
    let conv = Conv { pads, auto_pad: "NOTSET".into(), ..conv };
    let y = rw.create_one(conv, &[&[x], &operands[1..]].concat())?;
    replace(rw, op, y)
}

/// The pad that defines `v`, if it adds zeros along the spatial axes of `conv` alone, and the pads of both.
fn padded_zeros(g: &Graph, v: ValueId, conv: &Conv) -> Option<(OpId, Vec<i64>)> {
    let (pad, Pad { mode }) = def::<Pad>(g, v)?;
    let operands = &g.op(pad).operands;
    let value = operands.get(2).filter(|v| *g.ty(**v) != Type::None);
    if &*mode != "constant" || value.is_some_and(|v| splat(g, *v) != Some(0.0)) {
        return None;
    }
    let ends = ends(g, pad, rank(g, operands[0])?)?;
    let first = if conv.channels_last { 1 } else { 2 };
    let spatial = first..ends.len().checked_sub(2)? + first;
    let fits = |(axis, (before, after)): (usize, &(i64, i64))| match spatial.contains(&axis) {
        true => *before >= 0 && *after >= 0,
        false => (*before, *after) == (0, 0),
    };
    if !ends.iter().enumerate().all(fits) {
        return None;
    }
    let (before, after): (Vec<i64>, Vec<i64>) = ends[spatial].iter().copied().unzip();
    let added = [before, after].concat();
    let own = if conv.pads.is_empty() || &*conv.auto_pad == "VALID" { vec![0; added.len()] } else { conv.pads.clone() };
    let sum = own.iter().zip(&added).map(|(a, b)| a.checked_add(*b)).collect::<Option<Vec<_>>>()?;
    (own.len() == added.len()).then_some((pad, sum))
}
