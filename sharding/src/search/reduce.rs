//! Exact reduction: dominance pruning of labels, and elimination of nodes with at most two neighbours.

use std::collections::HashMap;

use super::problem::{CostId, Edge, IndexId, Matrix, MatrixId, Problem};

/// A reduced problem, and how to recover the labels of eliminated nodes.
pub struct Reduced {
    /// The problem after elimination. Eliminated nodes have no edges.
    pub problem: Problem,
    /// Whether the node is still there.
    pub alive: Vec<bool>,
    /// Cost of the eliminated nodes that does not depend on other labels.
    pub constant: f64,
    /// The labels of the original problem that remain of each node.
    labels: Vec<Vec<usize>>,
    /// Of those, the ones that remain after pruning the core.
    core_labels: Vec<Option<Vec<usize>>>,
    eliminated: Vec<Eliminated>,
    edges_of: Vec<Vec<usize>>,
    edges: Vec<Option<Edge>>,
    /// Memoized results.
    pub memo: Memo,
}

/// An eliminated node, with the edges that its label depends on.
struct Eliminated {
    node: usize,
    costs: CostId,
    edges: Vec<Edge>,
}

/// An edge seen from one end: its own index list, that of the other end, and the matrix from here to there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Side {
    own: IndexId,
    other: IndexId,
    matrix: MatrixId,
}

/// Key of dominance pruning: costs of a node and its edges.
type DominanceKey = (CostId, Vec<(MatrixId, IndexId)>);

/// Memoized results by their inputs; valid as long as the interner.
#[derive(Default)]
pub struct Memo {
    max_excess: HashMap<MatrixId, MatrixId>,
    kept: HashMap<DominanceKey, Vec<usize>>,
    messages: HashMap<(CostId, IndexId, MatrixId), CostId>,
    sums: HashMap<(CostId, CostId, IndexId), CostId>,
    products: HashMap<(CostId, Side, Side), (IndexId, IndexId, MatrixId)>,
    merged: HashMap<(Side, Side), (IndexId, IndexId, MatrixId)>,
    compact: HashMap<(IndexId, IndexId, MatrixId), (IndexId, IndexId, MatrixId)>,
    chosen: HashMap<(CostId, Vec<usize>), CostId>,
    indices: HashMap<(IndexId, Vec<usize>), IndexId>,
}

/// Reduces `problem` as far as the rules go. `memo` belongs to the same interner, or is empty.
pub fn reduce(problem: Problem, memo: Memo) -> Reduced {
    let n = problem.nodes.len();
    let labels = problem.nodes.iter().map(|c| (0..problem.interner.costs(*c).len()).collect()).collect();
    let edges: Vec<Option<Edge>> = problem.edges.iter().copied().map(Some).collect();
    let mut edges_of = vec![Vec::new(); n];
    for (i, e) in problem.edges.iter().enumerate() {
        edges_of[e.a].push(i);
        edges_of[e.b].push(i);
    }
    let mut r = Reduced {
        problem,
        alive: vec![true; n],
        constant: 0.0,
        labels,
        core_labels: vec![None; n],
        eliminated: Vec::new(),
        edges_of,
        edges,
        memo,
    };
    (0..n).for_each(|i| r.prune_dominated(i));
    r.merge_all();
    r.eliminate();
    r.prune_core();
    r.compact();
    r.problem.edges = r.edges.iter().flatten().copied().collect();
    r
}

impl Reduced {
    /// The labels of all nodes of the original problem, from those of the core.
    pub fn expand(&self, core: &[usize]) -> Vec<usize> {
        let core_labels = |(c, core_labels): (&usize, &Option<Vec<usize>>)| core_labels.as_ref().map_or(*c, |l| l[*c]);
        let mut chosen: Vec<usize> = core.iter().zip(&self.core_labels).map(core_labels).collect();
        let t = &self.problem.interner;
        for g in self.eliminated.iter().rev() {
            let costs = t.costs(g.costs);
            let total = |x: usize| {
                let edge = |e: &Edge| {
                    let (other, a, b) = if e.a == g.node { (e.b, x, chosen[e.b]) } else { (e.a, chosen[e.a], x) };
                    debug_assert_ne!(other, g.node);
                    self.problem.edge_cost(e, a, b)
                };
                costs[x] + g.edges.iter().map(edge).sum::<f64>()
            };
            chosen[g.node] = (0..costs.len()).min_by(|x, y| total(*x).total_cmp(&total(*y))).unwrap_or(0);
        }
        chosen.iter().zip(&self.labels).map(|(c, labels)| labels[*c]).collect()
    }

