//! Windows that slide over `[N, H, W, C]`: a thread computes one element.

use std::fmt::Write;

use of_ir::DType;

use super::each;
use super::points::{Points, pointers};
use crate::lower::body::Body;
use crate::native::Source;
use crate::native::expr::{self, ctype};
use crate::native::window::{Kind, Window, range};

/// The kernel; arguments are the input, the second argument where the kind has one, loads and stores of the epilogue,
/// whose space is `[N, H, W, C]`.
pub fn window(spec: &Window, body: &Body) -> Source {
    let Window { n, h, w, c: channels, kind, dtype } = spec;
    let (bytes, second) = (*dtype != DType::F32, usize::from(*kind != Kind::Max));
    let (t, sum) = (ctype(*dtype), if bytes { "i32" } else { "f32" });
    let mut head = format!("  PTR(const {t}) X = ARG(const {t}, 0);\n");
    if second == 1 {
        let _ = writeln!(head, "  PTR(const {sum}) W = ARG(const {sum}, 1);");
    }
    pointers(body, 1 + second, &mut head);
    expr::scalar_constants(body, &mut head);
    let mut c = format!(
        "    const i64 i = it % {channels}, x = it / {channels} % {}, y = it / {} % {}, n = it / {};\n",
        w.output,
        &w.output * *channels,
        h.output,
        &h.output * &w.output * *channels
    );
    range("y", "ky", h, &mut c);
    range("x", "kx", w, &mut c);
    let start = match (kind, bytes) {
        (Kind::Max, true) => "-128",
        (Kind::Max, false) => "-INF32",
        _ => "0",
    };
    let step = match kind {
        Kind::Max => "acc = Max::of(acc, v);".to_string(),
        Kind::Mean => "acc += v;".to_string(),
        // Two taps share a number.
        Kind::Depthwise if bytes => {
            format!(
                "const i32 w = W[tap / 2 * {channels} + i]; acc += v * (tap % 2 ? w >> 16 : (i32)((u32)w << 16) >> 16);"
            )
        }
        Kind::Depthwise => format!("acc += v * W[tap * {channels} + i];"),
    };
    let _ = write!(
        c,
        "    {sum} acc = {start};
    for (i64 ky = ky0; ky < ky1; ky++) for (i64 kx = kx0; kx < kx1; kx++) {{
      const i64 tap = ky * {} + kx;
      const {sum} v = X[((n * {} + yi + ky * {}) * {} + xi + kx * {}) * {channels} + i];
      {step}
    }}
",
        w.kernel, h.input, h.dilation, w.input, w.dilation
    );
    if *kind == Kind::Mean {
        let _ = writeln!(c, "    acc *= W[y * {} + x];", w.output);
    }
    let p = Points { body, width: 1 };
    let at = |l: usize| {
        let s = &body.loads[l].strides;
        (format!("p{l} + n * {} + y * {} + x * {} + i * {}", s[0], s[1], s[2], s[3]), 0usize.into(), false)
    };
    for node in 0..body.nodes.len() {
        p.node(node, &at, &|_| "acc".into(), &mut c);
    }
    for (k, (_, node)) in body.stores.iter().enumerate() {
        p.store(*node, &format!("q{k} + it"), &mut c);
    }
    each(&(n * &h.output * &w.output * *channels), "it", &head, &c)
}
