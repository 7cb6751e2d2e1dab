//! Branch and bound over the core that reduction leaves, depth first, with the dual messages as lower bounds.

use super::dual::Dual;
use super::problem::{Edge, Problem};

/// The result of branch and bound.
pub struct BranchResult {
    /// Labels, one per node of the problem.
    pub labels: Vec<usize>,
    /// Their cost.
    pub cost: f64,
    /// Whether they are proved to be optimal.
    pub proved: bool,
}

/// Searches labels cheaper than those of `dual`, whose messages bound each label from below. It stops after `budget`
/// choices.
pub fn branch(problem: &Problem, alive: &[bool], constant: f64, dual: &Dual, budget: usize) -> BranchResult {
    let nodes: Vec<usize> = (0..problem.nodes.len()).filter(|i| alive[*i]).collect();
    let mut position = vec![usize::MAX; problem.nodes.len()];
    nodes.iter().enumerate().for_each(|(k, i)| position[*i] = k);
    let t = &problem.interner;
    // Reparametrization: the messages move costs from edges to nodes. The cost of every labelling stays the same.
    let mut own: Vec<Vec<f64>> = nodes.iter().map(|i| t.costs(problem.nodes[*i]).to_vec()).collect();
    for (k, e) in problem.edges.iter().enumerate() {
        for (node, indices, end) in [(e.a, e.row, 0), (e.b, e.col, 1)] {
            let (own, message) = (&mut own[position[node]], dual.messages.message(k, end));
            own.iter_mut().zip(t.indices(indices)).for_each(|(c, p)| *c += message[*p as usize]);
        }
    }
    // For each position the edges to earlier ones.
    let mut backward: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut least = Vec::with_capacity(problem.edges.len());
    for (k, e) in problem.edges.iter().enumerate() {
        backward[position[e.a].max(position[e.b])].push(k);
        let labels = |n: usize| 0..t.costs(problem.nodes[n]).len();
        let all = labels(e.a).flat_map(|x| labels(e.b).map(move |y| (x, y)));
        least.push(all.map(|(x, y)| reparametrized(problem, dual, k, e, x, y)).fold(f64::INFINITY, f64::min));
    }
    // Lower bound of the nodes from each position on, with the edges that end there.
    let mut rest = vec![0.0; nodes.len() + 1];
    for k in (0..nodes.len()).rev() {
        let edges: f64 = backward[k].iter().map(|e| least[*e]).sum();
        rest[k] = rest[k + 1] + edges + own[k].iter().copied().fold(f64::INFINITY, f64::min);
    }
    let mut s = Search { problem, dual, nodes, own, backward, rest, labels: dual.labels.clone(), budget };
    s.labels.resize(problem.nodes.len(), 0);
    let mut best = BranchResult { labels: s.labels.clone(), cost: dual.cost, proved: false };
    s.descend(0, constant, &mut best);
    best.proved = s.budget > 0;
    best
}

/// Cost of edge `k` after reparametrization.
fn reparametrized(problem: &Problem, dual: &Dual, k: usize, e: &Edge, x: usize, y: usize) -> f64 {
    let t = &problem.interner;
    let (row, col) = (t.indices(e.row)[x] as usize, t.indices(e.col)[y] as usize);
    // An infinite message is already counted at the node.
    let message = |x: f64| if x.is_finite() { x } else { 0.0 };
    t.matrix(e.matrix).at(row, col)
        - message(dual.messages.message(k, 0)[row])
        - message(dual.messages.message(k, 1)[col])
}

struct Search<'p> {
    problem: &'p Problem,
    dual: &'p Dual,
    nodes: Vec<usize>,
    own: Vec<Vec<f64>>,
    /// For each position the edges to earlier ones.
    backward: Vec<Vec<usize>>,
    rest: Vec<f64>,
    labels: Vec<usize>,
    budget: usize,
}

impl Search<'_> {
    fn descend(&mut self, k: usize, cost: f64, best: &mut BranchResult) {
        if k == self.nodes.len() {
            if cost < best.cost {
                (best.cost, best.labels) = (cost, self.labels.clone());
            }
            return;
        }
        let node = self.nodes[k];
        let mut order: Vec<(f64, usize)> = (0..self.own[k].len())
            .map(|x| {
                let edges = self.backward[k].iter().map(|i| {
                    let e = &self.problem.edges[*i];
                    let (a, b) = if e.a == node { (x, self.labels[e.b]) } else { (self.labels[e.a], x) };
                    reparametrized(self.problem, self.dual, *i, e, a, b)
                });
                (self.own[k][x] + edges.sum::<f64>(), x)
            })
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (own, x) in order {
            // Sums in another order differ in their last digits.
            let slack = 1e-9 * best.cost.abs();
            if self.budget == 0 || cost + own + self.rest[k + 1] >= best.cost - slack {
                return;
            }
            self.budget -= 1;
            self.labels[node] = x;
            self.descend(k + 1, cost + own, best);
        }
    }
}
