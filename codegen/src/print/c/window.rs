//! Windows over `[N, H, W, C]`: pools and depthwise convolutions, vectorised over channels.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::{CACHE_LINE_BYTES, Isa, L2_BYTES};
use crate::kernel::body::{Body, Node};
use crate::kernel::window::{ChannelGroups, MAX_BLOCK_TAPS, Window, WindowAxis, WindowKind};
use crate::print::Source;
use crate::print::c::vector;
use crate::print::c::vector::vtype;
use crate::print::expr::ctype;
use crate::print::index::{mean_count, window_range};

/// Maximum terms of the sums of a block that are unrolled.
const MAX_UNROLLED_TERMS: usize = 128;
/// Maximum product of strides of windows whose input is prefetched.
const MAX_PREFETCHED_STRIDES: usize = 16;

/// The kernel; arguments are the input, the second argument where the kind has one, loads and stores of the epilogue,
/// whose space is `[N, H, W, C]`.
///
/// # Errors
/// When the epilogue has no vector form.
pub fn window(spec: &Window, body: &Body, isa: &Isa) -> Result<Source, String> {
    if !vector::vectorizable(body) {
        return Err("the epilogue has no vector form".into());
    }
    let (h, w) = (&spec.h, &spec.w);
    let second = usize::from(spec.has_weights());
    let mut c = String::new();
    vector::vector_constants(body, &mut c);
    let lanes = isa.lanes;
    let whole = spec.c / lanes * lanes;
    let channels_per_group = channels_per_group(spec, isa);
    let groups = spec.c.div_ceil(channels_per_group);
    let _ = writeln!(c, "  for (i64 it = begin; it < end; it++) {{");
    if groups == 1 {
        let _ = writeln!(c, "    const i64 n = it / {}, y = it % {};", h.output, h.output);
    } else {
        let _ = writeln!(c, "    const i64 group = it / {0}, y = it % {0}, n = group / {groups};", h.output);
        let _ = writeln!(
            c,
            "    const i64 i0 = group % {groups} * {channels_per_group}, i1 = dim_min(i0 + {channels_per_group}, {whole});"
        );
    }
    let t = ctype(spec.dtype);
    let _ = writeln!(
        c,
        "    const {t} *const X = (const {t} *)args[0] + n * {};",
        &h.input * &w.input * spec.input_channels()
    );
    if second == 1 {
        let t = if spec.dtype == DType::F32 { "f32" } else { "i32" };
        let _ = writeln!(c, "    const {t} *const W = (const {t} *)args[1];");
    }
    for (i, l) in body.loads.iter().enumerate() {
        let t = ctype(l.dtype);
        let _ = writeln!(
            c,
            "    const {t} *const P{i} = (const {t} *)args[{}] + n * {} + y * {};",
            1 + second + i,
            l.strides[0],
            l.strides[1]
        );
    }
    for (s, (_, v)) in body.stores.iter().enumerate() {
        let t = ctype(body.nodes[*v].dtype);
        let _ = writeln!(
            c,
            "    {t} *const Q{s} = ({t} *)args[{}] + (n * {} + y) * {};",
            1 + second + body.loads.len() + s,
            h.output,
            &w.output * spec.c
        );
    }
    window_range("y", "ky", h, &mut c);
    let _ = writeln!(c, "    for (i64 x = 0; x < {};) {{", w.output);
    window_range("x", "kx", w, &mut c);
    let channels = |print: &dyn Fn(usize, &mut String), c: &mut String| {
        if whole > 0 {
            let part = if groups == 1 { format!("i = 0; i < {whole}") } else { "i = i0; i < i1".into() };
            let _ = writeln!(c, "      for (i64 {part}; i += LANES) {{");
            print(lanes, c);
            c.push_str("      }\n");
        }
        if whole < spec.c {
            let last =
                if groups == 1 { String::new() } else { format!("if (i0 + {channels_per_group} >= {}) ", spec.c) };
            let _ = writeln!(c, "      {last}{{ const i64 i = {whole};");
            print(spec.c - whole, c);
            c.push_str("      }\n");
        }
    };
    if let Some(size) = block_size(spec, isa) {
        let _ = writeln!(c, "      if (xi >= 0 && xi + {} < {}) {{", reach(w, size), w.input);
        channels(&|n, c| block(spec, body, n, size, isa, c), &mut c);
        let _ = writeln!(c, "      x += {size}; continue; }}");
    }
    if uses_vnni(spec) {
        channels(&|n, c| block(spec, body, n, 1, isa, c), &mut c);
    } else {
        channels(&|n, c| point(spec, body, n, isa, c), &mut c);
    }
    c.push_str("      x++;\n    }\n  }\n");
    Ok(Source::new(c, &spec.n * &h.output * groups, 1))
}

