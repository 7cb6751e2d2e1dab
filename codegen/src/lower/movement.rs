//! Data movement ops as copy kernels.

use of_ir::{Graph, OpId, Type, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, Gather, Pad, Slice, Transpose};

use crate::native::Source;
use crate::native::copy::{self, Piece};
use crate::native::expr::ctype;
use crate::native::space::row_major;

/// The operands that the kernel reads; the others are known now.
pub fn reads(g: &Graph, op: OpId) -> Vec<ValueId> {
    let data = g.op(op);
    match data.name() {
        Concat::NAME => data.operands.to_vec(),
        Gather::NAME => data.operands[..2].to_vec(),
        _ => vec![data.operands[0]],
    }
}

/// The kernel of a movement op.
///
/// # Errors
/// Why it has none.
pub fn movement(g: &Graph, op: OpId) -> Result<Source, String> {
    let data = g.op(op);
    let (x, y) = (data.operands[0], data.results[0]);
    let (from, to) = (dims(g, x), dims(g, y));
    let bytes = g.ty(y).as_tensor().and_then(|t| t.dtype.bits()).map_or(4, |b| b / 8);
    let (own, out) = (row_major(&from), row_major(&to));
    let piece = |dims: Vec<usize>, start: i64, steps: Vec<i64>| Piece {
        dims,
        arg: 0,
        from: (start, steps),
        to: (0, out.clone()),
    };
    match data.name() {
        Transpose::NAME => {
            let t = as_op::<Transpose>(g, op).ok_or("its attributes do not decode")?;
            let rank = from.len();
            let perm: Vec<usize> = match &t.perm {
                Some(p) => {
                    p.iter().map(|a| of_ops::shape::axis(*a, rank)).collect::<Result<_, _>>().map_err(|e| e.message)?
                }
                None => (0..rank).rev().collect(),
            };
            let steps = perm.iter().map(|a| own[*a]).collect();
            Ok(copy::copy(&[piece(to.clone(), 0, steps)], bytes, 1))
        }
        Expand::NAME => {
            let lead = to.len() - from.len();
            let steps =
                (0..to.len()).map(|i| if i < lead || from[i - lead] == 1 { 0 } else { own[i - lead] }).collect();
            Ok(copy::copy(&[piece(to.clone(), 0, steps)], bytes, 1))
        }
        Slice::NAME => {
            let (start, steps) = slice(g, op, &from, &own)?;
            Ok(copy::copy(&[piece(to.clone(), start, steps)], bytes, 1))
        }
        Concat::NAME => {
            let c = as_op::<Concat>(g, op).ok_or("its attributes do not decode")?;
            let axis = of_ops::shape::axis(c.axis, to.len()).map_err(|e| e.message)?;
            let mut at = 0i64;
            let mut pieces = Vec::new();
            for (arg, v) in data.operands.iter().enumerate() {
                let own = dims(g, *v);
                let n = own[axis] as i64;
                let from = (0, row_major(&own));
                pieces.push(Piece { dims: own, arg, from, to: (at * out[axis], out.clone()) });
                at += n;
            }
            Ok(copy::copy(&pieces, bytes, data.operands.len()))
        }
        Pad::NAME => pad(g, op, &from, &to, bytes),
        Gather::NAME => {
            let gather = as_op::<Gather>(g, op).ok_or("its attributes do not decode")?;
            let axis = of_ops::shape::axis(gather.axis, from.len()).map_err(|e| e.message)?;
            let index = g.ty(data.operands[1]).as_tensor().map_or("i64", |t| ctype(t.dtype));
            let outer = from[..axis].iter().product();
            let inner = from[axis + 1..].iter().product();
            let count = dims(g, data.operands[1]).iter().product();
            Ok(copy::gather(outer, from[axis], inner, count, index, bytes))
        }
        name => Err(format!("'{name}' has no native code")),
    }
}

fn dims(g: &Graph, v: ValueId) -> Vec<usize> {
    g.ty(v).as_tensor().and_then(|t| t.fixed_dims()).unwrap_or_default()
}

fn ints(g: &Graph, op: OpId, i: usize) -> Option<Vec<i64>> {
    let v = *g.op(op).operands.get(i)?;
    if *g.ty(v) == Type::None { None } else { g.constant(v)?.to_i64s() }
}

/// First element and distances of a slice; ONNX's rules for negative and out-of-range bounds.
fn slice(g: &Graph, op: OpId, from: &[usize], own: &[i64]) -> Result<(i64, Vec<i64>), String> {
    let starts = ints(g, op, 1).ok_or("its bounds are not known")?;
    let axes = ints(g, op, 3).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let by = ints(g, op, 4).unwrap_or_else(|| vec![1; starts.len()]);
    let (mut first, mut steps) = (0, own.to_vec());
    for (i, start) in starts.iter().enumerate() {
        let axis = of_ops::shape::axis(axes[i], from.len()).map_err(|e| e.message)?;
        let n = from[axis] as i64;
        let step = by[i];
        let at = if *start < 0 { start.saturating_add(n) } else { *start };
        let at = if step > 0 { at.clamp(0, n) } else { at.clamp(0, n - 1) };
        first += at * own[axis];
        steps[axis] = own[axis] * step;
    }
    Ok((first, steps))
}

fn pad(g: &Graph, op: OpId, from: &[usize], to: &[usize], bytes: usize) -> Result<Source, String> {
    let pads = ints(g, op, 1).ok_or("its pads are not known")?;
    let axes = ints(g, op, 3).unwrap_or_else(|| (0..from.len() as i64).collect());
    let fill = match g.op(op).operands.get(2).filter(|v| *g.ty(**v) != Type::None) {
        Some(v) => {
            let c = g.constant(*v).ok_or("its value is not known")?;
            let b = c.bytes().ok_or("its value is a string")?;
            let mut word = [0u8; 8];
            word[..b.len().min(8)].copy_from_slice(&b[..b.len().min(8)]);
            u64::from_le_bytes(word)
        }
        None => 0,
    };
    let mut before = vec![0i64; from.len()];
    for (i, a) in axes.iter().enumerate() {
        before[of_ops::shape::axis(*a, from.len()).map_err(|e| e.message)?] = pads[i];
    }
    if from.is_empty() {
        return Err("a scalar cannot be padded".into());
    }
    let list: Vec<(usize, usize, i64)> = (0..from.len()).map(|i| (to[i], from[i], before[i])).collect();
    Ok(copy::pad(&list, bytes, fill))
}
