//! Time spent in tasks, on request.

use std::sync::Mutex;
use std::time::{Duration, Instant};

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
    /// When the last call began, after the session was made.
    pub start: Duration,
    /// Time of the last call.
    pub last: Duration,
}

/// One clock for each task; none when profiling is off.
#[derive(Debug)]
pub(crate) struct Clocks {
    made: Instant,
    clocks: Vec<Mutex<Clock>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    calls: u64,
    total: Duration,
    min: Duration,
    start: Duration,
    last: Duration,
}

impl Clocks {
    pub fn new(program: &Program, on: bool) -> Self {
        let count = if on { program.tasks.len() } else { 0 };
        Self { made: Instant::now(), clocks: (0..count).map(|_| Mutex::default()).collect() }
    }

    pub fn is_on(&self) -> bool {
        !self.clocks.is_empty()
    }

    /// A call of `task` that began at `start` has ended.
    pub fn add(&self, task: usize, start: Instant) {
        let Some(clock) = self.clocks.get(task) else { return };
        let time = start.elapsed();
        let mut clock = lock(clock);
        clock.min = if clock.calls == 0 { time } else { clock.min.min(time) };
        clock.calls += 1;
        clock.total += time;
        clock.start = start.saturating_duration_since(self.made);
        clock.last = time;
    }

    pub fn reset(&self) {
        self.clocks.iter().for_each(|clock| *lock(clock) = Clock::default());
    }

    pub fn timings(&self, program: &Program) -> Vec<TaskTiming> {
        let timing = |(task, clock): (usize, &Mutex<Clock>)| {
            let Clock { calls, total, min, start, last } = *lock(clock);
            TaskTiming { task, name: program.tasks[task].name.clone(), calls, total, min, start, last }
        };
        self.clocks.iter().enumerate().map(timing).collect()
    }
}
