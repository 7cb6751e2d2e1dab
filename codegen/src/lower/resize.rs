//! Resizing with extents that are known: tables say which elements make one of the result.

use std::fmt::Write;

use of_ir::{DType, Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn::{Resize, Taps};

use crate::native::index::{Points, offset, word};
use crate::native::space::row_major;
use crate::native::{Nest, extent};

/// The most elements that make one; more are better combined axis by axis.
const MOST_TAPS: usize = 16;

/// An axis whose elements are made of others.
struct Axis {
    axis: usize,
    taps: Vec<Taps>,
    /// Elements that make one, at most.
    each: usize,
}

impl Axis {
    /// C tables of positions and, where elements are weighed, weights.
    fn tables(&self) -> String {
        let (n, a) = (self.each, self.axis);
        let (mut places, mut weights) = (String::new(), String::new());
        for t in &self.taps {
            let mut all = t.weights.clone();
            // Where there are fewer, one is taken twice at half its weight: infinity at weight 0 would be NaN.
            while let (Some((at, weight)), true) = (all.last().copied(), all.len() < n) {
                all.pop();
                all.extend([(at, weight / 2.0); 2]);
            }
            for (at, weight) in all {
                let _ = write!(places, "{at},");
                let _ = write!(weights, "{:?}f,", weight as f32);
            }
        }
        let count = self.taps.len();
        let mut c = format!("  static const i32 place{a}[{count}][{n}] = {{{places}}};\n");
        if n > 1 {
            let _ = writeln!(c, "  static const f32 weight{a}[{count}][{n}] = {{{weights}}};");
        }
        c
    }
}

/// The loop nest of `of.resize`.
///
/// # Errors
/// Why it has none.
pub fn resize(g: &Graph, op: OpId) -> Result<Nest, String> {
    let data = g.op(op);
    let r: Resize = as_op(g, op).ok_or("its attributes do not decode")?;
    let from = extent::of_value(g, data.operands[0]);
    let dims = extent::numbers(&from).ok_or("a resized extent is not known before the run")?;
    // Roi, scales and sizes: left out, empty or constant.
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
            let sizes = g.dims_value(*v).and_then(|d| d.iter().map(of_ir::Dim::as_const).collect::<Option<Vec<_>>>());
            Some(sizes.ok_or("operand 3 is not known before the run")?).filter(|s| !s.is_empty())
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
        let each = taps.iter().map(|t| t.weights.len()).max().unwrap_or(1);
        axes.push(Axis { axis, taps, each });
    }
    let weighs = axes.iter().any(|a| a.each > 1);
    let dtype = g.ty(data.operands[0]).as_tensor().map_or(DType::F32, |t| t.dtype);
    if weighs && dtype != DType::F32 {
        return Err(format!("interpolation of {dtype} has no native code"));
    }
    if axes.iter().map(|a| a.each).product::<usize>() > MOST_TAPS {
        return Err(format!("more than {MOST_TAPS} elements make one"));
    }
    let element = if weighs { "f32" } else { word(dtype.bits().map_or(4, |b| b / 8)) };
    let head: String = axes.iter().map(Axis::tables).collect();
    let mut value = Vec::new();
    let (own, mut pick) = (row_major(&from), vec![0; axes.len()]);
    // Every choice of one tap an axis.
    loop {
        let mut at: Vec<String> = (0..dims.len()).map(|a| format!("x{a}")).collect();
        let mut term = String::new();
        for (Axis { axis, each, .. }, k) in axes.iter().zip(&pick) {
            at[*axis] = format!("place{axis}[x{axis}][{k}]");
            if *each > 1 {
                let _ = write!(term, "weight{axis}[x{axis}][{k}] * ");
            }
        }
        value.push(format!("{term}from[{}]", offset(&at, &own)));
        let Some(next) = (0..axes.len()).rev().find(|i| pick[*i] + 1 < axes[*i].each) else { break };
        pick[next] += 1;
        pick[next + 1..].fill(0);
    }
    let points = Points {
        dims: extent::of_value(g, data.results[0]),
        element,
        out: 1,
        head: format!("{head}  PTR(const {element}) from = ARG(const {element}, 0);\n"),
        row: String::new(),
        point: String::new(),
        value: value.join(" + "),
    };
    Ok(Nest::Points(points))
}
