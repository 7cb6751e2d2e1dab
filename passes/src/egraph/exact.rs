//! Extraction as integer programs: the best choice, or how good a choice can be at most.
//!
//! One variable a choice, 1 where it is taken: each root has one, and a taken one has one for each class it needs.
//! What is needed whatever is taken links nothing, so that a graph falls into parts, each with a program of its
//! own. In each the relaxation, in which variables are anything between 0 and 1, is solved first. Cycles are cut off where
//! a choice has one; parts that one goes through become one part. After Yang et al. (2021), section 5, where cycles are
//! forbidden by an order of the classes, which bounds far less.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use good_lp::solvers::SolutionStatus;
use good_lp::{
    Expression, ProblemVariables, Solution as _, SolverModel, Variable, WithTimeLimit, constraint, microlp, variable,
};

use super::extract::{Problem, Solution};

/// Cycles that are cut off in one round.
const CUTS: usize = 200;

/// A choice for a class.
struct Choice {
    /// Its position there.
    number: usize,
    cost: f64,
    needs: Vec<usize>,
}

/// A set of small numbers.
#[derive(Clone, PartialEq)]
struct Bits(Vec<u64>);

impl Bits {
    fn none(n: usize) -> Bits {
        Bits(vec![0; n.div_ceil(64)])
    }

    fn full(n: usize) -> Bits {
        Bits(vec![u64::MAX; n.div_ceil(64)])
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

    fn add(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    fn keep(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a &= b);
    }
}

/// What is needed of the problem: choices by class, none of which another makes superfluous.
struct Program {
    classes: BTreeMap<usize, Vec<Choice>>,
    roots: Vec<usize>,
    /// The classes that a class needs whatever is taken, of those the nearest. Without them the relaxation
    /// would pay a half of what both of two alternatives need.
    always: BTreeMap<usize, Vec<usize>>,
    /// The classes that the roots need whatever is taken.
    certain: BTreeSet<usize>,
}

/// A cycle of classes, each needed by the one before it.
type Cycle = Vec<usize>;

/// Classes that choices link.
type Part = BTreeSet<usize>;

/// How much of each choice is taken, by class.
type Taken = BTreeMap<usize, Vec<f64>>;

impl Problem<'_> {
    /// What no choice costs less than, and the best one that was found in so much time: `known`, or one that costs less.
    /// Both cost the same unless time was short.
    pub fn exact(&self, known: Solution, time: Duration) -> (f64, Solution) {
        let until = Instant::now() + time;
        let program = Program::of(self);
        let mut cuts = BTreeSet::new();
        let mut parts = program.parts();
        let mut solved: BTreeMap<Part, (f64, Taken)> = BTreeMap::new();
        loop {
            for part in &parts {
                if !solved.contains_key(part) {
                    solved.insert(part.clone(), program.best(part, &mut cuts, until));
                }
            }
            let taken: Taken = parts.iter().flat_map(|p| solved[p].1.clone()).collect();
            let cycles = program.cycles(&taken);
            let before = parts.len();
            cycles.iter().for_each(|c| join(&mut parts, c));
            if parts.len() == before {
                let bound: f64 = parts.iter().map(|p| solved[p].0).sum();
                let found = self.with(&known, &program.chosen(&taken)).filter(|s| s.cost < known.cost - 1e-9);
                let best = found.unwrap_or(known);
                return (bound.min(best.cost), best);
            }
            cuts.extend(cycles);
        }
    }
}

