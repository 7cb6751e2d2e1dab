//! The search within limits, such as the memory of devices: a price on what is limited (Lagrange), and the bound that
//! all prices give.
//!
//! A price finds choices within its limit and cheaper ones over it, and no price finds what lies between: half of a label is
//! none. So the labels of one node at a time are cut into those that use much and those that use little, each part with
//! prices and a bound of its own (branch and bound). Where there are several limits each has its price; they are looked for
//! at the same time, as what one limits has mostly little to do with the others.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::problem::{Costs, Matrix, Problem, Table};
use super::{Effort, Solution, Workspace, reduce};

/// No choice is within all limits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TooLarge {
    /// The limit of which most is missing, by its position.
    pub limit: usize,
    /// The least that any choice uses there.
    pub least: f64,
    /// No choice within the limits costs less; infinite where it is certain that there is none.
    pub bound: f64,
}

/// A choice within all limits.
#[derive(Clone, PartialEq, Debug)]
pub struct Limited {
    /// The labels, what they cost, and the bound for all choices within the limits.
    pub solution: Solution,
    /// What one unit more of each limit would save, at most.
    pub prices: Vec<f64>,
}

/// Something that must not be used more than so much.
#[derive(Clone, Default)]
pub struct Limit {
    /// What choices use of it.
    pub usage: Usage,
    /// The most that may be used.
    pub most: f64,
}

impl Limit {
    /// By how much the labels use more than they may, as a share of that; not more than 0 where they are within.
    fn excess(&self, problem: &Problem, labels: &[usize]) -> f64 {
        (self.usage.of(problem, labels) - self.most) / self.most.max(f64::MIN_POSITIVE)
    }
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

/// The labels that cost least of those within all limits.
///
/// # Errors
/// When there are none.
pub fn solve_within(problem: &Problem, limits: &[Limit], effort: &Effort) -> Result<Limited, TooLarge> {
    let mut edges_of = vec![Vec::new(); problem.nodes.len()];
    for (k, e) in problem.edges.iter().enumerate() {
        edges_of[e.a].push(k);
        edges_of[e.b].push(k);
    }
    let work = Workspace { problem: problem.clone(), memo: reduce::Memo::default() };
    let mut s = Search { problem, limits, effort, edges_of, work, best: None };
    let none = vec![0.0; limits.len()];
    let mut whole = Part { nodes: problem.nodes.clone(), over: None, under: None, bound: 0.0, prices: none };
    let least = s.least(&whole.nodes);
    s.price(&mut whole, PRICES);
    let prices = whole.prices.clone();
    let bound = s.branch(whole);
    let Some(mut solution) = s.best else {
        let missing = |c: &usize| least[*c] / limits[*c].most.max(f64::MIN_POSITIVE);
        let limit = (0..limits.len()).max_by(|a, b| missing(a).total_cmp(&missing(b))).unwrap_or(0);
        return Err(TooLarge { limit, least: least.get(limit).copied().unwrap_or(0.0), bound });
    };
    solution.bound = bound.min(solution.cost);
    Ok(Limited { solution, prices })
}

/// Some of the choices: those of labels that do not cost infinitely much.
struct Part {
    nodes: Vec<Costs>,
    /// A cheap choice that uses too much; none where the cheapest does not.
    over: Option<Vec<usize>>,
    /// A choice within the limits, where one was found.
    under: Option<Vec<usize>>,
    /// None within the limits costs less.
    bound: f64,
    /// For each limit the lowest price at which a choice within it was found; before that, where to begin.
    prices: Vec<f64>,
}

/// The price of one limit: it is too low up to here, and high enough from there on.
#[derive(Clone, Copy)]
struct Range {
    low: f64,
    high: Option<f64>,
    price: f64,
}

impl Range {
    /// Takes in whether the choice at this price is within the limit.
    fn tell(&mut self, within: bool) {
        if within && self.price == 0.0 {
            return;
        }
        // What was known before may have been so because of the prices of other limits.
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

    /// The next price to try: prices differ by orders of magnitude.
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
    /// The best choice within the limits.
    best: Option<Solution>,
}

impl Search<'_> {
    /// The least that labels which are possible at all use of each limit.
    fn least(&self, nodes: &[Costs]) -> Vec<f64> {
        let least = |(n, u): (&Costs, &Vec<f64>)| {
            let possible = self.work.problem.tables.costs(*n).iter().zip(u).filter(|(c, _)| c.is_finite());
            possible.map(|(_, u)| *u).fold(f64::INFINITY, f64::min)
        };
        let sum = |l: &Limit| nodes.iter().zip(&l.usage.nodes).map(least).filter(|u| u.is_finite()).sum();
        self.limits.iter().map(sum).collect()
    }

