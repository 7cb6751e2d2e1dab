//! Convolutions by Winograd's algorithm, in C: transforms on vectors of channels around products of packed panels.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::{CACHE_LINE_BYTES, Isa};
use crate::kernel::body::{Body, Node};
use crate::kernel::contraction::Element;
use crate::kernel::winograd::Winograd;
use crate::print::c::vector::vtype;
use crate::print::c::{contraction, vector};
use crate::print::expr::ctype;
use crate::print::{Source, expr};

/// Cache lines by which the transform of filters prefetches what it writes.
const FILTER_PREFETCH_LINES: usize = 2;

/// The kernel; arguments are the input, the packed filters, loads and stores of the epilogue, whose space is
/// `[N, H, W, C]`.
///
/// # Errors
/// When the epilogue has no vector form.
pub fn winograd(spec: &Winograd, body: &Body, isa: &Isa) -> Result<Source, String> {
    if !vector::vectorizable(body) {
        return Err("the epilogue has no vector form".into());
    }
    let (p, m, width) = (spec.transform.points(), spec.transform.outputs, spec.width(isa));
    let (ty, tx) = spec.tile_grid();
    let (tiles, panels) = (spec.tiles(), spec.cout.div_ceil(width));
    let blocks = tiles.div_ceil(&spec.block.into());
    // With few blocks, panels are split too, and each worker repeats the transforms of the tiles.
    let parts = (4 / blocks.size_hint().max(1)).clamp(1, panels);
    let per_part = panels.div_ceil(parts);
    let parts = panels.div_ceil(per_part);
    // Points are padded by a cache line, so that they do not map to the same cache sets.
    let (v_step, m_step) = (spec.block * spec.cin + 16, spec.block * width + 16);
    let (v_at, m_at) = (spec.cin.next_multiple_of(16), spec.cin.next_multiple_of(16) + p * p * v_step);
    let declare = |c: &mut String| {
        let _ = writeln!(c, "      const i64 tile = first + t, n = tile / ({ty} * {tx});");
        let _ = writeln!(c, "      const i64 y0 = tile / {tx} % {ty} * {m}, x0 = tile % {tx} * {m};");
    };
    let mut c = String::new();
    vector::vector_constants(body, &mut c);
    let _ = writeln!(c, "  f32 *const Z = (f32 *)scratch, *const V = Z + {v_at}, *const R = Z + {m_at};");
    let _ = writeln!(c, "  for (i64 i = 0; i < {}; i += LANES) store(Z + i, SPLAT(0));", spec.cin);
    let _ = writeln!(c, "  for (i64 it = begin; it < end; it++) {{");
    let _ = writeln!(c, "    const i64 first = it / {parts} * {}, part = it % {parts};", spec.block);
    // The last block may have few tiles: it computes no more than whole register tiles of them.
    let rows = if tiles.is_multiple_of(spec.block) { spec.block.to_string() } else { "rows".into() };
    if rows == "rows" {
        let (block, by) = (spec.block, spec.tile.rows);
        let _ = writeln!(c, "    const i64 rows = (dim_min({block}, {tiles} - first) + {}) / {by} * {by};", by - 1);
    }
    let _ = writeln!(c, "    if (part == 0 || it == begin) for (i64 t = 0; t < {rows}; t++) {{");
    declare(&mut c);
    let (h, w) = (&spec.h.input, &spec.w.input);
    let dtype = if let Element::F16Pair(half) = spec.element { half } else { DType::F32 };
    let t = ctype(dtype);
    let _ = writeln!(c, "      const {t} *const X = (const {t} *)args[0] + n * {};", h * w * spec.cin);
    let _ = writeln!(c, "      const {t} *at[{}];", p * p);
    let _ = writeln!(c, "      for (i64 i = 0; i < {p}; i++) for (i64 j = 0; j < {p}; j++) {{");
    let _ = writeln!(c, "        const i64 y = y0 + i - {}, x = x0 + j - {};", spec.h.pad, spec.w.pad);
    let _ = writeln!(c, "        const i64 in = (tile < {tiles}) & (y >= 0) & (y < {h}) & (x >= 0) & (x < {w});");
    let _ = writeln!(c, "        at[i * {p} + j] = in ? X + (y * {w} + x) * {} : (const {t} *)Z;", spec.cin);
    c.push_str("      }\n");
    let _ = writeln!(c, "      for (i64 i = 0; i < {}; i += LANES) {{", spec.cin);
    for x in 0..p {
        for y in 0..p {
            let load = vector::load(dtype, &format!("at[{}] + i", y * p + x), &1usize.into(), None);
            let _ = writeln!(c, "        const vf d{y}_{x} = {load};");
        }
        forward(&spec.transform.input, &format!("x{x}"), &|k| format!("d{k}_{x}"), &|j| format!("s{j}_{x}"), &mut c);
    }
    for y in 0..p {
        let to = |j: usize| format!("v{y}_{j}");
        forward(&spec.transform.input, &format!("y{y}"), &|k| format!("s{y}_{k}"), &to, &mut c);
        for j in 0..p {
            let _ = writeln!(c, "        store(V + {} + t * {} + i, {});", (y * p + j) * v_step, spec.cin, to(j));
        }
    }
    c.push_str("      }\n    }\n");
    let _ = writeln!(c, "    const i64 last = dim_min((part + 1) * {per_part}, {panels});");
    let _ = writeln!(c, "    for (i64 panel = part * {per_part}; panel < last; panel++) {{");
    let _ = writeln!(c, "    for (i64 point = 0; point < {}; point++) {{", p * p);
    let filters = format!("(const f32 *)args[1] + (panel * {} + point) * {}", p * p, spec.point_step(isa));
    let _ = writeln!(c, "      const f32 *const A = V + point * {v_step}, *const B = {filters};");
    let _ = writeln!(c, "      f32 *const Q = R + point * {m_step};");
    contraction::panel_product(&spec.product(), &rows, spec.tile, spec.filter_bytes(isa), isa, &mut c);
    c.push_str("    }\n");
    let _ = writeln!(c, "    for (i64 t = 0; t < {} && first + t < {tiles}; t++) {{", spec.block);
    declare(&mut c);
    let (h, w) = (&spec.h.output, &spec.w.output);
    let _ = writeln!(c, "      const i64 ys = dim_min({m}, {h} - y0), xs = dim_min({m}, {w} - x0);");
    let _ = writeln!(c, "      for (i64 i = 0; i < {width}; i += LANES) {{");
    let _ = writeln!(c, "        const i64 channel = panel * {width} + i;");
    let _ = writeln!(c, "        if (channel >= {}) break;", spec.cout);
    let _ = writeln!(c, "        vf out[{}];", m * m);
    for x in 0..p {
        for y in 0..p {
            let at = format!("R + {} + t * {width} + i", (y * p + x) * m_step);
            let _ = writeln!(c, "        const vf d{y}_{x} = load({at});");
        }
        back(&spec.transform.output, &format!("x{x}"), &|k| format!("d{k}_{x}"), &|j| format!("s{j}_{x}"), &mut c);
    }
    for y in 0..m {
        let to = |j: usize| format!("v{y}_{j}");
        back(&spec.transform.output, &format!("y{y}"), &|k| format!("s{y}_{k}"), &to, &mut c);
        (0..m).for_each(|j| {
            let _ = writeln!(c, "        out[{}] = {};", y * m + j, to(j));
        });
    }
    epilogue(spec, body, &mut c);
    c.push_str("      }\n    }\n    }\n  }\n");
    let scratch = 4 * (m_at + p * p * m_step);
    Ok(Source { scratch_bytes: scratch as u64, ..Source::new(c, blocks * parts, 1) })
}

