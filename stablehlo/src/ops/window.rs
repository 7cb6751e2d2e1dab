//! Reductions of windows: pools, cumulative sums, and the gradient of a max pool.

use of_ir::{DType, ValueId};
use of_ops::elementwise::{Mul, Neg};
use of_ops::nn::{AvgPool, MaxPool, MaxPoolGradient};
use of_ops::reduction::{CumProd, CumSum};

use super::conv::pairs;
use super::elementwise::direction_of;
use super::reduce::{Reducer, reducer};
use super::shape::padded;
use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};

/// A window, an entry for each axis of the operand.
struct Window {
    sizes: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    low: Vec<i64>,
    high: Vec<i64>,
}

impl Window {
    fn of(c: &Call<'_>, rank: usize) -> Result<Window, ImportError> {
        let list = |key: &str| -> Result<Vec<i64>, ImportError> {
            let list = c.opt_ints(&[key])?.unwrap_or(vec![1; rank]);
            let wrong = || ImportError::invalid(format!("{key} must be {rank} numbers"));
            if list.len() == rank && list.iter().all(|v| *v > 0) { Ok(list) } else { Err(wrong()) }
        };
        let pads = match c.attr(&["padding"]) {
            Some(attr) => pairs(attr, rank)?,
            None => vec![0; 2 * rank],
        };
        Ok(Window {
            sizes: list("window_dimensions")?,
            strides: list("window_strides")?,
            dilations: list("window_dilations")?,
            low: pads.iter().copied().step_by(2).collect(),
            high: pads.iter().copied().skip(1).step_by(2).collect(),
        })
    }

    /// Axes along which a window is more than an element.
    fn spatial(&self) -> Vec<usize> {
        let plain = |a: usize| (self.sizes[a], self.strides[a], self.low[a], self.high[a]) == (1, 1, 0, 0);
        (0..self.sizes.len()).filter(|a| !plain(*a)).collect()
    }

    /// The axis, and whether it runs from the end: each element with all before it, or behind it.
    fn cumulative(&self, dims: &[i64]) -> Option<(usize, bool)> {
        let [axis] = self.spatial()[..] else { return None };
        let n = dims[axis];
        if self.sizes[axis] != n || self.strides[axis] != 1 || self.dilations[axis] != 1 {
            return None;
        }
        match (self.low[axis], self.high[axis]) {
            (low, 0) if low == n - 1 => Some((axis, false)),
            (0, high) if high == n - 1 => Some((axis, true)),
            _ => None,
        }
    }

    /// Entries of some axes.
    fn at(&self, list: &[i64], axes: &[usize]) -> Vec<i64> {
        axes.iter().map(|a| list[*a]).collect()
    }
}

/// An operand in a layout of pools: a batch, channels, and spatial axes behind them.
struct Planes {
    order: Vec<usize>,
    /// Extents of the axes that are not spatial.
    outer: Vec<i64>,
}

impl Planes {
    fn of(spatial: &[usize], dims: &[i64]) -> Planes {
        let outer: Vec<usize> = (0..dims.len()).filter(|a| !spatial.contains(a)).collect();
        let extents = outer.iter().map(|a| dims[*a]).collect();
        Planes { order: [outer, spatial.to_vec()].concat(), outer: extents }
    }

    fn enter(&self, cx: &mut Importer<'_, '_>, x: ValueId) -> Built {
        let x = cx.transpose(x, &self.order)?;
        let dims = cx.dims(x)?;
        let spatial = &dims[self.outer.len()..];
        // The last outer axis are channels; without any there is one.
        let (batch, channels) = match self.outer.split_last() {
            Some((last, rest)) => (rest.iter().product(), *last),
            None => (1, 1),
        };
        cx.reshape(x, &[&[batch, channels], spatial].concat())
    }

