//! The search for the cheapest choice: exact reduction, then a bound by message passing and branch and bound for what
//! is left.

mod branch;
mod dual;
mod limit;
mod problem;
mod reduce;

pub use limit::{Limit, Limited, TooLarge, Usage, solve_within};
pub use problem::{Costs, Edge, Matrix, Places, Problem, Table, Tables};

/// How hard to search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Effort {
    /// The difference of cost and bound, as a share of the cost, that is small enough.
    pub gap: f64,
    /// Rounds of message passing.
    pub rounds: usize,
    /// Choices of branch and bound.
    pub choices: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { gap: 1e-3, rounds: 200, choices: 50_000 }
    }
}

/// A choice of labels.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// The label of each node.
    pub labels: Vec<usize>,
    /// What they cost.
    pub cost: f64,
    /// No choice costs less.
    pub bound: f64,
    /// Nodes that reduction left to search.
    pub core: usize,
}

impl Solution {
    /// The difference of cost and bound as a share of the cost.
    pub fn gap(&self) -> f64 {
        if self.cost > 0.0 { (self.cost - self.bound).max(0.0) / self.cost } else { 0.0 }
    }
}

/// The labels that cost least, or nearly so; the bound says how nearly.
pub fn solve(problem: &Problem, effort: &Effort) -> Solution {
    let mut work = Workspace { problem: problem.clone(), memo: reduce::Memo::default() };
    work.solve(effort)
}

/// A problem that is solved several times with other costs of its nodes: what was computed once is kept.
struct Workspace {
    problem: Problem,
    memo: reduce::Memo,
}

impl Workspace {
    fn solve(&mut self, effort: &Effort) -> Solution {
        let tables = std::mem::take(&mut self.problem.tables);
        let problem = Problem { tables, nodes: self.problem.nodes.clone(), edges: self.problem.edges.clone() };
        let reduced = reduce::reduce(problem, std::mem::take(&mut self.memo));
        let (labels, bound, core) = finish(&reduced, effort);
        self.problem.tables = reduced.problem.tables;
        self.memo = reduced.memo;
        let cost = self.problem.cost(&labels);
        Solution { bound: bound.min(cost), cost, labels, core }
    }
}

/// Labels of all nodes, a bound, and the number of nodes that reduction left.
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
