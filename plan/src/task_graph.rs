//! The task graph of a program, by index: the producer and the consumers of each register.

use std::collections::HashMap;

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

    /// The edges whose producer ends before the consumer begins: all but those of an input-wise task's parts, which may act on another
    /// part before.
    pub(crate) fn edges_to_begin<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = (u32, u32)> + 'a {
        let registers = self.producer.iter().zip(&self.consumers).zip(0u32..);
        let is_part = |task: u32, register: u32| program.tasks[task as usize].part_of(register).is_some();
        registers.flat_map(move |((&from, to), register)| {
            to.iter().filter(move |task| !is_part(**task, register)).map(move |&to| (from, to))
        })
    }
}

/// A topological order of the nodes of a graph with these edges (Kahn, "Topological sorting of large networks", 1962).
///
/// # Errors
/// A cycle: each node, and then the one that has an edge to it.
pub(crate) fn topological_order(nodes: usize, edges: &[(u32, u32)]) -> Result<Vec<u32>, Vec<u32>> {
    let mut next = vec![Vec::new(); nodes];
    let mut waits = vec![0_usize; nodes];
    for &(from, to) in edges {
        next[from as usize].push(to);
        waits[to as usize] += 1;
    }
    let mut order: Vec<u32> = (0..nodes as u32).filter(|&node| waits[node as usize] == 0).collect();
    let mut done = 0;
    while let Some(&node) = order.get(done) {
        done += 1;
        for &to in &next[node as usize] {
            waits[to as usize] -= 1;
            if waits[to as usize] == 0 {
                order.push(to);
            }
        }
    }
    if order.len() == nodes { Ok(order) } else { Err(cycle(edges, |node| waits[node as usize] > 0)) }
}

/// A cycle of nodes that are left, each of which has an edge from another one that is left.
fn cycle(edges: &[(u32, u32)], is_left: impl Fn(u32) -> bool) -> Vec<u32> {
    let inner = edges.iter().filter(|(from, to)| is_left(*from) && is_left(*to));
    let before: HashMap<u32, u32> = inner.map(|&(from, to)| (to, from)).collect();
    let mut place: HashMap<u32, usize> = HashMap::new();
    let mut path = Vec::new();
    let mut at = before.keys().min().copied();
    while let Some(node) = at {
        if let Some(begin) = place.insert(node, path.len()) {
            return path.split_off(begin);
        }
        path.push(node);
        at = before.get(&node).copied();
    }
    path
}

/// The index of each task by its raw id.
pub(crate) fn task_indexes(program: &Program) -> HashMap<u64, u32> {
    program.tasks.iter().enumerate().map(|(index, task)| (task.id, index as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_follows_all_edges() {
        let edges = [(3, 1), (1, 0), (3, 0), (0, 2), (3, 1)];
        assert_eq!(topological_order(5, &edges), Ok(vec![3, 4, 1, 0, 2]));
        assert_eq!(topological_order(0, &[]), Ok(Vec::new()));
    }

    #[test]
    fn a_cycle_is_found_behind_what_waits_for_it() {
        // 0 waits for 1, which waits for 2, 3 and 1 in turn; 4 is free.
        let edges = [(4, 1), (1, 0), (2, 1), (3, 2), (1, 3)];
        assert_eq!(topological_order(5, &edges), Err(vec![1, 2, 3]));
        assert_eq!(topological_order(1, &[(0, 0)]), Err(vec![0]));
    }
}
