//! Sums of small gradients, one after another, so that the code generator makes one rendezvous of several.
//!
//! A rendezvous takes its latency however few bytes it moves, and a network has a bias or a scale for each of its large weights. A small sum
//! waits for others of its kind, until together they have so many bytes that sending them takes as long as the latency, or until an op
//! needs one of them. Large ones keep their places. So what comes last, when nothing is left to compute, takes at most twice the latency.

use std::collections::HashMap;

use of_ir::{DType, Graph};

use super::{Role, StepOps, layout_of, part_bytes};
use crate::Meshes;
use crate::layout::Layout;

/// What sums of one rendezvous have in common: the op, its axes, both layouts, and the element type.
type Kind<'g> = (&'g str, Vec<i64>, &'g Layout, &'g Layout, DType);

/// A sum that may share a rendezvous.
struct SmallSum<'g> {
    kind: Kind<'g>,
    bytes: f64,
}

/// The order of the ops of a step with small sums moved behind later ones, up to the next of their kind.
pub(super) fn gather_small_sums(step: &StepOps, g: &Graph, meshes: &Meshes, order: &[usize]) -> Vec<usize> {
    let most = meshes.ranks().latency_bytes();
    let small = |op: usize| small_sum(step, g, meshes, op).filter(|sum| sum.bytes <= most);
    let small: HashMap<usize, SmallSum<'_>> = order.iter().filter_map(|op| Some((*op, small(*op)?))).collect();
    let mut left: HashMap<&Kind<'_>, usize> = HashMap::new();
    small.values().for_each(|sum| *left.entry(&sum.kind).or_default() += 1);
    let mut out = Vec::with_capacity(order.len());
    let mut waiting: Vec<usize> = Vec::new();
    for op in order.iter().copied() {
        if step.needs[op].iter().any(|from| waiting.contains(from)) {
            out.append(&mut waiting);
        }
        let Some(sum) = small.get(&op) else {
            out.push(op);
            continue;
        };
        let held: f64 = waiting.iter().map(|own| small[own].bytes).sum();
        let is_next = waiting.first().is_none_or(|first| small[first].kind == sum.kind);
        if !is_next || held + sum.bytes > most {
            out.append(&mut waiting);
        }
        waiting.push(op);
        let left = left.entry(&sum.kind).or_default();
        *left -= 1;
        if *left == 0 {
            out.append(&mut waiting);
        }
    }
    out.append(&mut waiting);
    out
}

/// The sum of a gradient that an op makes, with its bytes on all devices that take part.
fn small_sum<'g>(step: &StepOps, g: &'g Graph, meshes: &Meshes, op: usize) -> Option<SmallSum<'g>> {
    let data = g.op(step.ops[op]);
    let is_sum = step.roles[op] == Role::Sum && step.is_transfer[op];
    let (from, to) = (*data.operands.first().filter(|_| is_sum)?, *data.results.first()?);
    let ((_, before), (_, after)) = layout_of(g, from).zip(layout_of(g, to))?;
    let axes = data.attrs.typed("axes").unwrap_or_default();
    let bytes = part_bytes(g, from, meshes).max(part_bytes(g, to, meshes));
    let ty = g.ty(to).as_tensor()?;
    ty.fixed_dims()?;
    Some(SmallSum { kind: (data.name(), axes, before, after, ty.dtype), bytes })
}
