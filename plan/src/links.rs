//! The graph of a program by index: who produces and who consumes each register.

use std::collections::HashMap;

use crate::Program;

/// Producers and consumers of a program's registers, as indexes in `Program::tasks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Links {
    /// For each register, its producer.
    pub producer: Vec<u32>,
    /// For each register, its consumers.
    pub consumers: Vec<Vec<u32>>,
}

impl Links {
    /// The links of a program; `None` when a register names a task that does not exist.
    pub fn of(program: &Program) -> Option<Self> {
        let index = task_indexes(program);
        let find = |id: &u64| index.get(id).copied();
        let producer = program.regsts.iter().map(|regst| find(&regst.producer)).collect::<Option<_>>()?;
        let consumers = program.regsts.iter().map(|regst| regst.consumers.iter().map(find).collect());
        Some(Self { producer, consumers: consumers.collect::<Option<_>>()? })
    }

    /// Edges from task to task, one for each register and consumer.
    pub fn edges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.producer.iter().zip(&self.consumers).flat_map(|(&from, to)| to.iter().map(move |&to| (from, to)))
    }
}

/// The index of each task by its raw id.
pub(crate) fn task_indexes(program: &Program) -> HashMap<u64, u32> {
    program.tasks.iter().enumerate().map(|(index, task)| (task.id, index as u32)).collect()
}
