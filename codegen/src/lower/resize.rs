//! Resizing. Where extents are known, tables say which elements make one of the result; where they are open, the kernel
//! works that out.

use std::fmt::Write;

use of_ir::{DType, Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn::{Filter, Interpolation, Nearest, Resize, Taps, Transform};

use crate::native::index::{Points, offset, word};
use crate::native::space::row_major;
use crate::native::{Extent, Nest, extent};

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
    let Some(dims) = extent::numbers(&from) else { return open(g, op, &r, &from) };
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
    let list: Vec<(usize, usize)> = axes.iter().map(|a| (a.axis, a.each)).collect();
    let value = combined(&from, &list, &|a, k| {
        let weight = if list.contains(&(a, 1)) { String::new() } else { format!("weight{a}[x{a}][{k}]") };
        (format!("place{a}[x{a}][{k}]"), weight)
    });
    let points = Points {
        dims: extent::of_value(g, data.results[0]),
        element,
        out: 1,
        head: format!("{head}  PTR(const {element}) from = ARG(const {element}, 0);\n"),
        row: String::new(),
        point: String::new(),
        value,
    };
    Ok(Nest::Points(points))
}

/// The sum over every choice of one tap an axis, of an input of extents `from`. `tap` gives the C expressions of place and
/// weight of a tap of an axis; a weight that is empty is 1.
fn combined(from: &[Extent], axes: &[(usize, usize)], tap: &dyn Fn(usize, usize) -> (String, String)) -> String {
    let (own, mut pick, mut terms) = (row_major(from), vec![0; axes.len()], Vec::new());
    loop {
        let mut at: Vec<String> = (0..from.len()).map(|a| format!("x{a}")).collect();
        let mut term = String::new();
        for ((axis, _), k) in axes.iter().zip(&pick) {
            let (place, weight) = tap(*axis, *k);
            at[*axis] = place;
            if !weight.is_empty() {
                let _ = write!(term, "{weight} * ");
            }
        }
        terms.push(format!("{term}from[{}]", offset(&at, &own)));
        let Some(next) = (0..axes.len()).rev().find(|i| pick[*i] + 1 < axes[*i].1) else { break };
        pick[next] += 1;
        pick[next + 1..].fill(0);
    }
    terms.join(" + ")
}

/// The loop nest where an extent is only known when it runs.
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
    let named: Vec<usize> = match &r.axes {
        None => (0..from.len()).collect(),
        Some(list) => {
            list.iter().map(|a| of_ops::shape::axis(*a, from.len())).collect::<Result<_, _>>().map_err(|e| e.message)?
        }
    };
    let taps: usize = match how.filter {
        Filter::Nearest(_) => 1,
        Filter::Linear => 2,
        Filter::Cubic(_) => 4,
    };
    let dtype = g.ty(data.operands[0]).as_tensor().map_or(DType::F32, |t| t.dtype);
    if taps > 1 && dtype != DType::F32 {
        return Err(format!("interpolation of {dtype} has no native code"));
    }
    let element = if taps > 1 { "f32" } else { word(dtype.bits().map_or(4, |b| b / 8)) };
    let (mut head, mut row, mut point) = (String::new(), String::new(), String::new());
    let mut axes = Vec::new();
    for (i, a) in named.into_iter().enumerate() {
        let scale = scales.as_ref().and_then(|s| s.get(i));
        if scale.map_or(scales.is_none() && from[a] == to[a], |s| *s == 1.0) {
            continue;
        }
        axes.push((a, taps));
        let scale = scale.map_or_else(|| format!("(f64){} / {}", to[a], from[a]), |s| format!("{s:?}"));
        let _ = writeln!(head, "  if ({0} < 1 && {1} > 0) return 2;\n  const f64 scale{a} = {scale};", from[a], to[a]);
        // What is the same for a whole row is worked out once.
        let lines = if a + 1 == from.len() { &mut point } else { &mut row };
        lines.push_str(&places(&how, a, &from[a], &to[a]));
    }
    if taps.pow(axes.len() as u32) > MOST_TAPS {
        return Err(format!("more than {MOST_TAPS} elements make one"));
    }
    let value = combined(from, &axes, &|a, k| {
        (format!("p{a}_{k}"), if taps > 1 { format!("w{a}_{k}") } else { String::new() })
    });
    let _ = writeln!(head, "  PTR(const {element}) from = ARG(const {element}, 0);");
    Ok(Nest::Points(Points { dims: to, element, out: 1, head, row, point, value }))
}

