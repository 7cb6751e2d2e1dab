//! The gradient of a depthwise convolution for its weights on a GPU: a thread for each channel and element of the kernel, in each part of
//! the lines.

use std::fmt::Write;

use crate::kernel::depthwise_weight_gradient::DepthwiseWeightGradient;
use crate::print::index::equal;
use crate::print::indexed::ElementText;

/// The kernel, as a result whose elements are computed one by one.
pub fn element_text(spec: &DepthwiseWeightGradient) -> ElementText {
    let (h, w, channels, lines) = (&spec.h, &spec.w, &spec.c, spec.lines());
    let each = lines.div_ceil(&spec.parts.into());
    let mut p = String::from("      f32 sum = 0;\n");
    let _ = writeln!(p, "      const i64 ky = x1 / {0} * {1}, kx = x1 % {0} * {2};", w.kernel, h.dilation, w.dilation);
    let _ = writeln!(p, "      for (i64 line = x0 * {each}; line < dim_min((x0 + 1) * {each}, {lines}); line++) {{");
    let _ = writeln!(p, "      const i64 n = line / {0}, y = line % {0} * {1} - {2} + ky;", h.output, h.stride, h.pad);
    let _ = writeln!(p, "      if (y < 0 || y >= {}) continue;", h.input);
    let _ = writeln!(p, "      for (i64 i = 0; i < {}; i++) {{", w.output);
    let _ = writeln!(p, "      const i64 x = i * {} - {} + kx;", w.stride, w.pad);
    let _ = writeln!(p, "      if (x < 0 || x >= {}) continue;", w.input);
    let _ = writeln!(
        p,
        "      sum += from[((n * {} + y) * {} + x) * {channels} + x2] * grads[(line * {} + i) * {channels} + x2];\n      }} }}",
        h.input, w.input, w.output
    );
    let dims = vec![spec.parts.into(), spec.taps().into(), channels.clone()];
    let checks: String = spec.gradient.iter().map(|(own, result)| equal(own, result)).collect();
    let head =
        format!("{checks}  PTR(const f32) from = ARG(const f32, 0);\n  PTR(const f32) grads = ARG(const f32, 1);\n");
    ElementText { dims, element: "f32", out: 2, head, row: String::new(), point: p, value: "sum".into() }
}