    fn side(&mut self, e: &Edge, node: usize) -> Side {
        if e.a == node {
            Side { own: e.row, other: e.col, matrix: e.matrix }
        } else {
            Side { own: e.col, other: e.row, matrix: self.problem.interner.transpose(e.matrix) }
        }
    }

    /// Drops each dominated label: another costs no more, whatever the neighbours choose.
    fn prune_dominated(&mut self, node: usize) {
        let list: Vec<Edge> = self.edges_of[node].iter().filter_map(|i| self.edges[*i]).collect();
        let mut sides = Vec::with_capacity(list.len());
        for e in list {
            let s = self.side(&e, node);
            sides.push((self.max_excess(s.matrix), s.own));
        }
        let costs = self.problem.nodes[node];
        let key = (costs, sides);
        if !self.memo.kept.contains_key(&key) {
            let t = &self.problem.interner;
            let own = t.costs(costs);
            let interner: Vec<(&Matrix, &[u32])> = key.1.iter().map(|(m, p)| (t.matrix(*m), t.indices(*p))).collect();
            let better = |x: usize, y: usize| {
                let mut sum = own[x] - own[y];
                for (m, p) in &interner {
                    sum += m.at(p[x] as usize, p[y] as usize);
                    if sum > 0.0 && sum.is_infinite() {
                        return false;
                    }
                }
                sum < 0.0 || (sum == 0.0 && x < y)
            };
            // Cheapest first: these dominate most others.
            let mut order: Vec<usize> = (0..own.len()).filter(|x| own[*x].is_finite()).collect();
            of_ir::sort::by(&mut order, |a, b| own[*a].total_cmp(&own[*b]).then(a.cmp(b)));
            let mut kept: Vec<usize> = Vec::new();
            for y in &order {
                if !kept.iter().any(|x| better(*x, *y)) {
                    kept.push(*y);
                }
            }
            let again = kept.clone();
            kept.retain(|y| !again.iter().any(|x| x != y && better(*x, *y)));
            kept.sort_unstable();
            self.memo.kept.insert(key.clone(), kept);
        }
        let kept = self.memo.kept[&key].clone();
        if kept.is_empty() || kept.len() == self.labels[node].len() {
            return;
        }
        self.labels[node] = kept.clone();
        self.problem.nodes[node] = self.choose_costs(costs, &kept);
        for i in self.edges_of[node].clone() {
            if let Some(mut e) = self.edges[i] {
                if e.a == node {
                    e.row = self.choose_indices(e.row, &kept);
                }
                if e.b == node {
                    e.col = self.choose_indices(e.col, &kept);
                }
                self.edges[i] = Some(e);
            }
        }
    }

    /// The most that row `x` costs more than row `y`, in row `x` and column `y`.
    fn max_excess(&mut self, m: MatrixId) -> MatrixId {
        if let Some(g) = self.memo.max_excess.get(&m) {
            return *g;
        }
        let t = self.problem.interner.matrix(m);
        let mut data = Vec::with_capacity(t.rows * t.rows);
        for x in 0..t.rows {
            for y in 0..t.rows {
                // Where both are infinite, neither is worse.
                let mut most = f64::NEG_INFINITY;
                for (a, b) in t.row(x).iter().zip(t.row(y)) {
                    let more = if b.is_infinite() { f64::NEG_INFINITY } else { a - b };
                    most = if more > most { more } else { most };
                }
                data.push(most);
            }
        }
        let g = Matrix { rows: t.rows, cols: t.rows, data };
        let g = self.problem.interner.add_matrix(g);
        self.memo.max_excess.insert(m, g);
        g
    }

