//! The state of actors, registers and credits, from how often each task of a program has acted.
//!
//! An actor's protocol is deterministic, so the counts say all: a register holds what its producer made and its consumers have not
//! released. The states of two tasks may be a few nanoseconds apart.

use std::fmt::Write;

use of_plan::{Program, Rates, Task, TaskGraph};

use super::log::TaskState;
use crate::static_schedule::StaticSchedule;
use crate::task_context::place;

/// What an actor does or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorState {
    /// Acts that ended.
    pub acts: u64,
    /// Whether it is acting.
    pub acting: bool,
    /// What it waits for, where it is not acting.
    pub waits: Vec<Wait>,
}

/// What an actor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The next step: it has acted as often as the steps that began ask for.
    Step,
    /// A value of a register, which this task produces.
    Value {
        /// The register.
        register: u32,
        /// Its producer.
        task: u32,
    },
    /// A free copy of a register, which this task has not released.
    Credit {
        /// The register.
        register: u32,
        /// A consumer that has it.
        task: u32,
    },
    /// Its place in the schedule of its thread, which this task has.
    Schedule {
        /// The task that comes next.
        task: u32,
    },
    /// Its thread, which this task has.
    Thread {
        /// The task that acts.
        task: u32,
    },
}

/// The copies of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterState {
    /// Values that were produced.
    pub values: u64,
    /// Copies that hold a value that not all consumers have released, or that are being filled.
    pub used: u64,
    /// Copies that are free: the producer's credits.
    pub credits: u64,
}

/// Program, graph and rates.
struct View<'a> {
    program: &'a Program,
    graph: TaskGraph,
    rates: Rates,
    tasks: &'a [TaskState],
}

impl<'a> View<'a> {
    fn of(program: &'a Program, tasks: &'a [TaskState]) -> Option<View<'a>> {
        let graph = TaskGraph::of(program).filter(|_| tasks.len() >= program.tasks.len())?;
        let rates = Rates::of(program, &graph);
        Some(View { program, graph, rates, tasks })
    }

    /// Values of a register that a task has completed: produced or released.
    fn completed(&self, task: u32, register: u32) -> u64 {
        self.tasks[task as usize].acts / u64::from(self.rates.period(task as usize, register))
    }

    /// Values of a register that a consumer has released.
    fn released(&self, task: u32, register: u32) -> u64 {
        let (desc, own) = (&self.program.tasks[task as usize], self.tasks[task as usize]);
        let all = self.completed(task, register);
        // An input-wise task that is not acting has acted on every part that arrived since it took the first of them.
        let begun = !own.acts.is_multiple_of(parts_of(desc));
        let took = desc.part_of(register).is_some() && begun && !own.acting;
        let arrived = self.completed(self.graph.producer[register as usize], register);
        if took { arrived.min(all + 1) } else { all }
    }

    /// The consumer that is the last to release values of a register, and how many it has released.
    fn slowest(&self, register: u32) -> Option<(u32, u64)> {
        let consumers = self.graph.consumers[register as usize].iter();
        consumers.map(|&task| (task, self.released(task, register))).min_by_key(|(_, released)| *released)
    }

    fn waits(&self, task: u32, steps: u64) -> Vec<Wait> {
        let (desc, acts) = (&self.program.tasks[task as usize], self.tasks[task as usize].acts);
        if acts >= steps.saturating_mul(u64::from(self.rates.task(task as usize))) {
            return vec![Wait::Step];
        }
        let value = |register: u32| acts / u64::from(self.rates.period(task as usize, register));
        let mut waits = Vec::new();
        for &register in &desc.consumes {
            let producer = self.graph.producer[register as usize];
            if self.completed(producer, register) <= value(register) {
                waits.push(Wait::Value { register, task: producer });
            }
        }
        // Any part that is there is enough to begin an iteration.
        let is_part = |wait: &Wait| matches!(wait, Wait::Value { register, .. } if desc.part_of(*register).is_some());
        let parts = waits.iter().filter(|wait| is_part(wait)).count();
        if parts > 0 && parts < desc.acts_per_iteration() as usize && acts.is_multiple_of(parts_of(desc)) {
            waits.retain(|wait| !is_part(wait));
        }
        for &register in &desc.produces {
            let first = acts.is_multiple_of(u64::from(self.rates.period(task as usize, register)));
            let copies = u64::from(self.program.registers[register as usize].copies);
            if let Some((consumer, released)) = self.slowest(register).filter(|_| first)
                && released + copies <= value(register)
            {
                waits.push(Wait::Credit { register, task: consumer });
            }
        }
        waits
    }
}

/// How often a task acts in an iteration.
fn parts_of(task: &Task) -> u64 {
    u64::from(task.acts_per_iteration())
}

