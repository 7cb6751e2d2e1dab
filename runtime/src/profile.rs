//! Time spent in tasks, on request.

use std::sync::Mutex;
use std::time::Duration;

use of_plan::Program;

use crate::io::lock;

/// Time that a session has spent in a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskTiming {
    /// Index of the task in the program.
    pub task: usize,
    /// Its name.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// Time of all calls.
    pub total: Duration,
    /// Time of the fastest call.
    pub min: Duration,
    /// Time of the last call.
    pub last: Duration,
}

/// One clock for each task; none when profiling is off.
#[derive(Debug)]
pub(crate) struct Clocks(Vec<Mutex<Clock>>);

#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    calls: u64,
    total: Duration,
    min: Duration,
    last: Duration,
}

impl Clocks {
    pub fn new(program: &Program, on: bool) -> Self {
        let count = if on { program.tasks.len() } else { 0 };
        Self((0..count).map(|_| Mutex::default()).collect())
    }

    pub fn is_on(&self) -> bool {
        !self.0.is_empty()
    }

    pub fn add(&self, task: usize, time: Duration) {
        let Some(clock) = self.0.get(task) else { return };
        let mut clock = lock(clock);
        clock.min = if clock.calls == 0 { time } else { clock.min.min(time) };
        clock.calls += 1;
        clock.total += time;
        clock.last = time;
    }

    pub fn reset(&self) {
        self.0.iter().for_each(|clock| *lock(clock) = Clock::default());
    }

    pub fn timings(&self, program: &Program) -> Vec<TaskTiming> {
        let timing = |(task, clock): (usize, &Mutex<Clock>)| {
            let Clock { calls, total, min, last } = *lock(clock);
            TaskTiming { task, name: program.tasks[task].name.clone(), calls, total, min, last }
        };
        self.0.iter().enumerate().map(timing).collect()
    }
}
