//! Rates: how many times tasks run in a run of a program with microbatches, and how many values registers have.

use crate::{Program, Task, TaskGraph, TaskKind};

/// How many times each task of a program runs in a run, and how many values each register has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates {
    tasks: Vec<u32>,
    registers: Vec<u32>,
}

impl Rates {
    /// The rates of a program, whose phases are those of its tasks.
    pub fn of(program: &Program, graph: &TaskGraph) -> Self {
        let mut tasks = vec![1; program.tasks.len()];
        for phase in &program.phases {
            let range = phase.range();
            tasks[range.start.min(program.tasks.len())..range.end.min(program.tasks.len())].fill(phase.times.max(1));
        }
        let rate = |&producer: &u32| {
            let task = &program.tasks[producer as usize];
            // What is accumulated or packed is there after the last microbatch.
            let once = task.kind == TaskKind::Acc as i32 || task.kind == TaskKind::Pack as i32;
            if once { 1 } else { tasks[producer as usize] }
        };
        Self { registers: graph.producer.iter().map(rate).collect(), tasks }
    }

    /// How many times a task runs in a run.
    pub fn task(&self, task: usize) -> u32 {
        self.tasks[task]
    }

    /// How many values a register has in a run.
    pub fn register(&self, register: u32) -> u32 {
        self.registers[register as usize]
    }

    /// How many times a task runs for one value of a register that it consumes or produces. The verifier proves that it is a
    /// whole number.
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

    /// How many tasks run in a run, each as often as it does.
    pub fn acts(&self) -> usize {
        match self.phases.is_empty() {
            true => self.tasks.len(),
            false => self.phases.iter().map(|phase| phase.tasks as usize * phase.times as usize).sum(),
        }
    }
}