/// The kernel that transforms filters; arguments are the filters by tap, `[Cout / width, taps, Cin, width]`, and panels
/// `[Cout / width, points, Cin, width]`. Adjacent outputs are lanes.
pub fn filters(spec: &Winograd, isa: &Isa) -> Source {
    let (p, r, width, cin) = (spec.transform.points(), spec.transform.taps, spec.width(isa), spec.cin);
    let (plane, step) = (cin * width, spec.point_step(isa));
    let mut c = String::new();
    let _ = writeln!(c, "  for (i64 it = begin; it < end; it++) {{");
    let _ = writeln!(c, "    const i64 panel = it / {cin}, at = it % {cin} * {width};");
    let _ = writeln!(c, "    const f32 *const G = (const f32 *)args[0] + panel * {} + at;", r * r * plane);
    let _ = writeln!(c, "    f32 *const U = (f32 *)args[1] + panel * {} + at;", p * p * step);
    let _ = writeln!(c, "    for (i64 i = 0; i < {width}; i += LANES) {{");
    // More lines are written in turn than a hardware prefetcher follows.
    let line = CACHE_LINE_BYTES / 4;
    for point in 0..p * p {
        let _ = writeln!(c, "        __builtin_prefetch(U + {} + i);", point * step + FILTER_PREFETCH_LINES * line);
    }
    // G g, then (G g) G^T.
    for x in 0..r {
        for y in 0..r {
            let _ = writeln!(c, "        const vf g{y}_{x} = load(G + {} + i);", (y * r + x) * plane);
        }
        for (j, row) in spec.transform.filter.iter().enumerate() {
            let _ = writeln!(c, "        const vf h{j}_{x} = {};", sum(row, &|k| format!("g{k}_{x}"), &|_| true));
        }
    }
    for y in 0..p {
        for (j, row) in spec.transform.filter.iter().enumerate() {
            let point = sum(row, &|k| format!("h{y}_{k}"), &|_| true);
            let _ = writeln!(c, "        store(U + {} + i, {point});", (y * p + j) * step);
        }
    }
    c.push_str("    }\n  }\n");
    Source::new(c, (spec.cout / width * cin).into(), 1)
}