/// Channels of an inner loop over all lines of a sample: as many as let the lines under a window fit half of the L2 cache, so
/// that the next window finds all but one of its lines there.
fn channels_per_group(spec: &Window, isa: &Isa) -> usize {
    let element = if spec.dtype == DType::F32 { 4 } else { 1 };
    let bytes = spec.h.kernel * spec.w.input.size_hint() * element;
    let most = (L2_BYTES / 2 / bytes.max(1)).max(isa.lanes);
    let vectors = spec.c.div_ceil(isa.lanes);
    let groups = vectors.div_ceil(most / isa.lanes);
    vectors.div_ceil(groups) * isa.lanes
}

/// Elements from the first tap of a window to the last tap of the window `n - 1` further.
pub(crate) fn reach(a: &WindowAxis, n: usize) -> usize {
    (n - 1) * a.stride + (a.kernel - 1) * a.dilation
}

/// Whether taps are multiplied in groups of four: products of bytes.
fn uses_vnni(spec: &Window) -> bool {
    spec.kind == WindowKind::Depthwise && spec.dtype != DType::F32
}

/// Number of adjacent points of a line that are computed together, so that they share loads and hide latency: the one that
/// leaves the fewest points of the line over.
fn block_size(spec: &Window, isa: &Isa) -> Option<usize> {
    let w = &spec.w;
    let (input, pad) = (w.input.size_hint(), w.pad.size_hint());
    let first = pad.div_ceil(w.stride);
    let end = ((input + pad).checked_sub(reach(w, 1) + 1)? / w.stride + 1).min(w.output.size_hint());
    let inside = end.checked_sub(first)?;
    let most = if isa.registers > 16 { 8 } else { 4 };
    let least = (2..=most).filter(|b| *b <= inside).min_by_key(|b| (inside % b + inside / b / 4, most - b));
    least.filter(|_| (spec.dtype == DType::F32 || uses_vnni(spec)) && w.kernel <= MAX_BLOCK_TAPS)
}

/// The sums of `size` adjacent points whose windows lie inside the line, each with its epilogue.
fn block(spec: &Window, body: &Body, n: usize, size: usize, isa: &Isa, c: &mut String) {
    let (h, w) = (&spec.h, &spec.w);
    let part = (n != isa.lanes).then(|| n.to_string());
    let channels = spec.input_channels();
    let row = &w.input * channels;
    let padded = spec.c.next_multiple_of(isa.lanes);
    let (sum, t) = if spec.dtype == DType::F32 { ("vf", "f32") } else { ("vi", "u8") };
    let first = match spec.dtype {
        DType::I8 => "load_i32(W + i)",
        _ => start(spec),
    };
    for p in 0..size {
        let _ = writeln!(c, "        {sum} acc{p} = {first};");
    }
    let _ = writeln!(
        c,
        "        const {t} *const a = (const {t} *)X + yi * {row} + xi * {channels} + {};",
        first_input(spec)
    );
    let read = (0..size).flat_map(|p| (0..w.kernel).map(move |k| p * w.stride + k * w.dilation));
    let columns: Vec<usize> = std::collections::BTreeSet::from_iter(read).into_iter().collect();
    if uses_vnni(spec) {
        vnni_sums(spec, size, &columns, part.as_deref(), padded, c);
    } else {
        prefetch(spec, size, isa, c);
        let line = |ky: &str, c: &mut String| match spec.kind {
            WindowKind::Grouped(groups) => grouped_line(spec, groups, ky, (size, &columns), n, isa, c),
            _ => line(spec, ky, size, &columns, part.as_deref(), padded, c),
        };
        // Unrolled loads have separate strides, which the hardware prefetcher learns.
        let apart = h.kernel * w.kernel * size <= MAX_UNROLLED_TERMS && !matches!(spec.kind, WindowKind::Grouped(_));
        if apart {
            let _ = writeln!(c, "        if (ky0 == 0 && ky1 == {}) {{", h.kernel);
            for ky in 0..h.kernel {
                line(&ky.to_string(), c);
            }
            c.push_str("        } else\n");
        }
        c.push_str("        for (i64 ky = ky0; ky < ky1; ky++)\n");
        line("ky", c);
    }
    for p in 0..size {
        let _ = writeln!(c, "        {{ {sum} acc = acc{p};");
        epilogue(spec, body, &format!("(x + {p})"), part.as_deref(), c);
        c.push_str("        }\n");
    }
}

