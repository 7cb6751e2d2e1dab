//! Exact reduction: labels that another is never worse than, and nodes with at most two neighbours.

use std::collections::HashMap;

use super::problem::{Costs, Edge, Matrix, Places, Problem, Table};

/// A problem in which nodes have gone, and how to find their labels.
pub struct Reduced {
    /// The problem with the costs that what has gone left behind. Nodes that have gone have no edges.
    pub problem: Problem,
    /// Whether the node is still there.
    pub alive: Vec<bool>,
    /// What nodes that have gone cost whatever the others choose.
    pub constant: f64,
    /// The labels of the original problem that are left of each node.
    labels: Vec<Vec<usize>>,
    /// Of those, the ones that are left of a node that was not eliminated.
    late: Vec<Option<Vec<usize>>>,
    gone: Vec<Gone>,
    edges_of: Vec<Vec<usize>>,
    edges: Vec<Option<Edge>>,
    /// What was computed on the way.
    pub memo: Memo,
}

/// A node that was eliminated, with what its label depends on.
struct Gone {
    node: usize,
    costs: Costs,
    edges: Vec<Edge>,
}

/// An edge as one of its ends sees it: its positions, those of the other end, and the matrix from here to there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Side {
    own: Places,
    other: Places,
    matrix: Table,
}

/// A node as its edges see it.
type Seen = (Costs, Vec<(Table, Places)>);

/// Results by what they were computed of; they hold as long as the tables do.
#[derive(Default)]
pub struct Memo {
    gains: HashMap<Table, Table>,
    kept: HashMap<Seen, Vec<usize>>,
    messages: HashMap<(Costs, Places, Table), Costs>,
    sums: HashMap<(Costs, Costs, Places), Costs>,
    joined: HashMap<(Costs, Side, Side), (Places, Places, Table)>,
    merged: HashMap<(Side, Side), (Places, Places, Table)>,
    compact: HashMap<(Places, Places, Table), (Places, Places, Table)>,
    chosen: HashMap<(Costs, Vec<usize>), Costs>,
    places: HashMap<(Places, Vec<usize>), Places>,
}

/// Reduces `problem` as far as these rules go. `memo` is of the same tables, or empty.
pub fn reduce(problem: Problem, memo: Memo) -> Reduced {
    let n = problem.nodes.len();
    let labels = problem.nodes.iter().map(|c| (0..problem.tables.costs(*c).len()).collect()).collect();
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
        late: vec![None; n],
        gone: Vec::new(),
        edges_of,
        edges,
        memo,
    };
    (0..n).for_each(|i| r.drop_dominated(i));
    r.merge_all();
    r.eliminate();
    r.drop_late();
    r.compact();
    r.problem.edges = r.edges.iter().flatten().copied().collect();
    r
}

impl Reduced {
    /// The labels of all nodes of the original problem, from those of the nodes that are still there.
    pub fn expand(&self, core: &[usize]) -> Vec<usize> {
        let late = |(c, late): (&usize, &Option<Vec<usize>>)| late.as_ref().map_or(*c, |l| l[*c]);
        let mut chosen: Vec<usize> = core.iter().zip(&self.late).map(late).collect();
        let t = &self.problem.tables;
        for g in self.gone.iter().rev() {
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
            Side { own: e.col, other: e.row, matrix: self.problem.tables.transpose(e.matrix) }
        }
    }

