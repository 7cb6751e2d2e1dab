//! [`Indexed`] and [`Scatter`] kernels as statements of the C family.
//!
//! The statements are the same in C and CUDA; the printers put their own loops around them.

use std::fmt::Write;

use of_ir::DType;
use of_ops::nn::{Filter, Interpolation, Nearest, Transform};

use crate::kernel::body::ReduceKind;
use crate::kernel::extent::Extent;
use crate::kernel::indexed::{Indexed, PadMode, PaddedAxis, Scatter, ScatterTarget, TapTable, filter_taps};
use crate::kernel::space::row_major;
use crate::kernel::window::{Divisor, WindowAxis};
use crate::print::expr::ctype;
use crate::print::index::{at_most, equal, offset, padded_taps, position, word};

/// The text of an elementwise-computed result, over the variables `x0`, `x1` … of the position.
pub struct ElementText {
    /// Extents of the result.
    pub dims: Vec<Extent>,
    /// C type of its elements.
    pub element: &'static str,
    /// Its argument index.
    pub out: usize,
    /// Statements before the loops: pointers to operands, checks of extents.
    pub head: String,
    /// Statements for each row, which may use all variables but the last, and `row`, the index of the row.
    pub row: String,
    /// Statements for each element.
    pub point: String,
    /// Expression of an element.
    pub value: String,
}

impl ElementText {
    /// A result whose elements have the type of argument 0; `reads` operands precede it.
    fn of(dims: Vec<Extent>, bytes: usize, reads: usize) -> ElementText {
        let element = word(bytes);
        let head = format!("  PTR(const {element}) from = ARG(const {element}, 0);\n");
        ElementText { dims, element, out: reads, head, row: String::new(), point: String::new(), value: String::new() }
    }
}

/// The text of an indexed kernel.
pub fn element_text(kernel: &Indexed) -> ElementText {
    match kernel {
        Indexed::Dense { count, bytes } => {
            ElementText { value: "from[x0]".into(), ..ElementText::of(vec![count.clone()], *bytes, 1) }
        }
        Indexed::GatherElements { from, to, axis, index, bytes } => gather_elements(from, to, *axis, *index, *bytes),
        Indexed::GatherSlices { from, indices, batch, index_depth, index, bytes } => {
            gather_slices((from, indices), *batch, *index_depth, *index, *bytes)
        }
        Indexed::Tile { from, to, bytes } => tile(from, to, *bytes),
        Indexed::Pad { from, to, axes, mode, bytes } => pad(from, to, axes, *mode, *bytes),
        Indexed::Triangle { dims, upper, diagonal, bytes } => triangle(dims, *upper, *diagonal, *bytes),
        Indexed::ReverseSequence { dims, lengths, batch, time, index, bytes } => {
            reverse_sequence(dims, lengths, (*batch, *time), *index, *bytes)
        }
        Indexed::OneHot { outer, depth, inner, index, bytes } => one_hot((outer, depth, inner), *index, *bytes),
        Indexed::Range { dims, dtype } => range(dims, *dtype),
        Indexed::PoolArgMax { input, dims, windows } => pool_arg_max(input, dims, windows),
        Indexed::Pool { input, dims, windows, mean, dtype } => pool(input, dims, windows, *mean, *dtype),
        Indexed::ResizeByTable { from, to, axes, bytes } => resize_by_table(from, to, axes, *bytes),
        Indexed::ResizeDynamic { from, to, axes, interpolation, bytes } => {
            resize_dynamic(from, to, axes, interpolation, *bytes)
        }
    }
}

/// The names of the position variables.
fn variables(rank: usize) -> Vec<String> {
    (0..rank).map(|a| format!("x{a}")).collect()
}

fn gather_elements(from: &[Extent], to: &[Extent], axis: usize, index: DType, bytes: usize) -> ElementText {
    let mut p = ElementText::of(to.to_vec(), bytes, 2);
    for a in (0..from.len()).filter(|a| *a != axis) {
        p.head += &at_most(&to[a], &from[a]);
    }
    let last = to.len() - 1;
    let load = format!("ARG(const {}, 1)[row * {} + x{last}]", ctype(index), to[last]);
    p.point = format!("      {}", position("k", &load, &from[axis]));
    let mut at = variables(from.len());
    at[axis] = "k".into();
    p.value = format!("from[{}]", offset(&at, &row_major(from)));
    p
}

