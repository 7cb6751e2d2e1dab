//! Happens-before between tasks: reachability in the task graph.
//!
//! A chain, as on one thread, needs only the position of each task. Any other graph gets a bit matrix, filled in reverse
//! topological order with one `or` of rows for each edge.
//!
//! An input-wise task begins when it has all control edges and any one of its inputs, and ends when it has acted on all. So it has two
//! nodes. Edges from its inputs lead to its end alone, and nothing counts as done before its first act because an input is there.

use crate::task_graph::topological_order;
use crate::{Exec, Program, TaskGraph};

/// Which tasks happen before which: in one iteration or, for pipelined programs, in two successive iterations.
pub(crate) struct HappensBefore {
    words: usize,
    /// Row `n` holds the nodes that node `n` happens before.
    bits: Vec<u64>,
    nodes: Nodes,
    /// The position of each task, where the tasks form a chain.
    chain: Option<Vec<u32>>,
}

/// The nodes of an iteration: the end of each task, by its index, and then the beginnings of input-wise tasks.
struct Nodes {
    /// For each task, the node of its beginning, which is that of its end unless it is input-wise.
    begin: Vec<u32>,
    count: u32,
}

impl Nodes {
    fn of(program: &Program) -> Self {
        let mut count = program.tasks.len() as u32;
        let begin = program.tasks.iter().zip(0u32..).map(|(task, index)| {
            let own = matches!(task.exec, Some(Exec::Concat(_)));
            count += u32::from(own);
            if own { count - 1 } else { index }
        });
        Self { begin: begin.collect(), count }
    }

    fn begin(&self, task: u32) -> u32 {
        self.begin[task as usize]
    }

    /// The edges of an iteration.
    fn edges(&self, program: &Program, graph: &TaskGraph) -> Vec<(u32, u32)> {
        let begins = graph.edges_to_begin(program).map(|(from, to)| (from, self.begin(to)));
        let through = self.begin.iter().zip(0u32..).map(|(&begin, task)| (begin, task));
        let mut edges: Vec<_> = graph.edges().chain(begins).chain(through).filter(|(from, to)| from != to).collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }
}

impl HappensBefore {
    /// The order that data and control edges impose within one iteration. The graph must have no cycle.
    pub fn within_iteration(program: &Program, graph: &TaskGraph) -> Self {
        let nodes = Nodes::of(program);
        let edges = nodes.edges(program, graph);
        Self::build(nodes, 1, edges)
    }

    /// The order over two successive iterations. Besides the edges of each iteration, a task acts on iterations in
    /// order, and the producer of a single-copy register waits for all consumers of the iteration before. An input-wise task
    /// releases a part after the act on it, which may be its first.
    pub fn across_iterations(program: &Program, graph: &TaskGraph) -> Self {
        let nodes = Nodes::of(program);
        let next = nodes.count;
        let within = nodes.edges(program, graph);
        let mut edges: Vec<(u32, u32)> = within.into_iter().flat_map(|(a, b)| [(a, b), (a + next, b + next)]).collect();
        edges.extend(nodes.begin.iter().zip(0u32..).map(|(begin, task)| (task, begin + next)));
        for (register, consumers) in program.registers.iter().zip(&graph.consumers) {
            if register.copies == 1 {
                let producer = nodes.begin(graph.producer[register.id as usize]) + next;
                let is_part = |task: u32| program.tasks[task as usize].part_of(register.id).is_some();
                let released = |&task: &u32| if is_part(task) { nodes.begin(task) } else { task };
                edges.extend(consumers.iter().map(|task| (released(task), producer)));
            }
        }
        Self::build(nodes, 2, edges)
    }

    fn build(nodes: Nodes, iterations: usize, edges: Vec<(u32, u32)>) -> Self {
        let (own, count) = (nodes.count as usize, nodes.count as usize * iterations);
        let order = topological(count, &edges);
        let mut next = vec![Vec::new(); count];
        for (from, to) in edges {
            next[from as usize].push(to as usize);
        }
        let one_each = iterations == 1 && own == nodes.begin.len();
        if one_each && order.len() == own && order.windows(2).all(|w| next[w[0]].contains(&w[1])) {
            let mut chain = vec![0; own];
            order.into_iter().zip(0..).for_each(|(task, position)| chain[task] = position);
            return Self { words: 0, bits: Vec::new(), nodes, chain: Some(chain) };
        }
        let words = count.div_ceil(64);
        let mut relation = Self { words, bits: vec![0; words * count], nodes, chain: None };
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
            None => self.get(a as usize, self.nodes.begin(b) as usize),
        }
    }

    /// Whether task `a` ends in an iteration before task `b` begins in the next one. Only for an order across
    /// iterations.
    pub fn before_next(&self, a: u32, b: u32) -> bool {
        self.get(a as usize, (self.nodes.begin(b) + self.nodes.count) as usize)
    }

    fn get(&self, from: usize, to: usize) -> bool {
        self.bits[from * self.words + to / 64] >> (to % 64) & 1 == 1
    }

    /// Adds an edge between two tasks that are not ordered yet. In a chain all tasks are ordered.
    pub(crate) fn add_edge(&mut self, a: u32, b: u32) {
        if self.chain.is_some() {
            return;
        }
        // Everything that comes before `a`, and `a` itself, now comes before the beginning of `b` and all that follows it.
        let begin = self.nodes.begin(b) as usize;
        for node in 0..self.nodes.count as usize {
            if node == a as usize || self.get(node, a as usize) {
                self.absorb(node, begin);
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
