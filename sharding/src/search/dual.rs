//! Lower bound by dual message passing (TRW-S), and labels that come close to it.
//!
//! Sequential tree-reweighted message passing: Kolmogorov, "Convergent tree-reweighted message passing for energy
//! minimization", IEEE PAMI 28 (2006). Passes visit the nodes forward and backward. Each node passes its share of the
//! costs to the neighbours that follow. The bound never decreases.

use std::collections::HashMap;
use std::ops::Range;

use super::problem::{Edge, Matrix, MatrixId, Problem};

/// The result of message passing.
pub struct Dual {
    /// Lower bound of the cost.
    pub bound: f64,
    /// Labels, one per node of the problem.
    pub labels: Vec<usize>,
    /// Their cost.
    pub cost: f64,
    /// The messages to the ends of edges.
    pub messages: Messages,
}

/// For each edge the message to its `a`, by row of the matrix, and to its `b`, by column. They are stored one after
/// another in the order in which they are read.
#[derive(Clone, Default)]
pub struct Messages {
    values: Vec<f64>,
    /// Start of each message: for each edge that to its `a`, then that to its `b`; and the end of all.
    starts: Vec<usize>,
}

impl Messages {
    /// Zero messages.
    fn new(problem: &Problem) -> Messages {
        let mut starts = vec![0];
        let mut end = 0;
        for e in &problem.edges {
            let m = problem.interner.matrix(e.matrix);
            for n in [m.rows, m.cols] {
                end += n;
                starts.push(end);
            }
        }
        Messages { values: vec![0.0; end], starts }
    }

    fn range(&self, edge: usize, end: usize) -> Range<usize> {
        let at = 2 * edge + end;
        self.starts[at]..self.starts[at + 1]
    }

    /// The message to an end of an edge: 0 for its `a`, 1 for its `b`.
    pub fn message(&self, edge: usize, end: usize) -> &[f64] {
        &self.values[self.range(edge, end)]
    }

    fn message_mut(&mut self, edge: usize, end: usize) -> &mut [f64] {
        let range = self.range(edge, end);
        &mut self.values[range]
    }
}

/// Rounds without progress after which it stops.
const PATIENCE: usize = 12;

/// Bounds the cost of the nodes `alive` and their edges. It stops when cost and bound differ by less than `gap` of the
/// cost, after `rounds`, or when neither improves.
pub fn dual(problem: &Problem, alive: &[bool], constant: f64, gap: f64, rounds: usize) -> Dual {
    let nodes: Vec<usize> = (0..problem.nodes.len()).filter(|i| alive[*i]).collect();
    let t = &problem.interner;
    // The edges of each node, and which end of the edge it is.
    let mut ends: Vec<Vec<(usize, usize)>> = vec![Vec::new(); problem.nodes.len()];
    for (i, e) in problem.edges.iter().enumerate() {
        ends[e.a].push((i, 0));
        ends[e.b].push((i, 1));
    }
    let mut transposed = HashMap::new();
    for e in &problem.edges {
        transposed.entry(e.matrix).or_insert_with(|| t.matrix(e.matrix).transposed());
    }
    let labels = vec![0; problem.nodes.len()];
    let messages = Messages::new(problem);
    let mut p = MessagePassing { problem, ends, transposed, labels: labels.clone(), messages, own: Vec::new() };
    let mut best = Dual { bound: f64::NEG_INFINITY, labels, cost: f64::INFINITY, messages: Messages::default() };
    let mut stale = 0;
    for _ in 0..rounds.max(1) {
        p.pass(nodes.iter().copied(), true);
        p.improve(&nodes);
        let cost = constant + p.cost(&nodes);
        let bound = constant + p.pass(nodes.iter().rev().copied(), false);
        let moved = bound > best.bound + 1e-4 * gap.max(1e-6) * cost.abs() || cost < best.cost;
        stale = if moved { 0 } else { stale + 1 };
        if cost < best.cost {
            (best.cost, best.labels) = (cost, p.labels.clone());
        }
        best.bound = best.bound.max(bound).min(best.cost);
        let close = best.cost.is_finite() && best.cost - best.bound <= gap * best.cost.abs();
        if close || stale >= PATIENCE {
            break;
        }
    }
    best.messages = p.messages;
    best
}

struct MessagePassing<'p> {
    problem: &'p Problem,
    /// The edges of each node, and which end it is.
    ends: Vec<Vec<(usize, usize)>>,
    /// Every matrix transposed, so that both directions read rows.
    transposed: HashMap<MatrixId, Matrix>,
    labels: Vec<usize>,
    messages: Messages,
    /// Buffer of [`MessagePassing::send`].
    own: Vec<f64>,
}

