//! Convolutions and pools.

use of_ir::{DType, Dim, OpId, Tensor};
use of_ops::nn::{AvgPool, Conv, ConvGeometry, MaxPool, PoolGeometry, Windows};
use of_ops::scalar::ScalarOp;

use super::build::{Axis, Map, axes};
use super::reduction::start;
use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[("of.avg_pool", avg_pool), ("of.conv", conv), ("of.max_pool", max_pool)];

fn dims(v: &Val) -> Vec<Dim> {
    v.dims.iter().map(|d| Dim::from(*d)).collect()
}

/// Pads and crops `x` to the elements that windows read; `spatial` is the first spatial axis.
fn padded(e: &mut Emitter<'_>, x: &Val, spatial: usize, win: &Windows<usize>, value: f64) -> Val {
    let (mut low, mut extents, mut cut) = (vec![0; x.rank()], x.dims.clone(), x.dims.clone());
    for a in 0..win.kernel.len() {
        let (before, axis) = (win.pads_begin[a], spatial + a);
        let reach = win.output[a].saturating_sub(1) * win.strides[a] + win.dilations[a] * (win.kernel[a] - 1) + 1;
        (low[axis], extents[axis]) = (before, reach);
        cut[axis] = x.dims[axis].min(reach.saturating_sub(before));
    }
    let x = e.slice(x, &vec![0; x.rank()], &cut, &vec![1; x.rank()]);
    e.pad(&x, value, &low, &extents)
}

/// The input index of each axis: position `d{o}` and kernel element `d{k}`.
fn reads(o: impl Iterator<Item = usize>, k: usize, strides: &[usize], dilations: &[usize]) -> Map {
    o.enumerate().map(|(a, o)| format!("d{o} * {} + d{} * {}", strides[a], k + a, dilations[a])).collect()
}

fn conv(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let conv = e.attrs::<Conv>(op)?;
    let (x, w) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let (dtype, out) = e.result(op, 0)?;
    let g = conv.geometry(&dims(&x), &dims(&w)).map_err(|e| e.message)?.fixed().ok_or("its extents are not known")?;
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let (x, w) = (e.convert(&x, wide)?, e.convert(&w, wide)?);
    let bias = e.optional(op, 2)?.map(|b| e.convert(&b, wide)).transpose()?;
    // Channels precede positions, as in the weights. The weights are large and are not transposed.
    let rank = g.windows.input.len();
    let x = if conv.channels_last { e.transpose(&x, &first(rank)) } else { x };
    let win = &g.windows;
    let x = padded(e, &x, 2, win, 0.0);
    let y = if g.group == 1 { by_product(e, &x, &w, bias, &g)? } else { in_groups(e, &x, &w, bias, &g)? };
    // The product has the batch after the channels.
    let y = match (g.group == 1, conv.channels_last) {
        (true, true) => e.transpose(&y, &(1..rank + 2).chain([0]).collect::<Vec<_>>()),
        (true, false) => e.transpose(&y, &[1, 0].into_iter().chain(2..rank + 2).collect::<Vec<_>>()),
        (false, true) => e.transpose(&y, &[0].into_iter().chain(2..rank + 2).chain([1]).collect::<Vec<_>>()),
        (false, false) => y,
    };
    let y = e.reshape(&y, &out);
    Ok(vec![e.convert(&y, dtype)?])
}

/// The permutation that moves the last axis, channels, to after the batch.
fn first(rank: usize) -> Vec<usize> {
    [0, rank + 1].into_iter().chain(1..=rank).collect()
}

/// A convolution as one product, of the weights and the im2col matrix, padded to whole vectors of columns. The result is
/// `[channels, batch, positions…]`.
fn by_product(
    e: &mut Emitter<'_>,
    x: &Val,
    w: &Val,
    bias: Option<Val>,
    g: &ConvGeometry<usize>,
) -> Result<Val, String> {
    let (win, n) = (&g.windows, x.dims[0]);
    let rank = win.input.len();
    let depth = g.cin * win.kernel.iter().product::<usize>();
    let positions = n * win.output.iter().product::<usize>();
    let width = positions.next_multiple_of(e.isa.lanes);
    // Axes: channel, elements of the kernel, batch, positions.
    let (k, b, p) = (1, 1 + rank, 2 + rank);
    let shape = [&[g.cin], win.kernel.as_slice(), &[n], win.output.as_slice()].concat();
    let read = [axes([b, 0]), reads(p..p + rank, k, &win.strides, &win.dilations)].concat();
    let place = e.empty(x.dtype, &shape);
    // The window operand only has a shape; its elements are never read.
    let window = e.empty(x.dtype, &win.kernel);
    let kinds = vec![Axis::Parallel; shape.len()];
    let inputs = [(x, read), (&window, axes(k..k + rank))];
    let columns = e.generic(&inputs, (&place, axes(0..shape.len())), &kinds, |_, items, _| Ok(items[0].clone()))?;
    let columns = e.reshape(&columns, &[depth, positions]);
    let columns = e.pad(&columns, 0.0, &[0, 0], &[depth, width]);
    let w = e.reshape(w, &[g.cout, depth]);
    let start = with_bias(e, bias, x.dtype, &[g.cout, 1], &[g.cout, width])?;
    let y = e.matmul(&w, &columns, &start);
    let y = e.slice(&y, &[0, 0], &[g.cout, positions], &[1, 1]);
    Ok(e.reshape(&y, &[&[g.cout, n], win.output.as_slice()].concat()))
}

