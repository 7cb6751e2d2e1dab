//! Specifications of data movement ops.

use of_ir::{DType, Graph, OpId, Type, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, Gather, Pad, Slice, Transpose};

use crate::analysis::indexed;
use crate::kernel::copy::{CopyBox, Fill, Gather as Rows};
use crate::kernel::extent;
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::kernel::space::row_major;

/// The kernel of a movement op.
///
/// # Errors
/// The reason why there is none.
pub fn movement(g: &Graph, op: OpId) -> Result<Nest, String> {
    let data = g.op(op);
    let (x, y) = (data.operands[0], data.results[0]);
    let (from, to) = (extent::of_value(g, x), extent::of_value(g, y));
    let bytes = g.ty(y).as_tensor().and_then(|t| t.dtype.bits()).map_or(4, |b| b / 8);
    let (own, out) = (row_major(&from), row_major(&to));
    let zero = || Extent::from(0usize);
    let copy_box = |dims: Vec<Extent>, start: Extent, steps: Vec<Extent>| CopyBox {
        dims,
        arg: 0,
        from: (start, steps),
        to: (zero(), out.clone()),
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
            let steps = perm.iter().map(|a| own[*a].clone()).collect();
            Ok(Nest::Copy { boxes: vec![copy_box(to.clone(), zero(), steps)], bytes, out: 1 })
        }
        Expand::NAME => {
            let lead = to.len() - from.len();
            let steps = (0..to.len())
                .map(|i| match i.checked_sub(lead) {
                    Some(k) if !from[k].is(1) => extent::broadcast_stride(&from[k], &to[i], &own[k]),
                    _ => zero(),
                })
                .collect();
            Ok(Nest::Copy { boxes: vec![copy_box(to.clone(), zero(), steps)], bytes, out: 1 })
        }
        Slice::NAME => {
            let (start, steps) = slice(g, op, &from, &own)?;
            Ok(Nest::Copy { boxes: vec![copy_box(to.clone(), start, steps)], bytes, out: 1 })
        }
        Concat::NAME => {
            let c = as_op::<Concat>(g, op).ok_or("its attributes do not decode")?;
            let axis = of_ops::shape::axis(c.axis, to.len()).map_err(|e| e.message)?;
            let mut at = zero();
            let mut boxes = Vec::new();
            for (arg, v) in data.operands.iter().enumerate() {
                let own = extent::of_value(g, *v);
                let (from, to) = ((zero(), row_major(&own)), (&at * &out[axis], out.clone()));
                at = at + &own[axis];
                boxes.push(CopyBox { dims: own, arg, from, to });
            }
            Ok(Nest::Copy { boxes, bytes, out: data.operands.len() })
        }
        Pad::NAME if as_op::<Pad>(g, op).is_some_and(|p| &*p.mode == "constant") => pad(g, op, &from, &to, bytes),
        Gather::NAME => {
            let gather = as_op::<Gather>(g, op).ok_or("its attributes do not decode")?;
            let axis = of_ops::shape::axis(gather.axis, from.len()).map_err(|e| e.message)?;
            let index = indexed::index_type(g.ty(data.operands[1]).as_tensor().map_or(DType::I64, |t| t.dtype))?;
            let outer = from[..axis].iter().product();
            let inner = from[axis + 1..].iter().product();
            let count = extent::of_value(g, data.operands[1]).iter().product();
            Ok(Nest::Gather(Rows { outer, axis: from[axis].clone(), inner, indices: count, index, bytes }))
        }
        _ => indexed::kernel(g, op),
    }
}

fn ints(g: &Graph, op: OpId, i: usize) -> Option<Vec<i64>> {
    let v = *g.op(op).operands.get(i)?;
    if *g.ty(v) == Type::None { None } else { g.constant(v)?.to_i64s() }
}

/// Offset and strides of a slice of a value with these extents and strides, by ONNX's rules for negative and out-of-range
/// bounds.
///
/// # Errors
/// When its bounds or their signs are unknown.
pub fn slice(g: &Graph, op: OpId, from: &[Extent], own: &[Extent]) -> Result<(Extent, Vec<Extent>), String> {
    let starts = bounds(g, g.op(op).operands[1]).ok_or("its bounds are not known")?;
    let axes = ints(g, op, 3).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let by = ints(g, op, 4).unwrap_or_else(|| vec![1; starts.len()]);
    let (mut first, mut steps) = (Extent::from(0usize), own.to_vec());
    for (i, start) in starts.iter().enumerate() {
        let axis = of_ops::shape::axis(axes[i], from.len()).map_err(|e| e.message)?;
        let (n, zero) = (&from[axis], Extent::from(0usize));
        let step = by[i];
        let at = match start.dim().as_const() {
            // No tensor has this many elements.
            Some(start) if start < 0 => n + start.max(-(1 << 48)),
            Some(_) => start.clone(),
            None if start.dim().is_nonnegative() => start.clone(),
            None => return Err(format!("whether its bound {} counts from the end is not known", start.dim())),
        };
        let last = if step > 0 { n.clone() } else { n - 1usize };
        first = first + at.max(&zero).min(&last) * &own[axis];
        steps[axis] = &own[axis] * step;
    }
    Ok((first, steps))
}

/// The values of an operand, if constant or derived from extents.
fn bounds(g: &Graph, v: ValueId) -> Option<Vec<Extent>> {
    Some(g.dims_value(v)?.into_iter().map(Extent::from).collect())
}

fn pad(g: &Graph, op: OpId, from: &[Extent], to: &[Extent], bytes: usize) -> Result<Nest, String> {
    let pads = bounds(g, g.op(op).operands[1]).ok_or("its pads are not known")?;
    let axes = ints(g, op, 3).unwrap_or_else(|| (0..from.len() as i64).collect());
    let fill = match g.op(op).operands.get(2).filter(|v| *g.ty(**v) != Type::None) {
        Some(v) => match g.constant(*v) {
            Some(c) => {
                let b = c.bytes().ok_or("its value is a string")?;
                let mut word = [0u8; 8];
                word[..b.len().min(8)].copy_from_slice(&b[..b.len().min(8)]);
                Fill::Bits(u64::from_le_bytes(word))
            }
            None => Fill::Argument,
        },
        None => Fill::Bits(0),
    };
    let mut before = vec![Extent::from(0usize); from.len()];
    for (i, a) in axes.iter().enumerate() {
        before[of_ops::shape::axis(*a, from.len()).map_err(|e| e.message)?] = pads[i].clone();
    }
    if from.is_empty() {
        return Err("a scalar cannot be padded".into());
    }
    let list: Vec<_> = (0..from.len()).map(|i| (to[i].clone(), from[i].clone(), before[i].clone())).collect();
    Ok(Nest::Pad { axes: list, bytes, fill })
}