    fn choose_costs(&mut self, costs: CostId, kept: &[usize]) -> CostId {
        let key = (costs, kept.to_vec());
        if let Some(c) = self.memo.chosen.get(&key) {
            return *c;
        }
        let own = self.problem.interner.costs(costs);
        let v = kept.iter().map(|x| own[*x]).collect();
        let c = self.problem.interner.add_costs(v);
        self.memo.chosen.insert(key, c);
        c
    }

    fn choose_indices(&mut self, indices: IndexId, kept: &[usize]) -> IndexId {
        let key = (indices, kept.to_vec());
        if let Some(p) = self.memo.indices.get(&key) {
            return *p;
        }
        let own = self.problem.interner.indices(indices);
        let v = kept.iter().map(|x| own[*x]).collect();
        let p = self.problem.interner.add_indices(v);
        self.memo.indices.insert(key, p);
        p
    }

    /// Prunes the core again: elimination makes more labels dominated.
    fn prune_core(&mut self) {
        for node in 0..self.alive.len() {
            if !self.alive[node] {
                continue;
            }
            let before = self.labels[node].clone();
            self.labels[node] = (0..before.len()).collect();
            self.prune_dominated(node);
            let left = std::mem::replace(&mut self.labels[node], before);
            self.core_labels[node] = Some(left);
        }
    }

    /// Drops matrix rows and columns that no label uses.
    fn compact(&mut self) {
        for i in 0..self.edges.len() {
            let Some(e) = self.edges[i] else { continue };
            let key = (e.row, e.col, e.matrix);
            let (row, col, matrix) = match self.memo.compact.get(&key) {
                Some(found) => *found,
                None => {
                    let t = &self.problem.interner;
                    let (rows, row_used) = used(t.indices(e.row));
                    let (cols, col_used) = used(t.indices(e.col));
                    let m = t.matrix(e.matrix);
                    let pick = |r: &u32| col_used.iter().map(|c| m.row(*r as usize)[*c as usize]).collect::<Vec<_>>();
                    let data = row_used.iter().flat_map(pick).collect();
                    let m = Matrix { rows: row_used.len(), cols: col_used.len(), data };
                    let interner = &mut self.problem.interner;
                    let found = (interner.add_indices(rows), interner.add_indices(cols), interner.add_matrix(m));
                    self.memo.compact.insert(key, found);
                    found
                }
            };
            self.edges[i] = Some(Edge { row, col, matrix, ..e });
        }
    }

    fn merge_all(&mut self) {
        for node in 0..self.alive.len() {
            let mut others: Vec<usize> = self.neighbours(node).into_iter().filter(|o| *o > node).collect();
            others.dedup();
            others.into_iter().for_each(|o| self.merge(node, o));
        }
    }

    /// The other ends of the edges of `node`, sorted, one per edge.
    fn neighbours(&self, node: usize) -> Vec<usize> {
        let ends = self.edges_of[node].iter().filter_map(|i| self.edges[*i]);
        let mut out: Vec<usize> = ends.map(|e| if e.a == node { e.b } else { e.a }).collect();
        out.sort_unstable();
        out
    }

    /// Merges parallel edges between two nodes.
    fn merge(&mut self, a: usize, b: usize) {
        let between: Vec<usize> = self.edges_of[a]
            .iter()
            .copied()
            .filter(|i| self.edges[*i].is_some_and(|e| (e.a == a && e.b == b) || (e.a == b && e.b == a)))
            .collect();
        let Some((first, more)) = between.split_first() else { return };
        let Some(mut one) = self.edges[*first] else { return };
        for i in more {
            let Some(other) = self.edges[*i].take() else { continue };
            let (x, y) = (self.side(&one, a), self.side(&other, a));
            let (row, col, matrix) = self.sum(x, y);
            one = Edge { a, b, row, col, matrix };
            for end in [a, b] {
                self.edges_of[end].retain(|k| k != i);
            }
        }
        self.edges[*first] = Some(one);
    }

