//! Extraction: one e-node for each class that is needed, so that the sum of their costs is small.
//!
//! A class that several others read is paid for once (DAG cost). The choice never has a cycle: the first solutions are
//! built bottom up, and what improves them is checked.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};

use egg::Id;

use super::cost::Target;
use super::graph::EGraph;
use super::language::{Kind, Node};

/// The cost of an op that is evaluated at compile time, and of a view: something, so that fewer are better.
const NEXT_TO_NOTHING: f64 = 1e-4;

/// An e-node in the problem.
struct Choice {
    cost: f64,
    /// Each class once.
    needs: Vec<usize>,
}

/// The problem: classes with their e-nodes, by dense numbers.
pub struct Problem<'a> {
    graph: &'a EGraph,
    ids: Vec<Id>,
    number: HashMap<Id, usize>,
    nodes: Vec<Vec<Choice>>,
    /// E-nodes that read a class: class and e-node.
    readers: Vec<Vec<(usize, usize)>>,
    roots: Vec<usize>,
}

/// A solution: for each class an e-node, and what the roots need costs.
#[derive(Clone, Debug)]
pub struct Solution {
    choice: Vec<Option<usize>>,
    /// Classes that the roots need, operands first.
    order: Vec<usize>,
    /// The sum.
    pub cost: f64,
}

impl<'a> Problem<'a> {
    /// The problem of computing `roots`.
    pub fn new(graph: &'a EGraph, target: &Target, roots: &[Id]) -> Problem<'a> {
        let mut ids: Vec<Id> = graph.egg.classes().map(|c| c.id).collect();
        ids.sort_unstable();
        let number: HashMap<Id, usize> = ids.iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let mut readers = vec![Vec::new(); ids.len()];
        let mut nodes = Vec::with_capacity(ids.len());
        for (c, id) in ids.iter().enumerate() {
            let class = &graph.egg[*id];
            let mut list = Vec::with_capacity(class.nodes.len());
            for (n, node) in class.nodes.iter().enumerate() {
                let mut needs: Vec<usize> = node.children.iter().map(|i| number[&graph.egg.find(*i)]).collect();
                needs.sort_unstable();
                needs.dedup();
                needs.iter().for_each(|k| readers[*k].push((c, n)));
                list.push(Choice { cost: node_cost(graph, target, node, class.data.known), needs });
            }
            nodes.push(list);
        }
        let mut roots: Vec<usize> = roots.iter().map(|r| number[&graph.egg.find(*r)]).collect();
        roots.sort_unstable();
        roots.dedup();
        Problem { graph, ids, number, nodes, readers, roots }
    }

    /// The number of e-nodes.
    pub fn size(&self) -> usize {
        self.nodes.iter().map(Vec::len).sum()
    }

    /// The classes that must be computed.
    pub fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        self.roots.iter().copied()
    }

    /// The e-nodes of a class: what each costs and which classes it needs.
    pub fn class(&self, c: usize) -> impl Iterator<Item = (f64, &[usize])> {
        self.nodes[c].iter().map(|n| (n.cost, n.needs.as_slice()))
    }

    /// Whether a class follows from constants, so that it costs next to nothing.
    pub fn is_known(&self, c: usize) -> bool {
        self.graph.egg[self.ids[c]].data.known
    }

