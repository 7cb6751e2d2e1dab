//! Rates: how many times tasks act in a run of a program, and how many values registers have. They differ in programs with
//! microbatches, and for input-wise tasks, which act once for each input.

use crate::{Program, Task, TaskGraph, TaskKind};

/// How many times each task of a program acts in a run, and how many values each register has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates {
    tasks: Vec<u32>,
    registers: Vec<u32>,
}

impl Rates {
    /// The rates of a program, whose phases are those of its tasks.
    pub fn of(program: &Program, graph: &TaskGraph) -> Self {
        let mut times = vec![1; program.tasks.len()];
        for phase in &program.phases {
            let range = phase.range();
            times[range.start.min(program.tasks.len())..range.end.min(program.tasks.len())].fill(phase.times.max(1));
        }
        let rate = |&producer: &u32| {
            let task = &program.tasks[producer as usize];
            // What is accumulated or packed is there after the last microbatch.
            let once = task.kind == TaskKind::Acc as i32 || task.kind == TaskKind::Pack as i32;
            if once { 1 } else { times[producer as usize] }
        };
        let registers = graph.producer.iter().map(rate).collect();
        let acts = |(task, times): (&Task, &u32)| times.saturating_mul(task.acts_per_iteration());
        Self { tasks: program.tasks.iter().zip(&times).map(acts).collect(), registers }
    }

    /// How many times a task acts in a run.
    pub fn task(&self, task: usize) -> u32 {
        self.tasks[task]
    }

    /// How many values a register has in a run.
    pub fn register(&self, register: u32) -> u32 {
        self.registers[register as usize]
    }

    /// How many times a task acts for one value of a register that it consumes or produces. The verifier proves that it is a
    /// whole number. An input-wise task acts so many times while it has the value of an output or a control edge; it releases each other
    /// input after the act on it.
    pub fn period(&self, task: usize, register: u32) -> u32 {
        (self.task(task) / self.register(register).max(1)).max(1)
    }
}

impl Program {
    /// The phases in the order in which they run; empty where the program has none.
    pub fn sequence(&self) -> impl Iterator<Item = usize> + '_ {
        self.schedule.iter().flat_map(|own| (0..own.times).flat_map(|_| own.phases.iter().map(|phase| *phase as usize)))
    }

    /// How many times a task runs in a run.
    pub fn times(&self, task: usize) -> u32 {
        self.phases.iter().find(|phase| phase.range().contains(&task)).map_or(1, |phase| phase.times)
    }

    /// How many times one of its tasks runs in a run. Without phases, which most programs lack, the task is not looked for.
    pub fn times_of(&self, task: &Task) -> u32 {
        match self.phases.is_empty() {
            true => 1,
            false => self.tasks.iter().position(|own| std::ptr::eq(own, task)).map_or(1, |at| self.times(at)),
        }
    }

    /// For each task, whether a rank's thread for transfers executes it, in the order in which the tasks are launched.
    ///
    /// These are the asynchronous transfers. In a program with microbatches they are launched at their place in the schedule, and no task waits for their
    /// end but for its data. So that all transfers keep the order of the schedule, that thread executes the others, too, if there are
    /// asynchronous ones.
    pub fn concurrent_transfers(&self) -> Vec<bool> {
        let all = !self.schedule.is_empty() && self.tasks.iter().any(Task::is_async_transfer);
        self.tasks.iter().map(|task| task.is_async_transfer() || (all && task.waits_for_others())).collect()
    }

    /// How many acts all tasks have in a run.
    pub fn acts(&self) -> usize {
        match self.phases.is_empty() {
            true => self.tasks.iter().map(|task| task.acts_per_iteration() as usize).sum(),
            // An input-wise task is not in a program with phases.
            false => self.phases.iter().map(|phase| phase.tasks as usize * phase.times as usize).sum(),
        }
    }
}
