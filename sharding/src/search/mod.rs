//! Search: minimizes a sum of node and edge costs over discrete labels (a MAP problem on a graph).
//!
//! It applies exact reduction (dominance pruning and variable elimination). For the remaining core, dual message
//! passing gives a lower bound and labels, and branch and bound closes the gap. [`solve_within`] adds limits, such as
//! memory, by Lagrangian relaxation.

mod branch;
mod dual;
mod limit;
mod problem;
mod reduce;

pub use limit::{Limit, LimitedSolution, LimitsExceeded, Usage, solve_within};
pub use problem::{CostId, Edge, IndexId, Interner, Matrix, MatrixId, Problem};

/// How much work the search may do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Effort {
    /// The search ends when cost and bound differ by this share of the cost.
    pub gap: f64,
    /// Rounds of message passing.
    pub rounds: usize,
    /// Labels that branch and bound may try.
    pub choices: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { gap: 1e-3, rounds: 200, choices: 50_000 }
    }
}

/// Labels of a problem, with their cost and a lower bound.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// The label of each node.
    pub labels: Vec<usize>,
    /// Their cost.
    pub cost: f64,
    /// Lower bound over all labels.
    pub bound: f64,
    /// Nodes that reduction left.
    pub core: usize,
}

impl Solution {
    /// The difference of cost and bound as a share of the cost.
    pub fn gap(&self) -> f64 {
        if self.cost > 0.0 { (self.cost - self.bound).max(0.0) / self.cost } else { 0.0 }
    }
}

/// Labels of minimal cost, or close to it as [`Effort`] permits. The bound shows how close.
pub fn solve(problem: &Problem, effort: &Effort) -> Solution {
    let mut work = Workspace { problem: problem.clone(), memo: reduce::Memo::default() };
    work.solve(effort)
}

/// A problem that is solved repeatedly with other node costs; intermediate results are kept.
struct Workspace {
    problem: Problem,
    memo: reduce::Memo,
}

impl Workspace {
    fn solve(&mut self, effort: &Effort) -> Solution {
        let interner = std::mem::take(&mut self.problem.interner);
        let problem = Problem { interner, nodes: self.problem.nodes.clone(), edges: self.problem.edges.clone() };
        let reduced = reduce::reduce(problem, std::mem::take(&mut self.memo));
        let (labels, bound, core) = finish(&reduced, effort);
        self.problem.interner = reduced.problem.interner;
        self.memo = reduced.memo;
        let cost = self.problem.cost(&labels);
        Solution { bound: bound.min(cost), cost, labels, core }
    }
}

/// Labels of all nodes, a lower bound, and the number of nodes that reduction left.
fn finish(reduced: &reduce::Reduced, effort: &Effort) -> (Vec<usize>, f64, usize) {
    let core = reduced.alive.iter().filter(|a| **a).count();
    let (labels, bound) = if core == 0 {
        (vec![0; reduced.alive.len()], reduced.constant)
    } else {
        let (p, alive) = (&reduced.problem, &reduced.alive);
        let d = dual::dual(p, alive, reduced.constant, effort.gap, effort.rounds);
        if d.cost.is_finite() && d.cost - d.bound <= effort.gap * d.cost.abs() {
            (d.labels, d.bound)
        } else {
            let b = branch::branch(p, alive, reduced.constant, &d, effort.choices);
            let bound = if b.proved { b.cost } else { d.bound };
            (b.labels, bound)
        }
    };
    (reduced.expand(&labels), bound, core)
}
