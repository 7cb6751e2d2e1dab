//! The search within a limit, such as the memory of a device: a price on what is limited (Lagrange), and the bound that
//! every price gives.

use super::problem::Problem;
use super::{Effort, Solution, Workspace, reduce};

/// No choice is within the limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TooLarge {
    /// The least that any choice uses.
    pub least: f64,
}

/// A choice within the limit.
#[derive(Clone, PartialEq, Debug)]
pub struct Limited {
    /// The labels, what they cost, and the bound for all choices within the limit.
    pub solution: Solution,
    /// What they use of what is limited.
    pub used: f64,
    /// What one unit more of it would save, at most.
    pub price: f64,
}

/// Prices that are tried.
const PRICES: usize = 40;

/// The labels that cost least of those that use at most `limit`; `usage` is what each label of each node uses.
///
/// # Errors
/// When there are none.
pub fn solve_within(problem: &Problem, usage: &[Vec<f64>], limit: f64, effort: &Effort) -> Result<Limited, TooLarge> {
    let used = |labels: &[usize]| labels.iter().zip(usage).map(|(l, u)| u.get(*l).copied().unwrap_or(0.0)).sum::<f64>();
    let mut work = Workspace { problem: problem.clone(), memo: reduce::Memo::default() };
    let free = work.solve(effort);
    let most = used(&free.labels);
    if most <= limit {
        return Ok(Limited { solution: free, used: most, price: 0.0 });
    }
    // Labels that are possible at all; their least use is a first answer.
    let t = &problem.tables;
    let least: f64 = problem
        .nodes
        .iter()
        .zip(usage)
        .map(|(n, u)| {
            let possible = t.costs(*n).iter().zip(u).filter(|(c, _)| c.is_finite());
            possible.map(|(_, u)| *u).fold(f64::INFINITY, f64::min)
        })
        .filter(|u| u.is_finite())
        .sum();
    if least > limit {
        return Err(TooLarge { least });
    }
    let mut bound = free.bound;
    let mut over = free.labels.clone();
    let mut best: Option<Solution> = None;
    let (mut low, mut high) = (0.0, None);
    // The first guess: all that is over the limit is worth all that is paid.
    let mut price = free.cost.max(1e-12) / (most - limit).max(limit * 1e-3).max(1.0);
    for _ in 0..PRICES {
        work.problem.nodes.clone_from(&problem.nodes);
        let p = &mut work.problem;
        for (n, u) in p.nodes.iter_mut().zip(usage) {
            if u.iter().any(|x| *x != 0.0) {
                let v = p.tables.costs(*n).iter().zip(u).map(|(c, u)| c + price * u).collect();
                *n = p.tables.add_costs(v);
            }
        }
        let s = work.solve(effort);
        bound = f64::max(bound, s.bound - price * limit);
        if used(&s.labels) <= limit {
            high = Some(price);
            let cost = problem.cost(&s.labels);
            let labels = toward(problem, usage, limit, s.labels, &over);
            let better = problem.cost(&labels).min(cost);
            if best.as_ref().is_none_or(|b| better < b.cost) {
                best = Some(Solution { labels, cost: better, bound, core: s.core });
            }
        } else {
            low = price;
            over = s.labels;
        }
        if best.as_ref().is_some_and(|b| b.cost - bound <= effort.gap * b.cost) {
            break;
        }
        price = match high {
            // Prices differ by orders of magnitude.
            Some(h) if h < low * (1.0 + 1e-2) => break,
            Some(h) if low > 0.0 => f64::sqrt(low * h),
            Some(h) => h / 16.0,
            None => price * 16.0,
        };
        if !(1e-40..=1e40).contains(&price) {
            break;
        }
    }
    match best {
        Some(mut solution) => {
            solution.bound = bound.min(solution.cost);
            let used = used(&solution.labels);
            Ok(Limited { solution, used, price: high.unwrap_or(0.0) })
        }
        None => Err(TooLarge { least }),
    }
}

/// Changes connected groups of labels from those `within` the limit to those of a cheaper choice `over` it, where that
/// costs less and stays within: the two differ in many places that do not depend on each other, such as the layers of a
/// model.
fn toward(problem: &Problem, usage: &[Vec<f64>], limit: f64, within: Vec<usize>, over: &[usize]) -> Vec<usize> {
    let n = within.len();
    let mut group: Vec<usize> = (0..n).collect();
    fn root(group: &mut [usize], mut i: usize) -> usize {
        while group[i] != i {
            group[i] = group[group[i]];
            i = group[i];
        }
        i
    }
    let differ = |i: usize| within[i] != over[i];
    for e in problem.edges.iter().filter(|e| differ(e.a) && differ(e.b)) {
        let (a, b) = (root(&mut group, e.a), root(&mut group, e.b));
        group[a.max(b)] = a.min(b);
    }
    let mut members: std::collections::BTreeMap<usize, Vec<usize>> = std::collections::BTreeMap::new();
    for i in (0..n).filter(|i| differ(*i)) {
        members.entry(root(&mut group, i)).or_default().push(i);
    }
    let mut edges_of: Vec<Vec<usize>> = vec![Vec::new(); n];
    for (k, e) in problem.edges.iter().enumerate() {
        edges_of[e.a].push(k);
        edges_of[e.b].push(k);
    }
    let t = &problem.tables;
    let mut labels = within;
    let mut used: f64 = labels.iter().zip(usage).map(|(l, u)| u.get(*l).copied().unwrap_or(0.0)).sum();
    let of = |i: usize, l: usize| usage[i].get(l).copied().unwrap_or(0.0);
    for list in members.values() {
        let mut touched: Vec<usize> = list.iter().flat_map(|i| edges_of[*i].iter().copied()).collect();
        touched.sort_unstable();
        touched.dedup();
        let cost = |labels: &[usize]| {
            let own: f64 = list.iter().map(|i| t.costs(problem.nodes[*i])[labels[*i]]).sum();
            let edge = |k: &usize| {
                let e = &problem.edges[*k];
                problem.edge_cost(e, labels[e.a], labels[e.b])
            };
            own + touched.iter().map(edge).sum::<f64>()
        };
        let before = cost(&labels);
        let more: f64 = list.iter().map(|i| of(*i, over[*i]) - of(*i, labels[*i])).sum();
        let old: Vec<usize> = list.iter().map(|i| labels[*i]).collect();
        list.iter().for_each(|i| labels[*i] = over[*i]);
        if used + more <= limit && cost(&labels) < before {
            used += more;
        } else {
            list.iter().zip(old).for_each(|(i, l)| labels[*i] = l);
        }
    }
    labels
}
