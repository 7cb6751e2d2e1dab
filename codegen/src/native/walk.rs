//! Kernels that walk along one axis: the place of the largest element, running sums, the k largest.

use std::fmt::Write;

use super::{Extent, Source};

/// A tensor seen as `[outer, n, inner]`, whose middle axis is walked.
pub struct Axis {
    /// Product of the extents before it.
    pub outer: Extent,
    /// Its extent.
    pub n: Extent,
    /// Product of the extents after it.
    pub inner: Extent,
}

impl Axis {
    /// The axis number `axis` of a tensor of these extents.
    pub fn of(dims: &[Extent], axis: usize) -> Axis {
        Axis { outer: dims[..axis].iter().product(), n: dims[axis].clone(), inner: dims[axis + 1..].iter().product() }
    }

    /// A kernel whose `body` walks the axis once: it knows `o` and `i`, the position beside the axis, and `p`, which
    /// points to the first element.
    fn walk(&self, element: &str, body: &str) -> Source {
        let Axis { outer, n, inner } = self;
        let mut c = String::from("  for (i64 it = begin; it < end; it++) {\n");
        let _ = writeln!(c, "    const i64 o = it / {inner}, i = it % {inner};");
        let _ = writeln!(c, "    const {element} *p = (const {element} *)args[0] + o * {n} * {inner} + i;\n{body}  }}");
        let grain = (4096 / n.guess().max(1)).max(1) as i64;
        Source { body: c, iterations: outer * inner, grain, scratch_bytes: 0 }
    }
}

/// The index of the best element, the first or the last of equal ones. NaN is better than any number. Arguments are the
/// tensor and the indices.
pub fn arg(axis: &Axis, element: &str, largest: bool, last: bool) -> Source {
    let Axis { n, inner, .. } = axis;
    let (better, equal) = (if largest { ">" } else { "<" }, if last { " || a == b" } else { "" });
    let body = format!(
        "    i64 best = 0;
    for (i64 k = 1; k < {n}; k++) {{
      const {element} a = p[k * {inner}], b = p[best * {inner}];
      if (a {better} b || (a != a && b == b){equal}) best = k;
    }}
    ((i64 *)args[1])[it] = best;
"
    );
    let mut source = axis.walk(element, &body);
    // Nothing has no best element.
    source.body.insert_str(0, &format!("  if ({n} < 1) return 2;\n"));
    source
}

/// Running sums, in the C type `sum`. Arguments are the tensor and the sums.
pub fn cumulate(axis: &Axis, element: &str, sum: &str, exclusive: bool, reverse: bool) -> Source {
    let Axis { n, inner, .. } = axis;
    let at = if reverse { format!("{n} - 1 - k") } else { "k".into() };
    let store = format!("q[at] = ({element})sum;");
    let (before, after) = if exclusive { (store.as_str(), "") } else { ("", store.as_str()) };
    let body = format!(
        "    {element} *q = ({element} *)args[1] + o * {n} * {inner} + i;
    {sum} sum = 0;
    for (i64 k = 0; k < {n}; k++) {{
      const i64 at = ({at}) * {inner};
      const {sum} own = ({sum})p[at];
      {before} sum += own; {after}
    }}
"
    );
    axis.walk(element, &body)
}

/// The `k` first elements in order and their indices; `key` is a C expression of an i64 that is larger for what comes
/// first, of the element `e`. Arguments are the tensor, the elements and the indices.
pub fn top(axis: &Axis, element: &str, k: &Extent, key: &str) -> Source {
    let Axis { n, inner, .. } = axis;
    // Places are kept in order in the result; an element that is before the last of them moves up.
    let body = format!(
        "    {element} *q = ({element} *)args[1] + o * {k} * {inner} + i;
    i64 *r = (i64 *)args[2] + o * {k} * {inner} + i;
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
    );
    let mut source = axis.walk(element, &body);
    source.body.insert_str(0, &format!("  if ({k} < 1 || {k} > {n}) return {k} == 0 ? 0 : 2;\n"));
    source
}
