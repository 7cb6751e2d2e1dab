//! The epilogue of a contraction: what is computed from a sum, and stored.

use std::fmt::Write;

use crate::kernel::body::Body;
use crate::kernel::contraction::{AccessStrides, Contraction};
use crate::print::cuda::node_printer::NodePrinter;
use crate::print::index;

/// The epilogue of `sum`, the element of row `r` and column `n`; skipped beyond the result.
pub fn epilogue(
    spec: &Contraction,
    body: &Body,
    load_strides: &[AccessStrides],
    to: &AccessStrides,
    sum: &str,
    c: &mut String,
) {
    let inner = &spec.inner.0;
    let _ = writeln!(c, "      if (r >= {} || n >= {}) continue;", &spec.outer.0 * inner, spec.columns);
    let _ = writeln!(c, "      const i64 o = r / {inner}, m = r % {inner};");
    let offset = |w: &AccessStrides| {
        let batch = index::flat_offset(&spec.batch, &w.batch, "batch");
        format!("({batch}) + o * {} + m * {} + n * {}", w.outer, w.inner, w.column)
    };
    let p = NodePrinter { body, width: 1 };
    let at = |l: usize| (format!("p{l} + {}", offset(&load_strides[l])), 0usize.into(), false);
    for node in 0..body.nodes.len() {
        p.node(node, &at, &|_| sum.into(), c);
    }
    for (s, (_, node)) in body.stores.iter().enumerate() {
        p.store(*node, &format!("q{s} + {}", offset(to)), c);
    }
}