/// Prefetches the additional input of the next line's windows, if the input exceeds the cache: they read few bytes at many
/// addresses, which the hardware does not prefetch.
fn prefetch(spec: &Window, size: usize, isa: &Isa, c: &mut String) {
    let (h, w) = (&spec.h, &spec.w);
    let far = h.stride.saturating_mul(w.stride) > MAX_PREFETCHED_STRIDES;
    let channels = spec.input_channels();
    if far || spec.n.size_hint() * h.input.size_hint() * w.input.size_hint() * channels * 4 <= L2_BYTES / 2 {
        return;
    }
    let first = reach(h, 1) + 1;
    let (row, line) = (&w.input * channels, CACHE_LINE_BYTES / 4);
    if line > isa.lanes {
        let _ = write!(c, "        if (i % {line} == 0)");
    }
    c.push_str("        {\n");
    for (y, x) in (first..first + h.stride).flat_map(|y| (0..size * w.stride).map(move |x| (y, x))) {
        let _ = writeln!(c, "          __builtin_prefetch(a + {}, 0, 2);", &row * y + x * channels);
    }
    c.push_str("        }\n");
}

/// C expression of the first input channel of the output channels from `i` on.
fn first_input(spec: &Window) -> String {
    match spec.kind {
        WindowKind::Grouped(g) if g.inputs != g.outputs => format!("i / {} * {}", g.outputs, g.inputs),
        _ => "i".into(),
    }
}

/// A vector of the input at the address `at`, the inputs of `n` output channels.
fn load_inputs(groups: ChannelGroups, n: usize, lanes: usize, at: &str) -> String {
    match groups.inputs_of(n) {
        inputs if inputs == lanes => format!("load({at})"),
        inputs => format!("load_part({at}, {inputs})"),
    }
}

/// Adds line `ky` of a window of groups to the sums of so many points, which read these columns: for each input of a group, the
/// lanes of the input that the outputs read.
fn grouped_line(
    spec: &Window,
    groups: ChannelGroups,
    ky: &str,
    (size, columns): (usize, &[usize]),
    n: usize,
    isa: &Isa,
    c: &mut String,
) {
    let (h, w, channels) = (&spec.h, &spec.w, spec.input_channels());
    let padded = spec.c.next_multiple_of(isa.lanes);
    let _ = writeln!(c, "        {{ const f32 *const r = a + {ky} * {};", &w.input * channels * h.dilation);
    let _ = writeln!(c, "        for (i64 g = 0; g < {}; g++) {{", groups.inputs);
    let _ = writeln!(
        c,
        "          const vi lanes = load_i32((const i32 *)W + {} + g * LANES);",
        lanes_at(spec, groups, isa)
    );
    for k in 0..w.kernel {
        let tap = format!("({ky} * {} + {k}) * {} + g", w.kernel, groups.inputs);
        let _ = writeln!(c, "          const vf w{k} = load(W + ({tap}) * {padded} + i);");
    }
    for j in columns {
        let value = load_inputs(groups, n, isa.lanes, &format!("r + {}", j * channels));
        let _ = write!(c, "          {{ const vf x = permute({value}, lanes);");
        for (p, k) in (0..size).flat_map(|p| (0..w.kernel).map(move |k| (p, k))) {
            if p * w.stride + k * w.dilation == *j {
                let _ = write!(c, " acc{p} += x * w{k};");
            }
        }
        c.push_str(" }\n");
    }
    c.push_str("        } }\n");
}

