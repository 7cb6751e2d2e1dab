//! The specification of pools: which ones have a vector kernel, and the kernels of the others.

use of_ir::{DType, Dim, Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn::{self, AvgPool, MaxPool, PoolGeometry, Windows};

use crate::kernel::depthwise_weight_gradient::DepthwiseWeightGradient;
use crate::kernel::extent::{self, Extent};
use crate::kernel::indexed::Indexed;
use crate::kernel::max_pool_gradient::MaxPoolGradient;
use crate::kernel::nest::Nest;
use crate::kernel::window::{Divisor, WindowAxis, image_axes};

/// The kernel of a max pool with positions: samples and channels are the outer axes.
///
/// # Errors
/// The reason why there is none.
pub fn arg_max(g: &Graph, op: OpId) -> Result<Nest, String> {
    let (x, y) = (g.op(op).operands[0], g.op(op).results[0]);
    let pool: MaxPool = as_op(g, op).ok_or("its attributes do not decode")?;
    let ty = g.ty(x).as_tensor().ok_or("no tensor")?;
    if pool.channels_last || pool.storage_order != 0 || ty.dtype != DType::F32 {
        return Err(
            "indices of maxima have native code only for f32, channels-first images, and row-major order".into()
        );
    }
    let shape = ty.shape.clone().ok_or("the rank of its input is not known")?;
    let windows = pool.geometry(&shape).map_err(|e| e.message)?.windows;
    let windows = (0..windows.input.len()).map(|a| WindowAxis::of(&windows, a)).collect();
    let input = shape.iter().cloned().map(Extent::from).collect();
    Ok(Nest::Indexed(Indexed::PoolArgMax { input, dims: extent::of_value(g, y), windows }))
}

/// The kernel of the gradient of a max pool.
///
/// # Errors
/// The reason why there is none.
pub fn max_pool_gradient(g: &Graph, op: OpId) -> Result<Nest, String> {
    let pool: nn::MaxPoolGradient = as_op(g, op).ok_or("its attributes do not decode")?;
    let ty = g.ty(g.op(op).operands[0]).as_tensor().ok_or("no tensor")?;
    let shape = ty.shape.as_ref().ok_or("the rank of its input is not known")?;
    if !pool.channels_last || ty.dtype != DType::F32 || shape.len() < 3 {
        return Err("gradients of max pools have native code only for f32, channels-last images".into());
    }
    let geometry = pool.geometry(shape).map_err(|e| e.message)?;
    let gradient = gradient(g, op, &geometry)?;
    let PoolGeometry { n, c, windows } = geometry;
    let windows = (0..windows.input.len()).map(|a| WindowAxis::of(&windows, a)).collect();
    Ok(Nest::MaxPoolGradient(MaxPoolGradient { n: n.into(), windows, c: c.into(), gradient }))
}

/// The kernel of the gradient of a depthwise convolution for its weights, in one part.
///
/// # Errors
/// The reason why there is none.
pub fn depthwise_weight_gradient(g: &Graph, op: OpId) -> Result<DepthwiseWeightGradient, String> {
    let conv: nn::DepthwiseWeightGradient = as_op(g, op).ok_or("its attributes do not decode")?;
    let ty = g.ty(g.op(op).operands[0]).as_tensor().ok_or("no tensor")?;
    let shape = ty.shape.as_ref().ok_or("the rank of its input is not known")?;
    if !conv.channels_last || ty.dtype != DType::F32 {
        return Err("gradients of depthwise weights have native code only for f32, channels-last images".into());
    }
    let geometry = conv.geometry(shape).map_err(|e| e.message)?;
    let gradient = gradient(g, op, &geometry)?;
    let PoolGeometry { n, c, windows } = geometry;
    let (h, w) = image_axes(&windows)?;
    Ok(DepthwiseWeightGradient { n: n.into(), h, w, c: c.into(), gradient, parts: 1 })
}

/// The extents of operand 1, and those of a channels-last result, by which kernels read it.
fn gradient(g: &Graph, op: OpId, geometry: &PoolGeometry<Dim>) -> Result<Vec<(Extent, Extent)>, String> {
    let own = extent::of_value(g, g.op(op).operands[1]);
    let result: Vec<Extent> = geometry.result(true).into_iter().map(Extent::from).collect();
    if own.len() != result.len() {
        return Err("the rank of the gradient is not known".into());
    }
    Ok(own.into_iter().zip(result).collect())
}

/// Sizes of everything, for an input of shape `shape`.
///
/// # Errors
/// When `op` is no pool, and when its attributes do not fit.
pub fn geometry(g: &Graph, op: OpId, shape: &[Dim]) -> Result<PoolGeometry<Dim>, String> {
    let geometry = match (as_op::<AvgPool>(g, op), as_op::<MaxPool>(g, op)) {
        (Some(p), _) => p.geometry(shape),
        (_, Some(p)) => p.geometry(shape),
        _ => return Err("its attributes do not decode".into()),
    };
    geometry.map_err(|e| e.message)
}

/// The elements that a mean counts. Only `ceil_mode` has windows that reach beyond the padding.
pub fn divisor(pool: &AvgPool, windows: &Windows<Dim>) -> Divisor {
    let pads = windows.pads_begin.iter().chain(&windows.pads_end);
    let padded = pads.into_iter().any(|p| p.as_const() != Some(0));
    match (pool.count_include_pad, pool.ceil_mode) {
        (true, true) => Divisor::Padded,
        (false, true) => Divisor::Inside,
        (false, false) if padded => Divisor::Inside,
        _ => Divisor::Window,
    }
}

/// Whether the kernel that computes vectors of channels takes a channels-last pool: it needs their number, and windows that
/// move along two axes at most once the others are merged with samples and channels.
pub fn is_vectorized(geometry: &PoolGeometry<Dim>) -> bool {
    let windows = &geometry.windows;
    let merged = merged_axes(windows);
    geometry.c.as_const().is_some() && !windows.input.is_empty() && merged.len() <= 2
}

/// The image axes that remain when axes without windows are merged: trailing ones of known extent with channels, leading
/// ones with samples.
pub fn merged_axes(windows: &Windows<Dim>) -> std::ops::Range<usize> {
    let (mut first, mut last) = (0, windows.input.len());
    while last - first > 1 && windows.is_still(last - 1) && windows.output[last - 1].as_const().is_some() {
        last -= 1;
    }
    while last - first > 2 && windows.is_still(first) {
        first += 1;
    }
    first..last
}

/// The kernel of a channels-last pool that computes one element at a time.
///
/// # Errors
/// The reason why there is none.
pub fn elementwise(g: &Graph, op: OpId) -> Result<Nest, String> {
    let (x, y) = (g.op(op).operands[0], g.op(op).results[0]);
    let ty = g.ty(x).as_tensor().ok_or("no tensor")?;
    let shape = ty.shape.clone().ok_or("the rank of its input is not known")?;
    let windows = geometry(g, op, &shape)?.windows;
    let mean = as_op::<AvgPool>(g, op).map(|p| divisor(&p, &windows));
    let windows = (0..windows.input.len()).map(|a| WindowAxis::of(&windows, a)).collect();
    let input = shape.iter().cloned().map(Extent::from).collect();
    Ok(Nest::Indexed(Indexed::Pool { input, dims: extent::of_value(g, y), windows, mean, dtype: ty.dtype }))
}
