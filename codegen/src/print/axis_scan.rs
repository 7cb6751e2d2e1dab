//! [`AxisScan`] kernels as statements of the C family.

use std::fmt::Write;

use of_ir::DType;

use crate::kernel::axis_scan::{AxisScan, AxisScanKind, ScanAxis};
use crate::kernel::body::ReduceKind;
use crate::kernel::extent::Extent;
use crate::print::expr::{ctype, int_literal};

/// C statements before the loops: checks of extents.
pub fn head(scan: &AxisScan) -> String {
    let n = &scan.axis.n;
    match &scan.kind {
        // An empty axis has no extremum.
        AxisScanKind::ArgExtremum { .. } => format!("  if ({n} < 1) return 2;\n"),
        AxisScanKind::TopK { k, .. } => format!("  if ({k} < 1 || {k} > {n}) return {k} == 0 ? 0 : 2;\n"),
        AxisScanKind::CumulativeSum { .. } | AxisScanKind::Reduce(_) => String::new(),
    }
}

/// C that declares the variables of [`body`]: `o` and `i`, the positions before and after the axis, and `p`, which points to the
/// first element; `it` is the index of the position.
pub fn position(scan: &AxisScan) -> String {
    let (ScanAxis { n, inner, .. }, element) = (&scan.axis, ctype(scan.dtype));
    let mut c = format!("    const i64 o = it / {inner}, i = it % {inner};\n");
    let _ = writeln!(c, "    PTR(const {element}) p = ARG(const {element}, 0) + o * {n} * {inner} + i;");
    c
}

/// C statements that scan the axis once.
pub fn body(scan: &AxisScan) -> String {
    match &scan.kind {
        AxisScanKind::ArgExtremum { largest, last } => arg_extremum(scan, *largest, *last),
        AxisScanKind::CumulativeSum { exclusive, reverse } => cumulative_sum(scan, *exclusive, *reverse),
        AxisScanKind::Reduce(kind) => fold(scan, *kind),
        AxisScanKind::TopK { k, largest } => top_k(scan, k, *largest),
    }
}

fn arg_extremum(scan: &AxisScan, largest: bool, last: bool) -> String {
    let (ScanAxis { n, inner, .. }, element) = (&scan.axis, ctype(scan.dtype));
    let (better, equal) = (if largest { ">" } else { "<" }, if last { " || a == b" } else { "" });
    format!(
        "    i64 best = 0;
    for (i64 k = 1; k < {n}; k++) {{
      const {element} a = p[k * {inner}], b = p[best * {inner}];
      if (a {better} b || (a != a && b == b){equal}) best = k;
    }}
    ARG(i64, 1)[it] = best;
"
    )
}

fn cumulative_sum(scan: &AxisScan, exclusive: bool, reverse: bool) -> String {
    let (ScanAxis { n, inner, .. }, element) = (&scan.axis, ctype(scan.dtype));
    let sum = if scan.dtype.is_float() { "f64" } else { "u64" };
    let at = if reverse { format!("{n} - 1 - k") } else { "k".into() };
    let store = format!("q[at] = ({element})sum;");
    let (before, after) = if exclusive { (store.as_str(), "") } else { ("", store.as_str()) };
    format!(
        "    PTR({element}) q = ARG({element}, 1) + o * {n} * {inner} + i;
    {sum} sum = 0;
    for (i64 k = 0; k < {n}; k++) {{
      const i64 at = ({at}) * {inner};
      const {sum} own = ({sum})p[at];
      {before} sum += own; {after}
    }}
"
    )
}

fn fold(scan: &AxisScan, kind: ReduceKind) -> String {
    let (ScanAxis { n, inner, .. }, element) = (&scan.axis, ctype(scan.dtype));
    let (low, high) = scan.dtype.int_range().unwrap_or_default();
    // Sums and products wrap; 64-bit ones hold those of every type.
    let (sum, first, combine) = match kind {
        ReduceKind::Max => (element, int_literal(low), "b > a ? b : a"),
        ReduceKind::Min => (element, int_literal(high), "b < a ? b : a"),
        ReduceKind::Prod => ("u64", "1".into(), "a * b"),
        ReduceKind::Sum => ("u64", "0".into(), "a + b"),
    };
    format!(
        "    {sum} a = {first};
    for (i64 k = 0; k < {n}; k++) {{ const {sum} b = ({sum})p[k * {inner}]; a = {combine}; }}
    ARG({element}, 1)[it] = ({element})a;
"
    )
}

fn top_k(scan: &AxisScan, k: &Extent, largest: bool) -> String {
    let (ScanAxis { n, inner, .. }, element) = (&scan.axis, ctype(scan.dtype));
    // An i64 key of the element `e` that is larger for elements that come first.
    let key = match scan.dtype {
        DType::F32 => "order32(e)",
        DType::F64 => "order64(e)",
        DType::U64 => "(i64)(e ^ 0x8000000000000000ULL)",
        _ => "(i64)e",
    };
    // The complement reverses the order, including that of the smallest number.
    let key = if largest { key.to_string() } else { format!("(~{key})") };
    // The result holds the positions in order; insertion moves an element up past later ones.
    format!(
        "    PTR({element}) q = ARG({element}, 1) + o * {k} * {inner} + i;
    PTR(i64) r = ARG(i64, 2) + o * {k} * {inner} + i;
    i64 held = 0, worst = 0;
    for (i64 j = 0; j < {n}; j++) {{
      const {element} own = p[j * {inner}];
      i64 mine; {{ const {element} e = own; mine = {key}; }}
      if (held == {k} && mine <= worst) continue;
      i64 at = held < {k} ? held++ : held - 1;
      for (; at > 0; at--) {{
        const {element} e = q[(at - 1) * {inner}];
        if ({key} >= mine) break;
        q[at * {inner}] = e; r[at * {inner}] = r[(at - 1) * {inner}];
      }}
      q[at * {inner}] = own; r[at * {inner}] = j;
      const {element} e = q[(held - 1) * {inner}];
      worst = {key};
    }}
"
    )
}
