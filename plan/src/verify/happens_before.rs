//! Happens-before between tasks: reachability in the task graph.
//!
//! A chain, as on one thread, needs only the position of each task. Any other graph gets a bit matrix, filled in reverse
//! topological order with one `or` of rows for each edge.

use crate::task_graph::topological_order;
use crate::{Program, TaskGraph};

/// Which tasks happen before which: in one iteration or, for pipelined programs, in two successive iterations.
pub(crate) struct HappensBefore {
    words: usize,
    /// Row `n` holds the nodes that node `n` happens before.
    bits: Vec<u64>,
    tasks: usize,
    /// The position of each task, where the tasks form a chain.
    chain: Option<Vec<u32>>,
}

impl HappensBefore {
    /// The order that data and control edges impose within one iteration. The graph must have no cycle.
    pub fn within_iteration(program: &Program, graph: &TaskGraph) -> Self {
        Self::build(program.tasks.len(), 1, graph.edges().collect())
    }

    /// The order over two successive iterations. Besides the edges of each iteration, a task acts on iterations in
    /// order, and the producer of a single-copy register waits for all consumers of the iteration before.
    pub fn across_iterations(program: &Program, graph: &TaskGraph) -> Self {
        let tasks = program.tasks.len() as u32;
        let mut edges: Vec<(u32, u32)> = graph.edges().flat_map(|(a, b)| [(a, b), (a + tasks, b + tasks)]).collect();
        edges.extend((0..tasks).map(|task| (task, task + tasks)));
        for (register, consumers) in program.registers.iter().zip(&graph.consumers) {
            if register.copies == 1 {
                let producer = graph.producer[register.id as usize];
                edges.extend(consumers.iter().map(|&consumer| (consumer, producer + tasks)));
            }
        }
        Self::build(program.tasks.len(), 2, edges)
    }

    fn build(tasks: usize, iterations: usize, edges: Vec<(u32, u32)>) -> Self {
        let nodes = tasks * iterations;
        let order = topological(nodes, &edges);
        let mut next = vec![Vec::new(); nodes];
        for (from, to) in edges {
            next[from as usize].push(to as usize);
        }
        if iterations == 1 && order.len() == tasks && order.windows(2).all(|w| next[w[0]].contains(&w[1])) {
            let mut chain = vec![0; tasks];
            order.into_iter().zip(0..).for_each(|(task, position)| chain[task] = position);
            return Self { words: 0, bits: Vec::new(), tasks, chain: Some(chain) };
        }
        let words = nodes.div_ceil(64);
        let mut relation = Self { words, bits: vec![0; words * nodes], tasks, chain: None };
        for node in order.into_iter().rev() {
            for &to in &next[node] {
                relation.absorb(node, to);
            }
        }
        relation
    }

    /// Makes `node` happen before `to` and before everything that `to` happens before.
    fn absorb(&mut self, node: usize, to: usize) {
        let (node_row, to_row) = (node * self.words, to * self.words);
        for word in 0..self.words {
            let after = self.bits[to_row + word];
            self.bits[node_row + word] |= after;
        }
        self.bits[node_row + to / 64] |= 1 << (to % 64);
    }

    /// Whether task `a` ends before task `b` begins, in the same iteration.
    pub fn before(&self, a: u32, b: u32) -> bool {
        match &self.chain {
            Some(chain) => chain[a as usize] < chain[b as usize],
            None => self.get(a as usize, b as usize),
        }
    }

    /// Whether task `a` ends in an iteration before task `b` begins in the next one. Only for an order across
    /// iterations.
    pub fn before_next(&self, a: u32, b: u32) -> bool {
        self.get(a as usize, b as usize + self.tasks)
    }

    fn get(&self, from: usize, to: usize) -> bool {
        self.bits[from * self.words + to / 64] >> (to % 64) & 1 == 1
    }

    /// Adds an edge between two tasks that are not ordered yet. In a chain all tasks are ordered.
    pub(crate) fn add_edge(&mut self, a: u32, b: u32) {
        if self.chain.is_some() {
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

/// The position of each task in a topological order. The graph must have no cycle.
pub(super) fn positions(program: &Program, graph: &TaskGraph) -> Vec<usize> {
    let mut out = vec![0; program.tasks.len()];
    let edges: Vec<_> = graph.edges().collect();
    for (position, task) in topological(out.len(), &edges).into_iter().enumerate() {
        out[task] = position;
    }
    out
}

/// A topological order of the nodes; empty when there is a cycle, so that nothing counts as ordered.
fn topological(nodes: usize, edges: &[(u32, u32)]) -> Vec<usize> {
    let order = topological_order(nodes, edges).unwrap_or_default();
    order.into_iter().map(|node| node as usize).collect()
}
