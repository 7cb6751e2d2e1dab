//! Reductions: their kind, and the axes that they reduce.

use of_ir::{Graph, OpId};
use of_ops::OpSpec;
use of_ops::reduction::{ReduceMax, ReduceMin, ReduceProd};

use crate::kernel::body::ReduceKind;

/// The reduction kind of the op with this name.
pub fn reduce_kind(name: &str) -> ReduceKind {
    match name {
        ReduceMax::NAME => ReduceKind::Max,
        ReduceMin::NAME => ReduceKind::Min,
        ReduceProd::NAME => ReduceKind::Prod,
        _ => ReduceKind::Sum,
    }
}

/// The axes that a reduction with constant axes reduces, sorted.
pub fn reduced_axes(g: &Graph, op: OpId, rank: usize) -> Vec<usize> {
    let data = g.op(op);
    let noop = data.attrs.typed::<bool>("noop_with_empty_axes").unwrap_or(false);
    let given = data.operands.get(1).and_then(|v| g.constant(*v)).and_then(|t| t.to_i64s()).unwrap_or_default();
    if given.is_empty() {
        return if noop { Vec::new() } else { (0..rank).collect() };
    }
    of_ops::shape::axes(&given, rank).unwrap_or_default()
}
