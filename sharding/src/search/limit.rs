//! Search within limits, such as the memory of devices, by Lagrangian relaxation and branch and bound.
//!
//! Each limit has a price (Lagrange multiplier) that is added to the costs. A price finds labels within its limit and
//! cheaper ones over it, but nothing between the two (the duality gap). So the search branches: it divides the labels
//! of one node into those that use more and those that use less, and gives each subproblem its own prices and bound.
//! The prices of several limits are searched at the same time, as they mostly do not affect one another.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use indexmap::IndexMap;
use petgraph::unionfind::UnionFind;

use super::problem::{CostId, Matrix, MatrixId, Problem};
use super::{Effort, Solution, Workspace, reduce};

/// The error where no labels are within all limits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LimitsExceeded {
    /// The limit that is exceeded most, by position.
    pub limit: usize,
    /// The least usage of it by any labels.
    pub least: f64,
    /// Lower bound of the cost within the limits; infinite where no labels are within them.
    pub bound: f64,
}

/// Labels within all limits.
#[derive(Clone, PartialEq, Debug)]
pub struct LimitedSolution {
    /// The labels, their cost, and the lower bound within the limits.
    pub solution: Solution,
    /// The price of each limit: an upper bound of what one more unit saves.
    pub prices: Vec<f64>,
}

/// A resource limit.
#[derive(Clone, Default)]
pub struct Limit {
    /// The usage of each choice.
    pub usage: Usage,
    /// The most that may be used.
    pub capacity: f64,
}

impl Limit {
    /// By how much labels exceed the limit, relative to it; at most 0 where they are within.
    fn excess(&self, problem: &Problem, labels: &[usize]) -> f64 {
        (self.usage.of(problem, labels) - self.capacity) / self.capacity.max(f64::MIN_POSITIVE)
    }
}

/// Usage of a resource, in any unit, never negative.
#[derive(Clone, Default)]
pub struct Usage {
    /// Usage by each label of each node.
    pub nodes: Vec<Vec<f64>>,
    /// Usage by the labels of both ends of an edge, in the rows and columns of its matrix. Edges that are absent use
    /// nothing.
    pub edges: BTreeMap<usize, Rc<Matrix>>,
}

impl Usage {
    /// The usage of these labels.
    pub fn of(&self, problem: &Problem, labels: &[usize]) -> f64 {
        let nodes: f64 = (0..labels.len()).map(|i| self.nodes[i][labels[i]]).sum();
        nodes + self.edges.keys().map(|k| self.edge(problem, *k, labels)).sum::<f64>()
    }

    fn edge(&self, problem: &Problem, edge: usize, labels: &[usize]) -> f64 {
        let (Some(m), e) = (self.edges.get(&edge), &problem.edges[edge]) else { return 0.0 };
        let t = &problem.interner;
        m.at(t.indices(e.row)[labels[e.a]] as usize, t.indices(e.col)[labels[e.b]] as usize)
    }
}

/// Prices tried for the whole problem and for a subproblem.
const PRICES: usize = 40;
const PRICES_PER_SUBPROBLEM: usize = 10;

/// The cheapest labels within all limits.
///
/// # Errors
/// When there are none.
pub fn solve_within(problem: &Problem, limits: &[Limit], effort: &Effort) -> Result<LimitedSolution, LimitsExceeded> {
    let mut edges_of = vec![Vec::new(); problem.nodes.len()];
    for (k, e) in problem.edges.iter().enumerate() {
        edges_of[e.a].push(k);
        edges_of[e.b].push(k);
    }
    let work = Workspace { problem: problem.clone(), memo: reduce::Memo::default() };
    let mut s = Search { problem, limits, effort, edges_of, work, best: None };
    let none = vec![0.0; limits.len()];
    let mut whole = Subproblem { nodes: problem.nodes.clone(), over: None, under: None, bound: 0.0, prices: none };
    let least = s.least(&whole.nodes);
    s.price(&mut whole, PRICES);
    let prices = whole.prices.clone();
    let bound = s.branch(whole);
    let Some(mut solution) = s.best else {
        let missing = |c: &usize| least[*c] / limits[*c].capacity.max(f64::MIN_POSITIVE);
        let limit = (0..limits.len()).max_by(|a, b| missing(a).total_cmp(&missing(b))).unwrap_or(0);
        return Err(LimitsExceeded { limit, least: least.get(limit).copied().unwrap_or(0.0), bound });
    };
    solution.bound = bound.min(solution.cost);
    Ok(LimitedSolution { solution, prices })
}

