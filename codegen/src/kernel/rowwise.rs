//! Stages of a row-wise program: each stage iterates over the row once, and a reduction ends a stage.
//!
//! Values needed in later stages are saved if they are expensive to compute, else recomputed.

use std::collections::BTreeSet;

use of_ops::scalar::ScalarOp;

use crate::kernel::body::{Body, Node};
use crate::kernel::float;

/// The stage in which each node is computed; a reduction's value is available in the next.
pub fn stages(body: &Body) -> Vec<usize> {
    let mut out: Vec<usize> = Vec::with_capacity(body.nodes.len());
    for t in &body.nodes {
        let ready = |a: usize, out: &[usize]| out[a] + usize::from(matches!(body.nodes[a].node, Node::Reduce(..)));
        let s = match &t.node {
            Node::Load(_) | Node::Const(_) | Node::Anchor => 0,
            Node::Op(_, args) => args.iter().map(|a| ready(*a, &out)).max().unwrap_or(0),
            Node::Reduce(_, a) => ready(*a, &out),
        };
        out.push(s);
    }
    out
}

/// Nodes whose values are saved for later stages.
pub fn saved(body: &Body, stages: &[usize]) -> Vec<usize> {
    let mut out = BTreeSet::new();
    for (i, t) in body.nodes.iter().enumerate() {
        let used_later = body.nodes.iter().enumerate().any(|(j, u)| match &u.node {
            Node::Op(_, args) => args.contains(&i) && stages[j] > stages[i],
            Node::Reduce(_, a) => *a == i && stages[j] > stages[i],
            _ => false,
        });
        if used_later && !t.per_row && float::is_float(t.dtype) && is_expensive(body, i, stages[i], stages) {
            out.insert(i);
        }
    }
    out.into_iter().collect()
}

/// Whether recomputing node `i` in a later stage costs more than loading it.
fn is_expensive(body: &Body, i: usize, stage: usize, stages: &[usize]) -> bool {
    use ScalarOp::*;
    match &body.nodes[i].node {
        Node::Op(op, args) => {
            matches!(op, Exp | Log | Tanh | Erf | Sigmoid | Sin | Cos | Sqrt | Rsqrt | Div | Reciprocal)
                || args
                    .iter()
                    .any(|a| !body.nodes[*a].per_row && stages[*a] == stage && is_expensive(body, *a, stage, stages))
        }
        _ => false,
    }
}

/// Adds the nodes that the loop of `stage` must compute at each point to provide `node`; `saved` nodes are not recomputed.
pub fn needed_nodes(
    body: &Body,
    stages: &[usize],
    saved: &[usize],
    node: usize,
    stage: usize,
    out: &mut BTreeSet<usize>,
) {
    let t = &body.nodes[node];
    if t.per_row || matches!(t.node, Node::Const(_)) || !out.insert(node) {
        return;
    }
    if saved.contains(&node) && stages[node] < stage {
        return;
    }
    if let Node::Op(_, args) = &t.node {
        args.iter().for_each(|a| needed_nodes(body, stages, saved, *a, stage, out));
    }
}
