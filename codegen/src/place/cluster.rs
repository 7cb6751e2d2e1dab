//! Clusters: units of one backend, merged as long as the graph of clusters stays acyclic.
//!
//! This is graph partitioning.

use std::collections::BTreeSet;

use of_ir::{Graph, IdMap, OpId};

use crate::analysis::roles::{Roles, is_rendezvous};
use crate::extract::read_by;
use crate::place::unit::Unit;

/// Units and clusters as the nodes of a graph.
pub(crate) struct Nodes {
    /// Units of each node; empty for a node that was merged into another.
    members: Vec<Vec<usize>>,
    /// Nodes that must run before.
    deps: Vec<BTreeSet<usize>>,
    /// The backend of a node, by index.
    on: Vec<Option<usize>>,
    /// The phase of a node, where ops run in microbatches: nodes of two phases are not merged.
    phase: Vec<usize>,
    /// Dependencies of each unit, in case its subgraph is dissolved.
    unit_deps: Vec<BTreeSet<usize>>,
}

impl Nodes {
    /// A node for every unit.
    pub(super) fn new(g: &Graph, units: &[Unit<'_>], roles: &Roles, phases: &IdMap<OpId, usize>) -> Nodes {
        let unit_of: IdMap<OpId, usize> =
            units.iter().enumerate().flat_map(|(i, u)| u.ops.iter().map(move |op| (*op, i))).collect();
        let mut needs = Vec::new();
        let mut last_rendezvous = None;
        for (i, u) in units.iter().enumerate() {
            let mut own = BTreeSet::new();
            // All ranks must run transfers in the same order, whatever the placement.
            if u.ops.iter().any(|op| is_rendezvous(g, *op)) {
                own.extend(last_rendezvous.replace(i));
            }
            for op in &u.ops {
                let mut read = Vec::new();
                read_by(g, *op, &mut read);
                let makers = read.iter().filter_map(|v| g.def_op(*v)).chain(roles.binders(g, *op));
                own.extend(makers.filter_map(|o| unit_of.get(&o).copied()));
            }
            own.remove(&i);
            needs.push(own);
        }
        let mut names: Vec<&str> = Vec::new();
        let mut number = |u: &Unit<'_>| {
            let name = u.on?.name();
            Some(names.iter().position(|n| *n == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            }))
        };
        let on = units.iter().map(&mut number).collect();
        let phase = units.iter().map(|u| u.ops.first().and_then(|op| phases.get(op)).copied().unwrap_or(0)).collect();
        let members = (0..units.len()).map(|i| vec![i]).collect();
        Nodes { members, deps: needs.clone(), on, phase, unit_deps: needs }
    }

    /// Merges adjacent clusters, then unordered clusters of one backend.
    pub(super) fn merge_clusters(&mut self) {
        for node in self.topological() {
            // Newest first: it is the most likely to depend directly.
            let touching: Vec<usize> = self.deps[node].iter().rev().copied().collect();
            let mut into = node;
            for other in touching {
                if self.mergeable(into, other) {
                    into = self.merge(into, other);
                }
            }
        }
        let mut clusters: Vec<usize> =
            (0..self.members.len()).filter(|n| self.on[*n].is_some() && !self.members[*n].is_empty()).collect();
        of_ir::sort::by_key(&mut clusters, |n| self.members[*n][0]);
        for i in 0..clusters.len() {
            for j in i + 1..clusters.len() {
                if self.mergeable(clusters[i], clusters[j]) {
                    let kept = self.merge(clusters[i], clusters[j]);
                    (clusters[i], clusters[j]) = (kept, usize::MAX);
                }
            }
        }
    }

    /// Nodes assigned to a backend: the units of each, in order.
    pub(super) fn clusters(&self) -> Vec<Vec<usize>> {
        let taken = (0..self.members.len()).filter(|n| self.on[*n].is_some() && !self.members[*n].is_empty());
        taken.map(|n| self.members[n].clone()).collect()
    }

    /// Dissolves a subgraph: each of its units becomes a node again.
    pub(super) fn dissolve(&mut self, members: &[usize]) {
        for u in members {
            self.members[*u] = vec![*u];
            self.on[*u] = None;
        }
        let mut node_of = vec![0; self.members.len()];
        for (n, m) in self.members.iter().enumerate() {
            m.iter().for_each(|u| node_of[*u] = n);
        }
        for n in 0..self.members.len() {
            let needs = self.members[n].iter().flat_map(|u| &self.unit_deps[*u]).map(|u| node_of[*u]);
            self.deps[n] = needs.filter(|d| *d != n).collect();
        }
    }

    /// The units of every node in dependency order; among ready nodes, the first of the function.
    pub(super) fn order(&self) -> Vec<Vec<usize>> {
        self.topological().into_iter().map(|n| self.members[n].clone()).collect()
    }

    fn topological(&self) -> Vec<usize> {
        let live: Vec<usize> = (0..self.members.len()).filter(|n| !self.members[*n].is_empty()).collect();
        let mut left: Vec<usize> = self.deps.iter().map(BTreeSet::len).collect();
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.members.len()];
        live.iter().for_each(|n| self.deps[*n].iter().for_each(|d| readers[*d].push(*n)));
        let first = |n: usize| self.members[n][0];
        let mut ready: BTreeSet<(usize, usize)> =
            live.iter().filter(|n| left[**n] == 0).map(|n| (first(*n), *n)).collect();
        let mut out = Vec::with_capacity(live.len());
        while let Some((_, n)) = ready.pop_first() {
            out.push(n);
            for r in &readers[n] {
                left[*r] -= 1;
                if left[*r] == 0 {
                    ready.insert((first(*r), *r));
                }
            }
        }
        out
    }

    /// Whether both have the same backend, and no path between them goes through a third node.
    fn mergeable(&self, a: usize, b: usize) -> bool {
        let live = |n: usize| self.members.get(n).is_some_and(|m| !m.is_empty());
        let same = a != b
            && live(a)
            && live(b)
            && self.on[a].is_some()
            && self.on[a] == self.on[b]
            && self.phase[a] == self.phase[b];
        same && !self.path_around(a, b) && !self.path_around(b, a)
    }

    /// Whether a path from `b` to `a` goes through another node.
    fn path_around(&self, a: usize, b: usize) -> bool {
        let mut seen = BTreeSet::new();
        let mut stack: Vec<usize> = self.deps[a].iter().copied().filter(|d| *d != b).collect();
        while let Some(n) = stack.pop() {
            if n == b {
                return true;
            }
            if seen.insert(n) {
                stack.extend(&self.deps[n]);
            }
        }
        false
    }

    /// Merges two nodes; the smaller index stays.
    fn merge(&mut self, a: usize, b: usize) -> usize {
        let (keep, gone) = (a.min(b), a.max(b));
        let members = std::mem::take(&mut self.members[gone]);
        self.members[keep].extend(members);
        self.members[keep].sort_unstable();
        let deps = std::mem::take(&mut self.deps[gone]);
        self.deps[keep].extend(deps);
        for n in 0..self.deps.len() {
            if self.deps[n].remove(&gone) {
                self.deps[n].insert(keep);
            }
        }
        self.deps[keep].remove(&keep);
        keep
    }
}
