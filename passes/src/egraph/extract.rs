//! Extraction: chooses one e-node per needed class so that the sum of their costs is small.
//!
//! A class with several readers is paid for once (DAG cost). The choice is acyclic: initial solutions are built bottom
//! up, and local search checks each change.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};

use egg::Id;

use super::cost::Target;
use super::graph::EGraph;
use super::language::{Kind, Node};

/// Cost of ops evaluated at compile time and of views: small, so that fewer are better.
const EPSILON_COST: f64 = 1e-4;

/// A way to compute a class: an e-node in a kernel of its own, or fused with its operand's kernel.
struct Choice {
    node: usize,
    /// Class and e-node of the operand that is fused and not stored.
    inside: Option<(usize, usize)>,
    cost: f64,
    /// The classes it needs, each once.
    needs: Vec<usize>,
}

/// The extraction problem: classes with their choices, densely numbered.
pub struct Problem<'a> {
    graph: &'a EGraph,
    ids: Vec<Id>,
    number: HashMap<Id, usize>,
    /// First one choice per e-node, in their order.
    nodes: Vec<Vec<Choice>>,
    /// Whether a class depends only on constants, so that it is almost free.
    known: Vec<bool>,
    /// Choices that read a class: class and choice.
    readers: Vec<Vec<(usize, usize)>>,
    roots: Vec<usize>,
}

/// A solution: a choice for each class, and the cost of what the roots need.
#[derive(Clone, Debug)]
pub struct Solution {
    choice: Vec<Option<usize>>,
    /// Classes that the roots need, operands first.
    order: Vec<usize>,
    /// Total cost.
    pub cost: f64,
}

impl<'a> Problem<'a> {
    /// The problem of computing `roots`.
    pub fn new(graph: &'a EGraph, target: &Target, roots: &[Id]) -> Problem<'a> {
        let mut ids: Vec<Id> = graph.egg.classes().map(|c| c.id).collect();
        ids.sort_unstable();
        let number: HashMap<Id, usize> = ids.iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let needs_of = |node: &Node| -> Vec<usize> {
            let needs: BTreeSet<usize> = node.children.iter().map(|i| number[&graph.egg.find(*i)]).collect();
            needs.into_iter().collect()
        };
        let mut nodes: Vec<Vec<Choice>> = Vec::with_capacity(ids.len());
        for id in &ids {
            let class = &graph.egg[*id];
            let alone = |(node, n): (usize, &Node)| {
                let cost = node_cost(graph, target, n, class.data.known);
                Choice { node, inside: None, cost, needs: needs_of(n) }
            };
            let mut list: Vec<Choice> = class.nodes.iter().enumerate().map(alone).collect();
            for (node, n) in class.nodes.iter().enumerate().filter(|_| !class.data.known) {
                let [x] = n.children[..] else { continue };
                let inner = graph.egg[graph.egg.find(x)].nodes.iter().enumerate();
                list.extend(inner.filter_map(|(k, i)| {
                    let cost = target.fused_cost(graph.scratch(), i.scratch_op?, n.scratch_op?)? + EPSILON_COST;
                    Some(Choice { node, inside: Some((number[&graph.egg.find(x)], k)), cost, needs: needs_of(i) })
                }));
            }
            nodes.push(list);
        }
        let mut roots: Vec<usize> = roots.iter().map(|r| number[&graph.egg.find(*r)]).collect();
        roots.sort_unstable();
        roots.dedup();
        let known = ids.iter().map(|id| graph.egg[*id].data.known).collect();
        Problem { graph, readers: readers(&nodes), ids, number, nodes, known, roots }
    }

    /// The number of e-nodes.
    pub fn size(&self) -> usize {
        self.ids.iter().map(|id| self.graph.egg[*id].nodes.len()).sum()
    }

    /// The classes that must be computed.
    pub fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        self.roots.iter().copied()
    }

    /// The choices of a class: cost and needed classes.
    pub fn class(&self, c: usize) -> impl Iterator<Item = (f64, &[usize])> {
        self.nodes[c].iter().map(|n| (n.cost, n.needs.as_slice()))
    }

    /// Whether a class depends only on constants, so that it is almost free.
    pub fn is_known(&self, c: usize) -> bool {
        self.known[c]
    }

