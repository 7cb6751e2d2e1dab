//! Deadlock analysis of one program: a proof that the register tokens cannot deadlock.
//!
//! Each register starts with `copies` free tokens (credits) at its producer; the credits are the back-pressure that stops a
//! producer. A task takes a full token from every register it consumes and a free one from every register it produces.
//! After it acts, it passes on full tokens and acknowledges its inputs with free ones. Every register has one producer,
//! and each consumer gets its own copy of a token, so no task takes a token from another: the program is a marked graph
//! (Commoner, Holt, Even, Pnueli, "Marked directed graphs", 1971). A marked graph is live if and only if every cycle
//! holds a token. A cycle through an acknowledgement holds a free token, as `copies` is at least 1. So the tokens deadlock
//! exactly when the data and control edges alone form a cycle.

use petgraph::algo::{tarjan_scc, toposort};

use super::{Finding, FindingKind};
use crate::task_graph::directed;
use crate::{Program, TaskGraph};

/// A deadlock, with a cycle of tasks as its witness.
pub(super) fn find(program: &Program, graph: &TaskGraph) -> Option<Finding> {
    let tasks = directed(program.tasks.len(), graph.edges());
    let cycle = toposort(&tasks, None).err()?;
    let components = tarjan_scc(&tasks);
    let component = components.into_iter().find(|nodes| nodes.contains(&cycle.node_id()))?;
    let mut inside = vec![false; program.tasks.len()];
    component.iter().for_each(|node| inside[node.index()] = true);
    let message = witness(program, graph, &inside, cycle.node_id().index());
    Some(Finding::new(FindingKind::Deadlock, format!("program `{}`", program.name), message))
}

/// Follows "waits for" inside a strongly connected component until a task repeats: that is the cycle.
fn witness(program: &Program, graph: &TaskGraph, inside: &[bool], start: usize) -> String {
    let mut path: Vec<(usize, u32)> = Vec::new();
    let mut at = start;
    loop {
        if let Some(begin) = path.iter().position(|&(task, _)| task == at) {
            let steps: Vec<_> =
                path[begin..].iter().map(|&(task, register)| step(program, graph, task, register)).collect();
            return format!("the register tokens deadlock: {}", steps.join("; "));
        }
        let producer = |register: &u32| graph.producer[*register as usize] as usize;
        // Every task of such a component has a producer in it.
        let Some(register) = program.tasks[at].consumes.iter().copied().find(|register| inside[producer(register)])
        else {
            return format!("task `{}` never acts", program.tasks[at].name);
        };
        path.push((at, register));
        at = producer(&register);
    }
}

fn step(program: &Program, graph: &TaskGraph, task: usize, register: u32) -> String {
    let producer = &program.tasks[graph.producer[register as usize] as usize].name;
    let register = &program.registers[register as usize];
    format!("`{}` waits for `{}` of `{producer}`", program.tasks[task].name, register.name)
}
