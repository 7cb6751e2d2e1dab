//! Kernels whose indices are computed or read from memory, in C: a row of the result is an iteration.

use std::fmt::Write;

use crate::kernel::indexed::{Indexed, Scatter};
use crate::kernel::space;
use crate::print::indexed::{self, ElementText};
use crate::print::source::Source;

/// The kernel of a result whose elements are computed one by one.
pub fn indexed(kernel: &Indexed) -> Source {
    rows(indexed::element_text(kernel))
}

fn rows(mut p: ElementText) -> Source {
    if p.dims.is_empty() {
        p.dims.push(1usize.into());
    }
    let (width, outer) = (p.dims[p.dims.len() - 1].clone(), &p.dims[..p.dims.len() - 1]);
    let last = outer.len();
    let mut c = p.head;
    c.push_str("  for (i64 row = begin; row < end; row++) {\n");
    let steps = space::row_major(outer);
    for (axis, (d, step)) in outer.iter().zip(&steps).enumerate() {
        let _ = writeln!(c, "    const i64 x{axis} = row / {step} % {d};");
    }
    let _ = writeln!(c, "{}    PTR({t}) to = ARG({t}, {}) + row * {width};", p.row, p.out, t = p.element);
    let _ = writeln!(c, "    for (i64 x{last} = 0; x{last} < {width}; x{last}++) {{");
    let _ = writeln!(c, "{}      to[x{last}] = {};\n    }}\n  }}", p.point, p.value);
    let grain = (4096 / width.size_hint().max(1)).max(1) as i64;
    Source::new(c, outer.iter().product(), grain)
}

/// Copies the first argument to the fourth, unless they are one, then writes the slices of the third into it, in their order.
pub fn scatter(s: &Scatter) -> Source {
    let text = indexed::scatter(s);
    let (t, inner) = (text.element, s.inner());
    let mut c = text.head;
    let _ = writeln!(c, "  PTR(const {t}) x = ARG(const {t}, 0);");
    let _ = writeln!(c, "  PTR(const {t}) u = ARG(const {t}, 2);\n  PTR({t}) y = ARG({t}, 3);");
    let _ = writeln!(c, "  if ((u64)x != (u64)y) for (i64 i = 0; i < {}; i++) y[i] = x[i];", s.total());
    let _ = writeln!(c, "  for (i64 i = 0; i < {}; i++) {{\n{}", s.slices(), text.slice);
    let _ = writeln!(c, "    for (i64 j = 0; j < {n}; j++) {{", n = inner);
    let _ = writeln!(c, "      const {t} a = y[at + j], b = u[i * {} + j];", inner);
    let _ = writeln!(c, "      y[at + j] = {};\n    }}\n  }}", text.combine);
    // One worker: slices may overlap.
    Source::new(c, 1usize.into(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_has_one_point() {
        let p = ElementText {
            dims: Vec::new(),
            element: "u32",
            out: 1,
            head: String::new(),
            row: String::new(),
            point: String::new(),
            value: "from[0]".into(),
        };
        let s = rows(p);
        assert!(s.iterations.is(1) && s.body.contains("x0 < 1") && s.body.contains("to[x0] = from[0];"), "{}", s.body);
    }
}
