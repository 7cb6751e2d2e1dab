//! The search within a limit, such as the memory of a device: a price on what is limited (Lagrange), and the bound that
//! every price gives.
//!
//! A price finds choices within the limit and cheaper ones over it, and no price finds what lies between: half of a label is
//! none. So the labels of one node at a time are cut into those that use much and those that use little, each part with
//! prices and a bound of its own (branch and bound).

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::problem::{Costs, Matrix, Problem, Table};
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

/// What is used of what is limited, in any unit, never less than 0.
#[derive(Clone, Default)]
pub struct Usage {
    /// By each label of each node.
    pub nodes: Vec<Vec<f64>>,
    /// By the labels of both ends of an edge together, in the rows and columns of its matrix; edges that are not here use
    /// nothing.
    pub edges: BTreeMap<usize, Rc<Matrix>>,
}

impl Usage {
    /// What these labels use.
    pub fn of(&self, problem: &Problem, labels: &[usize]) -> f64 {
        let nodes: f64 = (0..labels.len()).map(|i| self.nodes[i][labels[i]]).sum();
        nodes + self.edges.keys().map(|k| self.edge(problem, *k, labels)).sum::<f64>()
    }

    fn edge(&self, problem: &Problem, edge: usize, labels: &[usize]) -> f64 {
        let (Some(m), e) = (self.edges.get(&edge), &problem.edges[edge]) else { return 0.0 };
        let t = &problem.tables;
        m.at(t.places(e.row)[labels[e.a]] as usize, t.places(e.col)[labels[e.b]] as usize)
    }
}

/// Prices that are tried, for all choices and for a part of them.
const PRICES: usize = 40;
const PRICES_OF_PART: usize = 10;

/// The labels that cost least of those that use at most `limit`.
///
/// # Errors
/// When there are none.
pub fn solve_within(problem: &Problem, usage: &Usage, limit: f64, effort: &Effort) -> Result<Limited, TooLarge> {
    let mut edges_of = vec![Vec::new(); problem.nodes.len()];
    for (k, e) in problem.edges.iter().enumerate() {
        edges_of[e.a].push(k);
        edges_of[e.b].push(k);
    }
    let work = Workspace { problem: problem.clone(), memo: reduce::Memo::default() };
    let mut s = Search { problem, usage, limit, effort, edges_of, work, best: None };
    let mut whole = Part { nodes: problem.nodes.clone(), over: None, under: None, bound: 0.0, price: 0.0 };
    let least = s.least(&whole.nodes);
    s.price(&mut whole, PRICES);
    let price = whole.price;
    let bound = s.branch(whole);
    let Some(mut solution) = s.best else { return Err(TooLarge { least }) };
    solution.bound = bound.min(solution.cost);
    let used = usage.of(problem, &solution.labels);
    Ok(Limited { solution, used, price })
}

/// Some of the choices: those of labels that do not cost infinitely much.
struct Part {
    nodes: Vec<Costs>,
    /// A cheap choice that uses too much; none where the cheapest does not.
    over: Option<Vec<usize>>,
    /// A choice within the limit, where one was found.
    under: Option<Vec<usize>>,
    /// None within the limit costs less.
    bound: f64,
    /// The lowest price at which a choice within the limit was found; before that, where to begin.
    price: f64,
}

struct Search<'p> {
    problem: &'p Problem,
    usage: &'p Usage,
    limit: f64,
    effort: &'p Effort,
    /// The edges of each node.
    edges_of: Vec<Vec<usize>>,
    work: Workspace,
    /// The best choice within the limit.
    best: Option<Solution>,
}