    /// Drops each label in whose place another one costs no more, whatever the neighbours choose.
    fn drop_dominated(&mut self, node: usize) {
        let list: Vec<Edge> = self.edges_of[node].iter().filter_map(|i| self.edges[*i]).collect();
        let mut sides = Vec::with_capacity(list.len());
        for e in list {
            let s = self.side(&e, node);
            sides.push((self.gain(s.matrix), s.own));
        }
        let costs = self.problem.nodes[node];
        let key = (costs, sides);
        if !self.memo.kept.contains_key(&key) {
            let t = &self.problem.tables;
            let own = t.costs(costs);
            let tables: Vec<(&Matrix, &[u32])> = key.1.iter().map(|(m, p)| (t.matrix(*m), t.places(*p))).collect();
            let better = |x: usize, y: usize| {
                let mut sum = own[x] - own[y];
                for (m, p) in &tables {
                    sum += m.at(p[x] as usize, p[y] as usize);
                    if sum > 0.0 && sum.is_infinite() {
                        return false;
                    }
                }
                sum < 0.0 || (sum == 0.0 && x < y)
            };
            // The cheapest first: they make most others go.
            let mut order: Vec<usize> = (0..own.len()).filter(|x| own[*x].is_finite()).collect();
            order.sort_by(|a, b| own[*a].total_cmp(&own[*b]).then(a.cmp(b)));
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
                    e.row = self.choose_places(e.row, &kept);
                }
                if e.b == node {
                    e.col = self.choose_places(e.col, &kept);
                }
                self.edges[i] = Some(e);
            }
        }
    }

    /// What row `x` costs more than row `y` at most, in row `x` and column `y`.
    fn gain(&mut self, m: Table) -> Table {
        if let Some(g) = self.memo.gains.get(&m) {
            return *g;
        }
        let t = self.problem.tables.matrix(m);
        let mut data = Vec::with_capacity(t.rows * t.rows);
        for x in 0..t.rows {
            for y in 0..t.rows {
                // Where both are impossible, neither is worse.
                let mut most = f64::NEG_INFINITY;
                for (a, b) in t.row(x).iter().zip(t.row(y)) {
                    let more = if b.is_infinite() { f64::NEG_INFINITY } else { a - b };
                    most = if more > most { more } else { most };
                }
                data.push(most);
            }
        }
        let g = Matrix { rows: t.rows, cols: t.rows, data };
        let g = self.problem.tables.add_matrix(g);
        self.memo.gains.insert(m, g);
        g
    }

    fn choose_costs(&mut self, costs: Costs, kept: &[usize]) -> Costs {
        let key = (costs, kept.to_vec());
        if let Some(c) = self.memo.chosen.get(&key) {
            return *c;
        }
        let own = self.problem.tables.costs(costs);
        let v = kept.iter().map(|x| own[*x]).collect();
        let c = self.problem.tables.add_costs(v);
        self.memo.chosen.insert(key, c);
        c
    }

    fn choose_places(&mut self, places: Places, kept: &[usize]) -> Places {
        let key = (places, kept.to_vec());
        if let Some(p) = self.memo.places.get(&key) {
            return *p;
        }
        let own = self.problem.tables.places(places);
        let v = kept.iter().map(|x| own[*x]).collect();
        let p = self.problem.tables.add_places(v);
        self.memo.places.insert(key, p);
        p
    }

    /// What nodes that have gone left behind makes more labels needless.
    fn drop_late(&mut self) {
        for node in 0..self.alive.len() {
            if !self.alive[node] {
                continue;
            }
            let before = self.labels[node].clone();
            self.labels[node] = (0..before.len()).collect();
            self.drop_dominated(node);
            let left = std::mem::replace(&mut self.labels[node], before);
            self.late[node] = Some(left);
        }
    }

    /// Matrices without the rows and columns that no label has.
    fn compact(&mut self) {
        for i in 0..self.edges.len() {
            let Some(e) = self.edges[i] else { continue };
            let key = (e.row, e.col, e.matrix);
            let (row, col, matrix) = match self.memo.compact.get(&key) {
                Some(found) => *found,
                None => {
                    let t = &self.problem.tables;
                    let (rows, row_used) = used(t.places(e.row));
                    let (cols, col_used) = used(t.places(e.col));
                    let m = t.matrix(e.matrix);
                    let pick = |r: &u32| col_used.iter().map(|c| m.row(*r as usize)[*c as usize]).collect::<Vec<_>>();
                    let data = row_used.iter().flat_map(pick).collect();
                    let m = Matrix { rows: row_used.len(), cols: col_used.len(), data };
                    let tables = &mut self.problem.tables;
                    let found = (tables.add_places(rows), tables.add_places(cols), tables.add_matrix(m));
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

    /// The other ends of the edges of `node`, sorted, one an edge.
    fn neighbours(&self, node: usize) -> Vec<usize> {
        let ends = self.edges_of[node].iter().filter_map(|i| self.edges[*i]);
        let mut out: Vec<usize> = ends.map(|e| if e.a == node { e.b } else { e.a }).collect();
        out.sort_unstable();
        out
    }

    /// Edges between the same two nodes become one.
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

    fn sum(&mut self, x: Side, y: Side) -> (Places, Places, Table) {
        if let Some(found) = self.memo.merged.get(&(x, y)) {
            return *found;
        }
        let t = &self.problem.tables;
        let (rows, row_pairs) = pairs(t.places(x.own), t.places(y.own));
        let (cols, col_pairs) = pairs(t.places(x.other), t.places(y.other));
        let (mx, my) = (t.matrix(x.matrix), t.matrix(y.matrix));
        let mut data = Vec::with_capacity(row_pairs.len() * col_pairs.len());
        for (rx, ry) in &row_pairs {
            let (rx, ry) = (mx.row(*rx as usize), my.row(*ry as usize));
            data.extend(col_pairs.iter().map(|(cx, cy)| rx[*cx as usize] + ry[*cy as usize]));
        }
        let m = Matrix { rows: row_pairs.len(), cols: col_pairs.len(), data };
        let tables = &mut self.problem.tables;
        let found = (tables.add_places(rows), tables.add_places(cols), tables.add_matrix(m));
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

    /// How soon a node may go: by its number of neighbours, and any node whose label is settled; `None` for never.
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
                let least = self.problem.tables.costs(costs).iter().copied().fold(f64::INFINITY, f64::min);
                self.constant += least;
            }
            [x, y] if self.labels[node].len() > 1 => self.join(node, costs, *x, *y),
            list => {
                // One neighbour, or one label: what it costs is a cost of each neighbour. Its own cost is counted once.
                let zero = self.problem.tables.add_costs(vec![0.0; self.labels[node].len()]);
                for (i, e) in list.iter().enumerate() {
                    let other = if e.a == node { e.b } else { e.a };
                    let s = self.side(e, node);
                    self.tell(if i == 0 { costs } else { zero }, s, other);
                }
            }
        }
        self.gone.push(Gone { node, costs, edges });
    }

    /// Adds to the costs of `other` the least that a node costs by it.
    fn tell(&mut self, costs: Costs, s: Side, other: usize) {
        let key = (costs, s.own, s.matrix);
        let message = match self.memo.messages.get(&key) {
            Some(m) => *m,
            None => {
                let t = &self.problem.tables;
                let m = t.matrix(s.matrix);
                let mut least = vec![f64::INFINITY; m.cols];
                for (c, p) in t.costs(costs).iter().zip(t.places(s.own)) {
                    least.iter_mut().zip(m.row(*p as usize)).for_each(|(l, x)| *l = l.min(c + x));
                }
                let message = self.problem.tables.add_costs(least);
                self.memo.messages.insert(key, message);
                message
            }
        };
        let key = (self.problem.nodes[other], message, s.other);
        let sum = match self.memo.sums.get(&key) {
            Some(c) => *c,
            None => {
                let t = &self.problem.tables;
                let more = t.costs(message);
                let v = t.costs(key.0).iter().zip(t.places(s.other)).map(|(c, p)| c + more[*p as usize]).collect();
                let sum = self.problem.tables.add_costs(v);
                self.memo.sums.insert(key, sum);
                sum
            }
        };
        self.problem.nodes[other] = sum;
    }

    /// The node between two others becomes an edge between them.
    fn join(&mut self, node: usize, costs: Costs, x: Edge, y: Edge) {
        let end = |e: &Edge| if e.a == node { e.b } else { e.a };
        let (a, b) = (end(&x), end(&y));
        let (sx, sy) = (self.side(&x, node), self.side(&y, node));
        let key = (costs, sx, sy);
        let (row, col, matrix) = match self.memo.joined.get(&key) {
            Some(found) => *found,
            None => {
                let found = self.product(costs, sx, sy);
                self.memo.joined.insert(key, found);
                found
            }
        };
        self.edges.push(Some(Edge { a, b, row, col, matrix }));
        let i = self.edges.len() - 1;
        self.edges_of[a].push(i);
        self.edges_of[b].push(i);
        self.merge(a.min(b), a.max(b));
    }

    /// `min` over the labels of a node of its cost and both its edges, for each row of one and each column of the other.
    fn product(&mut self, costs: Costs, x: Side, y: Side) -> (Places, Places, Table) {
        let t = &self.problem.tables;
        let (rows, row_used) = used(t.places(x.other));
        let (cols, col_used) = used(t.places(y.other));
        let (mx, my) = (t.matrix(x.matrix), t.matrix(y.matrix));
        // Labels in the same row and column differ by their own cost alone.
        let mut own: HashMap<(u32, u32), f64> = HashMap::new();
        for ((c, p), q) in t.costs(costs).iter().zip(t.places(x.own)).zip(t.places(y.own)) {
            let least = own.entry((*p, *q)).or_insert(f64::INFINITY);
            *least = least.min(*c);
        }
        let mut own: Vec<((u32, u32), f64)> = own.into_iter().collect();
        own.sort_by_key(|(k, _)| *k);
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
                        let sum = left + x;
                        *o = if sum < *o { sum } else { *o };
                    });
                }
            }
        }
        let m = Matrix { rows: row_used.len(), cols: col_used.len(), data };
        let tables = &mut self.problem.tables;
        (tables.add_places(rows), tables.add_places(cols), tables.add_matrix(m))
    }
}

/// Positions numbered anew without gaps, and the old positions in order of the new ones.
fn used(places: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut old: Vec<u32> = places.to_vec();
    old.sort_unstable();
    old.dedup();
    let new = places.iter().map(|p| old.binary_search(p).unwrap_or(0) as u32).collect();
    (new, old)
}

/// The pairs of positions that occur, numbered, and the pairs in that order.
fn pairs(x: &[u32], y: &[u32]) -> (Vec<u32>, Vec<(u32, u32)>) {
    let mut all: Vec<(u32, u32)> = x.iter().copied().zip(y.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    let new = x.iter().zip(y).map(|(a, b)| all.binary_search(&(*a, *b)).unwrap_or(0) as u32).collect();
    (new, all)
}