/// The epilogue on the valid points of a tile.
fn epilogue(spec: &Winograd, body: &Body, c: &mut String) {
    let m = spec.transform.outputs;
    for (k, l) in body.loads.iter().enumerate() {
        let (t, s) = (ctype(l.dtype), &l.strides);
        let at = format!("n * {} + y0 * {} + x0 * {} + channel * {}", s[0], s[1], s[2], s[3]);
        let _ = writeln!(c, "        const {t} *const P{k} = (const {t} *)args[{}] + ({at});", 2 + k);
    }
    let (h, w) = (&spec.h.output, &spec.w.output);
    for (k, (_, v)) in body.stores.iter().enumerate() {
        let t = ctype(body.nodes[*v].dtype);
        let at = format!("((n * {h} + y0) * {w} + x0) * {} + channel", spec.cout);
        let number = 2 + body.loads.len() + k;
        let _ = writeln!(c, "        {t} *const Q{k} = ({t} *)args[{number}] + ({at});");
    }
    c.push_str("        for (i64 y = 0; y < ys; y++) for (i64 x = 0; x < xs; x++) {\n");
    let name = |i: usize| format!("t{i}");
    for (i, t) in body.nodes.iter().enumerate() {
        let value = match &t.node {
            Node::Const(_) | Node::Reduce(..) => continue,
            Node::Anchor => format!("out[y * {m} + x]"),
            Node::Load(l) => {
                let s = &body.loads[*l].strides;
                vector::load(t.dtype, &format!("P{l} + y * {} + x * {}", s[1], s[2]), &s[3], None)
            }
            Node::Op(op, args) => vector::vector(body, *op, args, &name),
        };
        let _ = writeln!(c, "          const {} t{i} = {value};", vtype(t.dtype));
    }
    for (k, (_, v)) in body.stores.iter().enumerate() {
        let at = format!("Q{k} + (y * {w} + x) * {}", spec.cout);
        let _ = writeln!(c, "          {}", vector::store(body, *v, &at, None));
    }
    c.push_str("        }\n");
}

