//! The static schedule of a thread: the order in which it runs tasks, some of them several times in a run.

use std::ops::Range;

use of_plan::{Program, Task};

/// The position of a thread in its schedule. An actor that could act before its place in it is held until then.
#[derive(Clone, Debug)]
pub struct StaticSchedule {
    /// The tasks of each phase.
    phases: Vec<Range<usize>>,
    /// Phases, and how many times they run one after another.
    loops: Vec<(Vec<usize>, u32)>,
    /// The loop, how often it was run, the phase in it, and the task in the phase.
    at: (usize, u32, usize, usize),
    held: Vec<bool>,
}

impl StaticSchedule {
    /// The schedule of a program; `None` where it has none, or where it names phases or tasks that do not exist.
    pub fn of(program: &Program) -> Option<Self> {
        let loops = program.schedule.iter().filter(|own| own.times > 0 && !own.phases.is_empty());
        let loops: Vec<_> = loops.map(|t| (t.phases.iter().map(|p| *p as usize).collect(), t.times)).collect();
        let phases: Vec<Range<usize>> = program.phases.iter().map(of_plan::Phase::range).collect();
        let exists = |phase: &usize| phases.get(*phase).is_some_and(|r| !r.is_empty() && r.end <= program.tasks.len());
        if loops.is_empty() || !loops.iter().flat_map(|(list, _): &(Vec<usize>, u32)| list).all(exists) {
            return None;
        }
        Some(Self { phases, loops, at: (0, 0, 0, 0), held: vec![false; program.tasks.len()] })
    }

    /// The task that comes next.
    pub fn task(&self) -> usize {
        let (own, _, phase, task) = self.at;
        self.phases[self.loops[own].0[phase]].start + task
    }

    /// Holds a task that is ready; returns whether it may act now.
    pub fn admits(&mut self, task: usize) -> bool {
        let now = task == self.task();
        self.held[task] = !now;
        now
    }

    /// The task that comes next, if it is held; it may act now.
    pub fn take_held(&mut self) -> Option<usize> {
        let task = self.task();
        std::mem::take(&mut self.held[task]).then_some(task)
    }

    /// The task that comes next was launched: goes on to the next one, if it is a transfer that does not block its rank.
    pub fn launched(&mut self, task: &Task) {
        if task.is_async_transfer() {
            self.advance();
        }
    }

    /// Work that was launched has ended: goes on to the next task, if the thread waited for it.
    pub fn ended(&mut self, task: &Task) {
        if !task.is_async_transfer() {
            self.advance();
        }
    }

    /// Goes on to the next task; behind the last one to the first.
    pub fn advance(&mut self) {
        let (own, time, phase, task) = &mut self.at;
        let (phases, times) = &self.loops[*own];
        *task += 1;
        if *task < self.phases[phases[*phase]].len() {
            return;
        }
        (*task, *phase) = (0, *phase + 1);
        if *phase < phases.len() {
            return;
        }
        (*phase, *time) = (0, *time + 1);
        if *time < *times {
            return;
        }
        (*time, *own) = (0, (*own + 1) % self.loops.len());
    }
}