impl MessagePassing<'_> {
    fn other(e: &Edge, end: usize) -> usize {
        if end == 0 { e.b } else { e.a }
    }

    /// The row or column of each label of the end's node.
    fn indices(&self, e: &Edge, end: usize) -> &[u32] {
        self.problem.interner.indices(if end == 0 { e.row } else { e.col })
    }

    /// One pass over the nodes. A forward pass also chooses labels; a backward pass returns the bound.
    fn pass(&mut self, nodes: impl Iterator<Item = usize>, forward: bool) -> f64 {
        let mut bound = 0.0;
        let mut costs = Vec::new();
        for i in nodes {
            let ends = std::mem::take(&mut self.ends[i]);
            costs.clear();
            costs.extend_from_slice(self.problem.interner.costs(self.problem.nodes[i]));
            for (k, end) in &ends {
                let message = self.messages.message(*k, *end);
                let indices = self.indices(&self.problem.edges[*k], *end);
                costs.iter_mut().zip(indices).for_each(|(c, p)| *c += message[*p as usize]);
            }
            let problem = self.problem;
            let later = |k: usize, end: usize| {
                let other = Self::other(&problem.edges[k], end);
                if forward { other > i } else { other < i }
            };
            let onward = ends.iter().filter(|(k, end)| later(*k, *end)).count();
            let share = 1.0 / onward.max(ends.len() - onward).max(1) as f64;
            if forward {
                self.labels[i] = self.choose(i, &ends);
            }
            let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
            costs.iter_mut().for_each(|c| *c -= least);
            bound += least;
            for (k, end) in ends.iter().filter(|(k, end)| later(*k, *end)) {
                bound += self.send(*k, *end, &costs, share);
            }
            self.ends[i] = ends;
        }
        bound
    }

    /// The cheapest label given the labels of earlier nodes and the messages of later ones.
    fn choose(&self, i: usize, ends: &[(usize, usize)]) -> usize {
        let t = &self.problem.interner;
        let mut costs = t.costs(self.problem.nodes[i]).to_vec();
        for (k, end) in ends {
            let e = &self.problem.edges[*k];
            let other = Self::other(e, *end);
            let indices = self.indices(e, *end);
            if other < i {
                let m = t.matrix(e.matrix);
                let at = self.indices(e, 1 - *end)[self.labels[other]] as usize;
                for (c, p) in costs.iter_mut().zip(indices) {
                    *c += if *end == 0 { m.at(*p as usize, at) } else { m.at(at, *p as usize) };
                }
            } else {
                let message = self.messages.message(*k, *end);
                costs.iter_mut().zip(indices).for_each(|(c, p)| *c += message[*p as usize]);
            }
        }
        (0..costs.len()).min_by(|a, b| costs[*a].total_cmp(&costs[*b])).unwrap_or(0)
    }

    /// Sends the minimum over own labels to the other end of edge `k`, normalized to minimum 0. Returns the amount
    /// subtracted.
    fn send(&mut self, k: usize, end: usize, costs: &[f64], share: f64) -> f64 {
        let e = self.problem.edges[k];
        let m = if end == 0 { self.problem.interner.matrix(e.matrix) } else { &self.transposed[&e.matrix] };
        let t = &self.problem.interner;
        let (indices, others) = if end == 0 { (e.row, e.col) } else { (e.col, e.row) };
        let own = &mut self.own;
        own.clear();
        own.resize(m.rows, f64::INFINITY);
        for (c, p) in costs.iter().zip(t.indices(indices)) {
            let own = &mut own[*p as usize];
            *own = own.min(share * c);
        }
        // Infinite costs stay infinite.
        let message = self.messages.message(k, end);
        own.iter_mut().zip(message).filter(|(o, _)| o.is_finite()).for_each(|(o, t)| *o -= t);
        let out = self.messages.message_mut(k, 1 - end);
        out.fill(f64::INFINITY);
        for (r, o) in own.iter().enumerate().filter(|(_, o)| o.is_finite()) {
            out.iter_mut().zip(m.row(r)).for_each(|(x, c)| {
                let sum = o + c;
                *x = if sum < *x { sum } else { *x };
            });
        }
        // Rows that no label uses do not matter, and must not be infinite either.
        let least = t.indices(others).iter().map(|p| out[*p as usize]).fold(f64::INFINITY, f64::min);
        out.iter_mut().for_each(|x| *x -= least);
        least
    }

    /// Iterated conditional modes: changes single labels while that helps. After the first sweep it visits only nodes
    /// with a changed neighbour.
    fn improve(&mut self, nodes: &[usize]) {
        let t = &self.problem.interner;
        let mut open = vec![true; self.labels.len()];
        let mut costs = Vec::new();
        for _ in 0..4 {
            let mut changed = false;
            for i in nodes {
                if !std::mem::take(&mut open[*i]) {
                    continue;
                }
                costs.clear();
                costs.extend_from_slice(t.costs(self.problem.nodes[*i]));
                for (k, end) in &self.ends[*i] {
                    let e = &self.problem.edges[*k];
                    let m = t.matrix(e.matrix);
                    let at = self.indices(e, 1 - *end)[self.labels[Self::other(e, *end)]] as usize;
                    for (c, p) in costs.iter_mut().zip(self.indices(e, *end)) {
                        *c += if *end == 0 { m.at(*p as usize, at) } else { m.at(at, *p as usize) };
                    }
                }
                let best = (0..costs.len()).min_by(|a, b| costs[*a].total_cmp(&costs[*b])).unwrap_or(0);
                if costs[best] < costs[self.labels[*i]] {
                    self.labels[*i] = best;
                    self.ends[*i].iter().for_each(|(k, end)| open[Self::other(&self.problem.edges[*k], *end)] = true);
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn cost(&self, nodes: &[usize]) -> f64 {
        let p = self.problem;
        let own: f64 = nodes.iter().map(|i| p.interner.costs(p.nodes[*i])[self.labels[*i]]).sum();
        own + p.edges.iter().map(|e| p.edge_cost(e, self.labels[e.a], self.labels[e.b])).sum::<f64>()
    }
}
