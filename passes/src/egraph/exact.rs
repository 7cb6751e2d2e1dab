//! Exact extraction by integer programming: the best choice, or a lower bound of its cost.
//!
//! There is one binary variable per choice. Each root has one choice, and a taken choice requires one choice for each
//! class it needs. Classes that every solution needs link nothing, so the graph falls into connected components, each
//! with a program of its own. The linear relaxation is solved first. Cycles are cut off by constraints as they occur;
//! components that a cycle joins are merged. After Yang et al. (2021), section 5, which forbids cycles by an order of
//! the classes instead; that bounds far less.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use good_lp::solvers::SolutionStatus;
use good_lp::{
    Expression, ProblemVariables, Solution as _, SolverModel, Variable, WithTimeLimit, constraint, microlp, variable,
};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use petgraph::unionfind::UnionFind;

use super::extract::{Problem, Solution};

/// Cycle constraints added per round.
const MAX_CYCLE_CUTS: usize = 200;

/// A choice of an e-class.
struct Choice {
    /// Its position in the class.
    number: usize,
    cost: f64,
    needs: Vec<usize>,
}

/// A set of small numbers.
#[derive(Clone, PartialEq)]
struct BitSet(Vec<u64>);

impl BitSet {
    fn none(n: usize) -> BitSet {
        BitSet(vec![0; n.div_ceil(64)])
    }

    fn full(n: usize) -> BitSet {
        BitSet(vec![u64::MAX; n.div_ceil(64)])
    }

    fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    fn insert(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn remove(&mut self, i: usize) {
        self.0[i / 64] &= !(1 << (i % 64));
    }

    fn add(&mut self, other: &BitSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    fn keep(&mut self, other: &BitSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a &= b);
    }
}

/// The reachable, undominated choices of a problem, by class.
struct Program {
    classes: BTreeMap<usize, Vec<Choice>>,
    roots: Vec<usize>,
    /// The nearest classes that each class needs in every solution (its dominators). Without these constraints the
    /// relaxation would pay half of what both of two choices need.
    mandatory: BTreeMap<usize, Vec<usize>>,
    /// The classes that the roots need in every solution.
    required: BTreeSet<usize>,
}

/// A cycle of classes, each needed by the one before it.
type Cycle = Vec<usize>;

/// Classes that choices link.
type Component = BTreeSet<usize>;

/// The fraction of each choice that is taken, by class.
type Fractions = BTreeMap<usize, Vec<f64>>;

impl Problem<'_> {
    /// A lower bound, and the best solution found within this time: `known` or a cheaper one. Both cost the same unless
    /// time ran out.
    pub fn exact(&self, known: Solution, time: Duration) -> (f64, Solution) {
        let until = Instant::now() + time;
        let program = Program::of(self);
        let mut cuts = BTreeSet::new();
        let mut components = program.components();
        let mut solved: BTreeMap<Component, (f64, Fractions)> = BTreeMap::new();
        loop {
            for component in &components {
                if !solved.contains_key(component) {
                    solved.insert(component.clone(), program.best(component, &mut cuts, until));
                }
            }
            let taken: Fractions = components.iter().flat_map(|p| solved[p].1.clone()).collect();
            let cycles = program.cycles(&taken);
            let before = components.len();
            cycles.iter().for_each(|c| join(&mut components, c));
            if components.len() == before {
                let bound: f64 = components.iter().map(|p| solved[p].0).sum();
                let found = self.with(&known, &program.chosen(&taken)).filter(|s| s.cost < known.cost - 1e-9);
                let best = found.unwrap_or(known);
                return (bound.min(best.cost), best);
            }
            cuts.extend(cycles);
        }
    }
}