    fn sum(&mut self, x: Side, y: Side) -> (IndexId, IndexId, MatrixId) {
        if let Some(found) = self.memo.merged.get(&(x, y)) {
            return *found;
        }
        let t = &self.problem.interner;
        let (rows, row_pairs) = pairs(t.indices(x.own), t.indices(y.own));
        let (cols, col_pairs) = pairs(t.indices(x.other), t.indices(y.other));
        let (mx, my) = (t.matrix(x.matrix), t.matrix(y.matrix));
        let mut data = Vec::with_capacity(row_pairs.len() * col_pairs.len());
        for (rx, ry) in &row_pairs {
            let (rx, ry) = (mx.row(*rx as usize), my.row(*ry as usize));
            data.extend(col_pairs.iter().map(|(cx, cy)| rx[*cx as usize] + ry[*cy as usize]));
        }
        let m = Matrix { rows: row_pairs.len(), cols: col_pairs.len(), data };
        let interner = &mut self.problem.interner;
        let found = (interner.add_indices(rows), interner.add_indices(cols), interner.add_matrix(m));
        self.memo.merged.insert((x, y), found);
        found
    }

    fn eliminate(&mut self) {
        let n = self.alive.len();
        let mut open: std::collections::BTreeSet<(usize, usize)> =
            (0..n).filter_map(|i| self.rank(i).map(|r| (r, i))).collect();
        while let Some((rank, node)) = open.pop_first() {
            if !self.alive[node] || self.rank(node) != Some(rank) {
                continue;
            }
            let neighbours = self.neighbours(node);
            self.remove(node);
            for o in neighbours {
                if let Some(r) = self.rank(o) {
                    open.insert((r, o));
                }
            }
        }
    }

    /// Elimination order: nodes with one label first, then by degree; `None` for nodes that stay.
    fn rank(&self, node: usize) -> Option<usize> {
        let degree = self.edges_of[node].len();
        let settled = self.labels[node].len() == 1;
        (self.alive[node] && (degree <= 2 || settled)).then_some(if settled { 0 } else { degree })
    }

    fn remove(&mut self, node: usize) {
        let list = std::mem::take(&mut self.edges_of[node]);
        let edges: Vec<Edge> = list.iter().filter_map(|i| self.edges[*i].take()).collect();
        for e in &edges {
            let other = if e.a == node { e.b } else { e.a };
            self.edges_of[other].retain(|i| !list.contains(i));
        }
        let costs = self.problem.nodes[node];
        self.alive[node] = false;
        match edges.as_slice() {
            [] => {
                let least = self.problem.interner.costs(costs).iter().copied().fold(f64::INFINITY, f64::min);
                self.constant += least;
            }
            [x, y] if self.labels[node].len() > 1 => self.bypass(node, costs, *x, *y),
            // One neighbour or one label: the cost becomes a cost of each neighbour. The node's own cost is counted
            // once.
            list => {
                // One neighbour or one label: the cost moves to each neighbour. The node's own cost is counted once.
                let zero = self.problem.interner.add_costs(vec![0.0; self.labels[node].len()]);
                for (i, e) in list.iter().enumerate() {
                    let other = if e.a == node { e.b } else { e.a };
                    let s = self.side(e, node);
                    self.fold_into(if i == 0 { costs } else { zero }, s, other);
                }
            }
        }
        self.eliminated.push(Eliminated { node, costs, edges });
    }

    /// Adds to the costs of `other` the minimum over the labels of the eliminated node (min-sum message).
    fn fold_into(&mut self, costs: CostId, s: Side, other: usize) {
        let key = (costs, s.own, s.matrix);
        let message = match self.memo.messages.get(&key) {
            Some(m) => *m,
            None => {
                let t = &self.problem.interner;
                let m = t.matrix(s.matrix);
                let mut least = vec![f64::INFINITY; m.cols];
                for (c, p) in t.costs(costs).iter().zip(t.indices(s.own)) {
                    least.iter_mut().zip(m.row(*p as usize)).for_each(|(l, x)| *l = l.min(c + x));
                }
                let message = self.problem.interner.add_costs(least);
                self.memo.messages.insert(key, message);
                message
            }
        };
        let key = (self.problem.nodes[other], message, s.other);
        let sum = match self.memo.sums.get(&key) {
            Some(c) => *c,
            None => {
                let t = &self.problem.interner;
                let more = t.costs(message);
                let v = t.costs(key.0).iter().zip(t.indices(s.other)).map(|(c, p)| c + more[*p as usize]).collect();
                let sum = self.problem.interner.add_costs(v);
                self.memo.sums.insert(key, sum);
                sum
            }
        };
        self.problem.nodes[other] = sum;
    }