    /// Whether no choice within the limits that costs at least `bound` is worth looking for.
    fn is_enough(&self, bound: f64) -> bool {
        self.best.as_ref().is_some_and(|b| b.cost - bound <= self.effort.gap * b.cost)
    }

    fn fits(&self, labels: &[usize]) -> bool {
        self.limits.iter().all(|l| l.usage.of(self.problem, labels) <= l.most)
    }

    /// The labels that cost least where each unit that is used of a limit costs its price.
    fn solve(&mut self, nodes: &[Costs], prices: &[f64]) -> Solution {
        let p = &mut self.work.problem;
        p.nodes = nodes.to_vec();
        p.edges.clone_from(&self.problem.edges);
        let with_price = |costs: &[f64], used: &[f64], price: f64| -> Vec<f64> {
            costs.iter().zip(used).map(|(c, u)| c + price * u).collect()
        };
        for (Limit { usage, .. }, price) in self.limits.iter().zip(prices).filter(|(_, p)| **p > 0.0) {
            for (n, u) in p.nodes.iter_mut().zip(&usage.nodes) {
                if u.iter().any(|x| *x != 0.0) {
                    let costs = with_price(p.tables.costs(*n), u, *price);
                    *n = p.tables.add_costs(costs);
                }
            }
            let mut tables: HashMap<(Table, *const Matrix), Table> = HashMap::new();
            for (k, u) in &usage.edges {
                let table = &mut p.edges[*k].matrix;
                *table = *tables.entry((*table, Rc::as_ptr(u))).or_insert_with(|| {
                    let data = with_price(&p.tables.matrix(*table).data, &u.data, *price);
                    p.tables.add_matrix(Matrix { data, ..**u })
                });
            }
        }
        self.work.solve(self.effort)
    }