impl Search<'_> {
    /// The least that labels which are possible at all use.
    fn least(&self, nodes: &[Costs]) -> f64 {
        let least = |(n, u): (&Costs, &Vec<f64>)| {
            let possible = self.work.problem.tables.costs(*n).iter().zip(u).filter(|(c, _)| c.is_finite());
            possible.map(|(_, u)| *u).fold(f64::INFINITY, f64::min)
        };
        nodes.iter().zip(&self.usage.nodes).map(least).filter(|u| u.is_finite()).sum()
    }

    /// Whether no choice within the limit that costs at least `bound` is worth looking for.
    fn is_enough(&self, bound: f64) -> bool {
        self.best.as_ref().is_some_and(|b| b.cost - bound <= self.effort.gap * b.cost)
    }

    /// The labels that cost least where each unit that is used costs `price`.
    fn solve(&mut self, nodes: &[Costs], price: f64) -> Solution {
        let p = &mut self.work.problem;
        p.nodes = nodes.to_vec();
        p.edges.clone_from(&self.problem.edges);
        let with_price = |costs: &[f64], used: &[f64]| costs.iter().zip(used).map(|(c, u)| c + price * u).collect();
        if price > 0.0 {
            for (n, u) in p.nodes.iter_mut().zip(&self.usage.nodes) {
                if u.iter().any(|x| *x != 0.0) {
                    let costs = with_price(p.tables.costs(*n), u);
                    *n = p.tables.add_costs(costs);
                }
            }
            let mut tables: HashMap<(Table, *const Matrix), Table> = HashMap::new();
            for (k, u) in &self.usage.edges {
                let table = &mut p.edges[*k].matrix;
                *table = *tables.entry((*table, Rc::as_ptr(u))).or_insert_with(|| {
                    let data = with_price(&p.tables.matrix(*table).data, &u.data);
                    p.tables.add_matrix(Matrix { data, ..**u })
                });
            }
        }
        self.work.solve(self.effort)
    }

    /// Looks for choices of a part within the limit, and raises its bound: first without a price, then with some.
    fn price(&mut self, part: &mut Part, prices: usize) {
        let s = self.solve(&part.nodes, 0.0);
        part.bound = part.bound.max(s.bound);
        let most = self.usage.of(self.problem, &s.labels);
        if !s.cost.is_finite() {
            // Impossible, which is certain where nothing was left to search.
            part.bound = if s.core == 0 { f64::INFINITY } else { part.bound };
            return;
        }
        if most <= self.limit {
            self.found(s.labels, s.core);
            return;
        }
        // The first guess: all that is over the limit is worth all that is paid.
        let guess = s.cost.max(1e-12) / (most - self.limit).max(self.limit * 1e-3).max(1.0);
        let mut price = if part.price > 0.0 { part.price } else { guess };
        part.over = Some(s.labels);
        let (mut low, mut high) = (0.0, None);
        for _ in 0..prices {
            if self.is_enough(part.bound) {
                break;
            }
            let s = self.solve(&part.nodes, price);
            part.bound = part.bound.max(s.bound - price * self.limit);
            if self.usage.of(self.problem, &s.labels) <= self.limit {
                (high, part.price) = (Some(price), price);
                let labels = self.toward(s.labels.clone(), part.over.as_deref().unwrap_or_default());
                self.found(labels, s.core);
                part.under = Some(s.labels);
            } else {
                low = price;
                part.over = Some(s.labels);
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
    }

    /// A choice within the limit.
    fn found(&mut self, labels: Vec<usize>, core: usize) {
        let cost = self.problem.cost(&labels);
        if self.best.as_ref().is_none_or(|b| cost < b.cost) {
            self.best = Some(Solution { labels, cost, bound: 0.0, core });
        }
    }

    /// Cuts the choices into parts, the one with the least bound first, as long as that may help and there is time; gives
    /// the bound of all.
    fn branch(&mut self, whole: Part) -> f64 {
        let mut left = self.effort.choices / self.problem.nodes.len().max(1);
        // Parts that cannot be cut.
        let mut closed = f64::INFINITY;
        let mut open = vec![whole];
        while let Some(at) = (0..open.len()).min_by(|a, b| open[*a].bound.total_cmp(&open[*b].bound)) {
            let part = open.swap_remove(at);
            if left == 0 || self.is_enough(part.bound) {
                return closed.min(part.bound);
            }
            let Some(cut) = self.cut(&part) else {
                closed = closed.min(part.bound);
                continue;
            };
            left = left.saturating_sub(2 * PRICES_OF_PART);
            for nodes in cut {
                if self.least(&nodes) <= self.limit {
                    let mut own = Part { nodes, over: None, under: None, bound: part.bound, price: part.price };
                    self.price(&mut own, PRICES_OF_PART);
                    open.push(own);
                }
            }
        }
        closed
    }

    /// The choices of a part in two: of the node that uses most of what its choice over the limit uses more than the other
    /// one, the labels that use more and those that use less. `None` where there is none.
    fn cut(&mut self, part: &Part) -> Option<[Vec<Costs>; 2]> {
        let over = part.over.as_ref()?;
        let possible = |i: usize| {
            let costs = self.work.problem.tables.costs(part.nodes[i]);
            (0..costs.len()).filter(|x| costs[*x].is_finite())
        };
        let uses = |i: usize, x: usize| self.usage.nodes[i][x];
        let lightest = |i: usize| possible(i).min_by(|a, b| uses(i, *a).total_cmp(&uses(i, *b))).unwrap_or(over[i]);
        let under: Vec<usize> = part.under.clone().unwrap_or_else(|| (0..over.len()).map(lightest).collect());
        let edges = |i: usize, labels: &[usize]| -> f64 {
            self.edges_of[i].iter().map(|k| self.usage.edge(self.problem, *k, labels)).sum()
        };
        let more = |i: usize| uses(i, over[i]) + edges(i, over) - uses(i, under[i]) - edges(i, &under);
        let differ = (0..over.len()).filter(|i| over[*i] != under[*i]);
        let node = differ.max_by(|a, b| more(*a).total_cmp(&more(*b)))?;
        let (most, least) = (uses(node, over[node]), uses(node, under[node]));
        let heavy: Vec<bool> = (0..self.usage.nodes[node].len())
            .map(|x| if most == least { x == over[node] } else { 2.0 * uses(node, x) > most + least })
            .collect();
        let costs = self.work.problem.tables.costs(part.nodes[node]).to_vec();
        Some([true, false].map(|kept| {
            let own = costs.iter().zip(&heavy).map(|(c, h)| if *h == kept { *c } else { f64::INFINITY }).collect();
            let mut nodes = part.nodes.clone();
            nodes[node] = self.work.problem.tables.add_costs(own);
            nodes
        }))
    }

    /// Changes connected groups of labels from those `within` the limit to those of a cheaper choice `over` it, where that
    /// costs less and stays within: the two differ in many places that do not depend on each other, such as the layers of a
    /// model.
    fn toward(&self, within: Vec<usize>, over: &[usize]) -> Vec<usize> {
        let (problem, usage) = (self.problem, self.usage);
        let mut group: Vec<usize> = (0..within.len()).collect();
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
        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for i in (0..within.len()).filter(|i| differ(*i)) {
            members.entry(root(&mut group, i)).or_default().push(i);
        }
        let t = &problem.tables;
        let mut labels = within;
        let mut used = usage.of(problem, &labels);
        for list in members.values() {
            let mut touched: Vec<usize> = list.iter().flat_map(|i| self.edges_of[*i].iter().copied()).collect();
            touched.sort_unstable();
            touched.dedup();
            // What the group costs and uses.
            let sums = |labels: &[usize]| {
                let (mut cost, mut used) = (0.0, 0.0);
                for i in list {
                    cost += t.costs(problem.nodes[*i])[labels[*i]];
                    used += usage.nodes[*i][labels[*i]];
                }
                for k in &touched {
                    let e = &problem.edges[*k];
                    cost += problem.edge_cost(e, labels[e.a], labels[e.b]);
                    used += usage.edge(problem, *k, labels);
                }
                (cost, used)
            };
            let before = sums(&labels);
            let old: Vec<usize> = list.iter().map(|i| labels[*i]).collect();
            list.iter().for_each(|i| labels[*i] = over[*i]);
            let after = sums(&labels);
            if used + after.1 - before.1 <= self.limit && after.0 < before.0 {
                used += after.1 - before.1;
            } else {
                list.iter().zip(old).for_each(|(i, l)| labels[*i] = l);
            }
        }
        labels
    }
}