/// The states of a program's actors, in the order of its tasks, after so many steps began; `None` where the program and the
/// recording do not fit each other.
pub fn actors(program: &Program, tasks: &[TaskState], steps: u64) -> Option<Vec<ActorState>> {
    let view = View::of(program, tasks)?;
    let thread = |task: usize| program.tasks[task].thread;
    let mut states: Vec<ActorState> = (0..program.tasks.len())
        .map(|task| {
            let TaskState { acts, acting } = tasks[task];
            let waits = if acting { Vec::new() } else { view.waits(task as u32, steps) };
            ActorState { acts, acting, waits }
        })
        .collect();
    // One that could act waits for its thread.
    let next = StaticSchedule::of(program).map(|schedule| next_of(schedule, program, tasks));
    for task in 0..states.len() {
        if states[task].acting || !states[task].waits.is_empty() {
            continue;
        }
        let busy = (0..states.len()).find(|other| states[*other].acting && thread(*other) == thread(task));
        let wait = match (busy, next) {
            (Some(other), _) => Some(Wait::Thread { task: other as u32 }),
            (None, Some(next)) if next != task => Some(Wait::Schedule { task: next as u32 }),
            _ => None,
        };
        states[task].waits.extend(wait);
    }
    Some(states)
}

/// The task that comes next in a schedule, of which these acts are done.
fn next_of(mut schedule: StaticSchedule, program: &Program, tasks: &[TaskState]) -> usize {
    // Acts of the current step: all steps before are the same.
    let times = |task: usize| u64::from(program.times(task)).max(1);
    let steps = (0..program.tasks.len()).map(|task| tasks[task].acts / times(task)).min().unwrap_or(0);
    let mut left: Vec<u64> =
        (0..program.tasks.len()).map(|task| tasks[task].acts.saturating_sub(steps * times(task))).collect();
    for _ in 0..program.acts() {
        let task = schedule.task();
        if left[task] == 0 {
            return task;
        }
        left[task] -= 1;
        schedule.advance();
    }
    schedule.task()
}

/// The states of a program's registers, in order; `None` where the program and the recording do not fit each other.
pub fn registers(program: &Program, tasks: &[TaskState]) -> Option<Vec<RegisterState>> {
    let view = View::of(program, tasks)?;
    let state = |register: u32| {
        let producer = view.graph.producer[register as usize];
        let values = view.completed(producer, register);
        let released = view.slowest(register).map_or(values, |(_, released)| released.min(values));
        let TaskState { acts, acting } = tasks[producer as usize];
        let period = u64::from(view.rates.period(producer as usize, register));
        let fills = u64::from(acting || !acts.is_multiple_of(period));
        let copies = u64::from(program.registers[register as usize].copies);
        let used = (values - released + fills).min(copies);
        RegisterState { values, used, credits: copies - used }
    };
    Some((0..program.registers.len() as u32).map(state).collect())
}

/// Every actor, register and credit of a program as text.
pub fn describe(program: &Program, tasks: &[TaskState], steps: (u64, u64)) -> String {
    let (begun, ended) = steps;
    let running = if begun > ended { "runs" } else { "is idle" };
    let mut out = format!("program `{}` {running}: {begun} steps began, {ended} ended\n", program.name);
    let (Some(actors), Some(registers)) = (actors(program, tasks, begun), registers(program, tasks)) else {
        out.push_str("  its tasks are not those that were recorded\n");
        return out;
    };
    out.push_str("  actors\n");
    for (id, (task, state)) in program.tasks.iter().zip(&actors).enumerate() {
        let what = match &state.waits[..] {
            _ if state.acting => "acts".to_owned(),
            [] => "can act".to_owned(),
            waits => format!("waits for {}", waits.iter().map(|w| w.describe(program)).collect::<Vec<_>>().join(", ")),
        };
        let _ = writeln!(out, "  {id:5} `{}`{} has acted {} times; {what}", task.name, place(task), state.acts);
    }
    out.push_str("  registers\n");
    for (register, state) in program.registers.iter().zip(&registers) {
        let RegisterState { values, used, credits } = state;
        let _ = writeln!(
            out,
            "  {:5} `{}` holds {used} of {} copies, {credits} credits; {values} values so far",
            register.id, register.name, register.copies
        );
    }
    out
}

impl Wait {
    /// What is waited for, by the names of the program.
    pub fn describe(&self, program: &Program) -> String {
        let task = |task: u32| program.tasks.get(task as usize).map_or("?", |t| t.name.as_str());
        let register = |id: u32| program.registers.get(id as usize).map_or("?", |r| r.name.as_str());
        match *self {
            Wait::Step => "the next step".into(),
            Wait::Value { register: id, task: from } => format!("register `{}` of task `{}`", register(id), task(from)),
            Wait::Credit { register: id, task: by } => {
                format!("a free copy of register `{}`, which task `{}` has", register(id), task(by))
            }
            Wait::Schedule { task: next } => format!("its place in the schedule, after task `{}`", task(next)),
            Wait::Thread { task: other } => format!("its thread, which task `{}` has", task(other)),
        }
    }
}