/// Where the lanes of groups are, in elements after the first weight.
fn lanes_at(spec: &Window, groups: ChannelGroups, isa: &Isa) -> usize {
    spec.h.kernel * spec.w.kernel * groups.inputs * spec.c.next_multiple_of(isa.lanes)
}

/// Adds line `ky` (a C expression) of the window to the sums.
fn line(spec: &Window, ky: &str, size: usize, columns: &[usize], part: Option<&str>, padded: usize, c: &mut String) {
    let (h, w) = (&spec.h, &spec.w);
    let _ = writeln!(c, "        {{ const f32 *const r = a + {ky} * {};", &w.input * spec.c * h.dilation);
    for j in columns {
        let value = vector::load(spec.dtype, &format!("r + {}", j * spec.c), &1usize.into(), part);
        let _ = writeln!(c, "          const vf x{j} = {value};");
    }
    for k in 0..w.kernel {
        if spec.kind == WindowKind::Depthwise {
            let _ = writeln!(c, "          const vf w{k} = load(W + ({ky} * {} + {k}) * {padded} + i);", w.kernel);
        }
        for p in 0..size {
            let x = format!("x{}", p * w.stride + k * w.dilation);
            let _ = match spec.kind {
                WindowKind::Max => writeln!(c, "          acc{p} = vmax({x}, acc{p});"),
                WindowKind::Mean(_) => writeln!(c, "          acc{p} += {x};"),
                WindowKind::Depthwise | WindowKind::Grouped(_) => writeln!(c, "          acc{p} += {x} * w{k};"),
            };
        }
    }
    c.push_str("        }\n");
}

/// The sums of bytes over groups of four lines of the window, packed into one word. Adjacent points share them.
fn vnni_sums(spec: &Window, size: usize, columns: &[usize], part: Option<&str>, padded: usize, c: &mut String) {
    let (h, w) = (&spec.h, &spec.w);
    let row = &w.input * spec.c;
    let (flip, starts) = if spec.dtype == DType::I8 { (" ^ (i32)0x80808080", 1) } else { ("", 0) };
    for four in 0..h.kernel.div_ceil(4) {
        c.push_str("        {\n");
        for j in columns {
            let lines = (4 * four..h.kernel.min(4 * four + 4)).map(|ky| {
                let at = format!("a + {}", &row * (ky * h.dilation) + j * spec.c);
                let x = vector::load(DType::U8, &at, &1usize.into(), part);
                if ky % 4 == 0 { x } else { format!("({x} << {})", 8 * (ky % 4)) }
            });
            let lines: Vec<String> = lines.collect();
            let _ = writeln!(c, "          const vi x{j} = ({}){flip};", lines.join(" | "));
        }
        for k in 0..w.kernel {
            let line = starts + four * w.kernel + k;
            let _ = writeln!(c, "          const vi w{k} = load_i32(W + {} + i);", line * padded);
            for p in 0..size {
                let _ = writeln!(c, "          acc{p} = dot4(acc{p}, x{}, w{k});", p * w.stride + k * w.dilation);
            }
        }
        c.push_str("        }\n");
    }
}

/// The initial accumulator of a window.
fn start(spec: &Window) -> &'static str {
    match (spec.kind, spec.dtype) {
        (WindowKind::Max, DType::F32) => "SPLAT(-__builtin_inff())",
        (WindowKind::Max, DType::I8) => "SPLATI(-128)",
        (_, DType::F32) => "SPLAT(0)",
        _ => "{0}",
    }
}

