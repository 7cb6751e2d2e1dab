//! Rules of `canonicalize` for resampling ops that only move data, or move it around a product.

use of_diag::Diagnostic;
use of_ir::{OpId, Rewriter, Tensor, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::Add;
use of_ops::list::as_op;
use of_ops::movement::{Expand, Transpose};
use of_ops::nn::{ConvTranspose, Resize};
use of_ops::structural::Constant;

use crate::canonicalize::reshape_to;
use crate::facts::dims;

/// nearest(x) = repeat(x), where every axis grows by a whole factor
pub fn resize_whole(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(resize) = as_op::<Resize>(rw.graph(), op) else { return Ok(false) };
    let data = rw.graph().op(op);
    let (x, y) = (data.operands[0], data.results[0]);
    let (Some(from), Some(to)) = (dims(rw.graph(), x), dims(rw.graph(), y)) else { return Ok(false) };
    // With these, output i reads input floor(i / factor): (i + 1/2) / factor - 1/2 is within 1/2 of it, never halfway.
    let below = matches!(
        (&*resize.coordinate_transformation_mode, &*resize.nearest_mode),
        ("asymmetric", "floor") | ("half_pixel", "round_prefer_floor" | "round_prefer_ceil")
    );
    let whole = from.iter().zip(&to).all(|(d, e)| *d > 0 && *e > 0 && e % d == 0);
    if &*resize.mode != "nearest" || !below || !whole || &*resize.keep_aspect_ratio_policy != "stretch" {
        return Ok(false);
    }
    let factors: Vec<usize> = from.iter().zip(&to).map(|(d, e)| e / d).collect();
    if let Some(scales) = data.operands.get(2).filter(|v| rw.graph().ty(**v).as_tensor().is_some()) {
        // The scale, not the ratio of the sizes, says where an output lies.
        let Some(scales) = rw.graph().constant(*scales).and_then(|t| t.to_f64s()) else { return Ok(false) };
        let rank = from.len() as i64;
        let all: Vec<i64> = (0..rank).collect();
        let axes = resize.axes.as_ref().unwrap_or(&all);
        let agrees =
            |(a, s): (&i64, &f64)| factors.get(a.rem_euclid(rank.max(1)) as usize).is_some_and(|f| *f as f64 == *s);
        if axes.len() != scales.len() || !axes.iter().zip(&scales).all(agrees) {
            return Ok(false);
        }
    }
    rw.rewrite(op, &[]);
    let (mut split, mut repeated) = (Vec::new(), Vec::new());
    for (d, f) in from.iter().zip(&factors) {
        split.push(*d);
        repeated.push(*d);
        if *f > 1 {
            split.push(1);
            repeated.push(*f);
        }
    }
    let column = reshape_to(rw, x, &split)?;
    let shape: Vec<i64> = repeated.iter().map(|d| *d as i64).collect();
    let shape = rw.create_one(Constant { value: Tensor::from_i64s(&shape) }, &[])?;
    let wide = rw.create_one(Expand {}, &[column, shape])?;
    let y = reshape_to(rw, wide, &to)?;
    rw.replace(op, &[y]);
    Ok(true)
}

/// conv_transpose(x, w) = tiles of x w, where the steps are as wide as the kernel and tiles do not overlap
pub fn conv_transpose_tiles(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(conv) = as_op::<ConvTranspose>(rw.graph(), op) else { return Ok(false) };
    let data = rw.graph().op(op);
    let (x, w, y) = (data.operands[0], data.operands[1], data.results[0]);
    let bias = data.operands.get(2).copied().filter(|v| rw.graph().ty(*v).as_tensor().is_some());
    let shapes = (dims(rw.graph(), x), dims(rw.graph(), w), dims(rw.graph(), y));
    let (Some(from), Some(filter), Some(to)) = shapes else { return Ok(false) };
    let kernel: Vec<i64> = filter[2..].iter().map(|d| *d as i64).collect();
    let plain = conv.group == 1
        && !conv.channels_last
        && conv.strides == kernel
        && [&conv.pads, &conv.output_padding].iter().all(|l| l.iter().all(|p| *p == 0))
        && conv.dilations.iter().all(|d| *d == 1)
        && conv.output_shape.is_empty()
        && matches!(&*conv.auto_pad, "NOTSET" | "VALID");
    if !plain || rw.graph().constant(w).is_none() {
        return Ok(false);
    }
    rw.rewrite(op, &[]);
    let (rank, cin, cout) = (kernel.len(), filter[0], filter[1]);
    let points: usize = from[2..].iter().product::<usize>() * from[0];
    // Channels stand last throughout: [N, P…, C] times [C, K… Cout].
    let last: Vec<i64> = [0].into_iter().chain(2..2 + rank as i64).chain([1]).collect();
    let rows = transpose(rw, x, last.clone())?;
    let rows = reshape_to(rw, rows, &[points, cin])?;
    let columns = transpose(rw, w, last)?;
    let columns = reshape_to(rw, columns, &[cin, filter[2..].iter().product::<usize>() * cout])?;
    let tiles = rw.create_one(MatMul {}, &[rows, columns])?;
    let grid: Vec<usize> = [&[from[0]], &from[2..], &filter[2..], &[cout]].concat();
    let tiles = reshape_to(rw, tiles, &grid)?;
    // [N, P1, P2 …, K1, K2 …, Cout] to [N, P1, K1, P2, K2 …, Cout].
    let pairs = (0..rank as i64).flat_map(|i| [1 + i, 1 + rank as i64 + i]);
    let tiles = transpose(rw, tiles, [0].into_iter().chain(pairs).chain([1 + 2 * rank as i64]).collect())?;
    let image: Vec<usize> = [&[to[0]], &to[2..], &[cout]].concat();
    let mut image = reshape_to(rw, tiles, &image)?;
    if let Some(bias) = bias {
        image = rw.create_one(Add {}, &[image, bias])?;
    }
    let first = [0, 1 + rank as i64].into_iter().chain(1..1 + rank as i64).collect();
    let y = transpose(rw, image, first)?;
    rw.replace(op, &[y]);
    Ok(true)
}

fn transpose(rw: &mut Rewriter<'_>, x: ValueId, perm: Vec<i64>) -> Result<ValueId, Diagnostic> {
    rw.create_one(Transpose { perm: Some(perm) }, &[x])
}