/// Prints one sum of products with the coefficients `row`; `keep` selects its terms.
pub(crate) fn sum(row: &[f64], from: &dyn Fn(usize) -> String, keep: &dyn Fn(usize) -> bool) -> String {
    let mut out = String::new();
    for (k, x) in row.iter().enumerate().filter(|(k, x)| **x != 0.0 && keep(*k)) {
        let sign = match (out.is_empty(), *x < 0.0) {
            (true, false) => "",
            (true, true) => "-",
            (false, false) => " + ",
            (false, true) => " - ",
        };
        let term = match x.abs() {
            1.0 => from(k),
            size => format!("SPLAT({}) * {}", expr::literal(size, DType::F32), from(k)),
        };
        let _ = write!(out, "{sign}{term}");
    }
    if out.is_empty() { "SPLAT(0)".into() } else { out }
}

/// Whether `b` is `a` with the signs of its odd terms negated.
fn mirrors(mut a: impl Iterator<Item = f64>, b: impl Iterator<Item = f64>) -> bool {
    b.enumerate().all(|(k, b)| a.next() == Some(if k % 2 == 1 { -b } else { b }))
}

/// Prints `to = matrix from` for the input. Rows of opposite points have equal even terms and negated odd ones.
fn forward(
    matrix: &[Vec<f64>],
    parts: &str,
    from: &dyn Fn(usize) -> String,
    to: &dyn Fn(usize) -> String,
    c: &mut String,
) {
    let mut row = 0;
    while row < matrix.len() {
        let one = &matrix[row];
        if matrix.get(row + 1).is_some_and(|next| mirrors(one.iter().copied(), next.iter().copied())) {
            let (even, odd) = (format!("{parts}e{row}"), format!("{parts}o{row}"));
            let _ = writeln!(c, "        const vf {even} = {};", sum(one, from, &|k| k % 2 == 0));
            let _ = writeln!(c, "        const vf {odd} = {};", sum(one, from, &|k| k % 2 == 1));
            let _ = writeln!(c, "        const vf {} = {even} + {odd}, {} = {even} - {odd};", to(row), to(row + 1));
            row += 2;
        } else {
            let _ = writeln!(c, "        const vf {} = {};", to(row), sum(one, from, &|_| true));
            row += 1;
        }
    }
}

/// Prints `to = matrix from` for the output. Opposite points have equal factors in even rows and negated ones in odd rows: even
/// rows use sums of the two values, odd rows differences.
pub(crate) fn back(
    matrix: &[Vec<f64>],
    parts: &str,
    from: &dyn Fn(usize) -> String,
    to: &dyn Fn(usize) -> String,
    c: &mut String,
) {
    let points = matrix[0].len();
    let column = |k: usize| matrix.iter().map(move |row| row[k]);
    let paired = |k: usize| k + 1 < points && column(k).any(|x| x != 0.0) && mirrors(column(k), column(k + 1));
    let (mut pairs, mut k) = (Vec::new(), 0);
    while k < points {
        if paired(k) {
            let (a, b) = (from(k), from(k + 1));
            let _ = writeln!(c, "        const vf {parts}e{k} = {a} + {b}, {parts}o{k} = {a} - {b};");
            pairs.push(k);
            k += 1;
        }
        k += 1;
    }
    for (i, row) in matrix.iter().enumerate() {
        let part = if i % 2 == 0 { 'e' } else { 'o' };
        let name = |k: usize| if pairs.contains(&k) { format!("{parts}{part}{k}") } else { from(k) };
        let alone = |k: usize| k == 0 || !pairs.contains(&(k - 1));
        let _ = writeln!(c, "        const vf {} = {};", to(i), sum(row, &name, &alone));
    }
}