/// C that finds the taps of the place `x{a}` of an axis: `p{a}_0` … and, where there are several, `w{a}_0` … What it
/// computes is what [`of_ops::nn::Interpolation::taps`] says.
fn places(how: &Interpolation, a: usize, from: &Extent, to: &Extent) -> String {
    let half = format!("(x{a} + 0.5) / scale{a} - 0.5");
    let length = format!("scale{a} * {from}");
    let source = match how.transform {
        Transform::HalfPixelSymmetric => format!("{from} / 2.0 * (1 - {to} / ({length})) + ({half})"),
        Transform::PytorchHalfPixel => format!("{length} == 1 ? -0.5 : {half}"),
        Transform::AlignCorners => format!("{length} == 1 ? 0 : x{a} * ({from} - 1.0) / ({length} - 1)"),
        Transform::Asymmetric => format!("x{a} / scale{a}"),
        Transform::HalfPixel | Transform::CropAndResize => half,
    };
    let mut c = format!("    f64 s{a} = {source};\n");
    // Beyond the border all is alike.
    let _ = writeln!(c, "    s{a} = s{a} > -4 ? s{a} : -4; s{a} = s{a} < {from} + 4 ? s{a} : {from} + 4;");
    if let Filter::Nearest(mode) = how.filter {
        let (shift, up) = match mode {
            Nearest::RoundPreferFloor => ("- 0.5", true),
            Nearest::RoundPreferCeil => ("+ 0.5", false),
            Nearest::Floor => ("", false),
            Nearest::Ceil => ("", true),
        };
        let _ = writeln!(c, "    s{a} = s{a} {shift}; i64 p{a}_0 = (i64)s{a};");
        let _ =
            writeln!(c, "    p{a}_0 {};", if up { format!("+= p{a}_0 < s{a}") } else { format!("-= p{a}_0 > s{a}") });
        let _ = writeln!(c, "    p{a}_0 = dim_max(0, dim_min(p{a}_0, {from} - 1));");
        return c;
    }
    let _ = writeln!(c, "    i64 b{a} = (i64)s{a}; b{a} -= b{a} > s{a};\n    s{a} -= b{a};");
    let (taps, before) = if how.filter == Filter::Linear { (2i32, 0) } else { (4, 1) };
    for k in 0..taps {
        let distance = k - before;
        let weight = match how.filter {
            Filter::Cubic(q) => {
                let d = if distance <= 0 { format!("(s{a} + {})", -distance) } else { format!("({distance} - s{a})") };
                if (0..=1).contains(&distance) {
                    format!("(({} * {d} - {}) * {d} * {d} + 1)", lit(q + 2.0), lit(q + 3.0))
                } else {
                    format!(
                        "((({0} * {d} - {1}) * {d} + {2}) * {d} - {3})",
                        lit(q),
                        lit(5.0 * q),
                        lit(8.0 * q),
                        lit(4.0 * q)
                    )
                }
            }
            _ if k == 0 => format!("(1 - s{a})"),
            _ => format!("s{a}"),
        };
        // An element itself is taken several times: infinity at weight 0 would be NaN.
        let _ = writeln!(c, "    const f32 w{a}_{k} = s{a} == 0 ? {:?}f : (f32){weight};", 1.0 / f64::from(taps));
        let at = format!("s{a} == 0 ? b{a} : b{a} + {distance}");
        let _ = writeln!(c, "    const i64 p{a}_{k} = dim_max(0, dim_min({at}, {from} - 1));");
    }
    c
}

/// A number in C, also a negative one after a sign.
fn lit(x: f64) -> String {
    format!("({x:?})")
}
