//! How good a solution can be at most: extraction as an integer linear program.
//!
//! One variable an e-node, 1 where it is taken: each root has one, and a taken e-node has one for each class it needs.
//! Cycles are not forbidden, so the optimum is a lower bound of every solution. Source: Yang et al. (2021), section 5.

use std::collections::HashMap;

use good_lp::{Expression, ProblemVariables, Solution as _, SolverModel, constraint, microlp, variable};

use super::extract::Problem;

impl Problem<'_> {
    /// No choice of e-nodes costs less than this; `None` where the solver gives up.
    ///
    /// The relaxation of the program: variables may take any value between 0 and 1.
    pub fn bound(&self) -> Option<f64> {
        let mut variables = ProblemVariables::new();
        let mut taken: HashMap<usize, Vec<_>> = HashMap::new();
        let mut objective = Expression::from(0.0);
        let reachable = self.reachable();
        for c in &reachable {
            let list: Vec<_> = self
                .class(*c)
                .map(|(cost, _)| {
                    let x = variables.add(variable().bounds(0.0..=1.0));
                    objective += cost * x;
                    x
                })
                .collect();
            taken.insert(*c, list);
        }
        let mut model = variables.minimise(objective).using(microlp);
        for root in self.roots() {
            let sum: Expression = taken[&root].iter().sum();
            model = model.with(constraint!(sum >= 1.0));
        }
        for c in &reachable {
            for (k, (_, needs)) in self.class(*c).enumerate() {
                for need in needs {
                    let sum: Expression = taken[need].iter().sum();
                    model = model.with(constraint!(sum - taken[c][k] >= 0.0));
                }
            }
        }
        let solution = model.solve().ok()?;
        let cost = reachable.iter().flat_map(|c| self.class(*c).zip(&taken[c]));
        Some(cost.map(|((cost, _), x)| cost * solution.value(*x)).sum())
    }
}