/// A subproblem: the labels of finite cost.
struct Subproblem {
    nodes: Vec<CostId>,
    /// Cheap labels that exceed a limit; none where the cheapest do not.
    over: Option<Vec<usize>>,
    /// Labels within the limits, where some were found.
    under: Option<Vec<usize>>,
    /// Lower bound within the limits.
    bound: f64,
    /// For each limit the lowest price at which labels within it were found; before that the initial price.
    prices: Vec<f64>,
}

/// The search interval for the price of one limit: prices up to `low` are too low, prices from `high` on are high
/// enough.
#[derive(Clone, Copy)]
struct Range {
    low: f64,
    high: Option<f64>,
    price: f64,
}

impl Range {
    /// Records whether the labels at this price are within the limit.
    fn update(&mut self, within: bool) {
        if within && self.price == 0.0 {
            return;
        }
        // Earlier results may be due to the prices of other limits.
        if within {
            self.high = Some(self.price);
            self.low = if self.low < self.price { self.low } else { 0.0 };
        } else {
            self.low = self.price;
            self.high = self.high.filter(|h| *h > self.price);
        }
    }

    fn is_known(&self) -> bool {
        self.price == 0.0 || self.high.is_some_and(|h| h < self.low * (1.0 + 1e-2))
    }

    /// The next price to try. Prices differ by orders of magnitude, so steps are geometric.
    fn next(&mut self, guess: f64) {
        self.price = match self.high {
            _ if self.is_known() && self.price > 0.0 => self.high.unwrap_or(self.price),
            Some(h) if self.low > 0.0 => f64::sqrt(self.low * h),
            Some(h) => h / 16.0,
            None if self.price > 0.0 => self.price * 16.0,
            None if self.low > 0.0 => self.low * 16.0,
            None => guess,
        };
    }
}

struct Search<'p> {
    problem: &'p Problem,
    limits: &'p [Limit],
    effort: &'p Effort,
    /// The edges of each node.
    edges_of: Vec<Vec<usize>>,
    work: Workspace,
    /// The best labels within the limits.
    best: Option<Solution>,
}

