//! The task graph of a program, by index: the producer and the consumers of each register.

use std::collections::HashMap;

use petgraph::graph::DiGraph;

use crate::Program;

/// Producers and consumers of a program's registers, as indexes in `Program::tasks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskGraph {
    /// For each register, its producer.
    pub producer: Vec<u32>,
    /// For each register, its consumers.
    pub consumers: Vec<Vec<u32>>,
}

impl TaskGraph {
    /// The task graph of a program; `None` when a register names a task that does not exist.
    pub fn of(program: &Program) -> Option<Self> {
        let index = task_indexes(program);
        let find = |id: &u64| index.get(id).copied();
        let producer = program.registers.iter().map(|register| find(&register.producer)).collect::<Option<_>>()?;
        let consumers = program.registers.iter().map(|register| register.consumers.iter().map(find).collect());
        Some(Self { producer, consumers: consumers.collect::<Option<_>>()? })
    }

    /// Edges from producer to consumer, one for each register and consumer.
    pub fn edges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.producer.iter().zip(&self.consumers).flat_map(|(&from, to)| to.iter().map(move |&to| (from, to)))
    }
}

/// A directed graph with these edges, for the algorithms of petgraph.
pub(crate) fn directed(nodes: usize, edges: impl Iterator<Item = (u32, u32)>) -> DiGraph<(), ()> {
    let mut graph = DiGraph::with_capacity(nodes, edges.size_hint().0);
    for _ in 0..nodes {
        graph.add_node(());
    }
    graph.extend_with_edges(edges);
    graph
}

/// The index of each task by its raw id.
pub(crate) fn task_indexes(program: &Program) -> HashMap<u64, u32> {
    program.tasks.iter().enumerate().map(|(index, task)| (task.id, index as u32)).collect()
}
