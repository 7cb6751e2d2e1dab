//! Windows over `[N, H, W, C]`: a thread computes one element, or four adjacent channels.

use std::fmt::Write;

use of_ir::DType;

use crate::kernel::body::Body;
use crate::kernel::window::{Window, WindowKind};
use crate::print::cuda::launch::thread_per_index;
use crate::print::cuda::node_printer::{NodePrinter, VECTOR_WIDTH, pointers};
use crate::print::expr::ctype;
use crate::print::index::{mean_count, window_range};
use crate::print::{Source, expr};

/// The kernel; arguments are the input, the second argument where the kind has one, loads and stores of the epilogue,
/// whose space is `[N, H, W, C]`.
///
/// # Errors
/// For windows over groups of channels.
pub fn window(spec: &Window, body: &Body) -> Result<Source, String> {
    let Window { n, h, w, c: channels, kind, dtype } = spec;
    let (bytes, second) = (*dtype != DType::F32, usize::from(spec.has_weights()));
    let (t, sum) = (ctype(*dtype), if bytes { "i32" } else { "f32" });
    // Adjacent channels are contiguous.
    let width = if !bytes && channels.is_multiple_of(VECTOR_WIDTH) { VECTOR_WIDTH } else { 1 };
    let mut head = format!("  PTR(const {t}) X = ARG(const {t}, 0);\n");
    if second == 1 {
        let _ = writeln!(head, "  PTR(const {sum}) W = ARG(const {sum}, 1);");
    }
    pointers(body, 1 + second, &mut head);
    expr::scalar_constants(body, &mut head);
    let line = channels / width;
    let mut c = format!(
        "    const i64 i = it % {line} * {width}, x = it / {line} % {}, y = it / {} % {}, n = it / {};\n",
        w.output,
        &w.output * line,
        h.output,
        &h.output * &w.output * line
    );
    window_range("y", "ky", h, &mut c);
    window_range("x", "kx", w, &mut c);
    let start = match (kind, dtype) {
        (WindowKind::Max, DType::F32) => "-INF32",
        (WindowKind::Max, DType::I8) => "-128",
        _ => "0",
    };
    let lanes = |text: &dyn Fn(usize) -> String| (0..width).map(text).collect::<Vec<_>>().join(" ");
    // The elements that begin at an address, by number.
    let load = |name: &str, pointer: &str, at: String| match width {
        1 => format!("const {sum} {name}0 = {pointer}[{at}];"),
        _ => format!(
            "const Vec4<f32> {name} = load4({pointer} + {at}); {}",
            lanes(&|v| format!("const f32 {name}{v} = {name}.at[{v}];"))
        ),
    };
    let step = match kind {
        WindowKind::Max => lanes(&|v| format!("acc{v} = Max::of(acc{v}, v{v});")),
        WindowKind::Mean(_) => lanes(&|v| format!("acc{v} += v{v};")),
        // Four rows share a word. The corrections before them are only for unsigned byte multiplication.
        WindowKind::Depthwise if bytes => format!(
            "acc0 += v0 * (i8)(W[({} + ky / 4 * {} + kx) * {channels} + i] >> (8 * (ky % 4)));",
            i32::from(*dtype == DType::I8),
            w.kernel
        ),
        WindowKind::Grouped(_) => return Err("windows over groups of channels are for CPUs".into()),
        WindowKind::Depthwise => {
            let products = lanes(&|v| format!("acc{v} += v{v} * w{v};"));
            format!("{} {products}", load("w", "W", format!("tap * {channels} + i")))
        }
    };
    let at = format!(
        "((n * {} + yi + ky * {}) * {} + xi + kx * {}) * {channels} + i",
        h.input, h.dilation, w.input, w.dilation
    );
    let _ = write!(
        c,
        "    {sum} {};
    for (i64 ky = ky0; ky < ky1; ky++) for (i64 kx = kx0; kx < kx1; kx++) {{
      const i64 tap = ky * {} + kx;
      {}
      {step}
    }}
",
        (0..width).map(|v| format!("acc{v} = {start}")).collect::<Vec<_>>().join(", "),
        w.kernel,
        load("v", "X", at),
    );
    if let WindowKind::Mean(divisor) = *kind {
        let _ = writeln!(c, "    const f32 count = {};", mean_count(divisor, h, w, "x"));
        let _ = writeln!(c, "    {}", lanes(&|v| format!("acc{v} /= count;")));
    }
    let p = NodePrinter { body, width };
    let at = |l: usize| {
        let s = &body.loads[l].strides;
        let wide = s[3].is(1) && s[..3].iter().all(|s| s.is_multiple_of(VECTOR_WIDTH));
        (format!("p{l} + n * {} + y * {} + x * {} + i * {}", s[0], s[1], s[2], s[3]), s[3].clone(), wide)
    };
    for node in 0..body.nodes.len() {
        p.node(node, &at, &|v| format!("acc{v}"), &mut c);
    }
    for (k, (_, node)) in body.stores.iter().enumerate() {
        p.store(*node, &format!("q{k} + it * {width}"), &mut c);
    }
    Ok(thread_per_index(&(n * &h.output * &w.output * line), "it", &head, &c))
}