/// C that declares `k0`, `k1` …, the positions in `axes` of the index tuple at the row `row` of argument 1.
fn positions(index: DType, axes: &[Extent], row: &str) -> String {
    let n = axes.len();
    let load = |k: usize| format!("ARG(const {}, 1)[{row} * {n} + {k}]", ctype(index));
    axes.iter().enumerate().map(|(k, d)| format!("    {}", position(&format!("k{k}"), &load(k), d))).collect()
}

fn gather_slices(
    (from, indices): (&[Extent], &[Extent]),
    batch: usize,
    index_depth: usize,
    index: DType,
    bytes: usize,
) -> ElementText {
    let outer = &indices[..indices.len() - 1];
    let inner: Extent = from[batch + index_depth..].iter().product();
    let slices_per_batch: Extent = outer[batch..].iter().product();
    let size: Extent = from[batch..].iter().product();
    // A row is the slice that one tuple selects.
    let mut p = ElementText::of(vec![outer.iter().product(), inner], bytes, 2);
    p.head += &from[..batch].iter().zip(outer).map(|(a, b)| equal(a, b)).collect::<String>();
    let own = row_major(from);
    let at: Vec<String> = (0..index_depth).map(|k| format!("k{k}")).collect();
    p.row = positions(index, &from[batch..batch + index_depth], "row");
    p.row += &format!(
        "    from = ARG(const {t}, 0) + row / {slices_per_batch} * {size} + {};\n",
        offset(&at, &own[batch..]),
        t = p.element
    );
    p.value = "from[x1]".into();
    p
}

fn tile(from: &[Extent], to: &[Extent], bytes: usize) -> ElementText {
    let mut p = ElementText::of(to.to_vec(), bytes, 1);
    let at: Vec<String> = (0..from.len())
        .map(|a| if from[a] == to[a] { format!("x{a}") } else { format!("x{a} % {}", from[a]) })
        .collect();
    p.value = format!("from[{}]", offset(&at, &row_major(from)));
    p
}

fn pad(from: &[Extent], to: &[Extent], axes: &[PaddedAxis], mode: PadMode, bytes: usize) -> ElementText {
    let zero = Extent::from(0usize);
    let mut p = ElementText::of(to.to_vec(), bytes, 1);
    let mut at = variables(from.len());
    for PaddedAxis { axis: a, before, after } in axes {
        let a = *a;
        // Elements left after cropping, and how many are cropped before them.
        let left = &from[a] + before.min(&zero) + after.min(&zero);
        let skip = (&zero - before).max(&zero);
        let index = format!("x{a} - {}", before.max(&zero));
        let inside = match mode {
            PadMode::Edge => format!("dim_min(dim_max({index}, 0), {left} - 1)"),
            PadMode::Wrap => format!("dim_mod({index}, {left})"),
            PadMode::Reflect => {
                let period = ((&left - 1usize) * 2usize).max(&1usize.into());
                let folded = format!("dim_mod({index}, {period})");
                format!("dim_min(dim_min({folded}, {period} - {folded}), {left} - 1)")
            }
        };
        // An empty result reads no element.
        let some = to.iter().product::<Extent>().min(&1usize.into());
        p.head += &at_most(&some, &left);
        let text = format!("    const i64 k{a} = {inside} + {skip};\n");
        if a + 1 == from.len() {
            p.point += &text
        } else {
            p.row += &text
        }
        at[a] = format!("k{a}");
    }
    p.value = format!("from[{}]", offset(&at, &row_major(from)));
    p
}

fn triangle(dims: &[Extent], upper: bool, diagonal: Option<DType>, bytes: usize) -> ElementText {
    let mut p = ElementText::of(dims.to_vec(), bytes, 1 + usize::from(diagonal.is_some()));
    let (row, column) = (dims.len() - 2, dims.len() - 1);
    p.head += &match diagonal {
        Some(index) => format!("  const i64 k = *ARG(const {}, 1);\n", ctype(index)),
        None => "  const i64 k = 0;\n".to_string(),
    };
    let inside = if upper { ">=" } else { "<=" };
    p.value = format!("x{column} - x{row} {inside} k ? from[row * {} + x{column}] : 0", dims[column]);
    p
}

