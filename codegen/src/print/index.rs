//! Index arithmetic as expressions of the C family: offsets of accesses, checks of indices, ranges of window taps.

use std::fmt::Write;

use crate::kernel::attention::MatrixLayout;
use crate::kernel::extent::Extent;
use crate::kernel::window::{Divisor, WindowAxis};

/// A C expression for the offset of an access at the position `flat` (a C variable) of `dims`.
pub fn flat_offset(dims: &[Extent], strides: &[Extent], flat: &str) -> String {
    let mut terms = Vec::new();
    let mut below = Extent::from(1usize);
    for axis in (0..dims.len()).rev() {
        if !strides[axis].is(0) && !dims[axis].is(1) {
            let index = match (below.is(1), axis) {
                (true, 0) => flat.to_string(),
                (true, _) => format!("{flat} % {}", dims[axis]),
                (false, 0) => format!("{flat} / {below}"),
                (false, _) => format!("{flat} / {below} % {}", dims[axis]),
            };
            terms.push(if strides[axis].is(1) {
                format!("({index})")
            } else {
                format!("({index}) * {}", strides[axis])
            });
        }
        below = below * &dims[axis];
    }
    if terms.is_empty() { "0".into() } else { terms.join(" + ") }
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

/// C that declares `name` as the index `load` into an axis of `n` elements; negative indices count from the end. An index out of
/// range ends the kernel with status 1.
pub fn position(name: &str, load: &str, n: &Extent) -> String {
    format!("i64 {name} = {load}; if ({name} < 0) {name} += {n}; if ({name} < 0 || {name} >= {n}) return 1;\n")
}

/// The C expression of the offset of the element at these indices.
pub fn offset(indices: &[String], steps: &[Extent]) -> String {
    let term = |(i, s): (&String, &Extent)| if s.is(1) { format!("({i})") } else { format!("({i}) * {s}") };
    if indices.is_empty() { "0".into() } else { indices.iter().zip(steps).map(term).collect::<Vec<_>>().join(" + ") }
}

/// C that ends the kernel with status 2 unless `a <= b`; empty if statically known.
pub fn at_most(a: &Extent, b: &Extent) -> String {
    let known = a == b || a.number().zip(b.number()).is_some_and(|(a, b)| a <= b);
    if known { String::new() } else { format!("  if ({a} > {b}) return 2;\n") }
}

/// C that ends the kernel with status 2 unless `a == b`; empty if statically known.
pub fn equal(a: &Extent, b: &Extent) -> String {
    if a == b { String::new() } else { format!("  if ({a} != {b}) return 2;\n") }
}

/// The taps of the window at `at` that lie inside the input: `k0..k1`.
pub fn window_range(at: &str, k: &str, a: &WindowAxis, c: &mut String) {
    let _ = writeln!(c, "    const i64 {at}i = {at} * {} - {};", a.stride, a.pad);
    // The window begins at or after the first element, and ends before the last.
    let (before, reach) =
        (Extent::from(0usize) - &a.pad, (&a.output - 1usize) * a.stride + (a.kernel - 1) * a.dilation);
    if before.number().is_some() && (&a.input + &a.pad - reach - 1usize).number().is_some() {
        let _ = writeln!(c, "    const i64 {k}0 = 0, {k}1 = {};", a.kernel);
        return;
    }
    let d = a.dilation as i64;
    let _ = writeln!(c, "    const i64 {k}0 = {at}i < 0 ? (-{at}i + {}) / {d} : 0;", d - 1);
    let _ = writeln!(
        c,
        "    const i64 {k}e = {at}i >= {0} ? 0 : ({0} - 1 - {at}i) / {d} + 1, {k}1 = {k}e < {1} ? {k}e : {1};",
        a.input, a.kernel
    );
}

/// C expression of the number of taps of the window at `at` that lie inside the input and its padding.
pub fn padded_taps(at: &str, a: &WindowAxis) -> String {
    let inside = &a.input + &a.pad + &a.pad_end;
    format!("dim_min({}, dim_ceildiv({inside} - {at} * {}, {}))", a.kernel, a.stride, a.dilation)
}

/// C expression of the divisor of a mean: the number of elements of the window at `(y, x)` that it counts, and 1 where there
/// are none, since their sum is 0. The taps inside the input are `ky0..ky1` and `kx0..kx1`.
pub fn mean_count(divisor: Divisor, h: &WindowAxis, w: &WindowAxis, x: &str) -> String {
    let (lines, columns) = match divisor {
        Divisor::Window => return format!("(float){}", h.kernel * w.kernel),
        Divisor::Inside => ("(ky1 - ky0)".to_string(), "(kx1 - kx0)".to_string()),
        Divisor::Padded => (padded_taps("y", h), padded_taps(x, w)),
    };
    format!("({lines} > 0 && {columns} > 0 ? (float)({lines} * {columns}) : 1.0f)")
}

/// C expression of the offset of the batch `batch` (a C variable) of an operand.
pub fn batch_start(layout: &MatrixLayout) -> String {
    let (dims, strides): (Vec<Extent>, Vec<Extent>) = layout.batch.iter().cloned().unzip();
    format!("{} + {}", layout.offset, flat_offset(&dims, &strides, "batch"))
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
    fn flat_offsets_are_printed() {
        let list = |n: &[i64]| n.iter().map(|n| (*n).into()).collect::<Vec<Extent>>();
        assert_eq!(flat_offset(&list(&[2, 3, 4]), &list(&[1, 0, 6]), "p"), "(p % 4) * 6 + (p / 12)");
        assert_eq!(flat_offset(&list(&[5]), &list(&[1]), "p"), "(p)");
    }
}
