//! Kernels that slide a window over `[N, H, W, C]`: pools and depthwise convolutions, channels on vectors.

use std::fmt::Write;

use of_ir::DType;

use super::expr::{self, ctype, vtype};
use super::{Extent, Isa, Source};
use crate::lower::body::{Body, Node};

/// What is computed over a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The largest element.
    Max,
    /// The sum times a factor for each output point, the second argument (`[H, W]` of the output).
    Mean,
    /// The sum of products with weights `[taps, C]`, the second argument, rows padded to whole vectors.
    Depthwise,
}

/// A window over one image axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Extent of the input.
    pub input: Extent,
    /// Extent of the output.
    pub output: Extent,
    /// Taps.
    pub kernel: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// Elements before the input that do not exist.
    pub pad: Extent,
}

/// A sliding window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// Samples.
    pub n: Extent,
    /// Lines.
    pub h: Axis,
    /// Points of a line.
    pub w: Axis,
    /// Channels.
    pub c: usize,
    /// What is computed.
    pub kind: Kind,
}

/// The kernel; arguments are the input, the second argument where the kind has one, loads and stores of the epilogue,
/// whose space is `[N, H, W, C]`.
///
/// # Errors
/// When the epilogue has no vector form.
pub fn window(spec: &Window, body: &Body, isa: &Isa) -> Result<Source, String> {
    if !expr::vectorizable(body) {
        return Err("the epilogue has no vector form".into());
    }
    let (h, w) = (&spec.h, &spec.w);
    let second = usize::from(spec.kind != Kind::Max);
    let mut c = String::new();
    expr::vector_constants(body, &mut c);
    let _ = writeln!(c, "  for (i64 it = begin; it < end; it++) {{");
    let _ = writeln!(c, "    const i64 n = it / {}, y = it % {};", h.output, h.output);
    let _ = writeln!(c, "    const f32 *const X = (const f32 *)args[0] + n * {};", &h.input * &w.input * spec.c);
    if second == 1 {
        c.push_str("    const f32 *const W = (const f32 *)args[1];\n");
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
    for s in 0..body.stores.len() {
        let _ = writeln!(
            c,
            "    f32 *const Q{s} = (f32 *)args[{}] + it * {};",
            1 + second + body.loads.len() + s,
            &w.output * spec.c
        );
    }
    range("y", "ky", h, &mut c);
    let _ = writeln!(c, "    for (i64 x = 0; x < {}; x++) {{", w.output);
    range("x", "kx", w, &mut c);
    let lanes = isa.lanes;
    let whole = spec.c / lanes * lanes;
    if whole > 0 {
        let _ = writeln!(c, "      for (i64 i = 0; i < {whole}; i += LANES) {{");
        point(spec, body, lanes, isa, &mut c);
        c.push_str("      }\n");
    }
    if whole < spec.c {
        let _ = writeln!(c, "      {{ const i64 i = {whole};");
        point(spec, body, spec.c - whole, isa, &mut c);
        c.push_str("      }\n");
    }
    c.push_str("    }\n  }\n");
    Ok(Source { body: c, iterations: &spec.n * &h.output, grain: 1, scratch_bytes: 0 })
}

/// The taps of the window at `at` that lie inside the input: `k0..k1`.
fn range(at: &str, k: &str, a: &Axis, c: &mut String) {
    let _ = writeln!(c, "    const i64 {at}i = {at} * {} - {};", a.stride, a.pad);
    let d = a.dilation as i64;
    let _ = writeln!(c, "    const i64 {k}0 = {at}i < 0 ? (-{at}i + {}) / {d} : 0;", d - 1);
    let _ = writeln!(
        c,
        "    const i64 {k}e = {at}i >= {0} ? 0 : ({0} - 1 - {at}i) / {d} + 1, {k}1 = {k}e < {1} ? {k}e : {1};",
        a.input, a.kernel
    );
}

/// One output vector: the window, the epilogue, the store.
fn point(spec: &Window, body: &Body, n: usize, isa: &Isa, c: &mut String) {
    let (h, w) = (&spec.h, &spec.w);
    let full = n == isa.lanes;
    let load = |p: String| if full { format!("load({p})") } else { format!("load_part({p}, {n})") };
    let start = if spec.kind == Kind::Max { "SPLAT(-__builtin_inff())" } else { "SPLAT(0)" };
    let row = &w.input * spec.c;
    let padded = spec.c.next_multiple_of(isa.lanes);
    let step = |value: String, tap: String| match spec.kind {
        Kind::Max => format!("acc = vmax({value}, acc);"),
        Kind::Mean => format!("acc += {value};"),
        Kind::Depthwise => format!("acc += {value} * load(W + ({tap}) * {padded} + i);"),
    };
    let _ = writeln!(c, "        vf acc = {start};");
    let _ = writeln!(c, "        const f32 *const a = X + yi * {row} + xi * {} + i;", spec.c);
    let few = h.kernel * w.kernel <= 64;
    if few {
        let _ = writeln!(c, "        if (ky0 == 0 && ky1 == {} && kx0 == 0 && kx1 == {}) {{", h.kernel, w.kernel);
        for ky in 0..h.kernel {
            for kx in 0..w.kernel {
                let at = &row * (ky * h.dilation) + kx * w.dilation * spec.c;
                let _ = writeln!(c, "          {}", step(load(format!("a + {at}")), (ky * w.kernel + kx).to_string()));
            }
        }
        c.push_str("        } else {\n");
    } else {
        c.push_str("        {\n");
    }
    let at = format!("a + ky * {} + kx * {}", &row * h.dilation, w.dilation * spec.c);
    let _ = writeln!(
        c,
        "          for (i64 ky = ky0; ky < ky1; ky++) for (i64 kx = kx0; kx < kx1; kx++) {{ {} }}",
        step(load(at), format!("ky * {} + kx", w.kernel))
    );
    c.push_str("        }\n");
    if spec.kind == Kind::Mean {
        let _ = writeln!(c, "        acc *= SPLAT(W[y * {} + x]);", w.output);
    }
    let name = |i: usize| format!("t{i}");
    for (i, t) in body.nodes.iter().enumerate() {
        let value = match &t.node {
            Node::Const(_) | Node::Reduce(..) => continue,
            Node::Anchor => "acc".into(),
            Node::Load(l) => {
                let s = &body.loads[*l].strides;
                let at = format!("P{l} + x * {} + i * {}", s[2], s[3]);
                match (t.dtype, &s[3]) {
                    (DType::Bool, k) => format!("load_mask({at}, {k}, {n})"),
                    (_, k) if k.is(0) => format!("SPLAT(*({at}))"),
                    (_, k) if k.is(1) => load(at),
                    (_, k) => format!("load_step({at}, {k}, {n})"),
                }
            }
            Node::Op(op, args) => expr::vector(body, *op, args, &name),
        };
        let _ = writeln!(c, "        const {} t{i} = {value};", vtype(t.dtype));
    }
    for (s, (_, v)) in body.stores.iter().enumerate() {
        let at = format!("Q{s} + x * {} + i", spec.c);
        let _ = if full {
            writeln!(c, "        store({at}, t{v});")
        } else {
            writeln!(c, "        store_part({at}, t{v}, {n});")
        };
    }
}