    /// The e-nodes of a solution with their classes, operands first.
    pub fn selected<'s>(&'s self, s: &'s Solution) -> impl Iterator<Item = (Id, &'a Node)> + 's {
        let one = |c: usize, node: usize| (self.ids[c], &self.graph.egg[self.ids[c]].nodes[node]);
        s.order.iter().flat_map(move |c| {
            let choice = s.choice[*c].map(|k| &self.nodes[*c][k]);
            let inside = choice.and_then(|x| x.inside).map(|(d, k)| one(d, k));
            inside.into_iter().chain(choice.map(|x| one(*c, x.node)))
        })
    }

    /// The original ops; classes without one as `greedy` says.
    fn original_choice(&self, original: &[(Id, Node)], greedy: &[Option<usize>]) -> Vec<Option<usize>> {
        let mut first = greedy.to_vec();
        // Of several equal ops the first is taken: its operands come before it, so there is no cycle.
        for (id, node) in original.iter().rev() {
            let find = |list: &[Id]| list.iter().map(|i| self.graph.egg.find(*i)).collect::<Vec<_>>();
            let c = self.number[&self.graph.egg.find(*id)];
            let mut members = self.graph.egg[self.ids[c]].nodes.iter();
            let at = members.position(|n| n.kind == node.kind && find(&n.children) == find(&node.children));
            first[c] = at.or(first[c]);
        }
        first
    }

    /// Up to `most` e-nodes per class, such that every selection of them is acyclic and computes the roots, with the
    /// classes in topological order. They are the original op, the choice of `best`, and those of the others with the
    /// smallest total cost.
    pub fn alternatives(&self, original: &[(Id, Node)], best: &Solution, most: usize) -> Vec<(Id, Vec<&'a Node>)> {
        let greedy = self.greedy();
        let first = self.original_choice(original, &greedy);
        let mut kept: Vec<Vec<usize>> = vec![Vec::new(); self.ids.len()];
        for choice in [&first, &self.unfused(best)] {
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
                let alone = |k: &usize| self.nodes[c][*k].inside.is_none() && total(c, *k).is_finite();
                let mut list: Vec<usize> = (0..self.nodes[c].len()).filter(alone).collect();
                of_ir::sort::by(&mut list, |a, b| total(c, *a).total_cmp(&total(c, *b)));
                list.truncate(if self.is_known(c) { 1 } else { most });
                list
            },
            most,
        );
        let nodes = |c: &usize| {
            let class = &self.graph.egg[self.ids[*c]];
            (self.ids[*c], kept[*c].iter().map(|k| &class.nodes[self.nodes[*c][*k].node]).collect())
        };
        self.sorted(&kept).iter().map(nodes).collect()
    }

    /// The choice of a solution with each e-node in a kernel of its own.
    fn unfused(&self, s: &Solution) -> Vec<Option<usize>> {
        let mut choice = s.choice.clone();
        for c in &s.order {
            if let Some(k) = s.choice[*c]
                && let Some((d, inside)) = self.nodes[*c][k].inside
            {
                choice[*c] = Some(self.nodes[*c][k].node);
                choice[d] = Some(inside);
            }
        }
        choice
    }

    /// Adds e-nodes to the classes that the roots need so far, unless that makes a cycle.
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
        // Drops e-nodes that cannot be computed without a cycle.
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

    /// Whether class `target` is among `from` or their transitive needs.
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

    /// Tree cost: the least cost of each class with all its needs, without sharing.
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

    /// The classes that the roots need, in topological order.
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

    /// The best solution by local search from the original ops and from the greedy choice.
    pub fn solve(&self, original: &[(Id, Node)]) -> Option<Solution> {
        let greedy = self.greedy();
        let first = self.original_choice(original, &greedy);
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

    /// A solution with other choices for some classes; `None` where that has a cycle.
    pub fn with(&self, s: &Solution, chosen: &[(usize, usize)]) -> Option<Solution> {
        let mut choice = s.choice.clone();
        chosen.iter().for_each(|(c, k)| choice[*c] = Some(*k));
        self.evaluate(choice)
    }

    /// Greedy bottom-up extraction in order of cost, like Dijkstra's algorithm. A class is settled with the e-node
    /// whose needs, each counted once, cost least. Its needs are settled before, so there is no cycle.
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

    /// The solution of a choice; `None` where it has a cycle or an unset class.
    fn evaluate(&self, choice: Vec<Option<usize>>) -> Option<Solution> {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![NEW; self.nodes.len()];
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

    /// Local search: changes the choice of single classes, and of all classes that could share one.
    fn improve(&self, mut best: Solution, greedy: &[Option<usize>]) -> Solution {
        const PASSES: usize = 4;
        for _ in 0..PASSES {
            let before = best.cost;
            self.improve_single(&mut best);
            self.improve_shared(&mut best, greedy);
            if best.cost > before - 1e-9 {
                break;
            }
        }
        best
    }

    fn better(&self, best: &Solution, choice: Vec<Option<usize>>) -> Option<Solution> {
        self.evaluate(choice).filter(|s| s.cost < best.cost - 1e-9)
    }

    fn improve_single(&self, best: &mut Solution) {
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

    /// A class may pay off once several others read it, such as a merged product that each reader slices. For each
    /// unused class, tries to compute all needed classes above it from it.
    fn improve_shared(&self, best: &mut Solution, greedy: &[Option<usize>]) {
        for m in 0..self.ids.len() {
            let works = self.nodes[m].iter().any(|n| n.cost > 2.0 * EPSILON_COST);
            let users: BTreeSet<usize> = self.readers[m].iter().map(|(c, _)| *c).collect();
            if !works || users.len() < 2 || best.order.contains(&m) {
                continue;
            }
            let (mut choice, flipped) = self.lift(m, best, greedy);
            let Some(mut s) = self.evaluate(choice.clone()) else { continue };
            // Reverts readers that were cheaper before.
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

    /// The choice in which the readers of `m`, through a few unneeded classes, are computed from it; and the needed
    /// classes that changed.
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

/// For each class the choices that need it: their class and position.
fn readers(nodes: &[Vec<Choice>]) -> Vec<Vec<(usize, usize)>> {
    let mut out = vec![Vec::new(); nodes.len()];
    for (c, list) in nodes.iter().enumerate() {
        for (k, choice) in list.iter().enumerate() {
            choice.needs.iter().for_each(|d| out[*d].push((c, k)));
        }
    }
    out
}

/// The union of sorted lists and one more element.
fn union<'b>(lists: impl Iterator<Item = &'b Vec<u32>>, more: Option<u32>) -> Vec<u32> {
    let mut all: Vec<u32> = lists.flatten().copied().chain(more).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn node_cost(graph: &EGraph, target: &Target, node: &Node, known: bool) -> f64 {
    match (node.kind, node.scratch_op) {
        (Kind::Leaf(_), _) | (Kind::Result(_), _) | (_, None) => 0.0,
        _ if known => EPSILON_COST,
        (Kind::Op(_), Some(op)) => target.cost(graph.scratch(), op, graph.joins(&node.children)) + EPSILON_COST,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use of_ops::sample::Rng;

    use super::*;

    /// A random problem without an e-graph: few classes, each with some choices of any other classes.
    pub fn random<'a>(graph: &'a EGraph, rng: &mut Rng) -> Problem<'a> {
        let classes = rng.int(2, 8) as usize;
        let choice = |rng: &mut Rng, node: usize| {
            let needs: BTreeSet<usize> = (0..rng.int(0, 3)).map(|_| rng.int(0, classes as i64 - 1) as usize).collect();
            let cost = rng.int(0, 9) as f64;
            Choice { node, inside: None, cost, needs: needs.into_iter().collect() }
        };
        let nodes: Vec<Vec<Choice>> =
            (0..classes).map(|_| (0..rng.int(1, 3) as usize).map(|k| choice(rng, k)).collect()).collect();
        let (ids, number, known) = (Vec::new(), HashMap::new(), vec![false; classes]);
        Problem { graph, ids, number, readers: readers(&nodes), nodes, known, roots: vec![0, 1] }
    }

    impl Problem<'_> {
        /// The least cost of all choices, and one choice; `None` where all have cycles.
        pub fn brute(&self) -> Option<(f64, Solution)> {
            let all: usize = self.nodes.iter().map(Vec::len).product();
            let mut best: Option<Solution> = None;
            let mut first = None;
            for mut i in 0..all {
                let digit = |list: &Vec<Choice>| {
                    let k = i % list.len();
                    i /= list.len();
                    Some(k)
                };
                let Some(s) = self.evaluate(self.nodes.iter().map(digit).collect()) else { continue };
                first.get_or_insert_with(|| s.clone());
                if best.as_ref().is_none_or(|b| s.cost < b.cost) {
                    best = Some(s);
                }
            }
            Some((best?.cost, first?))
        }
    }
}
