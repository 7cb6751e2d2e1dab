//! How good a solution can be at most: extraction as a linear program.
//!
//! One variable an e-node, 1 where it is taken: each root has one, and a taken e-node has one for each class it needs.
//! Of two classes of which each could be computed from the other, only one is: such cycles are cut off where they pay.
//! The relaxation, in which variables are anything between 0 and 1, finds the cycles; the integer program with those cut
//! off is the bound, and the relaxation where it takes too long. After Yang et al. (2021), section 5, where cycles are
//! forbidden by an order of the classes, which bounds far less.

use std::collections::{BTreeMap, BTreeSet};

use good_lp::solvers::SolutionStatus;
use good_lp::{
    Expression, ProblemVariables, Solution as _, SolverModel, Variable, WithTimeLimit, constraint, microlp, variable,
};

use super::extract::Problem;

/// Linear programs that are solved, each with more cycles cut off.
const ROUNDS: usize = 12;
/// How long one of them may take.
const SECONDS: f64 = 10.0;
/// Cycles that are cut off in one round.
const CUTS: usize = 200;

/// What is needed of the problem: e-nodes by class, none of which another makes superfluous.
struct Program {
    classes: BTreeMap<usize, Vec<(f64, Vec<usize>)>>,
    roots: Vec<usize>,
    /// The classes that a class needs whichever e-nodes are taken, of those the nearest. Without them the relaxation
    /// would pay a half of what both of two alternatives need.
    always: BTreeMap<usize, Vec<usize>>,
}

/// A cycle of classes, each needed by the one before it.
type Cycle = Vec<usize>;

impl Problem<'_> {
    /// No choice of e-nodes costs less than this; `None` where the solver gives up.
    pub fn bound(&self) -> Option<f64> {
        let program = Program::of(self);
        let mut cuts = program.pairs();
        let mut best = None;
        for _ in 0..ROUNDS {
            let (cost, taken) = program.solve(&cuts, false)?;
            best = Some(cost);
            let found = program.cycles(&taken);
            let before = cuts.len();
            cuts.extend(found.into_iter().take(CUTS));
            if cuts.len() == before {
                break;
            }
        }
        // As an integer program it takes long sometimes; the relaxation holds as well.
        program.solve(&cuts, true).map(|(cost, _)| cost).or(best)
    }
}

impl Program {
    fn of(problem: &Problem<'_>) -> Program {
        let mut classes = BTreeMap::new();
        let mut stack: Vec<usize> = problem.roots().filter(|c| !problem.is_known(*c)).collect();
        let roots = stack.clone();
        while let Some(c) = stack.pop() {
            if classes.contains_key(&c) {
                continue;
            }
            let list = problem.class(c).map(|(cost, needs)| {
                (cost, needs.iter().copied().filter(|n| !problem.is_known(*n)).collect::<Vec<_>>())
            });
            let list = undominated(list.filter(|(_, needs)| !needs.contains(&c)).collect());
            stack.extend(list.iter().flat_map(|(_, needs)| needs.iter().copied()));
            classes.insert(c, list);
        }
        let mut program = Program { classes, roots, always: BTreeMap::new() };
        program.find_always();
        program
    }

    /// Finds what each class needs in every solution, and drops the e-nodes that need their own class in every one.
    fn find_always(&mut self) {
        let all: BTreeSet<usize> = self.classes.keys().copied().collect();
        let mut always: BTreeMap<usize, BTreeSet<usize>> = all.iter().map(|c| (*c, all.clone())).collect();
        // From everything down to what holds.
        let mut changed = true;
        while changed {
            changed = false;
            for c in all.iter().rev() {
                let below = |needs: &Vec<usize>| -> BTreeSet<usize> {
                    needs.iter().flat_map(|d| always[d].iter().copied()).collect()
                };
                let each = self.classes[c].iter().map(|(_, needs)| below(needs)).filter(|b| !b.contains(c));
                let Some(mut both) = each.reduce(|a, b| a.intersection(&b).copied().collect()) else { continue };
                both.insert(*c);
                if both.len() < always[c].len() {
                    always.insert(*c, both);
                    changed = true;
                }
            }
        }
        for (c, list) in &mut self.classes {
            list.retain(|(_, needs)| !needs.iter().any(|d| always[d].contains(c)));
        }
        // Only the nearest ones: the others follow from theirs.
        for c in all {
            let mut near = always[&c].clone();
            near.remove(&c);
            let far: BTreeSet<usize> =
                near.iter().flat_map(|d| always[d].iter().copied().filter(move |r| r != d)).collect();
            self.always.insert(c, near.difference(&far).copied().collect());
        }
    }

    /// Cycles of two classes.
    fn pairs(&self) -> BTreeSet<Cycle> {
        let needs = |c: usize, d: usize| self.classes[&c].iter().any(|(_, n)| n.contains(&d));
        let mut out = BTreeSet::new();
        for (c, list) in &self.classes {
            for d in list.iter().flat_map(|(_, n)| n).filter(|d| **d > *c && needs(**d, *c)) {
                out.insert(vec![*c, *d]);
            }
        }
        out
    }