/// One output vector: the window, the epilogue, the store.
fn point(spec: &Window, body: &Body, n: usize, isa: &Isa, c: &mut String) {
    let (h, w) = (&spec.h, &spec.w);
    let part = (n != isa.lanes).then(|| n.to_string());
    let bytes = spec.dtype != DType::F32;
    let channels = spec.input_channels();
    let load = |p: String| match spec.kind {
        WindowKind::Grouped(groups) => load_inputs(groups, n, isa.lanes, &p),
        _ => vector::load(spec.dtype, &p, &1usize.into(), part.as_deref()),
    };
    let row = &w.input * channels;
    let padded = spec.c.next_multiple_of(isa.lanes);
    let step = |value: String, tap: String| match spec.kind {
        WindowKind::Grouped(ChannelGroups { inputs, .. }) => format!(
            "const vf x = {value}; for (i64 g = 0; g < {inputs}; g++) acc += permute(x, load_i32(lanes + g * LANES)) * load(W + (({tap}) * {inputs} + g) * {padded} + i);"
        ),
        WindowKind::Max if bytes => format!("acc = imax(acc, {value});"),
        WindowKind::Max => format!("acc = vmax({value}, acc);"),
        WindowKind::Mean(_) => format!("acc += {value};"),
        WindowKind::Depthwise => format!("acc += {value} * load(W + ({tap}) * {padded} + i);"),
    };
    let _ = writeln!(c, "        {} acc = {};", if bytes { "vi" } else { "vf" }, start(spec));
    let t = ctype(spec.dtype);
    let _ = writeln!(c, "        const {t} *const a = X + yi * {row} + xi * {channels} + {};", first_input(spec));
    if let WindowKind::Grouped(groups) = spec.kind {
        let _ = writeln!(c, "        const i32 *const lanes = (const i32 *)W + {};", lanes_at(spec, groups, isa));
    }
    let few = h.kernel * w.kernel <= 64 && !matches!(spec.kind, WindowKind::Grouped(_));
    if few {
        let _ = writeln!(c, "        if (ky0 == 0 && ky1 == {} && kx0 == 0 && kx1 == {}) {{", h.kernel, w.kernel);
        let at = |tap: usize| {
            let (ky, kx) = (tap / w.kernel, tap % w.kernel);
            load(format!("a + {}", &row * (ky * h.dilation) + kx * w.dilation * channels))
        };
        for tap in 0..h.kernel * w.kernel {
            let _ = writeln!(c, "          {}", step(at(tap), tap.to_string()));
        }
        c.push_str("        } else {\n");
    } else {
        c.push_str("        {\n");
    }
    let at = format!("a + ky * {} + kx * {}", &row * h.dilation, w.dilation * channels);
    let _ = writeln!(
        c,
        "          for (i64 ky = ky0; ky < ky1; ky++) for (i64 kx = kx0; kx < kx1; kx++) {{ {} }}",
        step(load(at), format!("ky * {} + kx", w.kernel))
    );
    c.push_str("        }\n");
    epilogue(spec, body, "x", part.as_deref(), c);
}

/// The epilogue of the sum `acc` of the point `x` of the line.
fn epilogue(spec: &Window, body: &Body, x: &str, part: Option<&str>, c: &mut String) {
    if let WindowKind::Mean(divisor) = spec.kind {
        let _ = writeln!(c, "        acc /= SPLAT({});", mean_count(divisor, &spec.h, &spec.w, x));
    }
    let name = |i: usize| format!("t{i}");
    for (i, t) in body.nodes.iter().enumerate() {
        let value = match &t.node {
            Node::Const(_) | Node::Reduce(..) => continue,
            Node::Anchor => "acc".into(),
            Node::Load(l) => {
                let s = &body.loads[*l].strides;
                vector::load(t.dtype, &format!("P{l} + {x} * {} + i * {}", s[2], s[3]), &s[3], part)
            }
            Node::Op(op, args) => vector::vector(body, *op, args, &name),
        };
        let _ = writeln!(c, "        const {} t{i} = {value};", vtype(t.dtype));
    }
    for (s, (_, v)) in body.stores.iter().enumerate() {
        let at = format!("Q{s} + {x} * {} + i", spec.c);
        let _ = writeln!(c, "        {}", vector::store(body, *v, &at, part));
    }
}
