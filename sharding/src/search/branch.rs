//! Branch and bound: the best labels of what is left after reduction, where there is time to look at all that may be.

use super::dual::Dual;
use super::problem::{Edge, Problem};

/// What branch and bound found.
pub struct Branched {
    /// Labels, one a node of the problem.
    pub labels: Vec<usize>,
    /// What they cost.
    pub cost: f64,
    /// Whether nothing costs less.
    pub proved: bool,
}

/// Looks for labels that cost less than those of `dual`, whose messages say what each label costs at least. It gives up
/// after `budget` choices.
pub fn branch(problem: &Problem, alive: &[bool], constant: f64, dual: &Dual, budget: usize) -> Branched {
    let nodes: Vec<usize> = (0..problem.nodes.len()).filter(|i| alive[*i]).collect();
    let mut place = vec![usize::MAX; problem.nodes.len()];
    nodes.iter().enumerate().for_each(|(k, i)| place[*i] = k);
    let t = &problem.tables;
    // Costs moved from edges to nodes as the messages say: every choice of labels costs what it did.
    let mut own: Vec<Vec<f64>> = nodes.iter().map(|i| t.costs(problem.nodes[*i]).to_vec()).collect();
    for (k, e) in problem.edges.iter().enumerate() {
        for (node, places, end) in [(e.a, e.row, 0), (e.b, e.col, 1)] {
            let (own, told) = (&mut own[place[node]], dual.messages.told(k, end));
            own.iter_mut().zip(t.places(places)).for_each(|(c, p)| *c += told[*p as usize]);
        }
    }
    let mut backward: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut least = Vec::with_capacity(problem.edges.len());
    for (k, e) in problem.edges.iter().enumerate() {
        backward[place[e.a].max(place[e.b])].push(k);
        let labels = |n: usize| 0..t.costs(problem.nodes[n]).len();
        let all = labels(e.a).flat_map(|x| labels(e.b).map(move |y| (x, y)));
        least.push(all.map(|(x, y)| moved(problem, dual, k, e, x, y)).fold(f64::INFINITY, f64::min));
    }
    // The least that nodes from each position on, and the edges that end there, cost.
    let mut rest = vec![0.0; nodes.len() + 1];
    for k in (0..nodes.len()).rev() {
        let edges: f64 = backward[k].iter().map(|e| least[*e]).sum();
        rest[k] = rest[k + 1] + edges + own[k].iter().copied().fold(f64::INFINITY, f64::min);
    }
    let mut s = Search { problem, dual, nodes, own, backward, rest, labels: dual.labels.clone(), budget };
    s.labels.resize(problem.nodes.len(), 0);
    let mut best = Branched { labels: s.labels.clone(), cost: dual.cost, proved: false };
    s.from(0, constant, &mut best);
    best.proved = s.budget > 0;
    best
}

/// What edge `k` costs after costs were moved to the nodes.
fn moved(problem: &Problem, dual: &Dual, k: usize, e: &Edge, x: usize, y: usize) -> f64 {
    let t = &problem.tables;
    let (row, col) = (t.places(e.row)[x] as usize, t.places(e.col)[y] as usize);
    // What is impossible at a node is counted there.
    let told = |x: f64| if x.is_finite() { x } else { 0.0 };
    t.matrix(e.matrix).at(row, col) - told(dual.messages.told(k, 0)[row]) - told(dual.messages.told(k, 1)[col])
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
    fn from(&mut self, k: usize, cost: f64, best: &mut Branched) {
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
                    moved(self.problem, self.dual, *i, e, a, b)
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
            self.from(k + 1, cost + own, best);
        }
    }
}
