//! The gradient of a max pool, vectorised over channels.

use std::fmt::Write;

use crate::isa::Isa;
use crate::kernel::extent::Extent;
use crate::kernel::max_pool_gradient::MaxPoolGradient;
use crate::print::index::{equal, offset, window_range};
use crate::print::source::Source;

/// The most elements of a window whose loop is unrolled.
const MAX_UNROLLED_TAPS: usize = 16;

/// Iterations that keep workers busy.
const MIN_ITERATIONS: usize = 8;

/// The CPU kernel: an iteration is a sample, or some of its channels. Windows follow one another in row-major order, so the sums of an
/// element have one order. What a window reaches first is set to zero before.
pub fn max_pool_gradient(spec: &MaxPoolGradient, isa: &Isa) -> Source {
    let (channels, first, steps) = (&spec.c, &spec.windows[0], spec.steps());
    let vectors = channels.size_hint().div_ceil(isa.lanes).max(1);
    let groups = MIN_ITERATIONS.div_ceil(spec.n.size_hint().max(1)).min(vectors);
    let width = vectors.div_ceil(groups) * isa.lanes;
    let groups = channels.div_ceil(&width.into());
    let mut c: String = spec.gradient.iter().map(|(own, result)| equal(own, result)).collect();
    c.push_str("  for (i64 it = begin; it < end; it++) {\n");
    let _ = writeln!(c, "    const i64 n = it / {groups}, i0 = it % {groups} * {width};");
    let _ = writeln!(c, "    const i64 i1 = dim_min(i0 + {width}, {channels});");
    let _ = writeln!(c, "    const f32 *const X = (const f32 *)args[0] + n * {};", spec.sample());
    let _ = writeln!(c, "    const f32 *const G = (const f32 *)args[1] + n * {};", spec.result_sample());
    let _ = writeln!(c, "    f32 *const D = (f32 *)args[2] + n * {};", spec.sample());
    let zeroed = !spec.is_partition();
    if zeroed {
        c.push_str("    i64 zeroed = 0;\n");
    }
    let names: Vec<String> = (0..spec.windows.len()).map(|a| format!("y{a}")).collect();
    for (y, w) in names.iter().zip(&spec.windows) {
        let _ = writeln!(c, "    for (i64 {y} = 0; {y} < {}; {y}++) {{", w.output);
        window_range(y, &format!("k{y}"), w, &mut c);
        if zeroed && std::ptr::eq(w, first) {
            let reach = format!("{y}i + {}", (w.kernel - 1) * w.dilation + 1);
            zero_until(&format!("dim_min({reach}, {})", w.input), &steps[0], channels, &mut c);
        }
    }
    let from: Vec<String> = names.iter().map(|y| format!("{y}i")).collect();
    let _ = writeln!(c, "    const i64 at = {}, to = {};", offset(&from, &steps), offset(&names, &spec.result_steps()));
    let whole: Vec<String> =
        names.iter().zip(&spec.windows).map(|(y, w)| format!("k{y}0 == 0 && k{y}1 == {}", w.kernel)).collect();
    let taps: usize = spec.windows.iter().map(|w| w.kernel).product();
    if taps <= MAX_UNROLLED_TAPS {
        let _ = writeln!(c, "    if ({}) {{", whole.join(" && "));
        vectors_of(channels, isa, &mut c, &|part, c| unrolled(spec, &steps, part, c));
        c.push_str("    } else {\n");
    } else {
        c.push_str("    {\n");
    }
    vectors_of(channels, isa, &mut c, &|part, c| looped(spec, &steps, part, c));
    c.push_str("    }\n");
    c.push_str(&"    }\n".repeat(names.len()));
    if zeroed {
        zero_until(&first.input.to_string(), &steps[0], channels, &mut c);
    }
    c.push_str("  }\n");
    Source::new(c, &spec.n * groups, 1)
}

/// Sets the lines of the outer image axis to zero, up to one.
fn zero_until(line: &str, step: &Extent, channels: &Extent, c: &mut String) {
    let _ = writeln!(c, "    for (const i64 until = {line}; zeroed < until; zeroed++)");
    let _ = writeln!(c, "      for (i64 p = zeroed * {step}; p < (zeroed + 1) * {step}; p += {channels}) {{");
    c.push_str("        i64 i = i0;\n");
    c.push_str("        for (; i + LANES <= i1; i += LANES) store(D + p + i, SPLAT(0));\n");
    c.push_str("        if (i < i1) store_part(D + p + i, SPLAT(0), i1 - i);\n      }\n");
}