    /// The e-node that a solution takes for a class.
    pub fn node(&self, s: &Solution, class: Id) -> Option<&'a Node> {
        let c = *self.number.get(&self.graph.egg.find(class))?;
        Some(&self.graph.egg[self.ids[c]].nodes[s.choice[c]?])
    }

    /// The classes of a solution, operands first.
    pub fn order<'s>(&'s self, s: &'s Solution) -> impl Iterator<Item = Id> + 's {
        s.order.iter().map(|c| self.ids[*c])
    }

    /// The ops as they were; classes that none of them computes as `greedy` says.
    fn first(&self, original: &[(Id, Node)], greedy: &[Option<usize>]) -> Vec<Option<usize>> {
        let mut first = greedy.to_vec();
        // Of several ops that turned out equal the first is taken: its operands come before it, so there is no cycle.
        for (id, node) in original.iter().rev() {
            let find = |list: &[Id]| list.iter().map(|i| self.graph.egg.find(*i)).collect::<Vec<_>>();
            let c = self.number[&self.graph.egg.find(*id)];
            let mut members = self.graph.egg[self.ids[c]].nodes.iter();
            let at = members.position(|n| n.kind == node.kind && find(&n.children) == find(&node.children));
            first[c] = at.or(first[c]);
        }
        first
    }

    /// Up to `most` e-nodes of each class from which the roots can be computed, classes in an order in which operands come
    /// first whichever e-nodes are taken: what the ops were, what `best` takes, and of the others those that cost least
    /// with all they need.
    pub fn several(&self, original: &[(Id, Node)], best: &Solution, most: usize) -> Vec<(Id, Vec<&'a Node>)> {
        let greedy = self.greedy();
        let first = self.first(original, &greedy);
        let mut kept: Vec<Vec<usize>> = vec![Vec::new(); self.ids.len()];
        for choice in [&first, &best.choice] {
            self.add(&mut kept, &mut |c| choice[c].into_iter().collect(), 2);
        }
        let whole = self.whole_costs();
        let total = |c: usize, k: usize| {
            let node = &self.nodes[c][k];
            node.cost + node.needs.iter().map(|i| whole[*i]).sum::<f64>()
        };
        self.add(
            &mut kept,
            &mut |c| {
                let mut list: Vec<usize> = (0..self.nodes[c].len()).filter(|k| total(c, *k).is_finite()).collect();
                list.sort_by(|a, b| total(c, *a).total_cmp(&total(c, *b)));
                list.truncate(if self.is_known(c) { 1 } else { most });
                list
            },
            most,
        );
        let nodes = |c: &usize| {
            let class = &self.graph.egg[self.ids[*c]];
            (self.ids[*c], kept[*c].iter().map(|k| &class.nodes[*k]).collect())
        };
        self.sorted(&kept).iter().map(nodes).collect()
    }

    /// Keeps e-nodes of the classes that the roots need so far, unless that makes a cycle.
    fn add(&self, kept: &mut [Vec<usize>], wanted: &mut dyn FnMut(usize) -> Vec<usize>, most: usize) {
        let mut seen = vec![false; self.ids.len()];
        let mut open: VecDeque<usize> = self.roots.iter().copied().collect();
        while let Some(c) = open.pop_front() {
            if std::mem::replace(&mut seen[c], true) {
                continue;
            }
            for k in wanted(c) {
                let known = kept[c].contains(&k) || (self.is_known(c) && !kept[c].is_empty());
                if !known && kept[c].len() < most && !self.reaches(kept, &self.nodes[c][k].needs, c) {
                    kept[c].push(k);
                }
            }
            open.extend(kept[c].iter().flat_map(|k| self.nodes[c][*k].needs.iter().copied()));
        }
        // What cannot be computed without a cycle is of no use, nor is what needs it.
        loop {
            let before: usize = kept.iter().map(Vec::len).sum();
            for c in 0..kept.len() {
                let possible: Vec<bool> =
                    kept[c].iter().map(|k| self.nodes[c][*k].needs.iter().all(|n| !kept[*n].is_empty())).collect();
                let mut possible = possible.into_iter();
                kept[c].retain(|_| possible.next().unwrap_or(false));
            }
            if kept.iter().map(Vec::len).sum::<usize>() == before {
                return;
            }
        }
    }

    /// Whether class `target` is among `from`, or what these need.
    fn reaches(&self, kept: &[Vec<usize>], from: &[usize], target: usize) -> bool {
        let mut seen = BTreeSet::new();
        let mut open = from.to_vec();
        while let Some(c) = open.pop() {
            if c == target {
                return true;
            }
            if seen.insert(c) {
                open.extend(kept[c].iter().flat_map(|k| self.nodes[c][*k].needs.iter().copied()));
            }
        }
        false
    }

    /// The least that each class costs with all it needs, where nothing is shared.
    fn whole_costs(&self) -> Vec<f64> {
        let mut costs = vec![f64::INFINITY; self.ids.len()];
        loop {
            let mut changed = false;
            for c in 0..costs.len() {
                let sum = |n: &Choice| n.cost + n.needs.iter().map(|i| costs[*i]).sum::<f64>();
                let least = self.nodes[c].iter().map(sum).fold(f64::INFINITY, f64::min);
                changed |= least < costs[c] - 1e-9;
                costs[c] = costs[c].min(least);
            }
            if !changed {
                return costs;
            }
        }
    }

    /// The classes that the roots need, operands first.
    fn sorted(&self, kept: &[Vec<usize>]) -> Vec<usize> {
        let (mut done, mut order) = (vec![false; self.ids.len()], Vec::new());
        let mut stack: Vec<(usize, bool)> = self.roots.iter().rev().map(|c| (*c, false)).collect();
        while let Some((c, open)) = stack.pop() {
            if done[c] {
                continue;
            }
            if open {
                done[c] = true;
                order.push(c);
                continue;
            }
            stack.push((c, true));
            stack.extend(kept[c].iter().rev().flat_map(|k| self.nodes[c][*k].needs.iter().map(|n| (*n, false))));
        }
        order
    }

    /// The best solution that is found from the ops as they were, in their order, and from the greedy one.
    pub fn solve(&self, original: &[(Id, Node)]) -> Option<Solution> {
        let greedy = self.greedy();
        let first = self.first(original, &greedy);
        let mut best: Option<Solution> = None;
        for start in [first, greedy.clone()] {
            let Some(s) = self.evaluate(start) else { continue };
            let s = self.improve(s, &greedy);
            if best.as_ref().is_none_or(|b| s.cost < b.cost) {
                best = Some(s);
            }
        }
        best
    }

    /// Bottom up in the order of cost, like Dijkstra's algorithm: a class is settled with the e-node whose needs,
    /// together and each once, cost least. What it needs is settled before, so there is no cycle.
    fn greedy(&self) -> Vec<Option<usize>> {
        let n = self.ids.len();
        let own = |c: usize, k: usize| self.nodes[c][k].cost;
        let mut choice: Vec<Option<usize>> = vec![None; n];
        // Everything below a settled class, itself included.
        let mut below: Vec<Vec<u32>> = vec![Vec::new(); n];
        let mut missing: Vec<Vec<usize>> =
            self.nodes.iter().map(|l| l.iter().map(|c| c.needs.len()).collect()).collect();
        let mut queue = BinaryHeap::new();
        let price = |x: f64| Reverse((x * 1e6) as u64);
        for (c, list) in self.nodes.iter().enumerate() {
            for (k, node) in list.iter().enumerate() {
                if node.needs.is_empty() {
                    queue.push((price(node.cost), Reverse((c, k))));
                }
            }
        }
        while let Some((_, Reverse((c, k)))) = queue.pop() {
            if choice[c].is_some() {
                continue;
            }
            choice[c] = Some(k);
            below[c] = union(self.nodes[c][k].needs.iter().map(|i| &below[*i]), Some(c as u32));
            for &(user, node) in &self.readers[c] {
                missing[user][node] -= 1;
                if missing[user][node] == 0 && choice[user].is_none() {
                    let all = union(self.nodes[user][node].needs.iter().map(|i| &below[*i]), None);
                    let sum: f64 = all.iter().map(|i| own(*i as usize, choice[*i as usize].unwrap_or(0))).sum();
                    queue.push((price(sum + own(user, node)), Reverse((user, node))));
                }
            }
        }
        choice
    }

    /// The solution of a choice; `None` where it has a cycle or a hole.
    fn evaluate(&self, choice: Vec<Option<usize>>) -> Option<Solution> {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![NEW; self.ids.len()];
        let (mut order, mut cost) = (Vec::new(), 0.0);
        let mut stack: Vec<(usize, usize)> = Vec::new();
        for root in &self.roots {
            if state[*root] == NEW {
                state[*root] = OPEN;
                stack.push((*root, 0));
            }
            while let Some((c, i)) = stack.pop() {
                let node = &self.nodes[c][choice[c]?];
                match node.needs.get(i) {
                    None => {
                        state[c] = DONE;
                        cost += node.cost;
                        order.push(c);
                    }
                    Some(next) => {
                        stack.push((c, i + 1));
                        match state[*next] {
                            OPEN => return None,
                            NEW => {
                                state[*next] = OPEN;
                                stack.push((*next, 0));
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
        Some(Solution { choice, order, cost })
    }

    /// Changes the choice of single classes, and of all classes together that could share one, while that helps.
    fn improve(&self, mut best: Solution, greedy: &[Option<usize>]) -> Solution {
        const PASSES: usize = 4;
        for _ in 0..PASSES {
            let before = best.cost;
            self.flip(&mut best);
            self.share(&mut best, greedy);
            if best.cost > before - 1e-9 {
                break;
            }
        }
        best
    }

    fn better(&self, best: &Solution, choice: Vec<Option<usize>>) -> Option<Solution> {
        self.evaluate(choice).filter(|s| s.cost < best.cost - 1e-9)
    }

    fn flip(&self, best: &mut Solution) {
        for c in best.order.clone() {
            for k in 0..self.nodes[c].len() {
                if best.choice[c] == Some(k) {
                    continue;
                }
                let mut choice = best.choice.clone();
                choice[c] = Some(k);
                if let Some(s) = self.better(best, choice) {
                    *best = s;
                }
            }
        }
    }

    /// A class that is not needed may pay once several others read it: a merged product of which each reader takes a
    /// slice. For each such class, everything above it that is needed and can be computed from it is.
    fn share(&self, best: &mut Solution, greedy: &[Option<usize>]) {
        for m in 0..self.ids.len() {
            let works = self.nodes[m].iter().any(|n| n.cost > 2.0 * NEXT_TO_NOTHING);
            let users: BTreeSet<usize> = self.readers[m].iter().map(|(c, _)| *c).collect();
            if !works || users.len() < 2 || best.order.contains(&m) {
                continue;
            }
            let (mut choice, flipped) = self.lift(m, best, greedy);
            let Some(mut s) = self.evaluate(choice.clone()) else { continue };
            // Some of them may have been better off as they were.
            for c in flipped {
                let kept = choice[c];
                choice[c] = best.choice[c];
                match self.better(&s, choice.clone()) {
                    Some(t) => s = t,
                    None => choice[c] = kept,
                }
            }
            if s.cost < best.cost - 1e-9 {
                *best = s;
            }
        }
    }

    /// The choice in which what reads `m`, through at most a few classes that are not needed, is computed from it; and
    /// the needed classes that changed.
    fn lift(&self, m: usize, best: &Solution, greedy: &[Option<usize>]) -> (Vec<Option<usize>>, Vec<usize>) {
        const DEPTH: usize = 4;
        let mut choice = best.choice.clone();
        choice[m] = greedy[m].or(choice[m]);
        let needed: BTreeSet<usize> = best.order.iter().copied().collect();
        let mut seen = BTreeSet::from([m]);
        let (mut level, mut flipped) = (vec![m], Vec::new());
        for _ in 0..DEPTH {
            let mut next = Vec::new();
            for c in level {
                for &(user, node) in &self.readers[c] {
                    if !seen.insert(user) {
                        continue;
                    }
                    choice[user] = Some(node);
                    if needed.contains(&user) {
                        flipped.push(user);
                    } else {
                        next.push(user);
                    }
                }
            }
            level = next;
        }
        (choice, flipped)
    }
}

/// The union of sorted lists, with one more element.
fn union<'b>(lists: impl Iterator<Item = &'b Vec<u32>>, more: Option<u32>) -> Vec<u32> {
    let mut all: Vec<u32> = lists.flatten().copied().chain(more).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn node_cost(graph: &EGraph, target: &Target, node: &Node, known: bool) -> f64 {
    match (node.kind, node.made) {
        (Kind::Leaf(_), _) | (Kind::Result(_), _) | (_, None) => 0.0,
        _ if known => NEXT_TO_NOTHING,
        (Kind::Op(_), Some(op)) => target.cost(graph.scratch(), op) + NEXT_TO_NOTHING,
    }
}
