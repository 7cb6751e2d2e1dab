//! The specification of `of.resize`.
//!
//! With known extents, tables list the input elements of each result element; with open extents, the kernel computes them.

use of_ir::{DType, Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn::{Resize, Taps, Transform};

use crate::kernel::copy::CopyBox;
use crate::kernel::extent::{self, Extent};
use crate::kernel::indexed::{Indexed, TapTable, filter_taps};
use crate::kernel::nest::Nest;
use crate::kernel::space::row_major;

/// Maximum input elements of one result element; with more, resizing axis by axis is faster.
const MAX_TAPS: usize = 16;

/// The kernel of `of.resize`.
///
/// # Errors
/// The reason why there is none.
pub fn resize(g: &Graph, op: OpId) -> Result<Nest, String> {
    let data = g.op(op);
    let r: Resize = as_op(g, op).ok_or("its attributes do not decode")?;
    let from = extent::of_value(g, data.operands[0]);
    let Some(dims) = extent::numbers(&from) else { return open(g, op, &r, &from) };
    // Roi, scales and sizes must be absent, empty or constant.
    let constant = |i: usize| match data.operands.get(i).filter(|v| g.ty(**v).as_tensor().is_some()) {
        Some(v) => match g.constant(*v) {
            Some(t) => Ok(Some(t).filter(|t| !t.is_empty())),
            None => Err(format!("operand {i} is not known before the run")),
        },
        None => Ok(None),
    };
    let floats = |i: usize| Ok::<_, String>(constant(i)?.and_then(|t| t.to_f64s()));
    let (roi, scales) = (floats(1)?, floats(2)?);
    let sizes = match data.operands.get(3).filter(|v| g.ty(**v).as_tensor().is_some()) {
        Some(v) => {
            let known = g.dims_value(*v).and_then(|d| d.iter().map(of_ir::Dim::as_const).collect::<Option<Vec<_>>>());
            match known {
                Some(sizes) => Some(sizes).filter(|s| !s.is_empty()),
                None => return open(g, op, &r, &from),
            }
        }
        None => None,
    };
    let taps = r.taps(&dims, roi.as_deref(), scales.as_deref(), sizes.as_deref()).map_err(|e| e.message.clone())?;
    let copies = |axis: usize, taps: &[Taps]| {
        taps.len() == dims[axis] && taps.iter().enumerate().all(|(i, t)| t.weights == [(i, 1.0)])
    };
    let mut axes = Vec::new();
    for (axis, taps) in taps.into_iter().filter(|(axis, taps)| !copies(*axis, taps)) {
        if taps.iter().any(|t| t.weights.is_empty()) {
            return Err("elements outside of the region have no native code".into());
        }
        let max_taps = taps.iter().map(|t| t.weights.len()).max().unwrap_or(1);
        axes.push(TapTable { axis, taps: taps.into_iter().map(|t| t.weights).collect(), max_taps });
    }
    let weighs = axes.iter().any(|a| a.max_taps > 1);
    let dtype = g.ty(data.operands[0]).as_tensor().map_or(DType::F32, |t| t.dtype);
    if weighs && dtype != DType::F32 {
        return Err(format!("interpolation of {dtype} has no native code"));
    }
    if axes.iter().map(|a| a.max_taps).product::<usize>() > MAX_TAPS {
        return Err(format!("interpolation from more than {MAX_TAPS} elements has no native code"));
    }
    let (to, bytes) = (extent::of_value(g, data.results[0]), dtype.bits().map_or(4, |b| b / 8));
    Ok(Nest::Indexed(Indexed::ResizeByTable { from, to, axes, bytes }))
}

/// The kernel where an extent is known only at run time.
fn open(g: &Graph, op: OpId, r: &Resize, from: &[Extent]) -> Result<Nest, String> {
    let data = g.op(op);
    let to = extent::of_value(g, data.results[0]);
    let how = r.interpolation().map_err(|e| e.message.clone())?;
    if how.antialias || how.exclude_outside || how.transform == Transform::CropAndResize {
        return Err("filters of open extents that depend on the region or the scale have no native code".into());
    }
    if &*r.keep_aspect_ratio_policy != "stretch" {
        return Err("sizes of open extents that keep the aspect ratio have no native code".into());
    }
    let given = |i: usize| data.operands.get(i).copied().filter(|v| g.ty(*v).as_tensor().is_some());
    let scales = match given(2).map(|v| g.constant(v).ok_or("its scales are not known before the run")).transpose()? {
        Some(t) if !t.is_empty() => t.to_f64s(),
        _ => None,
    };
    let resized_axes: Vec<usize> = match &r.axes {
        None => (0..from.len()).collect(),
        Some(list) => {
            list.iter().map(|a| of_ops::shape::axis(*a, from.len())).collect::<Result<_, _>>().map_err(|e| e.message)?
        }
    };
    if let Some(factors) = repeats(r, scales.as_deref(), &resized_axes, (from, &to)) {
        let bytes = g.ty(data.operands[0]).as_tensor().and_then(|t| t.dtype.bits()).map_or(4, |b| b / 8);
        return Ok(repeat(from, &to, &factors, bytes));
    }
    let taps = filter_taps(how.filter);
    let dtype = g.ty(data.operands[0]).as_tensor().map_or(DType::F32, |t| t.dtype);
    if taps > 1 && dtype != DType::F32 {
        return Err(format!("interpolation of {dtype} has no native code"));
    }
    let mut axes = Vec::new();
    for (i, a) in resized_axes.into_iter().enumerate() {
        let scale = scales.as_ref().and_then(|s| s.get(i)).copied();
        if scale.map_or(scales.is_none() && from[a] == to[a], |s| s == 1.0) {
            continue;
        }
        axes.push((a, scale));
    }
    if taps.pow(axes.len() as u32) > MAX_TAPS {
        return Err(format!("interpolation from more than {MAX_TAPS} elements has no native code"));
    }
    let (from, bytes) = (from.to_vec(), dtype.bits().map_or(4, |b| b / 8));
    Ok(Nest::Indexed(Indexed::ResizeDynamic { from, to, axes, interpolation: how, bytes }))
}

/// How often each axis repeats its elements; `None` if the op does not repeat them.
fn repeats(
    r: &Resize,
    scales: Option<&[f64]>,
    axes: &[usize],
    (from, to): (&[Extent], &[Extent]),
) -> Option<Vec<usize>> {
    let mut all = vec![1; from.len()];
    for (axis, scale) in axes.iter().zip(scales.filter(|_| r.repeats_elements())?) {
        let is_factor = (1.0..1e6).contains(scale) && scale.fract() == 0.0;
        *all.get_mut(*axis)? = is_factor.then_some(*scale as usize)?;
    }
    let grows = |((d, e), f): ((&Extent, &Extent), &usize)| d * *f == *e;
    from.iter().zip(to).zip(&all).all(grows).then_some(all)
}

/// The copy that repeats the elements of each axis.
fn repeat(from: &[Extent], to: &[Extent], factors: &[usize], bytes: usize) -> Nest {
    let (mut dims, mut reads, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for (((d, f), read), write) in from.iter().zip(factors).zip(row_major(from)).zip(row_major(to)) {
        dims.push(d.clone());
        reads.push(read);
        writes.push(&write * *f);
        if *f > 1 {
            dims.push((*f).into());
            reads.push(0usize.into());
            writes.push(write);
        }
    }
    let zero = || Extent::from(0usize);
    Nest::Copy { boxes: vec![CopyBox { dims, arg: 0, from: (zero(), reads), to: (zero(), writes) }], bytes, out: 1 }
}