fn reverse_sequence(
    dims: &[Extent],
    lengths: &Extent,
    (batch, time): (usize, usize),
    index: DType,
    bytes: usize,
) -> ElementText {
    let mut p = ElementText::of(dims.to_vec(), bytes, 2);
    p.head += &equal(lengths, &dims[batch]);
    p.point = format!(
        "      const i64 n = ARG(const {}, 1)[x{batch}]; if (n < 0 || n > {}) return 1;\n      const i64 t = x{time} < n ? n - 1 - x{time} : x{time};\n",
        ctype(index),
        dims[time]
    );
    let mut at = variables(dims.len());
    at[time] = "t".into();
    p.value = format!("from[{}]", offset(&at, &row_major(dims)));
    p
}

fn one_hot((outer, depth, inner): (&Extent, &Extent, &Extent), index: DType, bytes: usize) -> ElementText {
    // Indices are compared in a type that represents all of them.
    let wide = if index.is_float() || index == DType::U64 { "f64" } else { "i64" };
    let mut p = ElementText::of(vec![outer.clone(), depth.clone(), inner.clone()], bytes, 2);
    let element = p.element;
    p.head = format!("  PTR(const {element}) values = ARG(const {element}, 1);\n");
    p.point = format!("      const {wide} k = ARG(const {}, 0)[x0 * {inner} + x2];\n", ctype(index));
    p.value = format!("values[k == x1 || k == x1 - {depth}]");
    p
}

fn range(dims: &[Extent], dtype: DType) -> ElementText {
    let t = ctype(dtype);
    let wide = if dtype.is_float() { "f64" } else { "u64" };
    let head = format!("  const {wide} start = *ARG(const {t}, 0), delta = *ARG(const {t}, 1);\n");
    let value = format!("({t})(start + ({wide})x0 * delta)");
    ElementText { dims: dims.to_vec(), element: t, out: 2, head, row: String::new(), point: String::new(), value }
}

