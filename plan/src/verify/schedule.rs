//! Programs with microbatches: a proof that the schedule of their thread cannot deadlock and that registers that share memory are
//! never live at once.
//!
//! One thread runs all tasks in one order, the schedule. So the proof runs them: a task needs a value of every register that it
//! consumes and a free copy of every register that it produces, whose memory no live value may have.
//!
//! An asynchronous transfer is launched at its place, and ends as late as it may: when a task waits for its value, or for a copy
//! that it reads; when it is launched again; or at a transfer that blocks its rank. Those that were launched before it have ended then.
//! Values live longest so, and a task waits for nothing but transfers launched before it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{Finding, FindingKind};
use crate::{Program, Rates, TaskGraph, TaskKind};

/// The most acts of a run.
const MAX_ACTS: usize = 1 << 26;

pub(super) fn check(program: &Program, graph: &TaskGraph) -> Vec<Finding> {
    let rates = Rates::of(program, graph);
    let sound = phases(program).and_then(|()| registers(program, graph, &rates));
    let proven = sound.and_then(|()| Run::new(program, graph, &rates).run());
    proven.err().into_iter().collect()
}

fn finding(program: &Program, kind: FindingKind, message: String) -> Finding {
    Finding::new(kind, format!("program `{}`", program.name), message)
}

/// The phases are all tasks in order, and each is scheduled as often as it says.
fn phases(program: &Program) -> Result<(), Finding> {
    let wrong = |kind, message: String| Err(finding(program, kind, message));
    let mut next = 0u64;
    for (number, phase) in program.phases.iter().enumerate() {
        if u64::from(phase.first) != next || phase.tasks == 0 || phase.times == 0 {
            return wrong(FindingKind::Index, format!("phase {number} does not begin where the one before ends"));
        }
        next += u64::from(phase.tasks);
    }
    if next != program.tasks.len() as u64 {
        return wrong(FindingKind::Index, "the phases are not all tasks".into());
    }
    let mut times = vec![0u64; program.phases.len()];
    for phase in program.schedule.iter().flat_map(|own| own.phases.iter().map(|phase| (*phase, own.times))) {
        let (phase, scheduled) = phase;
        let Some(times) = times.get_mut(phase as usize) else {
            return wrong(FindingKind::Index, format!("phase {phase} does not exist"));
        };
        *times += u64::from(scheduled);
    }
    let odd = program.phases.iter().zip(&times).position(|(phase, scheduled)| u64::from(phase.times) != *scheduled);
    if let Some(odd) = odd {
        return wrong(
            FindingKind::Range,
            format!("phase {odd} is scheduled {} times of {}", times[odd], program.phases[odd].times),
        );
    }
    let acts = program.phases.iter().map(|phase| u64::from(phase.tasks).saturating_mul(u64::from(phase.times)));
    if acts.fold(0u64, u64::saturating_add) > MAX_ACTS as u64 {
        return wrong(FindingKind::Range, format!("its tasks act more than {MAX_ACTS} times in a run"));
    }
    if program.pipelined || program.tasks.iter().any(|task| task.thread != program.tasks[0].thread) {
        return wrong(
            FindingKind::Reserved,
            "a program with microbatches has one thread, and its runs do not overlap".into(),
        );
    }
    Ok(())
}

