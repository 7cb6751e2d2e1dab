//! Happens-before between tasks: one line where each waits for the one before it, as on one thread, else a bit matrix.

use crate::{Links, Program};

/// Which tasks come before which, in one piece or, for pipelined programs, in a piece and the next.
pub(crate) struct Reach {
    words: usize,
    /// Row `n` holds the nodes that node `n` happens before.
    bits: Vec<u64>,
    tasks: usize,
    /// The place of each task, where they are in line.
    line: Option<Vec<u32>>,
}

impl Reach {
    /// The order that data and control edges impose, within one piece. The graph must have no cycle.
    pub fn within_piece(program: &Program, links: &Links) -> Self {
        Self::build(program.tasks.len(), 1, links.edges().collect())
    }

    /// The order over two pieces that follow one another: besides the edges of each, a task acts on pieces in order,
    /// and where there is but one register its producer waits for all consumers of the piece before.
    pub fn across_pieces(program: &Program, links: &Links) -> Self {
        let tasks = program.tasks.len() as u32;
        let mut edges: Vec<(u32, u32)> = links.edges().flat_map(|(a, b)| [(a, b), (a + tasks, b + tasks)]).collect();
        edges.extend((0..tasks).map(|task| (task, task + tasks)));
        for (regst, consumers) in program.regsts.iter().zip(&links.consumers) {
            if regst.num == 1 {
                let producer = links.producer[regst.id as usize];
                edges.extend(consumers.iter().map(|&consumer| (consumer, producer + tasks)));
            }
        }
        Self::build(program.tasks.len(), 2, edges)
    }

    fn build(tasks: usize, pieces: usize, edges: Vec<(u32, u32)>) -> Self {
        let nodes = tasks * pieces;
        let mut next = vec![Vec::new(); nodes];
        for (from, to) in edges {
            next[from as usize].push(to as usize);
        }
        let order = topological(&next);
        if pieces == 1 && order.len() == tasks && order.windows(2).all(|w| next[w[0]].contains(&w[1])) {
            let mut line = vec![0; tasks];
            order.into_iter().zip(0..).for_each(|(task, place)| line[task] = place);
            return Self { words: 0, bits: Vec::new(), tasks, line: Some(line) };
        }
        let words = nodes.div_ceil(64);
        let mut reach = Self { words, bits: vec![0; words * nodes], tasks, line: None };
        for node in order.into_iter().rev() {
            for &to in &next[node] {
                reach.absorb(node, to);
            }
        }
        reach
    }

    /// What `to` happens before, and `to` itself, `node` happens before too.
    fn absorb(&mut self, node: usize, to: usize) {
        let (node_row, to_row) = (node * self.words, to * self.words);
        for word in 0..self.words {
            let after = self.bits[to_row + word];
            self.bits[node_row + word] |= after;
        }
        self.bits[node_row + to / 64] |= 1 << (to % 64);
    }

    /// Whether task `a` ends before task `b` begins, on the same piece.
    pub fn before(&self, a: u32, b: u32) -> bool {
        match &self.line {
            Some(line) => line[a as usize] < line[b as usize],
            None => self.get(a as usize, b as usize),
        }
    }

    /// Whether task `a` ends on a piece before task `b` begins on the next one. Only for a reach across pieces.
    pub fn before_next(&self, a: u32, b: u32) -> bool {
        self.get(a as usize, b as usize + self.tasks)
    }

    fn get(&self, from: usize, to: usize) -> bool {
        self.bits[from * self.words + to / 64] >> (to % 64) & 1 == 1
    }

    /// Adds an edge to the order; the two had none. In a line all have one.
    pub(crate) fn order_edge(&mut self, a: u32, b: u32) {
        if self.line.is_some() {
            return;
        }
        // Everything that comes before `a`, and `a` itself, now comes before `b` and all that follows it.
        for node in 0..self.tasks {
            if node == a as usize || self.get(node, a as usize) {
                self.absorb(node, b as usize);
            }
        }
    }
}

/// The place of each task in an order in which producers come before consumers. The graph must have no cycle.
pub(super) fn positions(program: &Program, links: &Links) -> Vec<usize> {
    let mut next = vec![Vec::new(); program.tasks.len()];
    for (from, to) in links.edges() {
        next[from as usize].push(to as usize);
    }
    let mut out = vec![0; next.len()];
    for (place, task) in topological(&next).into_iter().enumerate() {
        out[task] = place;
    }
    out
}

/// A topological order; nodes on a cycle are left out.
fn topological(next: &[Vec<usize>]) -> Vec<usize> {
    let mut incoming = vec![0u32; next.len()];
    for &to in next.iter().flatten() {
        incoming[to] += 1;
    }
    let mut order: Vec<usize> = (0..next.len()).filter(|&node| incoming[node] == 0).collect();
    let mut at = 0;
    while let Some(&node) = order.get(at) {
        at += 1;
        for &to in &next[node] {
            incoming[to] -= 1;
            if incoming[to] == 0 {
                order.push(to);
            }
        }
    }
    order
}