fn pool_arg_max(input: &[Extent], dims: &[Extent], windows: &[WindowAxis]) -> ElementText {
    let rank = windows.len();
    let names = |prefix: &str, axes: std::ops::Range<usize>| axes.map(|a| format!("{prefix}{a}")).collect::<Vec<_>>();
    // A window entirely in the padding returns the first element of its channel.
    let first = [names("x", 0..2), vec!["0".to_string(); rank]].concat();
    let mut point = format!("      const i64 plane = {};\n      i64 at = -1;\n", offset(&first, &row_major(input)));
    // The first element inside each window, and how many there are, so that the loop over them has no tests.
    for (a, w) in windows.iter().enumerate() {
        let (k, stride, d, pad, n) = (w.kernel, w.stride, w.dilation, &w.pad, &w.input);
        let _ = write!(
            point,
            "      const i64 w{a} = x{} * {stride} - {pad}, b{a} = w{a} < 0 ? (-w{a} + {}) / {d} : 0;
      const i64 e{a} = dim_min({k}, w{a} >= {n} ? 0 : ({n} - 1 - w{a}) / {d} + 1);\n",
            a + 2,
            d - 1
        );
    }
    let (last, step) = (rank - 1, windows.last().map_or(1, |w| w.dilation));
    let places = windows.iter().enumerate().map(|(a, w)| {
        let k = if a == last { "b" } else { "k" };
        format!("(w{a} + {k}{a} * {})", w.dilation)
    });
    let place = offset(&places.collect::<Vec<_>>(), &row_major(input)[2..]);
    // Floats are compared as integers that have their order, where -0 is 0 and every NaN is the largest, and the first NaN stays. Which element is larger is
    // as good as random, so nothing branches on it.
    let beyond = 1_i64 << 40;
    let _ = writeln!(point, "      i64 top = -{beyond};");
    for a in 0..last {
        let _ = writeln!(point, "      for (i64 k{a} = b{a}; k{a} < e{a}; k{a}++) {{");
    }
    let _ = write!(
        point,
        "      i64 place = plane + {place};
      for (i64 k = b{last}; k < e{last}; k++, place += {step}) {{
      const i64 bits = from[place], size = bits & 0x7fffffff;
      const i64 order = size > 0x7f800000 ? {beyond} : bits < 0 ? -size : size;
      at = order > top ? place : at;
      top = order > top ? order : top;
      {}
      const i64 found = at < 0 ? plane : at, word = from[found];
      best[{}] = (u32)(at < 0 ? 0xff800000 : word);\n",
        "}".repeat(rank),
        offset(&names("x", 0..rank + 2), &row_major(dims)),
    );
    let head = "  PTR(const i32) from = ARG(const i32, 0);\n  PTR(u32) best = ARG(u32, 1);\n".into();
    let value = "(u64)found".into();
    ElementText { dims: dims.to_vec(), element: word(8), out: 2, head, row: String::new(), point, value }
}

fn pool(input: &[Extent], dims: &[Extent], windows: &[WindowAxis], mean: Option<Divisor>, dtype: DType) -> ElementText {
    let rank = windows.len();
    let own = ctype(dtype);
    let (wide, least) = match dtype.int_range() {
        Some((least, _)) => ("i32", least.to_string()),
        None => ("f32", "-INF32".to_string()),
    };
    let first = if mean.is_some() { "0.0f" } else { least.as_str() };
    let mut point = format!("      {wide} top = {first}; i64 taps = 0;\n");
    for (a, w) in windows.iter().enumerate() {
        let (k, stride, dilation, pad, n) = (w.kernel, w.stride, w.dilation, &w.pad, &w.input);
        let _ = write!(
            point,
            "      for (i64 k{a} = 0; k{a} < {k}; k{a}++) {{
      const i64 p{a} = x{} * {stride} + k{a} * {dilation} - {pad};
      if (p{a} < 0 || p{a} >= {n}) continue;\n",
            a + 1
        );
    }
    let places = (0..rank).map(|a| format!("p{a}"));
    let from: Vec<String> = ["x0".to_string()].into_iter().chain(places).chain([format!("x{}", rank + 1)]).collect();
    let take = match mean {
        Some(_) => "top += e;",
        // NaN wins, as in the elementwise maximum.
        None => "if (taps == 0 || e > top || (e != e && top == top)) top = e;",
    };
    let _ = writeln!(
        point,
        "      const {wide} e = from[{}];\n      {take}\n      taps++;\n      {}",
        offset(&from, &row_major(input)),
        "}".repeat(rank)
    );
    let value = match mean {
        None if wide == "f32" => "top".to_string(),
        None => "(u8)top".to_string(),
        Some(Divisor::Window) => format!("top / (f32){}", windows.iter().map(|w| w.kernel).product::<usize>()),
        Some(Divisor::Inside) => "top / (taps > 0 ? (f32)taps : 1.0f)".to_string(),
        // A window that holds no element has the sum 0.
        Some(Divisor::Padded) => {
            let _ = writeln!(point, "      i64 counted = 1;");
            for (a, w) in windows.iter().enumerate() {
                let _ = writeln!(point, "      counted *= dim_max({}, 0);", padded_taps(&format!("x{}", a + 1), w));
            }
            "top / (counted > 0 ? (f32)counted : 1.0f)".to_string()
        }
    };
    let head = format!("  PTR(const {own}) from = ARG(const {own}, 0);\n");
    let element = if wide == "f32" { "f32" } else { word(1) };
    ElementText { dims: dims.to_vec(), element, out: 1, head, row: String::new(), point, value }
}

/// C tables of positions and, for interpolation, weights.
fn tap_table(table: &TapTable) -> String {
    let (n, a) = (table.max_taps, table.axis);
    let (mut positions, mut weights) = (String::new(), String::new());
    for taps in &table.taps {
        let mut all = taps.clone();
        // With fewer taps, one is repeated at half its weight: infinity at weight 0 would be NaN.
        while let (Some((at, weight)), true) = (all.last().copied(), all.len() < n) {
            all.pop();
            all.extend([(at, weight / 2.0); 2]);
        }
        for (at, weight) in all {
            let _ = write!(positions, "{at},");
            let _ = write!(weights, "{:?}f,", weight as f32);
        }
    }
    let count = table.taps.len();
    let mut c = format!("  static const i32 place{a}[{count}][{n}] = {{{positions}}};\n");
    if n > 1 {
        let _ = writeln!(c, "  static const f32 weight{a}[{count}][{n}] = {{{weights}}};");
    }
    c
}

fn resize_by_table(from: &[Extent], to: &[Extent], axes: &[TapTable], bytes: usize) -> ElementText {
    let element = if axes.iter().any(|a| a.max_taps > 1) { "f32" } else { word(bytes) };
    let head: String = axes.iter().map(tap_table).collect();
    let list: Vec<(usize, usize)> = axes.iter().map(|a| (a.axis, a.max_taps)).collect();
    let value = combined(from, &list, &|a, k| {
        let weight = if list.contains(&(a, 1)) { String::new() } else { format!("weight{a}[x{a}][{k}]") };
        (format!("place{a}[x{a}][{k}]"), weight)
    });
    let head = format!("{head}  PTR(const {element}) from = ARG(const {element}, 0);\n");
    ElementText { dims: to.to_vec(), element, out: 1, head, row: String::new(), point: String::new(), value }
}

/// The sum over every combination of one tap per axis, of an input of extents `from`. `tap` returns the expressions of position
/// and weight of a tap of an axis; an empty weight is 1.
fn combined(from: &[Extent], axes: &[(usize, usize)], tap: &dyn Fn(usize, usize) -> (String, String)) -> String {
    let (own, mut pick, mut terms) = (row_major(from), vec![0; axes.len()], Vec::new());
    loop {
        let mut at = variables(from.len());
        let mut term = String::new();
        for ((axis, _), k) in axes.iter().zip(&pick) {
            let (position, weight) = tap(*axis, *k);
            at[*axis] = position;
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

fn resize_dynamic(
    from: &[Extent],
    to: &[Extent],
    resized: &[(usize, Option<f64>)],
    how: &Interpolation,
    bytes: usize,
) -> ElementText {
    let taps = filter_taps(how.filter);
    let element = if taps > 1 { "f32" } else { word(bytes) };
    let (mut head, mut row, mut point) = (String::new(), String::new(), String::new());
    for (a, scale) in resized {
        let scale = scale.map_or_else(|| format!("(f64){} / {}", to[*a], from[*a]), |s| format!("{s:?}"));
        let _ =
            writeln!(head, "  if ({0} < 1 && {1} > 0) return 2;\n  const f64 scale{a} = {scale};", from[*a], to[*a]);
        // Hoist row-invariant computations out of the inner loop.
        let lines = if a + 1 == from.len() { &mut point } else { &mut row };
        lines.push_str(&taps_at(how, *a, &from[*a], &to[*a]));
    }
    let axes: Vec<(usize, usize)> = resized.iter().map(|(a, _)| (*a, taps)).collect();
    let value = combined(from, &axes, &|a, k| {
        (format!("p{a}_{k}"), if taps > 1 { format!("w{a}_{k}") } else { String::new() })
    });
    let _ = writeln!(head, "  PTR(const {element}) from = ARG(const {element}, 0);");
    ElementText { dims: to.to_vec(), element, out: 1, head, row, point, value }
}

/// C that finds the taps of the position `x{a}` of an axis: `p{a}_0` … and, where there are several, `w{a}_0` … It computes
/// [`of_ops::nn::Interpolation::taps`].
fn taps_at(how: &Interpolation, a: usize, from: &Extent, to: &Extent) -> String {
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
    // Coordinates beyond the border are equivalent.
    let _ = writeln!(c, "    s{a} = s{a} > -4 ? s{a} : -4; s{a} = s{a} < {from} + 4 ? s{a} : {from} + 4;");
    match how.filter {
        Filter::Nearest(mode) => nearest_tap(mode, a, from, &mut c),
        Filter::Linear | Filter::Cubic(_) => weighed_taps(how.filter, a, from, &mut c),
    }
    c
}

/// C that rounds the coordinate `s{a}` to the position `p{a}_0`.
fn nearest_tap(mode: Nearest, a: usize, from: &Extent, c: &mut String) {
    let (shift, up) = match mode {
        Nearest::RoundPreferFloor => ("- 0.5", true),
        Nearest::RoundPreferCeil => ("+ 0.5", false),
        Nearest::Floor => ("", false),
        Nearest::Ceil => ("", true),
    };
    let _ = writeln!(c, "    s{a} = s{a} {shift}; i64 p{a}_0 = (i64)s{a};");
    let _ = writeln!(c, "    p{a}_0 {};", if up { format!("+= p{a}_0 < s{a}") } else { format!("-= p{a}_0 > s{a}") });
    let _ = writeln!(c, "    p{a}_0 = dim_max(0, dim_min(p{a}_0, {from} - 1));");
}

/// C that finds the neighbours of the coordinate `s{a}` and their weights.
fn weighed_taps(filter: Filter, a: usize, from: &Extent, c: &mut String) {
    let _ = writeln!(c, "    i64 b{a} = (i64)s{a}; b{a} -= b{a} > s{a};\n    s{a} -= b{a};");
    let (taps, before) = if filter == Filter::Linear { (2i32, 0) } else { (4, 1) };
    let (first, last) = (format!("b{a} - {before}"), format!("b{a} + {}", taps - 1 - before));
    // Where all taps are one element, the result is that element: products with weights would be rounded, and infinity at
    // weight 0 would be NaN.
    let _ = writeln!(c, "    const int one{a} = s{a} == 0 || {last} <= 0 || {first} >= {from} - 1;");
    for k in 0..taps {
        let distance = k - before;
        let weight = match filter {
            Filter::Cubic(q) => {
                let d = if distance <= 0 { format!("(s{a} + {})", -distance) } else { format!("({distance} - s{a})") };
                if (0..=1).contains(&distance) {
                    format!("(({} * {d} - {}) * {d} * {d} + 1)", number(q + 2.0), number(q + 3.0))
                } else {
                    let [one, two, three, four] = [q, 5.0 * q, 8.0 * q, 4.0 * q].map(number);
                    format!("((({one} * {d} - {two}) * {d} + {three}) * {d} - {four})")
                }
            }
            _ if k == 0 => format!("(1 - s{a})"),
            _ => format!("s{a}"),
        };
        let _ = writeln!(c, "    const f32 w{a}_{k} = one{a} ? {:?}f : (f32){weight};", 1.0 / f64::from(taps));
        let at = format!("s{a} == 0 ? b{a} : b{a} + {distance}");
        let _ = writeln!(c, "    const i64 p{a}_{k} = dim_max(0, dim_min({at}, {from} - 1));");
    }
}

/// A number in C, valid after a sign even if negative.
fn number(x: f64) -> String {
    format!("({x:?})")
}

/// The text of a [`Scatter`].
pub struct ScatterText {
    /// C type of the elements.
    pub element: &'static str,
    /// Statements before the loops.
    pub head: String,
    /// Statements for the slice `i`, which declare its offset `at`.
    pub slice: String,
    /// Expression that combines an existing element `a` with the update `b`.
    pub combine: String,
}

/// The text of a scatter.
pub fn scatter(s: &Scatter) -> ScatterText {
    let (element, combine) = combine(s);
    let (mut head, slice);
    match s.target {
        ScatterTarget::Elements(axis) => {
            head = s.indices.iter().zip(&s.updates).map(|(a, b)| equal(a, b)).collect::<String>();
            for a in (0..s.to.len()).filter(|a| *a != axis) {
                head += &at_most(&s.indices[a], &s.to[a]);
            }
            let steps = row_major(&s.indices);
            let mut at: Vec<String> = (0..s.to.len()).map(|a| format!("i / {} % {}", steps[a], s.indices[a])).collect();
            at[axis] = "k".into();
            let load = format!("ARG(const {}, 1)[i]", ctype(s.index));
            let index = position("k", &load, &s.to[axis]);
            slice = format!("    {index}    const i64 at = {};", offset(&at, &row_major(&s.to)));
        }
        ScatterTarget::Slices(index_depth) => {
            let outer = &s.indices[..s.indices.len() - 1];
            let expected = outer.iter().chain(&s.to[index_depth..]);
            head = expected.zip(&s.updates).map(|(a, b)| equal(a, b)).collect();
            let at: Vec<String> = (0..index_depth).map(|k| format!("k{k}")).collect();
            let positions = positions(s.index, &s.to[..index_depth], "i");
            slice = format!("{positions}    const i64 at = {};", offset(&at, &row_major(&s.to)));
        }
    }
    ScatterText { element, head, slice, combine }
}

/// The C type of the elements of a scatter, and the expression that combines an element `a` with an update `b`.
fn combine(s: &Scatter) -> (&'static str, String) {
    let Some(kind) = s.combine else { return (word(s.dtype.bits().map_or(4, |b| b / 8)), "b".into()) };
    let (t, int) = (ctype(s.dtype), s.dtype.is_int());
    let nan = |c: &str| format!("a != a ? a : b != b ? b : a {c} b ? a : b");
    let text = match kind {
        ReduceKind::Sum if int => format!("({t})((u64)a + (u64)b)"),
        ReduceKind::Prod if int => format!("({t})((u64)a * (u64)b)"),
        ReduceKind::Sum => "a + b".into(),
        ReduceKind::Prod => "a * b".into(),
        ReduceKind::Max => nan(">"),
        ReduceKind::Min => nan("<"),
    };
    (t, text)
}
