//! The gradient of a depthwise convolution for its weights in C, vectorised over channels. The sums of several lines of the kernel stay in
//! registers.

use std::fmt::Write;
use std::ops::Range;

use crate::isa::Isa;
use crate::kernel::depthwise_weight_gradient::DepthwiseWeightGradient;
use crate::print::index::equal;
use crate::print::source::Source;

/// The kernel: an iteration is a vector of channels of a part of the lines.
pub fn depthwise_weight_gradient(spec: &DepthwiseWeightGradient, isa: &Isa) -> Source {
    let (h, w, channels) = (&spec.h, &spec.w, &spec.c);
    let vectors = channels.div_ceil(&isa.lanes.into());
    let lines = spec.lines();
    let each = lines.div_ceil(&spec.parts.into());
    let mut c: String = spec.gradient.iter().map(|(own, result)| equal(own, result)).collect();
    c.push_str("  for (i64 it = begin; it < end; it++) {\n");
    let _ = writeln!(c, "    const i64 part = it / {vectors}, i = it % {vectors} * LANES;");
    let _ = writeln!(c, "    const i64 l1 = dim_min((part + 1) * {each}, {lines});");
    // The points whose taps are all inside the line.
    let reach = (w.kernel - 1) * w.dilation;
    let _ = writeln!(c, "    const i64 xa = dim_min(({} + {}) / {}, {});", w.pad, w.stride - 1, w.stride, w.output);
    let _ = writeln!(c, "    const i64 room = {} - 1 - {reach} + {};", w.input, w.pad);
    let _ = writeln!(c, "    const i64 xe = room < 0 ? 0 : room / {} + 1;", w.stride);
    let _ = writeln!(c, "    const i64 xb = dim_max(xa, dim_min(xe, {}));", w.output);
    let rows = rows_at_once(spec, isa);
    let body = |part: bool, c: &mut String| {
        for first in (0..h.kernel).step_by(rows) {
            some_rows(spec, first..(first + rows).min(h.kernel), part, c);
        }
    };
    if channels.is_multiple_of(isa.lanes) {
        body(false, &mut c);
    } else {
        let _ = writeln!(c, "    if (i + LANES <= {channels}) {{");
        body(false, &mut c);
        let _ = writeln!(c, "    }} else {{\n    const i64 rest = {channels} - i;");
        body(true, &mut c);
        c.push_str("    }\n");
    }
    c.push_str("  }\n");
    Source::new(c, vectors * spec.parts, 1)
}

/// Lines of the kernel whose sums fit the registers, next to the operands of a product.
fn rows_at_once(spec: &DepthwiseWeightGradient, isa: &Isa) -> usize {
    let sums = if isa.registers > 16 { 25 } else { 10 };
    (sums / spec.w.kernel).clamp(1, spec.h.kernel)
}

/// The sums of these lines of the kernel.
fn some_rows(spec: &DepthwiseWeightGradient, rows: Range<usize>, part: bool, c: &mut String) {
    let (h, w, channels) = (&spec.h, &spec.w, &spec.c);
    let load = |at: &str| if part { format!("load_part({at}, rest)") } else { format!("load({at})") };
    c.push_str("    {\n");
    for (ky, kx) in taps(&rows, w.kernel) {
        let _ = writeln!(c, "      vf a{ky}_{kx} = SPLAT(0);");
    }
    let _ = writeln!(
        c,
        "      for (i64 line = part * {}; line < l1; line++) {{",
        spec.lines().div_ceil(&spec.parts.into())
    );
    let _ = writeln!(c, "        const i64 n = line / {0}, y = line % {0} * {1} - {2};", h.output, h.stride, h.pad);
    let _ = writeln!(c, "        const f32 *const g = (const f32 *)args[1] + line * {} + i;", &w.output * channels);
    for ky in rows.clone() {
        let at = format!("(n * {} + y + {}) * {}", h.input, ky * h.dilation, &w.input * channels);
        let _ = writeln!(
            c,
            "        const i64 y{ky} = y + {}, in{ky} = y{ky} >= 0 && y{ky} < {};",
            ky * h.dilation,
            h.input
        );
        let _ =
            writeln!(c, "        const f32 *const r{ky} = (const f32 *)args[0] + ({at} - {} * {channels} + i);", w.pad);
    }
    let points = |rows: &Range<usize>, c: &mut String| {
        let step = channels * w.stride;
        let address = |ky: usize, kx: usize| format!("r{ky} + x * {step} + {}", channels * (kx * w.dilation));
        for (from, to) in [("0", "xa"), ("xb", "")] {
            let to = if to.is_empty() { w.output.to_string() } else { to.to_string() };
            let _ = writeln!(c, "          for (i64 x = {from}; x < {to}; x++) {{");
            let _ = writeln!(c, "            const vf d = {};", load(&format!("g + x * {channels}")));
            for kx in 0..w.kernel {
                let _ =
                    writeln!(c, "            const i64 x{kx} = x * {} - {} + {};", w.stride, w.pad, kx * w.dilation);
                let _ = writeln!(c, "            if (x{kx} >= 0 && x{kx} < {}) {{", w.input);
                for ky in rows.clone() {
                    let _ = writeln!(c, "              a{ky}_{kx} += d * {};", load(&address(ky, kx)));
                }
                c.push_str("            }\n");
            }
            c.push_str("          }\n");
        }
        c.push_str("          for (i64 x = xa; x < xb; x++) {\n");
        let _ = writeln!(c, "            const vf d = {};", load(&format!("g + x * {channels}")));
        for (ky, kx) in taps(rows, w.kernel) {
            let _ = writeln!(c, "            a{ky}_{kx} += d * {};", load(&address(ky, kx)));
        }
        c.push_str("          }\n");
    };
    if rows.len() > 1 {
        let all: Vec<String> = rows.clone().map(|ky| format!("in{ky}")).collect();
        let _ = writeln!(c, "        if ({}) {{", all.join(" && "));
        points(&rows, c);
        c.push_str("        } else {\n");
    } else {
        c.push_str("        {\n");
    }
    for ky in rows.clone() {
        let _ = writeln!(c, "        if (in{ky}) {{");
        points(&(ky..ky + 1), c);
        c.push_str("        }\n");
    }
    c.push_str("        }\n      }\n");
    for (ky, kx) in taps(&rows, w.kernel) {
        let tap = ky * w.kernel + kx;
        let at = format!("(f32 *)args[2] + (part * {} + {tap}) * {channels} + i", spec.taps());
        let _ = match part {
            false => writeln!(c, "      store({at}, a{ky}_{kx});"),
            true => writeln!(c, "      store_part({at}, a{ky}_{kx}, rest);"),
        };
    }
    c.push_str("    }\n");
}

/// The elements of these lines of a kernel.
fn taps(rows: &Range<usize>, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    rows.clone().flat_map(move |ky| (0..columns).map(move |kx| (ky, kx)))
}
