//! The gradient of a max pool on a GPU: a thread for each element of the image, which looks for the maxima of the windows that it is in,
//! so that the order of sums is always the same.

use std::fmt::Write;

use crate::kernel::extent::Extent;
use crate::kernel::max_pool_gradient::MaxPoolGradient;
use crate::print::index::{equal, offset};
use crate::print::indexed::ElementText;

/// The kernel, as a result whose elements are computed one by one.
pub fn element_text(spec: &MaxPoolGradient) -> ElementText {
    let (axes, steps) = (0..spec.windows.len(), spec.steps());
    let channel = format!("x{}", spec.windows.len() + 1);
    let names = |prefix: &str| axes.clone().map(|a| format!("{prefix}{a}")).collect::<Vec<_>>();
    let mut p = String::from("      f32 sum = 0;\n");
    let _ = writeln!(p, "      PTR(const f32) image = from + x0 * {} + {channel};", spec.sample());
    let _ = writeln!(p, "      PTR(const f32) grads = ARG(const f32, 1) + x0 * {} + {channel};", spec.result_sample());
    let own: Vec<String> = axes.clone().map(|a| format!("x{}", a + 1)).collect();
    let _ = writeln!(p, "      const i64 own = {};", offset(&own, &steps));
    // Windows in ascending order: those in which the element comes later come first.
    for (a, w) in spec.windows.iter().enumerate() {
        let (last, stride) = (w.kernel - 1, w.stride);
        let _ = writeln!(p, "      for (i64 k{a} = {last}; k{a} >= 0; k{a}--) {{");
        let _ = writeln!(
            p,
            "      const i64 w{a} = x{} + {} - k{a} * {}, y{a} = w{a} / {stride};",
            a + 1,
            w.pad,
            w.dilation
        );
        let _ = writeln!(p, "      if (w{a} < 0 || w{a} % {stride} != 0 || y{a} >= {}) continue;", w.output);
    }
    p.push_str("      i64 found = -1; f32 top = 0;\n");
    for (a, w) in spec.windows.iter().enumerate() {
        let _ = writeln!(p, "      for (i64 t{a} = 0; t{a} < {}; t{a}++) {{", w.kernel);
        let _ = writeln!(p, "      const i64 p{a} = w{a} - {} + t{a} * {};", w.pad, w.dilation);
        let _ = writeln!(p, "      if (p{a} < 0 || p{a} >= {}) continue;", w.input);
    }
    let _ = writeln!(p, "      const i64 place = {};", offset(&names("p"), &steps));
    p.push_str("      const f32 x = image[place];\n");
    p.push_str("      if (found < 0 || (!(x <= top) && top == top)) { found = place; top = x; }\n");
    let _ = writeln!(p, "      {}", "}".repeat(axes.len()));
    let _ = writeln!(p, "      if (found == own) sum += grads[{}];", offset(&names("y"), &spec.result_steps()));
    let _ = writeln!(p, "      {}", "}".repeat(axes.len()));
    let inputs = spec.windows.iter().map(|w| w.input.clone());
    let dims: Vec<Extent> = std::iter::once(spec.n.clone()).chain(inputs).chain([spec.c.clone()]).collect();
    let checks: String = spec.gradient.iter().map(|(own, result)| equal(own, result)).collect();
    let head = format!("{checks}  PTR(const f32) from = ARG(const f32, 0);\n");
    ElementText { dims, element: "f32", out: 2, head, row: String::new(), point: p, value: "sum".into() }
}
