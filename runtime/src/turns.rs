//! The turns of a thread: the order in which it runs tasks, some of them several times in a run.

use std::ops::Range;

use of_plan::Program;

/// The position of a thread in its turns. An actor that could act before its turn is held until then.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    /// The tasks of each phase.
    phases: Vec<Range<usize>>,
    /// Phases, and how many times they run one after another.
    turns: Vec<(Vec<usize>, u32)>,
    /// The turn, how often it was run, the phase in it, and the task in the phase.
    at: (usize, u32, usize, usize),
    held: Vec<bool>,
}

impl Turns {
    /// The turns of a program; `None` where it has none, or where they name phases or tasks that do not exist.
    pub fn of(program: &Program) -> Option<Self> {
        let turns = program.turns.iter().filter(|turn| turn.times > 0 && !turn.phases.is_empty());
        let turns: Vec<_> = turns.map(|t| (t.phases.iter().map(|p| *p as usize).collect(), t.times)).collect();
        let phases: Vec<Range<usize>> = program.phases.iter().map(of_plan::Phase::range).collect();
        let exists = |phase: &usize| phases.get(*phase).is_some_and(|r| !r.is_empty() && r.end <= program.tasks.len());
        if turns.is_empty() || !turns.iter().flat_map(|(list, _): &(Vec<usize>, u32)| list).all(exists) {
            return None;
        }
        Some(Self { phases, turns, at: (0, 0, 0, 0), held: vec![false; program.tasks.len()] })
    }

    /// The task whose turn it is.
    pub fn task(&self) -> usize {
        let (turn, _, phase, task) = self.at;
        self.phases[self.turns[turn].0[phase]].start + task
    }

    /// Holds a task that is ready; returns whether it may act now.
    pub fn admits(&mut self, task: usize) -> bool {
        let now = task == self.task();
        self.held[task] = !now;
        now
    }

    /// The task whose turn it is, if it is held; it may act now.
    pub fn take_held(&mut self) -> Option<usize> {
        let task = self.task();
        std::mem::take(&mut self.held[task]).then_some(task)
    }

    /// Goes on to the next task; behind the last one to the first.
    pub fn advance(&mut self) {
        let (turn, time, phase, task) = &mut self.at;
        let (phases, times) = &self.turns[*turn];
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
        (*time, *turn) = (0, (*turn + 1) % self.turns.len());
    }
}
