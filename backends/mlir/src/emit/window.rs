//! Convolutions and pools.

use of_ir::{DType, Dim, OpId, Tensor};
use of_ops::nn::{AvgPool, Conv, MaxPool, PoolGeometry};
use of_ops::scalar::ScalarOp;

use super::build::{Axis, Map, axes};
use super::reduction::start;
use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[("of.avg_pool", avg_pool), ("of.conv", conv), ("of.max_pool", max_pool)];

fn dims(v: &Val) -> Vec<Dim> {
    v.dims.iter().map(|d| Dim::from(*d)).collect()
}

/// `x` with what windows read beyond it: `spatial` says where its spatial axes begin.
#[allow(clippy::too_many_arguments)] // the geometry of a window, as it stands in the ops
fn padded(
    e: &mut Emitter<'_>,
    x: &Val,
    spatial: usize,
    kernel: &[usize],
    strides: &[usize],
    dilations: &[usize],
    before: &[usize],
    output: &[usize],
    value: f64,
) -> Val {
    let (mut low, mut extents) = (vec![0; x.rank()], x.dims.clone());
    let mut cut = x.dims.clone();
    for a in 0..kernel.len() {
        let reach = output[a].saturating_sub(1) * strides[a] + dilations[a] * (kernel[a] - 1) + 1;
        low[spatial + a] = before[a];
        extents[spatial + a] = reach;
        // What no window reads is left out.
        cut[spatial + a] = x.dims[spatial + a].min(reach.saturating_sub(before[a]));
    }
    let x = e.slice(x, &vec![0; x.rank()], &cut, &vec![1; x.rank()]);
    e.surround(&x, value, &low, &extents)
}

/// Where windows read: position `d{o}` and element `d{k}` of each axis.
fn reads(o: impl Iterator<Item = usize>, k: usize, strides: &[usize], dilations: &[usize]) -> Map {
    o.enumerate().map(|(a, o)| format!("d{o} * {} + d{} * {}", strides[a], k + a, dilations[a])).collect()
}

/// The axes of the iteration space, outermost first: batch, group, channel that is written, channel that is read, elements
/// of the kernel, positions. With channels last, those that are written come after the positions. So the innermost loop walks
/// over neighbours.
fn conv(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let conv = e.attrs::<Conv>(op)?;
    let (x, w) = (e.operand(op, 0)?, e.operand(op, 1)?);
    let (dtype, out) = e.result(op, 0)?;
    let g = conv.geometry(&dims(&x), &dims(&w)).map_err(|e| e.message)?.fixed().ok_or("its extents are not known")?;
    let rank = g.windows.input.len();
    let last = conv.channels_last;
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let (x, w) = (e.convert(&x, wide)?, e.convert(&w, wide)?);
    let win = &g.windows;
    let spatial = if last { 1 } else { 2 };
    let x = padded(e, &x, spatial, &win.kernel, &win.strides, &win.dilations, &win.pads_begin, &win.output, 0.0);
    let (n, groups, ci, co) = (x.dims[0], g.group, g.cin / g.group, g.cout / g.group);
    let size = &x.dims[spatial..spatial + rank];
    let (x, w, grouped) = if last {
        let x = e.reshape(&x, &[&[n], size, &[groups, ci]].concat());
        let w = e.reshape(&w, &[&[groups, co, ci], win.kernel.as_slice()].concat());
        let perm: Vec<usize> = [0, 2].into_iter().chain(3..3 + rank).chain([1]).collect();
        (x, e.transpose(&w, &perm), [&[n], win.output.as_slice(), &[groups, co]].concat())
    } else {
        let x = e.reshape(&x, &[&[n, groups, ci], size].concat());
        let w = e.reshape(&w, &[&[groups, co, ci], win.kernel.as_slice()].concat());
        (x, w, [&[n, groups, co], win.output.as_slice()].concat())
    };
    // Numbers of the axes.
    let (b, gr, c) = (0, 1, 2 + usize::from(!last));
    let (k, o) = (c + 1, if last { c + 1 + 2 * rank } else { 2 });
    let p = k + rank;
    let at = reads(p..p + rank, k, &win.strides, &win.dilations);
    let (read, kernel, place): (Map, Map, Map) = if last {
        (
            [axes([b]), at, axes([gr, c])].concat(),
            axes([gr, c].into_iter().chain(k..p).chain([o])),
            axes([b].into_iter().chain(p..p + rank).chain([gr, o])),
        )
    } else {
        (
            [axes([b, gr, c]), at].concat(),
            axes([gr, o, c].into_iter().chain(k..p)),
            axes([b, gr, o].into_iter().chain(p..p + rank)),
        )
    };
    let kinds: Vec<Axis> =
        (0..4 + 2 * rank).map(|a| if (c..p).contains(&a) { Axis::Reduction } else { Axis::Parallel }).collect();
    let first = match e.optional(op, 2)? {
        Some(bias) => {
            let bias = e.convert(&bias, wide)?;
            let bias = if last {
                e.reshape(&bias, &[groups, co])
            } else {
                e.reshape(&bias, &[&[groups, co], vec![1; rank].as_slice()].concat())
            };
            e.stretch(&bias, &grouped)?
        }
        None => e.splat(wide, &grouped, 0.0),
    };
    let y = e.generic(&[(&x, read), (&w, kernel)], (&first, place), &kinds, |s, items, so_far| {
        let product = s.apply(ScalarOp::Mul, items)?;
        s.apply(ScalarOp::Add, &[so_far.clone(), product])
    })?;
    let y = e.reshape(&y, &out);
    Ok(vec![e.convert(&y, dtype)?])
}

/// Windows of `x`, combined by `f`; `x` is not wider than what is computed.
fn pool(e: &mut Emitter<'_>, x: &Val, g: &PoolGeometry<usize>, last: bool, f: ScalarOp) -> Result<Val, String> {
    let win = &g.windows;
    let rank = win.input.len();
    let spatial = if last { 1 } else { 2 };
    let from = start(f, x.dtype);
    let x = padded(e, x, spatial, &win.kernel, &win.strides, &win.dilations, &win.pads_begin, &win.output, from);
    let mut extents = x.dims.clone();
    extents[spatial..spatial + rank].copy_from_slice(&win.output);
    // A window has a shape and no elements: nobody reads them.
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
    if p.indices {
        return Err("its windows give no indices of maxima".into());
    }
    let x = e.operand(op, 0)?;
    let g = p.geometry(&dims(&x)).and_then(|g| g.fixed()).map_err(|e| e.message)?;
    Ok(vec![pool(e, &x, &g, p.channels_last, ScalarOp::Max)?])
}

fn avg_pool(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let p = e.attrs::<AvgPool>(op)?;
    let x = e.operand(op, 0)?;
    if !x.dtype.is_float() {
        return Err(format!("means of {} are rounded by rules of their own", x.dtype));
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