    /// Replaces a node between two others by an edge between them.
    fn bypass(&mut self, node: usize, costs: CostId, x: Edge, y: Edge) {
        let end = |e: &Edge| if e.a == node { e.b } else { e.a };
        let (a, b) = (end(&x), end(&y));
        let (sx, sy) = (self.side(&x, node), self.side(&y, node));
        let key = (costs, sx, sy);
        let (row, col, matrix) = match self.memo.products.get(&key) {
            Some(found) => *found,
            None => {
                let found = self.product(costs, sx, sy);
                self.memo.products.insert(key, found);
                found
            }
        };
        self.edges.push(Some(Edge { a, b, row, col, matrix }));
        let i = self.edges.len() - 1;
        self.edges_of[a].push(i);
        self.edges_of[b].push(i);
        self.merge(a.min(b), a.max(b));
    }

    /// Minimum over the labels of a node of its cost and both its edges, for each row of one and each column of the
    /// other.
    fn product(&mut self, costs: CostId, x: Side, y: Side) -> (IndexId, IndexId, MatrixId) {
        let t = &self.problem.interner;
        let (rows, row_used) = used(t.indices(x.other));
        let (cols, col_used) = used(t.indices(y.other));
        let (mx, my) = (t.matrix(x.matrix), t.matrix(y.matrix));
        // Labels with the same row and column differ only by their own cost.
        let mut own: HashMap<(u32, u32), f64> = HashMap::new();
        for ((c, p), q) in t.costs(costs).iter().zip(t.indices(x.own)).zip(t.indices(y.own)) {
            let least = own.entry((*p, *q)).or_insert(f64::INFINITY);
            *least = least.min(*c);
        }
        let mut own: Vec<((u32, u32), f64)> = own.into_iter().collect();
        of_ir::sort::by_key(&mut own, |(k, _)| *k);
        let right: Vec<Vec<f64>> = own
            .iter()
            .map(|((_, q), _)| {
                let row = my.row(*q as usize);
                col_used.iter().map(|c| row[*c as usize]).collect()
            })
            .collect();
        let mut data = vec![f64::INFINITY; row_used.len() * col_used.len()];
        for (out, r) in data.chunks_mut(col_used.len().max(1)).zip(&row_used) {
            for (((p, _), c), right) in own.iter().zip(&right) {
                let left = mx.at(*p as usize, *r as usize) + c;
                if left.is_finite() {
                    // Compares instead of min, which would have to look for NaN.
                    out.iter_mut().zip(right).for_each(|(o, x)| {
                        // A comparison instead of `min`, which would have to check for NaN.
                        let sum = left + x;
                        *o = if sum < *o { sum } else { *o };
                    });
                }
            }
        }
        let m = Matrix { rows: row_used.len(), cols: col_used.len(), data };
        let interner = &mut self.problem.interner;
        (interner.add_indices(rows), interner.add_indices(cols), interner.add_matrix(m))
    }
}

/// Indices renumbered without gaps, and the old indices in the new order.
fn used(indices: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut old: Vec<u32> = indices.to_vec();
    old.sort_unstable();
    old.dedup();
    let new = indices.iter().map(|p| old.binary_search(p).unwrap_or(0) as u32).collect();
    (new, old)
}

/// The pairs of indices that occur, numbered, and the pairs in that order.
fn pairs(x: &[u32], y: &[u32]) -> (Vec<u32>, Vec<(u32, u32)>) {
    let mut all: Vec<(u32, u32)> = x.iter().copied().zip(y.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    let new = x.iter().zip(y).map(|(a, b)| all.binary_search(&(*a, *b)).unwrap_or(0) as u32).collect();
    (new, all)
}
