//! [`RoiAlign`] kernels as statements of the C family: each cell of a grid over a region combines samples of an image,
//! interpolated linearly between its points.

use std::fmt::Write;

use crate::kernel::extent::Extent;
use crate::kernel::roi_align::RoiAlign;
use crate::print::expr::ctype;
use crate::print::index::position;
use crate::print::indexed::ElementText;

/// Upper limit of the samples of a region.
const MAX_SAMPLES: &str = "1e8";

/// How values of several channels are printed.
pub struct Lanes<'a> {
    /// The type of a value.
    pub ty: &'a str,
    /// The number of values.
    pub count: usize,
    /// Loads value `k` of the channels at `p`.
    pub load: &'a dyn Fn(&str, usize) -> String,
    /// Broadcasts a number to a value.
    pub splat: &'a dyn Fn(&str) -> String,
    /// The larger of two; the second if the first is NaN.
    pub max: &'a dyn Fn(&str, &str) -> String,
}

/// The same with one element a thread, for GPUs.
pub fn element_text(r: &RoiAlign) -> ElementText {
    let (rows, columns) = r.grid;
    let load = |p: &str, _: usize| format!("{p}[x3]");
    let max = |a: &str, b: &str| format!("({a} > {b} ? {a} : {b})");
    let lanes = Lanes { ty: "f32", count: 1, load: &load, splat: &|x| format!("(f32)({x})"), max: &max };
    let mut point = format!("    const i64 r = x0, i = x1, j = x2;\n{}", cell(r));
    sum(r, &lanes, &mut point);
    ElementText {
        dims: vec![r.count.clone(), rows.into(), columns.into(), r.images[3].clone()],
        element: "f32",
        out: 3,
        head: head(r),
        row: String::new(),
        point,
        value: "sum0".into(),
    }
}

/// C that checks the extents of all regions.
pub fn head(r: &RoiAlign) -> String {
    let [_, h, w, _] = &r.images;
    let known = |e: &Extent| e.number().is_some_and(|n| n > 0);
    if known(h) && known(w) { String::new() } else { format!("  if ({h} < 1 || {w} < 1) return 1;\n") }
}

/// C that finds the cell `i`, `j` of region `r`: its first corner, its size and its number of samples.
pub fn cell(r: &RoiAlign) -> String {
    let ([n, h, w, channels], (rows, columns)) = (&r.images, r.grid);
    let mut c = String::new();
    let _ = writeln!(c, "    PTR(const f32) box = ARG(const f32, 1) + r * 4;");
    let _ = write!(c, "    {}", position("b", &format!("ARG(const {}, 2)[r]", ctype(r.index)), n));
    let _ = writeln!(c, "    PTR(const f32) X = ARG(const f32, 0) + b * {};", h * w * channels);
    let shift = if r.half_pixel { 0.5 } else { 0.0 };
    for (axis, at) in [("x", 0), ("y", 1)] {
        let corner = |k: usize| format!("((f64)box[{k}] * {:?} - {shift:?})", r.scale);
        let _ = writeln!(c, "    f64 {axis}_from = {}, {axis}_size = {} - {axis}_from;", corner(at), corner(at + 2));
        if !r.half_pixel {
            let _ = writeln!(c, "    if (!({axis}_size > 1)) {axis}_size = 1;");
        }
        let cells = if axis == "x" { columns } else { rows };
        let _ = writeln!(c, "    {axis}_size /= {cells}.0;");
        match r.samples {
            Some(n) => {
                let _ = writeln!(c, "    const i64 {axis}_n = {n};");
            }
            None => {
                let _ = writeln!(c, "    if ({axis}_size > {MAX_SAMPLES}) return 1;");
                let _ = writeln!(c, "    i64 {axis}_n = {axis}_size > 0 ? (i64){axis}_size : 0;");
                let _ = writeln!(c, "    {axis}_n += {axis}_n < {axis}_size;");
            }
        }
    }
    let _ = writeln!(c, "    const i64 many = x_n * y_n;");
    let _ = writeln!(c, "    if ((f64)many * {}.0 > {MAX_SAMPLES}) return 1;", rows * columns);
    c
}

/// C that combines the samples of a cell: `sum0`, `sum1` …
pub fn sum(r: &RoiAlign, lanes: &Lanes<'_>, c: &mut String) {
    let ([_, h, w, channels], all) = (&r.images, 0..lanes.count);
    let first = if r.average { "0.0f" } else { "-INF32" };
    for k in all.clone() {
        let _ = writeln!(c, "      {} sum{k} = {};", lanes.ty, (lanes.splat)(first));
    }
    c.push_str("      for (i64 a = 0; a < y_n; a++) for (i64 e = 0; e < x_n; e++) {\n");
    for (axis, number, sample) in [("y", "i", "a"), ("x", "j", "e")] {
        let at = format!("{axis}_from + {number} * {axis}_size + ({sample} + 0.5) * {axis}_size / {axis}_n");
        let _ = writeln!(c, "        f64 {axis} = {at};");
    }
    let _ = write!(c, "        if (!(y >= -1 && y <= {h} && x >= -1 && x <= {w})) {{");
    if !r.average {
        let zero = (lanes.splat)("0.0f");
        all.clone().for_each(|k| {
            let _ = write!(c, " sum{k} = {};", (lanes.max)(&zero, &format!("sum{k}")));
        });
    }
    c.push_str(" continue; }\n");
    // A sample up to one point outside is clamped to the border.
    for (axis, n) in [("y", h), ("x", w)] {
        let _ = writeln!(c, "        if (!({axis} > 0)) {axis} = 0;");
        let _ = writeln!(c, "        i64 {axis}0 = (i64){axis}, {axis}1 = {axis}0 + 1;\n        {axis} -= {axis}0;");
        let _ = writeln!(c, "        if ({axis}1 >= {n}) {{ {axis}0 = {axis}1 = {n} - 1; {axis} = 0; }}");
    }
    for (k, (py, px)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        let part = |axis: &str, p: usize| if p == 0 { format!("(1 - {axis})") } else { axis.to_string() };
        let weight = (lanes.splat)(&format!("{} * {}", part("y", py), part("x", px)));
        let _ = writeln!(c, "        const {} w{k} = {weight};", lanes.ty);
        let _ = writeln!(c, "        PTR(const f32) p{k} = X + (y{py} * {w} + x{px}) * {channels};");
    }
    for k in all.clone() {
        let part = |i: usize| format!("w{i} * {}", (lanes.load)(&format!("p{i}"), k));
        if r.average {
            let parts: Vec<String> = (0..4).map(part).collect();
            let _ = writeln!(c, "        sum{k} += {};", parts.join(" + "));
        } else {
            for i in 0..4 {
                let _ = writeln!(
                    c,
                    "        {{ const {} v = {}; sum{k} = {}; }}",
                    lanes.ty,
                    part(i),
                    (lanes.max)("v", &format!("sum{k}"))
                );
            }
        }
    }
    c.push_str("      }\n");
    for k in all {
        let _ = match r.average {
            true => writeln!(c, "      sum{k} = sum{k} / {};", (lanes.splat)("many > 0 ? many : 1")),
            false => writeln!(c, "      if (many == 0) sum{k} = {};", (lanes.splat)("0.0f")),
        };
    }
}