    fn leave(&self, cx: &mut Importer<'_, '_>, y: ValueId) -> Built {
        let dims = cx.dims(y)?;
        let y = cx.reshape(y, &[self.outer.as_slice(), &dims[2..]].concat())?;
        let mut back = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(i, axis)| back[*axis] = i);
        cx.transpose(y, &back)
    }
}

/// `stablehlo.reduce_window`.
pub(super) fn reduce_window(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let n = c.operands.len() / 2;
    let region = c.op.regions.first().ok_or_else(|| ImportError::invalid("it has no reducer"))?;
    let mut out = Vec::new();
    for i in 0..n {
        let (x, start) = (c.operand(i)?, c.operand(i + n)?);
        let unknown = || ImportError::unsupported("the reducer is neither add, multiply, minimum nor maximum");
        let kind = reducer(region, i).ok_or_else(unknown)?.of(cx.dtype(x)?);
        let window = Window::of(c, cx.dims(x)?.len())?;
        out.push(one_window(cx, c, x, start, window, kind)?);
    }
    Ok(out)
}

fn one_window(
    cx: &mut Importer<'_, '_>,
    c: &Call<'_>,
    x: ValueId,
    start: ValueId,
    mut window: Window,
    kind: Reducer,
) -> Built {
    let own = cx.dtype(x)?;
    let (kind, mut x) = match kind {
        // Truth values are numbers of which the largest or smallest counts.
        Reducer::And | Reducer::Or if own == DType::Bool => {
            (if kind == Reducer::And { Reducer::Min } else { Reducer::Max }, cx.cast(x, DType::F32)?)
        }
        other => (other, x),
    };
    let start = if own == DType::Bool { cx.cast(start, DType::F32)? } else { start };
    // What is between elements, and cut off.
    let rank = window.sizes.len();
    let between: Vec<i64> = c.opt_ints(&["base_dilations"])?.unwrap_or(vec![1; rank]).iter().map(|d| d - 1).collect();
    let part = |list: &[i64]| list.iter().map(|v| (*v).min(0)).collect::<Vec<_>>();
    x = padded(cx, x, start, &part(&window.low), &part(&window.high), &between)?;
    window.low.iter_mut().chain(&mut window.high).for_each(|v| *v = (*v).max(0));
    let dims = cx.dims(x)?;
    let spatial = window.spatial();
    let y = match (kind, window.cumulative(&dims)) {
        _ if spatial.is_empty() => x,
        (Reducer::Add, Some((axis, reverse))) => {
            let axis = cx.number(axis as f64, DType::I64)?;
            cx.one(CumSum { exclusive: false, reverse }, &[x, axis])?
        }
        (Reducer::Mul, Some((axis, reverse))) => {
            let axis = cx.number(axis as f64, DType::I64)?;
            cx.one(CumProd { exclusive: false, reverse }, &[x, axis])?
        }
        (Reducer::Add, _) => sums(cx, x, &window, &spatial)?,
        (Reducer::Max, _) => pooled(cx, x, &window, &spatial, Pool::Max)?,
        (Reducer::Min, _) => {
            let negative = cx.one(Neg {}, &[x])?;
            let y = pooled(cx, negative, &window, &spatial, Pool::Max)?;
            cx.one(Neg {}, &[y])?
        }
        _ => return Err(ImportError::unsupported("the reducer is neither add, minimum nor maximum")),
    };
    let y = if kind.is_identity(cx, start) || own == DType::Bool { y } else { kind.combine(cx, y, start)? };
    cx.cast(y, own)
}

/// Sums of windows: means, times the size of the window.
fn sums(cx: &mut Importer<'_, '_>, x: ValueId, window: &Window, spatial: &[usize]) -> Built {
    let own = cx.dtype(x)?;
    // Means of integers would be rounded.
    let wide = if own.is_float() { own } else { DType::F64 };
    let x = cx.cast(x, wide)?;
    let means = pooled(cx, x, window, spatial, Pool::Mean)?;
    let area = window.sizes.iter().product::<i64>();
    let area = cx.number(area as f64, wide)?;
    let sums = cx.one(Mul {}, &[means, area])?;
    // The division leaves an error below one half.
    let sums = if own.is_float() { sums } else { cx.one(of_ops::elementwise::Round {}, &[sums])? };
    cx.cast(sums, own)
}

