//! Liveness in the simulator: which registers are live, and the invariants of their memory.

use of_plan::{Program, Rates, Task, TaskGraph, overlapping_blocks};

use super::SimError;

/// The live copies of a program's registers.
pub(super) struct LiveRegisters<'a> {
    program: &'a Program,
    graph: &'a TaskGraph,
    /// For each register, its copies.
    copies: Vec<Vec<Option<Copy>>>,
    /// For each register, those that share memory with it.
    neighbours: &'a [Vec<u32>],
    rates: Rates,
    /// The iteration that each task works on next.
    next: Vec<u64>,
    bytes: u64,
}

/// The state of a live copy.
struct Copy {
    iteration: u64,
    /// Whether its producer is done.
    full: bool,
    /// Consumers that have not worked on it yet.
    readers: Vec<u32>,
}

/// Whether an act on a part, of an input-wise task, uses an input. Any other act uses all.
fn is_used(task: &Task, register: u32, part: Option<usize>) -> bool {
    let of = task.part_of(register);
    of.is_none() || of == part
}

/// For each register, those that share memory with it.
pub(super) fn neighbours(program: &Program) -> Vec<Vec<u32>> {
    let mut neighbours = vec![Vec::new(); program.registers.len()];
    for (a, b) in overlapping_blocks(program) {
        neighbours[a as usize].push(b);
        neighbours[b as usize].push(a);
    }
    neighbours
}

impl<'a> LiveRegisters<'a> {
    pub fn new(program: &'a Program, graph: &'a TaskGraph, neighbours: &'a [Vec<u32>]) -> Self {
        let copies = program.registers.iter().map(|register| (0..register.copies).map(|_| None).collect());
        let next = vec![0; program.tasks.len()];
        let rates = Rates::of(program, graph);
        Self { program, graph, copies: copies.collect(), neighbours, rates, next, bytes: 0 }
    }

    /// Bytes of all live registers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A task begins its work: its inputs must hold this very iteration, and its outputs must not overwrite a live register. Of the parts of
    /// an input-wise task, `part` alone must be there.
    pub fn begin(&mut self, task: usize, iteration: u64, part: Option<usize>, now: u64) -> Result<(), SimError> {
        let desc = &self.program.tasks[task];
        let order = || SimError::Order { at_ns: now, task: desc.name.clone(), iteration };
        if std::mem::replace(&mut self.next[task], iteration + 1) != iteration {
            return Err(order());
        }
        for &register in desc.consumes.iter().filter(|register| is_used(desc, **register, part)) {
            let value = iteration / self.period(task, register);
            let copy = self.copies[register as usize][self.copy_of(register, value)].as_ref();
            if copy.is_none_or(|copy| copy.iteration != value || !copy.full || !copy.readers.contains(&(task as u32))) {
                return Err(order());
            }
        }
        for &register in &desc.produces {
            let period = self.period(task, register);
            let (value, first) = (iteration / period, iteration.is_multiple_of(period));
            let copy = self.copy_of(register, value);
            if !first {
                continue;
            }
            let destroyed = if self.copies[register as usize][copy].is_some() { Some(register) } else { None };
            if let Some(live) = destroyed.or_else(|| self.destroyed(task as u32, register, copy)) {
                let name = |register: u32| self.program.registers[register as usize].name.clone();
                let (register, live) = (name(register), name(live));
                return Err(SimError::Overlap { at_ns: now, task: desc.name.clone(), register, live });
            }
            let readers = self.graph.consumers[register as usize].clone();
            self.copies[register as usize][copy] = Some(Copy { iteration: value, full: false, readers });
            self.bytes += self.size(register);
        }
        Ok(())
    }

    /// A task has ended its work.
    pub fn end(&mut self, task: usize, iteration: u64, part: Option<usize>) {
        let desc = &self.program.tasks[task];
        let completed = |register: u32| {
            let period = self.period(task, register);
            (iteration + 1).is_multiple_of(period).then(|| (register, self.copy_of(register, iteration / period)))
        };
        let produced: Vec<_> = desc.produces.iter().filter_map(|register| completed(*register)).collect();
        let consumed = desc.consumes.iter().filter_map(|&register| match desc.part_of(register) {
            None => completed(register),
            of => (of == part).then(|| (register, self.copy_of(register, iteration / self.period(task, register)))),
        });
        let consumed: Vec<_> = consumed.collect();
        for (register, copy) in produced {
            if let Some(copy) = &mut self.copies[register as usize][copy] {
                copy.full = true;
            }
            self.free_if_read(register, copy);
        }
        for (register, copy) in consumed {
            if let Some(copy) = &mut self.copies[register as usize][copy] {
                copy.readers.retain(|&reader| reader != task as u32);
            }
            self.free_if_read(register, copy);
        }
    }

    fn free_if_read(&mut self, register: u32, copy: usize) {
        let slot = &mut self.copies[register as usize][copy];
        if slot.as_ref().is_some_and(|copy| copy.full && copy.readers.is_empty()) {
            *slot = None;
            self.bytes -= self.size(register);
        }
    }

    /// A live register that filling this copy would overwrite. Taking over memory in place is allowed to a register's
    /// last reader.
    fn destroyed(&self, task: u32, register: u32, copy: usize) -> Option<u32> {
        let desc = &self.program.registers[register as usize];
        let (start, end) = self.span(register, copy)?;
        let conflict = |other: u32| {
            let inplace = desc.inplace_of.contains(&other);
            self.copies[other as usize].iter().enumerate().any(|(number, live)| {
                let Some(live) = live else { return false };
                let apart = self.span(other, number).is_none_or(|(from, to)| to <= start || from >= end);
                let taken_over = inplace && live.full && live.readers == [task];
                !apart && !taken_over
            })
        };
        self.neighbours[register as usize].iter().copied().find(|&other| conflict(other))
    }

    fn span(&self, register: u32, copy: usize) -> Option<(u64, u64)> {
        let block = self.program.registers[register as usize].block()?;
        let start = block.offset + block.stride() * copy as u64;
        Some((start, start + block.bytes))
    }

    fn copy_of(&self, register: u32, iteration: u64) -> usize {
        (iteration % self.copies[register as usize].len().max(1) as u64) as usize
    }

    /// How many acts of a task work on one value of a register.
    fn period(&self, task: usize, register: u32) -> u64 {
        u64::from(self.rates.period(task, register))
    }

    fn size(&self, register: u32) -> u64 {
        self.program.registers[register as usize].block().map_or(0, |block| block.bytes)
    }
}