/// A task runs a whole number of times for each value that it consumes or produces, and what it runs for several times has one
/// copy, in memory. What repeats reads one value in a run.
fn registers(program: &Program, graph: &TaskGraph, rates: &Rates) -> Result<(), Finding> {
    for register in &program.registers {
        let id = register.id;
        let producer = graph.producer[id as usize] as usize;
        for task in std::iter::once(producer).chain(graph.consumers[id as usize].iter().map(|task| *task as usize)) {
            let (task_rate, rate) = (rates.task(task), rates.register(id));
            let wrong = |kind, what: &str| {
                let place = format!("program `{}`, register {id} `{}`", program.name, register.name);
                Err(Finding::new(kind, place, format!("task `{}` {what}", program.tasks[task].name)))
            };
            if !task_rate.is_multiple_of(rate) {
                return wrong(FindingKind::Range, &format!("acts {task_rate} times in a run on {rate} values"));
            }
            let repeats = program.tasks[task].kind == TaskKind::Repeat as i32 && task != producer;
            if repeats && rate != 1 {
                return wrong(FindingKind::Range, &format!("reads one value in a run, and this register has {rate}"));
            }
            if task_rate != rate && register.copies != 1 {
                return wrong(FindingKind::Range, "acts several times on a value that has several copies");
            }
            if task_rate > 1 && register.is_object() {
                return wrong(FindingKind::Reserved, "acts several times in a run, which objects do not support");
            }
        }
    }
    Ok(())
}

/// A value that is live: its end in the chunk, and its consumers that are not done with it.
struct Live {
    end: u64,
    readers: usize,
}

/// A place in memory: chunk, offset, register, copy.
type Place = (u32, u64, u32, u32);