/// The vectors of channels from `i0` to `i1`; the last may have fewer lanes.
fn vectors_of(channels: &Extent, isa: &Isa, c: &mut String, print: &dyn Fn(Option<&str>, &mut String)) {
    c.push_str("      i64 i = i0;\n      for (; i + LANES <= i1; i += LANES) {\n");
    print(None, c);
    c.push_str("      }\n");
    if !channels.is_multiple_of(isa.lanes) {
        c.push_str("      if (i < i1) {\n        const i64 part = i1 - i;\n");
        print(Some("part"), c);
        c.push_str("      }\n");
    }
}

fn load(at: &str, part: Option<&str>) -> String {
    match part {
        None => format!("load({at})"),
        Some(n) => format!("load_part({at}, {n})"),
    }
}

/// Compares the element `x` with the maximum so far: the first one stays, and the first NaN.
fn compare(x: &str, tap: &str, c: &mut String) {
    let _ = writeln!(c, "        {{ const vf x = {x}; const vi larger = ~(x <= top) & (top == top);");
    let _ = writeln!(c, "          top = pick(larger, x, top); best = ipick(larger, SPLATI({tap}), best); }}");
}

/// Adds the gradient `g` to the element at `p`, if it is the maximum.
fn add(spec: &MaxPoolGradient, p: &str, tap: &str, part: Option<&str>, c: &mut String) {
    let _ = writeln!(c, "        {{ f32 *const p = {p}; const vf own = pick(best == SPLATI({tap}), g, SPLAT(0));");
    let value = if spec.is_disjoint() { "own".into() } else { format!("{} + own", load("p", part)) };
    let _ = match part {
        None => writeln!(c, "          store(p, {value}); }}"),
        Some(n) => writeln!(c, "          store_part(p, {value}, {n}); }}"),
    };
}

/// A window inside the image.
fn unrolled(spec: &MaxPoolGradient, steps: &[Extent], part: Option<&str>, c: &mut String) {
    let mut taps = vec![Extent::from(0usize)];
    for (w, step) in spec.windows.iter().zip(steps) {
        let along = |tap: &Extent| (0..w.kernel).map(|k| tap + step * (k * w.dilation)).collect::<Vec<_>>();
        taps = taps.iter().flat_map(along).collect();
    }
    let _ = writeln!(c, "        const f32 *const x0 = X + at + i; f32 *const d0 = D + at + i;");
    let _ = writeln!(c, "        const vf g = {};", load("G + to + i", part));
    let _ = writeln!(c, "        vf top = {}; vi best = SPLATI(0);", load("x0", part));
    for (tap, at) in taps.iter().enumerate().skip(1) {
        compare(&load(&format!("x0 + {at}"), part), &tap.to_string(), c);
    }
    for (tap, at) in taps.iter().enumerate() {
        add(spec, &format!("d0 + {at}"), &tap.to_string(), part, c);
    }
}

/// Any window.
fn looped(spec: &MaxPoolGradient, steps: &[Extent], part: Option<&str>, c: &mut String) {
    let axes = 0..spec.windows.len();
    let taps = |a: usize| Extent::from(spec.windows[a..].iter().map(|w| w.kernel).product::<usize>());
    let counts: Vec<Extent> = axes.clone().map(|a| taps(a + 1)).collect();
    let number = |k: &dyn Fn(usize) -> String| offset(&axes.clone().map(k).collect::<Vec<_>>(), &counts);
    let loops = |c: &mut String| {
        for a in axes.clone() {
            let _ = writeln!(c, "        for (i64 t{a} = ky{a}0; t{a} < ky{a}1; t{a}++)");
        }
        let places: Vec<String> =
            spec.windows.iter().enumerate().map(|(a, w)| format!("t{a} * {}", w.dilation)).collect();
        let tap = number(&|a| format!("t{a}"));
        let _ = writeln!(c, "        {{ const i64 tap = {tap}, off = at + {} + i;", offset(&places, steps));
    };
    let _ = writeln!(c, "        const vf g = {};", load("G + to + i", part));
    let _ = writeln!(c, "        vf top = SPLAT(-INF32); vi best = SPLATI({});", number(&|a| format!("ky{a}0")));
    loops(c);
    compare(&load("X + off", part), "tap", c);
    c.push_str("        }\n");
    loops(c);
    add(spec, "D + off", "tap", part, c);
    c.push_str("        }\n");
}