    /// The optimum, and how much of each e-node it takes.
    fn solve(&self, cuts: &BTreeSet<Cycle>, whole: bool) -> Option<(f64, BTreeMap<usize, Vec<f64>>)> {
        let mut variables = ProblemVariables::new();
        let mut taken: BTreeMap<usize, Vec<Variable>> = BTreeMap::new();
        let mut objective = Expression::from(0.0);
        for (c, list) in &self.classes {
            let own = list.iter().map(|(cost, _)| {
                let x = variables.add(if whole { variable().binary() } else { variable().bounds(0.0..=1.0) });
                objective += *cost * x;
                x
            });
            taken.insert(*c, own.collect());
        }
        let mut model = variables.minimise(objective).using(microlp).with_time_limit(SECONDS);
        for root in &self.roots {
            let sum: Expression = taken[root].iter().sum();
            model = model.with(constraint!(sum >= 1.0));
        }
        for (c, list) in &self.classes {
            // All e-nodes of a class that need another one together: a class takes one of its e-nodes.
            let needed: BTreeSet<usize> = list.iter().flat_map(|(_, n)| n.iter().copied()).collect();
            for d in needed {
                let sum: Expression = taken[&d].iter().sum();
                model = model.with(constraint!(sum - self.through(&taken, *c, d) >= 0.0));
            }
        }
        for (c, near) in &self.always {
            for d in near {
                let (own, other): (Expression, Expression) = (taken[c].iter().sum(), taken[d].iter().sum());
                model = model.with(constraint!(other - own >= 0.0));
            }
        }
        for cycle in cuts {
            let sum: Expression = steps(cycle).map(|(c, d)| self.through(&taken, c, d)).sum();
            model = model.with(constraint!(sum <= cycle.len() as f64 - 1.0));
        }
        let solution = model.solve().ok().filter(|s| matches!(s.status(), SolutionStatus::Optimal))?;
        let values = |list: &Vec<Variable>| list.iter().map(|x| solution.value(*x)).collect();
        let taken: BTreeMap<usize, Vec<f64>> = taken.iter().map(|(c, list)| (*c, values(list))).collect();
        let cost = self.classes.iter().flat_map(|(c, list)| list.iter().zip(&taken[c])).map(|((cost, _), x)| cost * x);
        Some((cost.sum(), taken))
    }

    /// The e-nodes of `c` that need `d`.
    fn through(&self, taken: &BTreeMap<usize, Vec<Variable>>, c: usize, d: usize) -> Expression {
        let list = self.classes[&c].iter().zip(&taken[&c]);
        list.filter(|((_, needs), _)| needs.contains(&d)).map(|(_, x)| *x).sum()
    }

    /// Cycles that a fractional solution goes round more than an integer one could, shortest first.
    fn cycles(&self, taken: &BTreeMap<usize, Vec<f64>>) -> Vec<Cycle> {
        // A step costs what is missing to taking it for sure; a cycle that costs less than 1 is cut off.
        let mut steps: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
        for (c, list) in &self.classes {
            for ((_, needs), x) in list.iter().zip(&taken[c]).filter(|(_, x)| **x > 1e-6) {
                for d in needs {
                    *steps.entry(*c).or_default().entry(*d).or_insert(1.0) -= x;
                }
            }
        }
        let mut found: Vec<(f64, Cycle)> = steps.keys().filter_map(|c| shortest(&steps, *c)).collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        found.into_iter().map(|(_, c)| c).collect()
    }
}

/// The shortest cycle through `start` if it is shorter than 1, from its smallest class on.
fn shortest(steps: &BTreeMap<usize, BTreeMap<usize, f64>>, start: usize) -> Option<(f64, Cycle)> {
    const ENOUGH: f64 = 1.0 - 1e-4;
    let mut distance: BTreeMap<usize, (f64, usize)> = BTreeMap::new();
    let mut open: BTreeMap<usize, f64> = BTreeMap::from([(start, 0.0)]);
    let mut done = BTreeSet::new();
    while let Some((c, at)) = open.iter().map(|(c, d)| (*c, *d)).min_by(|a, b| a.1.total_cmp(&b.1)) {
        open.remove(&c);
        if c == start && !done.is_empty() {
            break;
        }
        if c != start {
            done.insert(c);
        }
        for (d, step) in steps.get(&c).into_iter().flatten() {
            let to = at + step.max(0.0);
            if to < ENOUGH && !done.contains(d) && distance.get(d).is_none_or(|(old, _)| to < *old) {
                distance.insert(*d, (to, c));
                open.insert(*d, to);
            }
        }
        done.insert(usize::MAX);
    }
    let (length, mut at) = *distance.get(&start)?;
    let mut cycle = vec![start];
    while at != start {
        cycle.push(at);
        at = distance[&at].1;
    }
    cycle.reverse();
    let first = (0..cycle.len()).min_by_key(|i| cycle[*i])?;
    cycle.rotate_left(first);
    Some((length, cycle))
}

/// Each class of a cycle with the next.
fn steps(cycle: &Cycle) -> impl Iterator<Item = (usize, usize)> + '_ {
    cycle.iter().copied().zip(cycle.iter().copied().cycle().skip(1)).take(cycle.len())
}

/// Without the e-nodes that cost no less than another one that needs no more.
fn undominated(list: Vec<(f64, Vec<usize>)>) -> Vec<(f64, Vec<usize>)> {
    let beats = |a: &(f64, Vec<usize>), b: &(f64, Vec<usize>)| a.0 <= b.0 && a.1.iter().all(|n| b.1.contains(n));
    let keep: Vec<bool> = (0..list.len())
        .map(|i| !(0..list.len()).any(|j| j != i && beats(&list[j], &list[i]) && (j < i || !beats(&list[i], &list[j]))))
        .collect();
    list.into_iter().zip(keep).filter(|(_, k)| *k).map(|(n, _)| n).collect()
}