/// Merges the components that a cycle passes through.
fn join(components: &mut Vec<Component>, cycle: &Cycle) {
    let (through, mut rest): (Vec<Component>, Vec<Component>) =
        components.drain(..).partition(|p| cycle.iter().any(|c| p.contains(c)));
    rest.push(through.into_iter().flatten().collect());
    *components = rest;
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
            let list = problem.class(c).enumerate().map(|(number, (cost, needs))| Choice {
                number,
                cost,
                needs: needs.iter().copied().filter(|n| !problem.is_known(*n)).collect(),
            });
            let list = undominated(list.filter(|x| !x.needs.contains(&c)).collect());
            stack.extend(list.iter().flat_map(|x| x.needs.iter().copied()));
            classes.insert(c, list);
        }
        let mut program = Program { classes, roots, mandatory: BTreeMap::new(), required: BTreeSet::new() };
        program.find_mandatory();
        let mut open = program.roots.clone();
        while let Some(c) = open.pop() {
            if program.required.insert(c) {
                open.extend(&program.mandatory[&c]);
            }
        }
        program
    }

    /// Finds the classes that each class needs in every solution, and drops choices that need their own class.
    fn find_mandatory(&mut self) {
        let order = self.operands_first();
        let number: BTreeMap<usize, usize> = order.iter().copied().zip(0..).collect();
        let mut mandatory = vec![BitSet::full(order.len()); order.len()];
        let below = |x: &Choice, mandatory: &[BitSet]| {
            let mut all = BitSet::none(order.len());
            x.needs.iter().for_each(|d| all.add(&mandatory[number[d]]));
            all
        };
        // Greatest fixed point.
        let mut changed = true;
        while changed {
            changed = false;
            for (at, c) in order.iter().enumerate() {
                let each = self.classes[c].iter().map(|x| below(x, &mandatory)).filter(|b| !b.has(at));
                let Some(mut both) = each.reduce(|mut a, b| {
                    a.keep(&b);
                    a
                }) else {
                    continue;
                };
                both.insert(at);
                if both != mandatory[at] {
                    mandatory[at] = both;
                    changed = true;
                }
            }
        }
        for (at, c) in order.iter().enumerate() {
            let list = self.classes.get_mut(c).into_iter();
            list.for_each(|l| l.retain(|x| !x.needs.iter().any(|d| mandatory[number[d]].has(at))));
            // Only the nearest ones; the others follow.
            let all: Vec<usize> = (0..order.len()).filter(|d| *d != at && mandatory[at].has(*d)).collect();
            let mut follows = BitSet::none(order.len());
            for d in &all {
                let mut own = mandatory[*d].clone();
                own.remove(*d);
                follows.add(&own);
            }
            self.mandatory.insert(*c, all.into_iter().filter(|d| !follows.has(*d)).map(|d| order[d]).collect());
        }
    }

    /// The classes in post-order: operands first, except on cycles.
    fn operands_first(&self) -> Vec<usize> {
        let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
        let mut stack: Vec<(usize, bool)> = self.roots.iter().map(|c| (*c, false)).collect();
        while let Some((c, done)) = stack.pop() {
            if done {
                order.push(c);
            } else if seen.insert(c) {
                stack.push((c, true));
                stack.extend(self.classes[&c].iter().flat_map(|x| &x.needs).map(|d| (*d, false)));
            }
        }
        order
    }

    /// Connected components of the classes: linked by needs that are not required anyway.
    fn components(&self) -> Vec<Component> {
        let order: Vec<usize> = self.classes.keys().copied().collect();
        let number: BTreeMap<usize, usize> = order.iter().copied().zip(0..).collect();
        let mut linked = UnionFind::new(order.len());
        for (c, list) in &self.classes {
            for d in list.iter().flat_map(|x| &x.needs).filter(|d| !self.required.contains(d)) {
                linked.union(number[c], number[d]);
            }
        }
        // In the order of their first classes.
        let mut components: Vec<Component> = Vec::new();
        let mut position: BTreeMap<usize, usize> = BTreeMap::new();
        for c in &order {
            let at = *position.entry(linked.find_mut(number[c])).or_insert_with(|| {
                components.push(Component::new());
                components.len() - 1
            });
            components[at].insert(*c);
        }
        components
    }

    /// A lower bound of a component and its best choice; none where time runs out.
    fn best(&self, component: &Component, cuts: &mut BTreeSet<Cycle>, until: Instant) -> (f64, Fractions) {
        // A hard component leaves time for the others.
        let until = until - until.saturating_duration_since(Instant::now()) / 2;
        let least = |c: &usize| self.classes[c].iter().map(|x| x.cost).fold(f64::INFINITY, f64::min);
        let mut bound: f64 = component.intersection(&self.required).map(least).sum();
        if let (1, Some(c)) = (component.len(), component.first().filter(|c| self.required.contains(c))) {
            let cheapest = self.classes[c].iter().position(|x| x.cost == bound);
            let taken = (0..self.classes[c].len()).map(|k| if Some(k) == cheapest { 1.0 } else { 0.0 });
            return (bound, Fractions::from([(*c, taken.collect())]));
        }
        cuts.extend(self.pairs(component));
        for whole in [false, true] {
            loop {
                let Some((cost, taken)) = self.solve(component, cuts, whole, until) else {
                    return (bound, Fractions::new());
                };
                bound = bound.max(cost);
                let before = cuts.len();
                cuts.extend(self.cycles(&taken).into_iter().take(MAX_CYCLE_CUTS));
                if cuts.len() > before {
                    continue;
                }
                if whole {
                    return (bound, taken);
                }
                break;
            }
        }
        (bound, Fractions::new())
    }

    /// Cycles of two classes.
    fn pairs(&self, component: &Component) -> BTreeSet<Cycle> {
        let needs = |c: &usize, d: &usize| self.classes[c].iter().any(|x| x.needs.contains(d));
        let mut out = BTreeSet::new();
        for c in component {
            let others = self.classes[c].iter().flat_map(|x| &x.needs);
            out.extend(others.filter(|d| *d > c && component.contains(d) && needs(d, c)).map(|d| vec![*c, *d]));
        }
        out
    }

    /// The optimum of a component, and the fraction of each choice that it takes.
    fn solve(
        &self,
        component: &Component,
        cuts: &BTreeSet<Cycle>,
        whole: bool,
        until: Instant,
    ) -> Option<(f64, Fractions)> {
        let left = until.checked_duration_since(Instant::now()).filter(|t| !t.is_zero())?;
        let mut variables = ProblemVariables::new();
        let mut taken: BTreeMap<usize, Vec<Variable>> = BTreeMap::new();
        let mut objective = Expression::from(0.0);
        for c in component {
            let own = self.classes[c].iter().map(|choice| {
                let x = variables.add(if whole { variable().binary() } else { variable().bounds(0.0..=1.0) });
                objective += choice.cost * x;
                x
            });
            taken.insert(*c, own.collect());
        }
        let mut model = variables.minimise(objective).using(microlp).with_time_limit(left.as_secs_f64());
        for c in component.intersection(&self.required) {
            let sum: Expression = taken[c].iter().sum();
            model = model.with(constraint!(sum >= 1.0));
        }
        let open = |d: &&usize| !self.required.contains(d);
        for c in component {
            // All choices of a class that need another class share one constraint, as a class takes one choice.
            let needed: BTreeSet<usize> = self.classes[c].iter().flat_map(|x| &x.needs).filter(open).copied().collect();
            for d in needed {
                let sum: Expression = taken[&d].iter().sum();
                model = model.with(constraint!(sum - self.through(&taken, *c, d) >= 0.0));
            }
            for d in self.mandatory[c].iter().filter(|d| component.contains(d)).filter(open) {
                let (own, other): (Expression, Expression) = (taken[c].iter().sum(), taken[d].iter().sum());
                model = model.with(constraint!(other - own >= 0.0));
            }
        }
        for cycle in cuts.iter().filter(|cycle| cycle.iter().all(|c| component.contains(c))) {
            let sum: Expression = steps(cycle).map(|(c, d)| self.through(&taken, c, d)).sum();
            model = model.with(constraint!(sum <= cycle.len() as f64 - 1.0));
        }
        let solution = model.solve().ok().filter(|s| matches!(s.status(), SolutionStatus::Optimal))?;
        let values = |list: &Vec<Variable>| list.iter().map(|x| solution.value(*x)).collect();
        let taken: Fractions = taken.iter().map(|(c, list)| (*c, values(list))).collect();
        let cost = taken.iter().flat_map(|(c, list)| self.classes[c].iter().zip(list)).map(|(n, x)| n.cost * x);
        Some((cost.sum(), taken))
    }

    /// The choices for `c` that need `d`.
    fn through(&self, taken: &BTreeMap<usize, Vec<Variable>>, c: usize, d: usize) -> Expression {
        let list = self.classes[&c].iter().zip(&taken[&c]);
        list.filter(|(n, _)| n.needs.contains(&d)).map(|(_, x)| *x).sum()
    }

    /// The choice of each class that takes one.
    fn chosen(&self, taken: &Fractions) -> Vec<(usize, usize)> {
        let one = |(c, list): (&usize, &Vec<f64>)| {
            let k = list.iter().position(|x| *x > 0.5)?;
            Some((*c, self.classes[c][k].number))
        };
        taken.iter().filter_map(one).collect()
    }

    /// Violated cycle constraints of a fractional solution, shortest cycle first.
    fn cycles(&self, taken: &Fractions) -> Vec<Cycle> {
        // A step costs 1 minus its fraction; a cycle shorter than 1 violates its constraint.
        let mut steps: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
        for (c, list) in taken {
            for (n, x) in self.classes[c].iter().zip(list).filter(|(_, x)| **x > 1e-6) {
                for d in &n.needs {
                    *steps.entry(*c).or_default().entry(*d).or_insert(1.0) -= x;
                }
            }
        }
        keep_cyclic(&mut steps);
        let mut found: Vec<(f64, Cycle)> = steps.keys().filter_map(|c| shortest(&steps, *c)).collect();
        of_ir::sort::by(&mut found, |a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        found.into_iter().map(|(_, c)| c).collect()
    }
}

