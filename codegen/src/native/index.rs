//! Kernels in which indices are computed: each element of the result says where it comes from ([`Points`]), or each
//! element of an operand where it goes ([`scatter`]).

use std::fmt::Write;

use super::{Extent, Source, space};

/// A result whose elements are computed one by one, over the variables `x0`, `x1` … of their position.
#[derive(Clone, PartialEq, Debug)]
pub struct Points {
    /// Extents of the result.
    pub dims: Vec<Extent>,
    /// C type of its elements.
    pub element: &'static str,
    /// Number of the argument that it is.
    pub out: usize,
    /// C statements before everything: pointers to operands, checks of extents.
    pub head: String,
    /// C statements for each row, which know all variables but the last, and `row`, the number of the row.
    pub row: String,
    /// C statements for each element.
    pub point: String,
    /// C expression of an element.
    pub value: String,
}

impl Points {
    /// The kernel.
    pub fn source(mut self) -> Source {
        if self.dims.is_empty() {
            self.dims.push(1usize.into());
        }
        let (width, outer) = (self.dims[self.dims.len() - 1].clone(), &self.dims[..self.dims.len() - 1]);
        let last = outer.len();
        let mut c = self.head;
        c.push_str("  for (i64 row = begin; row < end; row++) {\n");
        let steps = space::row_major(outer);
        for (axis, (d, step)) in outer.iter().zip(&steps).enumerate() {
            let _ = writeln!(c, "    const i64 x{axis} = row / {step} % {d};");
        }
        let _ = writeln!(c, "{}    PTR({t}) to = ARG({t}, {}) + row * {width};", self.row, self.out, t = self.element);
        let _ = writeln!(c, "    for (i64 x{last} = 0; x{last} < {width}; x{last}++) {{");
        let _ = writeln!(c, "{}      to[x{last}] = {};\n    }}\n  }}", self.point, self.value);
        let grain = (4096 / width.guess().max(1)).max(1) as i64;
        Source::new(c, outer.iter().product(), grain)
    }
}

/// The unsigned C type of elements of this many bytes.
pub fn word(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// C that declares `name` as the index `load` into an axis of `n` elements, from the end where it is negative. One out
/// of range ends the kernel with the status 1.
pub fn place(name: &str, load: &str, n: &Extent) -> String {
    format!("i64 {name} = {load}; if ({name} < 0) {name} += {n}; if ({name} < 0 || {name} >= {n}) return 1;\n")
}

/// The C expression of the offset of the element at these indices.
pub fn offset(indices: &[String], steps: &[Extent]) -> String {
    let term = |(i, s): (&String, &Extent)| if s.is(1) { format!("({i})") } else { format!("({i}) * {s}") };
    if indices.is_empty() { "0".into() } else { indices.iter().zip(steps).map(term).collect::<Vec<_>>().join(" + ") }
}

/// C that ends the kernel with the status 2 unless `a <= b`; nothing where that is known.
pub fn at_most(a: &Extent, b: &Extent) -> String {
    let known = a == b || a.number().zip(b.number()).is_some_and(|(a, b)| a <= b);
    if known { String::new() } else { format!("  if ({a} > {b}) return 2;\n") }
}

/// C that ends the kernel with the status 2 unless `a == b`; nothing where that is known.
pub fn equal(a: &Extent, b: &Extent) -> String {
    if a == b { String::new() } else { format!("  if ({a} != {b}) return 2;\n") }
}

/// Where the slices of an operand go.
#[derive(Clone, PartialEq, Debug)]
pub struct Scatter {
    /// C type of the elements.
    pub element: &'static str,
    /// Elements of the result.
    pub total: Extent,
    /// Slices, and elements of each.
    pub slices: Extent,
    /// Elements of a slice.
    pub inner: Extent,
    /// C statements before everything.
    pub head: String,
    /// C statements for the slice `i`, which declare its offset `at`.
    pub slice: String,
    /// C expression of an element from `a`, what is there, and `b`, what comes.
    pub combine: String,
}

/// Copies the first argument to the fourth, then writes the slices of the third into it, in their order.
pub fn scatter(s: Scatter) -> Source {
    let t = s.element;
    let mut c = s.head;
    let _ = writeln!(c, "  PTR(const {t}) x = ARG(const {t}, 0);");
    let _ = writeln!(c, "  PTR(const {t}) u = ARG(const {t}, 2);\n  PTR({t}) y = ARG({t}, 3);");
    let _ = writeln!(c, "  for (i64 i = 0; i < {}; i++) y[i] = x[i];", s.total);
    let _ = writeln!(c, "  for (i64 i = 0; i < {}; i++) {{\n{}", s.slices, s.slice);
    let _ = writeln!(c, "    for (i64 j = 0; j < {n}; j++) {{", n = s.inner);
    let _ = writeln!(c, "      const {t} a = y[at + j], b = u[i * {} + j];", s.inner);
    let _ = writeln!(c, "      y[at + j] = {};\n    }}\n  }}", s.combine);
    // One worker: slices may meet at one place.
    Source::new(c, 1usize.into(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use of_ir::Dim;

    #[test]
    fn checks_are_printed_where_they_are_not_known() {
        let (n, two, three) = (Extent::from(Dim::symbol("n")), Extent::from(2usize), Extent::from(3usize));
        assert_eq!((at_most(&two, &three), at_most(&n, &n), equal(&n, &n)), Default::default());
        assert_eq!(at_most(&n, &two), "  if ((0 + 1LL * s_n) > 2) return 2;\n");
        assert_eq!(offset(&["x0".into(), "k".into()], &[three, 1usize.into()]), "(x0) * 3 + (k)");
    }

    #[test]
    fn a_scalar_has_one_point() {
        let p = Points {
            dims: Vec::new(),
            element: "u32",
            out: 1,
            head: String::new(),
            row: String::new(),
            point: String::new(),
            value: "from[0]".into(),
        };
        let s = p.source();
        assert!(s.iterations.is(1) && s.body.contains("x0 < 1") && s.body.contains("to[x0] = from[0];"), "{}", s.body);
    }
}