/// Zeros of the extents `dims`, or the bias `own` broadcast to them.
fn with_bias(
    e: &mut Emitter<'_>,
    bias: Option<Val>,
    dtype: DType,
    own: &[usize],
    dims: &[usize],
) -> Result<Val, String> {
    let Some(bias) = bias else { return Ok(e.splat(dtype, dims, 0.0)) };
    let bias = e.reshape(&bias, own);
    e.broadcast_to(&bias, dims)
}

/// A grouped convolution, as loops: batch, group, output channel, input channel, kernel elements, positions. The innermost
/// loop has stride 1. The result is `[batch, channels, positions…]`.
fn in_groups(e: &mut Emitter<'_>, x: &Val, w: &Val, bias: Option<Val>, g: &ConvGeometry<usize>) -> Result<Val, String> {
    let (win, n) = (&g.windows, x.dims[0]);
    let (rank, groups, ci, co) = (win.input.len(), g.group, g.cin / g.group, g.cout / g.group);
    let x = e.reshape(x, &[&[n, groups, ci], &x.dims[2..]].concat());
    let w = e.reshape(w, &[&[groups, co, ci], win.kernel.as_slice()].concat());
    let shape = [&[n, groups, co], win.output.as_slice()].concat();
    let (c, k) = (3, 4);
    let p = k + rank;
    let read = [axes([0, 1, c]), reads(p..p + rank, k, &win.strides, &win.dilations)].concat();
    let kernel = axes([1, 2, c].into_iter().chain(k..p));
    let place = axes([0, 1, 2].into_iter().chain(p..p + rank));
    let kinds: Vec<Axis> =
        (0..p + rank).map(|a| if (c..p).contains(&a) { Axis::Reduction } else { Axis::Parallel }).collect();
    let own = [&[groups, co], vec![1; rank].as_slice()].concat();
    let start = with_bias(e, bias, x.dtype, &own, &shape)?;
    let y = e.generic(&[(&x, read), (&w, kernel)], (&start, place), &kinds, |s, items, so_far| {
        let product = s.apply(ScalarOp::Mul, items)?;
        s.apply(ScalarOp::Add, &[so_far.clone(), product])
    })?;
    Ok(e.reshape(&y, &[&[n, g.cout], win.output.as_slice()].concat()))
}

/// Windows of `x`, reduced by `f`; the element type of `x` is not wider than the accumulator's.
fn pool(e: &mut Emitter<'_>, x: &Val, g: &PoolGeometry<usize>, last: bool, f: ScalarOp) -> Result<Val, String> {
    let win = &g.windows;
    let rank = win.input.len();
    let spatial = if last { 1 } else { 2 };
    let from = start(f, x.dtype);
    let x = padded(e, x, spatial, win, from);
    let mut extents = x.dims.clone();
    extents[spatial..spatial + rank].copy_from_slice(&win.output);
    // The window operand only has a shape; its elements are never read.
    let window = e.empty(x.dtype, &win.kernel);
    let first = e.splat(x.dtype, &extents, from);
    let (outer, k) = (x.rank(), x.rank());
    let at = reads(spatial..spatial + rank, k, &win.strides, &win.dilations);
    let mut read = axes(0..outer);
    read.splice(spatial..spatial + rank, at);
    let kinds: Vec<Axis> =
        (0..outer + rank).map(|a| if a < outer { Axis::Parallel } else { Axis::Reduction }).collect();
    e.generic(&[(&x, read), (&window, axes(k..k + rank))], (&first, axes(0..outer)), &kinds, |s, items, so_far| {
        s.apply(f, &[so_far.clone(), items[0].clone()])
    })
}

fn max_pool(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let p = e.attrs::<MaxPool>(op)?;
    if p.return_indices {
        return Err("indices of maxima are not supported".into());
    }
    let x = e.operand(op, 0)?;
    let g = p.geometry(&dims(&x)).and_then(|g| g.fixed()).map_err(|e| e.message)?;
    Ok(vec![pool(e, &x, &g, p.channels_last, ScalarOp::Max)?])
}

fn avg_pool(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let p = e.attrs::<AvgPool>(op)?;
    let x = e.operand(op, 0)?;
    if !x.dtype.is_float() {
        return Err(format!("integer division rounds means of {} differently", x.dtype));
    }
    let g = p.geometry(&dims(&x)).and_then(|g| g.fixed()).map_err(|e| e.message)?;
    let wide = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let wide = e.convert(&x, wide)?;
    let sum = pool(e, &wide, &g, p.channels_last, ScalarOp::Add)?;
    let counts: Vec<f64> = p.counts(&g.windows).into_iter().map(|c| c.max(1.0)).collect();
    let mut at = g.windows.output.clone();
    if p.channels_last {
        at.push(1);
    }
    let counts = Tensor::from_elements(sum.dtype, at, of_ir::Elements::Float(counts)).map_err(|e| e.to_string())?;
    let counts = e.constant(&counts)?;
    let mean = e.pointwise(&[&sum, &counts], sum.dtype, &sum.dims, |s, items| s.apply(ScalarOp::Div, items))?;
    Ok(vec![e.convert(&mean, x.dtype)?])
}