impl Search<'_> {
    /// The least usage of each limit by labels of finite cost.
    fn least(&self, nodes: &[CostId]) -> Vec<f64> {
        let least = |(n, u): (&CostId, &Vec<f64>)| {
            let possible = self.work.problem.interner.costs(*n).iter().zip(u).filter(|(c, _)| c.is_finite());
            possible.map(|(_, u)| *u).fold(f64::INFINITY, f64::min)
        };
        let sum = |l: &Limit| nodes.iter().zip(&l.usage.nodes).map(least).filter(|u| u.is_finite()).sum();
        self.limits.iter().map(sum).collect()
    }

    /// Whether the best labels are close enough to `bound`.
    fn is_enough(&self, bound: f64) -> bool {
        self.best.as_ref().is_some_and(|b| b.cost - bound <= self.effort.gap * b.cost)
    }

    fn fits(&self, labels: &[usize]) -> bool {
        self.limits.iter().all(|l| l.usage.of(self.problem, labels) <= l.capacity)
    }

    /// The cheapest labels where each unit of a limit costs its price.
    fn solve(&mut self, nodes: &[CostId], prices: &[f64]) -> Solution {
        let p = &mut self.work.problem;
        p.nodes = nodes.to_vec();
        p.edges.clone_from(&self.problem.edges);
        let with_price = |costs: &[f64], used: &[f64], price: f64| -> Vec<f64> {
            costs.iter().zip(used).map(|(c, u)| c + price * u).collect()
        };
        for (Limit { usage, .. }, price) in self.limits.iter().zip(prices).filter(|(_, p)| **p > 0.0) {
            for (n, u) in p.nodes.iter_mut().zip(&usage.nodes) {
                if u.iter().any(|x| *x != 0.0) {
                    let costs = with_price(p.interner.costs(*n), u, *price);
                    *n = p.interner.add_costs(costs);
                }
            }
            let mut interner: HashMap<(MatrixId, *const Matrix), MatrixId> = HashMap::new();
            for (k, u) in &usage.edges {
                let table = &mut p.edges[*k].matrix;
                *table = *interner.entry((*table, Rc::as_ptr(u))).or_insert_with(|| {
                    let data = with_price(&p.interner.matrix(*table).data, &u.data, *price);
                    p.interner.add_matrix(Matrix { data, ..**u })
                });
            }
        }
        self.work.solve(self.effort)
    }

    /// Searches labels of a subproblem within the limits and raises its bound, first without prices, then with some.
    fn price(&mut self, part: &mut Subproblem, prices: usize) {
        let s = self.solve(&part.nodes, &vec![0.0; self.limits.len()]);
        part.bound = part.bound.max(s.bound);
        if !s.cost.is_finite() {
            // Infeasible; this is certain where reduction left nothing.
            part.bound = if s.core == 0 { f64::INFINITY } else { part.bound };
            return;
        }
        if self.fits(&s.labels) {
            self.found(s.labels, s.core);
            return;
        }
        // First guess: the excess over a limit is worth the whole cost.
        let guess = |capacity: f64, used: f64| s.cost.max(1e-12) / (used - capacity).max(capacity * 1e-3).max(1.0);
        let first: Vec<f64> =
            self.limits.iter().map(|l| guess(l.capacity, l.usage.of(self.problem, &s.labels))).collect();
        let mut ranges: Vec<Range> = part.prices.iter().map(|p| Range { low: 0.0, high: None, price: *p }).collect();
        for ((r, l), guess) in ranges.iter_mut().zip(self.limits).zip(&first) {
            if l.excess(self.problem, &s.labels) > 0.0 && r.price == 0.0 {
                r.price = *guess;
            }
        }
        part.over = Some(s.labels);
        for _ in 0..prices {
            if self.is_enough(part.bound) {
                break;
            }
            let now: Vec<f64> = ranges.iter().map(|r| r.price).collect();
            let s = self.solve(&part.nodes, &now);
            let paid: f64 = now.iter().zip(self.limits).map(|(p, l)| p * l.capacity).sum();
            part.bound = part.bound.max(s.bound - paid);
            let within: Vec<bool> = self.limits.iter().map(|l| l.excess(self.problem, &s.labels) <= 0.0).collect();
            ranges.iter_mut().zip(&within).for_each(|(r, w)| r.update(*w));
            if within.iter().all(|w| *w) {
                part.prices = now;
                let labels = self.improve_toward(s.labels.clone(), part.over.as_deref().unwrap_or_default());
                self.found(labels, s.core);
                part.under = Some(s.labels);
                if ranges.iter().all(Range::is_known) {
                    break;
                }
            } else {
                part.over = Some(s.labels);
            }
            for ((r, guess), within) in ranges.iter_mut().zip(&first).zip(&within) {
                if !within || r.price > 0.0 {
                    r.next(*guess);
                }
            }
            if !ranges.iter().all(|r| r.price == 0.0 || (1e-40..=1e40).contains(&r.price)) {
                break;
            }
        }
    }

    /// Records labels within the limits.
    fn found(&mut self, labels: Vec<usize>, core: usize) {
        let cost = self.problem.cost(&labels);
        if self.best.as_ref().is_none_or(|b| cost < b.cost) {
            self.best = Some(Solution { labels, cost, bound: 0.0, core });
        }
    }

    /// Divides subproblems while that may help and the effort permits. It takes the subproblem with the lowest bound,
    /// or before any solution the one closest to the limits. Returns the bound of all.
    fn branch(&mut self, whole: Subproblem) -> f64 {
        let mut left = self.effort.choices / self.problem.nodes.len().max(1);
        // Bound of the subproblems that cannot be divided.
        let mut closed = f64::INFINITY;
        let mut open = vec![whole];
        loop {
            let none = self.best.is_none();
            let key = |p: &Subproblem| if none { self.excess(p) } else { p.bound };
            let Some(at) = (0..open.len()).min_by(|a, b| key(&open[*a]).total_cmp(&key(&open[*b]))) else {
                return closed;
            };
            let bound = open.iter().map(|p| p.bound).fold(closed, f64::min);
            if left == 0 || self.is_enough(bound) {
                return bound;
            }
            let part = open.swap_remove(at);
            if self.is_enough(part.bound) {
                closed = closed.min(part.bound);
                continue;
            }
            let Some(cut) = self.cut(&part) else {
                // It has a single labelling that exceeds a limit, or its cheapest labels are within the limits.
                closed = if part.over.is_some() { closed } else { closed.min(part.bound) };
                continue;
            };
            left = left.saturating_sub(2 * PRICES_PER_SUBPROBLEM);
            for nodes in cut {
                if self.least(&nodes).iter().zip(self.limits).all(|(least, l)| *least <= l.capacity) {
                    let prices = part.prices.clone();
                    let mut own = Subproblem { nodes, over: None, under: None, bound: part.bound, prices };
                    self.price(&mut own, PRICES_PER_SUBPROBLEM);
                    open.push(own);
                }
            }
        }
    }

    /// The largest relative excess of the labels of a subproblem that exceed a limit.
    fn excess(&self, part: &Subproblem) -> f64 {
        let of = |labels: &Vec<usize>| self.limits.iter().map(|l| l.excess(self.problem, labels)).fold(0.0, f64::max);
        part.over.as_ref().map_or(0.0, of)
    }

    /// Divides a subproblem in two at the node that contributes most to the excess: the labels that use more, and those
    /// that use less. `None` where no node has two labels.
    fn cut(&mut self, part: &Subproblem) -> Option<[Vec<CostId>; 2]> {
        let over = part.over.as_ref()?;
        let excess = |l: &Limit| l.excess(self.problem, over);
        let limit = self.limits.iter().max_by(|a, b| excess(a).total_cmp(&excess(b)))?;
        let usage = &limit.usage;
        let possible = |i: usize| {
            let costs = self.work.problem.interner.costs(part.nodes[i]);
            (0..costs.len()).filter(|x| costs[*x].is_finite())
        };
        let uses = |i: usize, x: usize| usage.nodes[i][x];
        let lightest = |i: usize| possible(i).min_by(|a, b| uses(i, *a).total_cmp(&uses(i, *b))).unwrap_or(over[i]);
        let under: Vec<usize> = part.under.clone().unwrap_or_else(|| (0..over.len()).map(lightest).collect());
        let edges = |i: usize, labels: &[usize]| -> f64 {
            self.edges_of[i].iter().map(|k| usage.edge(self.problem, *k, labels)).sum()
        };
        let more = |i: usize| uses(i, over[i]) + edges(i, over) - uses(i, under[i]) - edges(i, &under);
        let differ = (0..over.len()).filter(|i| over[*i] != under[*i]);
        // Edges may use too much where no single label does.
        let open = (0..over.len()).filter(|i| possible(*i).nth(1).is_some());
        let node = differ.max_by(|a, b| more(*a).total_cmp(&more(*b))).or_else(|| {
            let capacity = |i: usize| edges(i, over);
            open.max_by(|a, b| capacity(*a).total_cmp(&capacity(*b)))
        })?;
        let (capacity, least) = (uses(node, over[node]), uses(node, under[node]));
        let heavy: Vec<bool> = (0..usage.nodes[node].len())
            .map(|x| if capacity == least { x == over[node] } else { 2.0 * uses(node, x) > capacity + least })
            .collect();
        let costs = self.work.problem.interner.costs(part.nodes[node]).to_vec();
        Some([true, false].map(|kept| {
            let own = costs.iter().zip(&heavy).map(|(c, h)| if *h == kept { *c } else { f64::INFINITY }).collect();
            let mut nodes = part.nodes.clone();
            nodes[node] = self.work.problem.interner.add_costs(own);
            nodes
        }))
    }

    /// Moves connected groups of labels from those `within` the limits to those of the cheaper labels `over` a limit,
    /// where that costs less and stays within. The two differ in many independent places, such as the layers of a
    /// model.
    fn improve_toward(&self, within: Vec<usize>, over: &[usize]) -> Vec<usize> {
        let (problem, limits) = (self.problem, self.limits);
        let mut groups = UnionFind::new(within.len());
        let differ = |i: usize| within[i] != over[i];
        for e in problem.edges.iter().filter(|e| differ(e.a) && differ(e.b)) {
            groups.union(e.a, e.b);
        }
        // Groups in the order of their first members.
        let mut members: IndexMap<usize, Vec<usize>> = IndexMap::new();
        for i in (0..within.len()).filter(|i| differ(*i)) {
            members.entry(groups.find_mut(i)).or_default().push(i);
        }
        let t = &problem.interner;
        let mut labels = within;
        let mut used: Vec<f64> = limits.iter().map(|l| l.usage.of(problem, &labels)).collect();
        for list in members.values() {
            let mut touched: Vec<usize> = list.iter().flat_map(|i| self.edges_of[*i].iter().copied()).collect();
            touched.sort_unstable();
            touched.dedup();
            // Cost and usage of the group.
            let sums = |labels: &[usize]| {
                let edge = |k: &usize| {
                    let e = &problem.edges[*k];
                    problem.edge_cost(e, labels[e.a], labels[e.b])
                };
                let cost: f64 = list.iter().map(|i| t.costs(problem.nodes[*i])[labels[*i]]).sum();
                let used = limits.iter().map(|Limit { usage: u, .. }| {
                    let nodes: f64 = list.iter().map(|i| u.nodes[*i][labels[*i]]).sum();
                    nodes + touched.iter().map(|k| u.edge(problem, *k, labels)).sum::<f64>()
                });
                (cost + touched.iter().map(edge).sum::<f64>(), used.collect::<Vec<f64>>())
            };
            let before = sums(&labels);
            let old: Vec<usize> = list.iter().map(|i| labels[*i]).collect();
            list.iter().for_each(|i| labels[*i] = over[*i]);
            let after = sums(&labels);
            let then: Vec<f64> = (0..limits.len()).map(|c| used[c] + after.1[c] - before.1[c]).collect();
            if after.0 < before.0 && then.iter().zip(limits).all(|(u, l)| *u <= l.capacity) {
                used = then;
            } else {
                list.iter().zip(old).for_each(|(i, l)| labels[*i] = l);
            }
        }
        labels
    }
}