struct Run<'a> {
    program: &'a Program,
    graph: &'a TaskGraph,
    rates: &'a Rates,
    /// How many times each task has acted.
    acts: Vec<u32>,
    /// For each task, whether the thread for transfers executes it.
    concurrent: Vec<bool>,
    /// Transfers that were launched and have not ended, each with its act.
    launched: VecDeque<(usize, u32)>,
    /// How many values of each register are there.
    filled: Vec<u32>,
    /// For each register, how many values each of its consumers is done with.
    done: Vec<Vec<u32>>,
    /// For each task and register that it consumes, the position among the register's consumers.
    position: HashMap<(usize, u32), usize>,
    live: BTreeMap<Place, Live>,
    /// The longest block.
    longest: u64,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, graph: &'a TaskGraph, rates: &'a Rates) -> Self {
        let consumers = graph.consumers.iter().zip(0u32..);
        let position =
            consumers.flat_map(|(tasks, id)| tasks.iter().enumerate().map(move |(k, t)| ((*t as usize, id), k)));
        Self {
            program,
            graph,
            rates,
            acts: vec![0; program.tasks.len()],
            concurrent: program.concurrent_transfers(),
            launched: VecDeque::new(),
            filled: vec![0; program.registers.len()],
            done: graph.consumers.iter().map(|tasks| vec![0; tasks.len()]).collect(),
            position: position.collect(),
            live: BTreeMap::new(),
            longest: program.registers.iter().filter_map(|r| r.block()).map(|b| b.bytes).max().unwrap_or(0),
        }
    }

    fn run(mut self) -> Result<(), Finding> {
        for phase in self.program.sequence() {
            for task in self.program.phases[phase].range() {
                self.act(task)?;
            }
        }
        Ok(())
    }

    fn act(&mut self, task: usize) -> Result<(), Finding> {
        let desc = &self.program.tasks[task];
        let act = self.acts[task];
        self.acts[task] += 1;
        let is_async = desc.is_async_transfer();
        if self.concurrent[task] {
            while !self.launched.is_empty() && (!is_async || self.launched.iter().any(|(other, _)| *other == task)) {
                self.end_first();
            }
        }
        for &register in &desc.consumes {
            while self.filled[register as usize] <= act / self.rates.period(task, register) {
                if !self.end_first() {
                    return Err(self.waits(task, act, register, "waits for a value of", "which comes later"));
                }
            }
        }
        for &register in &desc.produces {
            let period = self.rates.period(task, register);
            if act.is_multiple_of(period) {
                self.begin(task, act, register, act / period)?;
            }
        }
        match is_async {
            true => self.launched.push_back((task, act)),
            false => self.acted(task, act),
        }
        Ok(())
    }

    /// The transfer that was launched first ends; `false` where there is none.
    fn end_first(&mut self) -> bool {
        let first = self.launched.pop_front();
        first.inspect(|(task, act)| self.acted(*task, *act)).is_some()
    }

    /// A task has acted: what it produces is there, and what it consumes is free.
    fn acted(&mut self, task: usize, act: u32) {
        let desc = &self.program.tasks[task];
        for &register in &desc.produces {
            if (act + 1).is_multiple_of(self.rates.period(task, register)) {
                self.filled[register as usize] += 1;
                let value = self.filled[register as usize] - 1;
                if self.graph.consumers[register as usize].is_empty() {
                    self.end(register, value);
                }
            }
        }
        for &register in &desc.consumes {
            let period = self.rates.period(task, register);
            if !(act + 1).is_multiple_of(period) {
                continue;
            }
            let position = self.position[&(task, register)];
            self.done[register as usize][position] += 1;
            let value = act / period;
            if self.done[register as usize].iter().all(|done| *done > value) {
                self.end(register, value);
            } else if let Some(place) = self.place(register, value)
                && let Some(live) = self.live.get_mut(&place)
            {
                live.readers -= 1;
            }
        }
    }

    /// A task begins to fill a copy of a register.
    fn begin(&mut self, task: usize, act: u32, register: u32, value: u32) -> Result<(), Finding> {
        let desc = &self.program.registers[register as usize];
        let held = |run: &Self| run.done[register as usize].iter().min().copied().unwrap_or(value).min(value);
        while value - held(self) >= desc.copies {
            if !self.end_first() {
                return Err(self.waits(task, act, register, "waits for a free copy of", "all are in use"));
            }
        }
        let (Some(place), Some(block)) = (self.place(register, value), desc.block()) else { return Ok(()) };
        let end = place.1 + block.bytes;
        let from = (place.0, place.1.saturating_sub(self.longest), 0, 0);
        let until = (place.0, end, 0, 0);
        for (other, live) in self.live.range(from..until) {
            // The task may take over what it alone still reads, or a slice of that, if it says that it works in place.
            let taken_over = desc.inplace_of.contains(&other.2)
                && live.readers == 1
                && self.program.tasks[task].consumes.contains(&other.2)
                && (other.1 <= place.1 && end <= live.end);
            if live.end > place.1 && !taken_over {
                let name = &self.program.registers[other.2 as usize].name;
                let place = format!("program `{}`, registers `{name}` and `{}`", self.program.name, desc.name);
                let filler = &self.program.tasks[task].name;
                let text = format!(
                    "they share memory and can be live at once: `{filler}` fills the second in act {act}, while the first is in use"
                );
                return Err(Finding::new(FindingKind::Overlap, place, text));
            }
        }
        self.live.insert(place, Live { end, readers: self.graph.consumers[register as usize].len() });
        Ok(())
    }

    /// A value is not used any more.
    fn end(&mut self, register: u32, value: u32) {
        if let Some(place) = self.place(register, value) {
            self.live.remove(&place);
        }
    }

    fn place(&self, register: u32, value: u32) -> Option<Place> {
        let desc = &self.program.registers[register as usize];
        let (block, copy) = (desc.block()?, value % desc.copies.max(1));
        Some((block.chunk, block.offset + u64::from(copy) * block.stride(), register, copy))
    }

    fn waits(&self, task: usize, act: u32, register: u32, what: &str, why: &str) -> Finding {
        let producer = &self.program.tasks[self.graph.producer[register as usize] as usize].name;
        let (task, register) = (&self.program.tasks[task].name, &self.program.registers[register as usize].name);
        let message =
            format!("the register tokens deadlock: `{task}` {what} `{register}` of `{producer}` in act {act}, {why}");
        finding(self.program, FindingKind::Deadlock, message)
    }
}

/// Whether the kind of a task is one that only programs with microbatches have.
pub(super) fn needs_phases(kind: TaskKind) -> bool {
    matches!(kind, TaskKind::Repeat | TaskKind::Acc | TaskKind::Unpack | TaskKind::Pack)
}