/// Makes one part of those that a cycle goes through.
fn join(parts: &mut Vec<Part>, cycle: &Cycle) {
    let (through, mut rest): (Vec<Part>, Vec<Part>) =
        parts.drain(..).partition(|p| cycle.iter().any(|c| p.contains(c)));
    rest.push(through.into_iter().flatten().collect());
    *parts = rest;
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
        let mut program = Program { classes, roots, always: BTreeMap::new(), certain: BTreeSet::new() };
        program.find_always();
        let mut open = program.roots.clone();
        while let Some(c) = open.pop() {
            if program.certain.insert(c) {
                open.extend(&program.always[&c]);
            }
        }
        program
    }

    /// Finds what each class needs in every solution, and drops the choices that need their own class in every one.
    fn find_always(&mut self) {
        let order = self.operands_first();
        let number: BTreeMap<usize, usize> = order.iter().copied().zip(0..).collect();
        let mut always = vec![Bits::full(order.len()); order.len()];
        let below = |x: &Choice, always: &[Bits]| {
            let mut all = Bits::none(order.len());
            x.needs.iter().for_each(|d| all.add(&always[number[d]]));
            all
        };
        // From everything down to what holds.
        let mut changed = true;
        while changed {
            changed = false;
            for (at, c) in order.iter().enumerate() {
                let each = self.classes[c].iter().map(|x| below(x, &always)).filter(|b| !b.has(at));
                let Some(mut both) = each.reduce(|mut a, b| {
                    a.keep(&b);
                    a
                }) else {
                    continue;
                };
                both.insert(at);
                if both != always[at] {
                    always[at] = both;
                    changed = true;
                }
            }
        }
        for (at, c) in order.iter().enumerate() {
            let list = self.classes.get_mut(c).into_iter();
            list.for_each(|l| l.retain(|x| !x.needs.iter().any(|d| always[number[d]].has(at))));
            // Only the nearest ones: the others follow from theirs.
            let all: Vec<usize> = (0..order.len()).filter(|d| *d != at && always[at].has(*d)).collect();
            let mut follows = Bits::none(order.len());
            for d in &all {
                let mut own = always[*d].clone();
                own.remove(*d);
                follows.add(&own);
            }
            self.always.insert(*c, all.into_iter().filter(|d| !follows.has(*d)).map(|d| order[d]).collect());
        }
    }

    /// The classes, each behind what it needs as far as there is no cycle.
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

    /// Classes that choices link: by what they need besides what is needed anyway.
    fn parts(&self) -> Vec<Part> {
        let mut linked: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (c, list) in &self.classes {
            for d in list.iter().flat_map(|x| &x.needs).filter(|d| !self.certain.contains(d)) {
                linked.entry(*c).or_default().push(*d);
                linked.entry(*d).or_default().push(*c);
            }
        }
        let mut seen = BTreeSet::new();
        let mut parts = Vec::new();
        for c in self.classes.keys() {
            let (mut part, mut open) = (Part::new(), vec![*c]);
            while let Some(c) = open.pop() {
                if seen.insert(c) {
                    part.insert(c);
                    open.extend(linked.get(&c).into_iter().flatten());
                }
            }
            if !part.is_empty() {
                parts.push(part);
            }
        }
        parts
    }

    /// What a part costs at least, and its best choice; where time is short, none.
    fn best(&self, part: &Part, cuts: &mut BTreeSet<Cycle>, until: Instant) -> (f64, Taken) {
        // A part that is hard leaves time for the others.
        let until = until - until.saturating_duration_since(Instant::now()) / 2;
        let least = |c: &usize| self.classes[c].iter().map(|x| x.cost).fold(f64::INFINITY, f64::min);
        let mut bound: f64 = part.intersection(&self.certain).map(least).sum();
        if let (1, Some(c)) = (part.len(), part.first().filter(|c| self.certain.contains(c))) {
            let cheapest = self.classes[c].iter().position(|x| x.cost == bound);
            let taken = (0..self.classes[c].len()).map(|k| if Some(k) == cheapest { 1.0 } else { 0.0 });
            return (bound, Taken::from([(*c, taken.collect())]));
        }
        cuts.extend(self.pairs(part));
        for whole in [false, true] {
            loop {
                let Some((cost, taken)) = self.solve(part, cuts, whole, until) else { return (bound, Taken::new()) };
                bound = bound.max(cost);
                let before = cuts.len();
                cuts.extend(self.cycles(&taken).into_iter().take(CUTS));
                if cuts.len() > before {
                    continue;
                }
                if whole {
                    return (bound, taken);
                }
                break;
            }
        }
        (bound, Taken::new())
    }

    /// Cycles of two classes.
    fn pairs(&self, part: &Part) -> BTreeSet<Cycle> {
        let needs = |c: &usize, d: &usize| self.classes[c].iter().any(|x| x.needs.contains(d));
        let mut out = BTreeSet::new();
        for c in part {
            let others = self.classes[c].iter().flat_map(|x| &x.needs);
            out.extend(others.filter(|d| *d > c && part.contains(d) && needs(d, c)).map(|d| vec![*c, *d]));
        }
        out
    }

    /// The optimum of a part, and how much of each choice it takes.
    fn solve(&self, part: &Part, cuts: &BTreeSet<Cycle>, whole: bool, until: Instant) -> Option<(f64, Taken)> {
        let left = until.checked_duration_since(Instant::now()).filter(|t| !t.is_zero())?;
        let mut variables = ProblemVariables::new();
        let mut taken: BTreeMap<usize, Vec<Variable>> = BTreeMap::new();
        let mut objective = Expression::from(0.0);
        for c in part {
            let own = self.classes[c].iter().map(|choice| {
                let x = variables.add(if whole { variable().binary() } else { variable().bounds(0.0..=1.0) });
                objective += choice.cost * x;
                x
            });
            taken.insert(*c, own.collect());
        }
        let mut model = variables.minimise(objective).using(microlp).with_time_limit(left.as_secs_f64());
        for c in part.intersection(&self.certain) {
            let sum: Expression = taken[c].iter().sum();
            model = model.with(constraint!(sum >= 1.0));
        }
        let open = |d: &&usize| !self.certain.contains(d);
        for c in part {
            // All choices of a class that need another one together: a class takes one of them.
            let needed: BTreeSet<usize> = self.classes[c].iter().flat_map(|x| &x.needs).filter(open).copied().collect();
            for d in needed {
                let sum: Expression = taken[&d].iter().sum();
                model = model.with(constraint!(sum - self.through(&taken, *c, d) >= 0.0));
            }
            for d in self.always[c].iter().filter(|d| part.contains(d)).filter(open) {
                let (own, other): (Expression, Expression) = (taken[c].iter().sum(), taken[d].iter().sum());
                model = model.with(constraint!(other - own >= 0.0));
            }
        }
        for cycle in cuts.iter().filter(|cycle| cycle.iter().all(|c| part.contains(c))) {
            let sum: Expression = steps(cycle).map(|(c, d)| self.through(&taken, c, d)).sum();
            model = model.with(constraint!(sum <= cycle.len() as f64 - 1.0));
        }
        let solution = model.solve().ok().filter(|s| matches!(s.status(), SolutionStatus::Optimal))?;
        let values = |list: &Vec<Variable>| list.iter().map(|x| solution.value(*x)).collect();
        let taken: Taken = taken.iter().map(|(c, list)| (*c, values(list))).collect();
        let cost = taken.iter().flat_map(|(c, list)| self.classes[c].iter().zip(list)).map(|(n, x)| n.cost * x);
        Some((cost.sum(), taken))
    }

    /// The choices for `c` that need `d`.
    fn through(&self, taken: &BTreeMap<usize, Vec<Variable>>, c: usize, d: usize) -> Expression {
        let list = self.classes[&c].iter().zip(&taken[&c]);
        list.filter(|(n, _)| n.needs.contains(&d)).map(|(_, x)| *x).sum()
    }

    /// The choice for each class of which one is taken.
    fn chosen(&self, taken: &Taken) -> Vec<(usize, usize)> {
        let one = |(c, list): (&usize, &Vec<f64>)| {
            let k = list.iter().position(|x| *x > 0.5)?;
            Some((*c, self.classes[c][k].number))
        };
        taken.iter().filter_map(one).collect()
    }

    /// Cycles that a fractional solution goes round more than an integer one could, shortest first.
    fn cycles(&self, taken: &Taken) -> Vec<Cycle> {
        // A step costs what is missing to taking it for sure; a cycle that costs less than 1 is cut off.
        let mut steps: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
        for (c, list) in taken {
            for (n, x) in self.classes[c].iter().zip(list).filter(|(_, x)| **x > 1e-6) {
                for d in &n.needs {
                    *steps.entry(*c).or_default().entry(*d).or_insert(1.0) -= x;
                }
            }
        }
        peel(&mut steps);
        let mut found: Vec<(f64, Cycle)> = steps.keys().filter_map(|c| shortest(&steps, *c)).collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        found.into_iter().map(|(_, c)| c).collect()
    }
}

/// Leaves out what leads nowhere: without cycles nothing is left.
fn peel(steps: &mut BTreeMap<usize, BTreeMap<usize, f64>>) {
    let mut readers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (c, to) in steps.iter() {
        to.keys().for_each(|d| readers.entry(*d).or_default().push(*c));
    }
    let mut dead: Vec<usize> = readers.keys().copied().filter(|d| !steps.contains_key(d)).collect();
    while let Some(d) = dead.pop() {
        for c in readers.get(&d).into_iter().flatten() {
            if let Some(to) = steps.get_mut(c) {
                to.remove(&d);
                if to.is_empty() {
                    steps.remove(c);
                    dead.push(*c);
                }
            }
        }
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

/// Without the choices that cost no less than another one that needs no more.
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

    /// From any choice the best one is found, and it is proven to be the best, cycles or not.
    #[test]
    fn it_is_what_brute_force_finds() {
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