/// Keeps the steps within strongly connected components; without cycles none is left.
fn keep_cyclic(steps: &mut BTreeMap<usize, BTreeMap<usize, f64>>) {
    let edges = steps.iter().flat_map(|(c, to)| to.keys().map(|d| (*c, *d, ())));
    let graph: DiGraphMap<usize, ()> = DiGraphMap::from_edges(edges);
    let components = tarjan_scc(&graph).into_iter().enumerate();
    let component: BTreeMap<usize, usize> =
        components.flat_map(|(k, list)| list.into_iter().map(move |c| (c, k))).collect();
    steps.retain(|c, to| {
        to.retain(|d, _| component[c] == component[d]);
        !to.is_empty()
    });
}

/// The shortest cycle through `start` if it is shorter than 1, rotated to its smallest class.
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

/// Dominance pruning: drops choices that cost no less and need no less than another.
fn undominated(list: Vec<Choice>) -> Vec<Choice> {
    let beats = |a: &Choice, b: &Choice| a.cost <= b.cost && a.needs.iter().all(|n| b.needs.contains(n));
    let keep: Vec<bool> = (0..list.len())
        .map(|i| !(0..list.len()).any(|j| j != i && beats(&list[j], &list[i]) && (j < i || !beats(&list[i], &list[j]))))
        .collect();
    list.into_iter().zip(keep).filter(|(_, k)| *k).map(|(n, _)| n).collect()
}

#[cfg(test)]
mod tests {
    use of_ops::sample::Rng;

    use super::*;
    use crate::egraph::extract::tests::random;
    use crate::egraph::graph::EGraph;

    /// From any choice the optimum is found and proved, with or without cycles.
    #[test]
    fn exact_extraction_matches_brute_force() {
        let graph = EGraph::default();
        let (mut tried, mut better) = (0, 0);
        for seed in 0..400 {
            let problem = random(&graph, &mut Rng::new(seed));
            let Some((least, known)) = problem.brute() else { continue };
            let from = known.cost;
            let (bound, best) = problem.exact(known, Duration::from_secs(60));
            assert!((best.cost - least).abs() < 1e-6, "seed {seed}: {} is not {least}", best.cost);
            assert!((bound - least).abs() < 1e-6, "seed {seed}: bound {bound} of {least}");
            tried += 1;
            better += usize::from(best.cost < from);
        }
        assert!(tried > 100 && better > 30, "{tried} {better}");
    }
}
