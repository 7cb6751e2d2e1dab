//! Kernels that walk along one axis: the place of the largest element, sums and running sums, the k
//! largest.

use std::fmt::Write;

use super::{Extent, Source};

/// A tensor seen as `[outer, n, inner]`, whose middle axis is walked.
#[derive(Clone, PartialEq, Debug)]
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

    fn walk(&self, element: &str, head: String, body: String) -> Walk {
        Walk { axis: self.clone(), element: element.to_string(), head, body }
    }
}

/// A walk along one axis, for each position beside it.
#[derive(Clone, PartialEq, Debug)]
pub struct Walk {
    /// The axis.
    pub axis: Axis,
    /// C type of the elements of the first argument.
    pub element: String,
    /// C statements before everything.
    pub head: String,
    /// C statements that walk the axis once: they know `o` and `i`, the position beside the axis, `it`, its number, and
    /// `p`, which points to the first element.
    pub body: String,
}

impl Walk {
    /// The kernel.
    pub fn source(&self) -> Source {
        let Walk { axis: Axis { outer, n, inner }, .. } = self;
        let mut c = self.head.clone();
        c.push_str("  for (i64 it = begin; it < end; it++) {\n");
        c.push_str(&self.position());
        let _ = writeln!(c, "{}  }}", self.body);
        let grain = (4096 / n.guess().max(1)).max(1) as i64;
        Source::new(c, outer * inner, grain)
    }

    /// C that declares what [`Walk::body`] knows.
    pub fn position(&self) -> String {
        let Walk { axis: Axis { n, inner, .. }, element, .. } = self;
        let mut c = format!("    const i64 o = it / {inner}, i = it % {inner};\n");
        let _ = writeln!(c, "    PTR(const {element}) p = ARG(const {element}, 0) + o * {n} * {inner} + i;");
        c
    }
}

/// The index of the best element, the first or the last of equal ones. NaN is better than any number. Arguments are the
/// tensor and the indices.
pub fn arg(axis: &Axis, element: &str, largest: bool, last: bool) -> Walk {
    let Axis { n, inner, .. } = axis;
    let (better, equal) = (if largest { ">" } else { "<" }, if last { " || a == b" } else { "" });
    let body = format!(
        "    i64 best = 0;
    for (i64 k = 1; k < {n}; k++) {{
      const {element} a = p[k * {inner}], b = p[best * {inner}];
      if (a {better} b || (a != a && b == b){equal}) best = k;
    }}
    ARG(i64, 1)[it] = best;
"
    );
    // Nothing has no best element.
    axis.walk(element, format!("  if ({n} < 1) return 2;\n"), body)
}

/// Running sums, in the C type `sum`. Arguments are the tensor and the sums.
pub fn cumulate(axis: &Axis, element: &str, sum: &str, exclusive: bool, reverse: bool) -> Walk {
    let Axis { n, inner, .. } = axis;
    let at = if reverse { format!("{n} - 1 - k") } else { "k".into() };
    let store = format!("q[at] = ({element})sum;");
    let (before, after) = if exclusive { (store.as_str(), "") } else { ("", store.as_str()) };
    let body = format!(
        "    PTR({element}) q = ARG({element}, 1) + o * {n} * {inner} + i;
    {sum} sum = 0;
    for (i64 k = 0; k < {n}; k++) {{
      const i64 at = ({at}) * {inner};
      const {sum} own = ({sum})p[at];
      {before} sum += own; {after}
    }}
"
    );
    axis.walk(element, String::new(), body)
}

/// All elements of the axis combined, in the C type `sum`: `first`, then the C expression `combine` of what there is, `a`,
/// and what comes, `b`. Arguments are the tensor and the results.
pub fn fold(axis: &Axis, element: &str, sum: &str, first: &str, combine: &str) -> Walk {
    let Axis { n, inner, .. } = axis;
    let body = format!(
        "    {sum} a = {first};
    for (i64 k = 0; k < {n}; k++) {{ const {sum} b = ({sum})p[k * {inner}]; a = {combine}; }}
    ARG({element}, 1)[it] = ({element})a;
"
    );
    axis.walk(element, String::new(), body)
}

/// The `k` first elements in order and their indices; `key` is a C expression of an i64 that is larger for what comes
/// first, of the element `e`. Arguments are the tensor, the elements and the indices.
pub fn top(axis: &Axis, element: &str, k: &Extent, key: &str) -> Walk {
    let Axis { n, inner, .. } = axis;
    // Places are kept in order in the result; an element that is before the last of them moves up.
    let body = format!(
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
    );
    axis.walk(element, format!("  if ({k} < 1 || {k} > {n}) return {k} == 0 ? 0 : 2;\n"), body)
}