#[derive(Clone, Copy, PartialEq)]
enum Pool {
    Max,
    Mean,
}

fn pooled(cx: &mut Importer<'_, '_>, x: ValueId, window: &Window, spatial: &[usize], pool: Pool) -> Built {
    let dims = cx.dims(x)?;
    let rank = dims.len();
    // Between a batch and channels, the layout stays. Windows of one element are spatial axes, too.
    let last = rank > 2 && spatial.iter().all(|a| *a > 0 && *a < rank - 1);
    let middle: Vec<usize> = (1..rank.max(2) - 1).collect();
    let axes = if last { &middle } else { spatial };
    let pads = [window.at(&window.low, axes), window.at(&window.high, axes)].concat();
    let (kernel, strides) = (window.at(&window.sizes, axes), window.at(&window.strides, axes));
    let dilations = window.at(&window.dilations, axes);
    let planes = Planes::of(axes, &dims);
    let x = if last { x } else { planes.enter(cx, x)? };
    let y = match pool {
        Pool::Max => {
            let op = MaxPool {
                kernel,
                strides,
                pads,
                dilations,
                ceil_mode: false,
                storage_order: 0,
                return_indices: false,
                auto_pad: "NOTSET".into(),
                channels_last: last,
            };
            cx.one(op, &[x])?
        }
        Pool::Mean => {
            let op = AvgPool {
                kernel,
                strides,
                pads,
                dilations,
                ceil_mode: false,
                count_include_pad: true,
                auto_pad: "NOTSET".into(),
                channels_last: last,
            };
            cx.one(op, &[x])?
        }
    };
    if last { Ok(y) } else { planes.leave(cx, y) }
}

/// `stablehlo.select_and_scatter`, where it is the gradient of a max pool: the first of the largest gets the sum.
pub(super) fn select_and_scatter(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (x, g, start) = (c.operand(0)?, c.operand(1)?, c.operand(2)?);
    let dims = cx.dims(x)?;
    let window = Window::of(c, dims.len())?;
    let [select, scatter] = c.op.regions.as_slice() else {
        return Err(ImportError::invalid("it must have two regions"));
    };
    let compares = |name: &str| {
        select.ops.iter().find(|op| op.name == name).and_then(direction_of).is_some_and(|d| d == "GE" || d == "GT")
    };
    if !compares("stablehlo.compare") || select.ops.len() != 2 || reducer(scatter, 0) != Some(Reducer::Add) {
        return Err(ImportError::unsupported("it does not select the largest element and add"));
    }
    let spatial = window.spatial();
    if spatial.is_empty() || window.low.iter().chain(&window.high).any(|p| *p < 0) {
        return Err(ImportError::unsupported("windows of one element, or negative padding"));
    }
    let planes = Planes::of(&spatial, &dims);
    let (x, g) = (planes.enter(cx, x)?, planes.enter(cx, g)?);
    let op = MaxPoolGradient {
        kernel: window.at(&window.sizes, &spatial),
        strides: window.at(&window.strides, &spatial),
        pads: [window.at(&window.low, &spatial), window.at(&window.high, &spatial)].concat(),
        dilations: vec![1; spatial.len()],
        ceil_mode: false,
        auto_pad: "NOTSET".into(),
        channels_last: false,
    };
    let dx = cx.one(op, &[x, g])?;
    let dx = planes.leave(cx, dx)?;
    Ok(vec![if Reducer::Add.is_identity(cx, start) { dx } else { Reducer::Add.combine(cx, dx, start)? }])
}
