//! Pooling of image regions, vectorised over channels: these are contiguous, so a sample position is computed once for many.

use std::fmt::Write;

use crate::kernel::roi_align::RoiAlign;
use crate::print::roi_align::{self as text, Lanes};
use crate::print::source::Source;

/// Vectors of channels that share the computation of a sample position.
const VECTORS: usize = 4;

/// The CPU kernel: an iteration is a cell.
pub fn roi_align(r: &RoiAlign) -> Source {
    let (rows, columns) = r.grid;
    let channels = &r.images[3];
    let mut c = text::head(r);
    c.push_str("  for (i64 it = begin; it < end; it++) {\n");
    let _ = writeln!(c, "    const i64 r = it / {}, i = it / {columns} % {rows}, j = it % {columns};", rows * columns);
    c.push_str(&text::cell(r));
    let _ = writeln!(c, "    f32 *const to = ARG(f32, 3) + it * {channels};\n    i64 c = 0;");
    let splat = |x: &str| format!("SPLAT({x})");
    let max = |a: &str, b: &str| format!("pick({a} > {b}, {a}, {b})");
    let whole = |p: &str, k: usize| format!("load({p} + c + {k} * LANES)");
    let lanes = Lanes { ty: "vf", count: VECTORS, load: &whole, splat: &splat, max: &max };
    let _ = writeln!(c, "    for (; c + {VECTORS} * LANES <= {channels}; c += {VECTORS} * LANES) {{");
    text::sum(r, &lanes, &mut c);
    (0..VECTORS).for_each(|k| {
        let _ = writeln!(c, "      store(to + c + {k} * LANES, sum{k});");
    });
    let part = |p: &str, _: usize| format!("load_part({p} + c, n)");
    let lanes = Lanes { count: 1, load: &part, ..lanes };
    let _ = writeln!(c, "    }}\n    for (; c < {channels}; c += LANES) {{");
    let _ = writeln!(c, "      const i64 n = dim_min(LANES, {channels} - c);");
    text::sum(r, &lanes, &mut c);
    c.push_str("      store_part(to + c, sum0, n);\n    }\n  }\n");
    let grain = (4096 / channels.size_hint().max(1)).max(1) as i64;
    Source::new(c, &r.count * (rows * columns), grain)
}
