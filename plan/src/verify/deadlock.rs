//! Deadlock analysis of one program: a proof that the register tokens cannot deadlock.
//!
//! Each register starts with `copies` free tokens (credits) at its producer; the credits are the back-pressure that stops a
//! producer. A task takes a full token from every register it consumes and a free one from every register it produces.
//! After it acts, it passes on full tokens and acknowledges its inputs with free ones. Every register has one producer,
//! and each consumer gets its own copy of a token, so no task takes a token from another: the program is a marked graph
//! (Commoner, Holt, Even, Pnueli, "Marked directed graphs", 1971). A marked graph is live if and only if every cycle
//! holds a token. A cycle through an acknowledgement holds a free token, as `copies` is at least 1. So the tokens deadlock
//! exactly when the data and control edges alone form a cycle.
//!
//! An input-wise task takes the tokens of its parts one by one, in any order, so it is no node of a marked graph. The condition is the
//! same: suppose that the edges have no cycle, and that nothing can act. Of the first iteration that is not over, take the task that is
//! first in a topological order. All its inputs are there, because their producers are done with this iteration, and its outputs have a
//! free copy, because their consumers are done with all iterations before. So it can act, on whichever part is left.

use super::{Finding, FindingKind};
use crate::task_graph::topological_order;
use crate::{Program, TaskGraph};

/// A deadlock, with a cycle of tasks as its witness.
pub(super) fn find(program: &Program, graph: &TaskGraph) -> Option<Finding> {
    let edges: Vec<_> = graph.edges().collect();
    let cycle = topological_order(program.tasks.len(), &edges).err()?;
    let before = cycle.iter().cycle().skip(1);
    let steps: Vec<_> = cycle.iter().zip(before).map(|(&task, &before)| step(program, graph, task, before)).collect();
    let message = format!("the register tokens deadlock: {}", steps.join("; "));
    Some(Finding::new(FindingKind::Deadlock, format!("program `{}`", program.name), message))
}

/// How a task waits for the one before it.
fn step(program: &Program, graph: &TaskGraph, task: u32, before: u32) -> String {
    let links = graph.producer.iter().zip(&graph.consumers).zip(&program.registers);
    let link = links.into_iter().find(|((producer, consumers), _)| **producer == before && consumers.contains(&task));
    let register = link.map_or("", |(_, register)| &register.name);
    let name = |task: u32| &program.tasks[task as usize].name;
    format!("`{}` waits for `{register}` of `{}`", name(task), name(before))
}