    /// Looks for choices of a part within the limits, and raises its bound: first without prices, then with some.
    fn price(&mut self, part: &mut Part, prices: usize) {
        let s = self.solve(&part.nodes, &vec![0.0; self.limits.len()]);
        part.bound = part.bound.max(s.bound);
        if !s.cost.is_finite() {
            // Impossible, which is certain where nothing was left to search.
            part.bound = if s.core == 0 { f64::INFINITY } else { part.bound };
            return;
        }
        if self.fits(&s.labels) {
            self.found(s.labels, s.core);
            return;
        }
        // The first guess: all that is over a limit is worth all that is paid.
        let guess = |most: f64, used: f64| s.cost.max(1e-12) / (used - most).max(most * 1e-3).max(1.0);
        let first: Vec<f64> = self.limits.iter().map(|l| guess(l.most, l.usage.of(self.problem, &s.labels))).collect();
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
            let paid: f64 = now.iter().zip(self.limits).map(|(p, l)| p * l.most).sum();
            part.bound = part.bound.max(s.bound - paid);
            let within: Vec<bool> = self.limits.iter().map(|l| l.excess(self.problem, &s.labels) <= 0.0).collect();
            ranges.iter_mut().zip(&within).for_each(|(r, w)| r.tell(*w));
            if within.iter().all(|w| *w) {
                part.prices = now;
                let labels = self.toward(s.labels.clone(), part.over.as_deref().unwrap_or_default());
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

    /// A choice within the limits.
    fn found(&mut self, labels: Vec<usize>, core: usize) {
        let cost = self.problem.cost(&labels);
        if self.best.as_ref().is_none_or(|b| cost < b.cost) {
            self.best = Some(Solution { labels, cost, bound: 0.0, core });
        }
    }

    /// Cuts the choices into parts as long as that may help and there is time: the one with the least bound first, and
    /// before anything was found the one that is nearest to the limits. Gives the bound of all.
    fn branch(&mut self, whole: Part) -> f64 {
        let mut left = self.effort.choices / self.problem.nodes.len().max(1);
        // Parts that cannot be cut.
        let mut closed = f64::INFINITY;
        let mut open = vec![whole];
        loop {
            let none = self.best.is_none();
            let key = |p: &Part| if none { self.excess(p) } else { p.bound };
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
                // It has one choice, which uses too much, or the cheapest is within the limits.
                closed = if part.over.is_some() { closed } else { closed.min(part.bound) };
                continue;
            };
            left = left.saturating_sub(2 * PRICES_OF_PART);
            for nodes in cut {
                if self.least(&nodes).iter().zip(self.limits).all(|(least, l)| *least <= l.most) {
                    let prices = part.prices.clone();
                    let mut own = Part { nodes, over: None, under: None, bound: part.bound, prices };
                    self.price(&mut own, PRICES_OF_PART);
                    open.push(own);
                }
            }
        }
    }

    /// By how much the choice of a part that uses too much does so, where it does most.
    fn excess(&self, part: &Part) -> f64 {
        let of = |labels: &Vec<usize>| self.limits.iter().map(|l| l.excess(self.problem, labels)).fold(0.0, f64::max);
        part.over.as_ref().map_or(0.0, of)
    }

    /// The choices of a part in two: of the node that uses most of what its choice over a limit uses more than the other
    /// one, the labels that use more and those that use less. `None` where there is none.
    fn cut(&mut self, part: &Part) -> Option<[Vec<Costs>; 2]> {
        let over = part.over.as_ref()?;
        let excess = |l: &Limit| l.excess(self.problem, over);
        let limit = self.limits.iter().max_by(|a, b| excess(a).total_cmp(&excess(b)))?;
        let usage = &limit.usage;
        let possible = |i: usize| {
            let costs = self.work.problem.tables.costs(part.nodes[i]);
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
        // What edges use may be too much where no label is.
        let open = (0..over.len()).filter(|i| possible(*i).nth(1).is_some());
        let node = differ.max_by(|a, b| more(*a).total_cmp(&more(*b))).or_else(|| {
            let most = |i: usize| edges(i, over);
            open.max_by(|a, b| most(*a).total_cmp(&most(*b)))
        })?;
        let (most, least) = (uses(node, over[node]), uses(node, under[node]));
        let heavy: Vec<bool> = (0..usage.nodes[node].len())
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

    /// Changes connected groups of labels from those `within` the limits to those of a cheaper choice `over` one, where that
    /// costs less and stays within: the two differ in many places that do not depend on each other, such as the layers of a
    /// model.
    fn toward(&self, within: Vec<usize>, over: &[usize]) -> Vec<usize> {
        let (problem, limits) = (self.problem, self.limits);
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
        let mut used: Vec<f64> = limits.iter().map(|l| l.usage.of(problem, &labels)).collect();
        for list in members.values() {
            let mut touched: Vec<usize> = list.iter().flat_map(|i| self.edges_of[*i].iter().copied()).collect();
            touched.sort_unstable();
            touched.dedup();
            // What the group costs and uses.
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
            if after.0 < before.0 && then.iter().zip(limits).all(|(u, l)| *u <= l.most) {
                used = then;
            } else {
                list.iter().zip(old).for_each(|(i, l)| labels[*i] = l);
            }
        }
        labels
    }
}
