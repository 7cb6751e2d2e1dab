//! Optional profiling: the time spent in each task.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use of_plan::Program;

use crate::StepTime;
use crate::clock::Instant;
use crate::sync::{Mutex, lock};

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
    /// When the last call began, after [`clock_origin`].
    pub start: Duration,
    /// Time of the last call.
    pub last: Duration,
    /// Whether it is asynchronous, so that other tasks of its thread may run meanwhile.
    pub is_async: bool,
    /// The steps that its device ran, in order; empty if none was measured.
    pub steps: Vec<StepTiming>,
}

/// Time that a device has spent in a step of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTiming {
    /// What the step does.
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

/// The moment from which the times of all sessions of this process count.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// The moment from which [`TaskTiming::start`] counts, for all sessions of this process.
#[cfg(not(target_family = "wasm"))]
pub fn clock_origin() -> std::time::Instant {
    origin()
}

/// One clock for each task; none before profiling is on for the first time.
#[derive(Debug)]
pub(crate) struct Clocks {
    on: AtomicBool,
    clocks: OnceLock<Vec<Mutex<Clock>>>,
    /// For each task, see [`TaskTiming::is_async`].
    is_async: Vec<bool>,
}

#[derive(Clone, Debug, Default)]
struct Clock {
    calls: u64,
    total: Duration,
    min: Duration,
    start: Duration,
    last: Duration,
    steps: Vec<StepTiming>,
}

impl Clock {
    /// When the last call ended.
    fn end(&self) -> Instant {
        origin() + self.start + self.last
    }
}

impl Clocks {
    /// Clocks for tasks, given for each whether it is asynchronous.
    pub fn new(is_async: Vec<bool>, on: bool) -> Self {
        let clocks = Self { on: AtomicBool::new(false), clocks: OnceLock::new(), is_async };
        clocks.switch(on);
        clocks
    }

    /// Whether the calls from now on are timed.
    pub fn switch(&self, on: bool) {
        if on {
            origin();
            self.clocks.get_or_init(|| self.is_async.iter().map(|_| Mutex::default()).collect());
        }
        self.on.store(on, Relaxed);
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    fn all(&self) -> &[Mutex<Clock>] {
        self.clocks.get().map_or(&[], |clocks| clocks)
    }

    fn get(&self, task: usize) -> Option<&Mutex<Clock>> {
        if self.is_on() { self.all().get(task) } else { None }
    }

    /// A call of `task` that began at `start` has ended at `end`. It really began when the last call of each of the tasks
    /// `after` had ended.
    pub fn add(&self, task: usize, start: Instant, end: Instant, after: &[usize]) {
        let Some(clock) = self.get(task) else { return };
        let ended = |task: &usize| self.get(*task).map(|c| lock(c)).filter(|c| c.calls > 0).map(|c| c.end());
        let start = after.iter().filter_map(ended).fold(start, Instant::max).min(end);
        let time = end.saturating_duration_since(start);
        let mut clock = lock(clock);
        clock.min = if clock.calls == 0 { time } else { clock.min.min(time) };
        clock.calls += 1;
        clock.total += time;
        clock.start = start.saturating_duration_since(origin());
        clock.last = time;
    }

    /// The last call of `task` ran these steps on a device. Steps that differ from those of earlier calls replace them.
    pub fn add_steps(&self, task: usize, steps: &[StepTime]) {
        let Some(clock) = self.get(task).filter(|_| !steps.is_empty()) else { return };
        let own = &mut lock(clock).steps;
        if !own.iter().map(|s| &s.name).eq(steps.iter().map(|s| &s.name)) {
            let zero = Duration::ZERO;
            let new =
                |s: &StepTime| StepTiming { name: s.name.clone(), calls: 0, total: zero, min: s.time, last: zero };
            *own = steps.iter().map(new).collect();
        }
        for (own, StepTime { time, .. }) in own.iter_mut().zip(steps) {
            own.calls += 1;
            own.total += *time;
            own.min = own.min.min(*time);
            own.last = *time;
        }
    }

    pub fn reset(&self) {
        self.all().iter().for_each(|clock| *lock(clock) = Clock::default());
    }

    pub fn timings(&self, program: &Program) -> Vec<TaskTiming> {
        let timing = |(task, clock): (usize, &Mutex<Clock>)| {
            let Clock { calls, total, min, start, last, steps } = lock(clock).clone();
            let (name, is_async) = (program.tasks[task].name.clone(), self.is_async[task]);
            TaskTiming { task, name, calls, total, min, start, last, is_async, steps }
        };
        self.all().iter().enumerate().map(timing).collect()
    }
}
