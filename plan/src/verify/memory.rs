//! Memory safety: a proof that two registers that share memory are never live at the same time.

use std::collections::BTreeSet;

use super::happens_before::positions;
use super::{Finding, FindingKind, HappensBefore};
use crate::{Program, Register, TaskGraph};

/// At most this many findings are reported.
const MAX_FINDINGS: usize = 16;

pub(super) fn check(program: &Program, graph: &TaskGraph) -> Vec<Finding> {
    let pairs = successive_blocks(program, graph, &positions(program, graph));
    if pairs.is_empty() {
        return Vec::new();
    }
    let within = HappensBefore::within_iteration(program, graph);
    let across = program.pipelined.then(|| HappensBefore::across_iterations(program, graph));
    let proof = Proof { program, graph, within, across };
    let conflicts = pairs.into_iter().filter_map(|(a, b)| proof.conflict(a, b));
    conflicts.take(MAX_FINDINGS).collect()
}

/// Pairs of registers that share a byte, one filled right after the other by the `positions` of their producers, a
/// topological order; in a pipelined program also the first and the last that share it. It is
/// enough to check these pairs: a register that is done before its successor is filled is done before all later ones. There
/// are few such pairs, while the number of overlapping pairs grows with the square of how often memory is reused.
pub(crate) fn successive_blocks(program: &Program, graph: &TaskGraph, positions: &[usize]) -> Vec<(u32, u32)> {
    let mut events = Vec::new();
    for register in &program.registers {
        let Some(block) = register.block() else { continue };
        let end = block.offset.saturating_add(block.extent(register.copies));
        if end > block.offset {
            let key = (positions[graph.producer[register.id as usize] as usize], register.id);
            // Ends come before starts at the same place.
            events.push((block.chunk, block.offset, true, key));
            events.push((block.chunk, end, false, key));
        }
    }
    events.sort_unstable();
    let mut open: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut pairs = Vec::new();
    for (_, _, starts, key) in events {
        open.remove(&key);
        let before = open.range(..key).next_back().map(|k| k.1);
        let after = open.range(key..).next().map(|k| k.1);
        if starts {
            open.insert(key);
            pairs.extend(before.map(|b| (b, key.1)));
            pairs.extend(after.map(|a| (key.1, a)));
        } else {
            pairs.extend(before.zip(after));
        }
        if program.pipelined && open.len() > 2 {
            pairs.extend(open.first().map(|k| k.1).zip(open.last().map(|k| k.1)));
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Pairs of registers whose blocks overlap, by a sweep over the blocks of each chunk in order of their offsets.
pub fn overlapping_blocks(program: &Program) -> Vec<(u32, u32)> {
    let spans = program.registers.iter().filter_map(|register| {
        let block = register.block()?;
        let end = block.offset.saturating_add(block.extent(register.copies));
        (end > block.offset).then_some((block.chunk, block.offset, end, register.id))
    });
    let mut spans: Vec<_> = spans.collect();
    spans.sort_unstable();
    let mut pairs = Vec::new();
    let mut open: Vec<(u32, u64, u32)> = Vec::new();
    for (chunk, start, end, id) in spans {
        open.retain(|&(open_chunk, open_end, _)| open_chunk == chunk && open_end > start);
        pairs.extend(open.iter().map(|&(_, _, other)| (other.min(id), other.max(id))));
        open.push((chunk, end, id));
    }
    pairs.sort_unstable();
    pairs
}

struct Proof<'a> {
    program: &'a Program,
    graph: &'a TaskGraph,
    within: HappensBefore,
    across: Option<HappensBefore>,
}

impl Proof<'_> {
    fn conflict(&self, a: u32, b: u32) -> Option<Finding> {
        let first_fail = match (self.precedes(a, b), self.precedes(b, a)) {
            (Ok(()), _) => return self.conflict_across(a, b),
            (_, Ok(())) => return self.conflict_across(b, a),
            (Err(task), Err(_)) => task,
        };
        let task = &self.program.tasks[first_fail as usize].name;
        let producer = &self.program.tasks[self.graph.producer[b as usize] as usize].name;
        let text = format!(
            "no edge makes `{task}`, which uses the first, end before `{producer}`, which fills the second, acts"
        );
        Some(self.finding(a, b, text))
    }

    /// In a pipelined program, the later of the two must also be done before the earlier is filled with the next iteration.
    fn conflict_across(&self, earlier: u32, later: u32) -> Option<Finding> {
        let across = self.across.as_ref()?;
        let producer = self.graph.producer[earlier as usize];
        let late = self.uses(later).find(|&task| task != producer && !across.before_next(task, producer))?;
        let tasks = &self.program.tasks;
        let (late, producer) = (&tasks[late as usize].name, &tasks[producer as usize].name);
        let text = format!("no edge makes `{late}` end an iteration before `{producer}` acts on the next one");
        Some(self.finding(earlier, later, text))
    }

    fn finding(&self, a: u32, b: u32, text: String) -> Finding {
        let (a, b) = (&self.program.registers[a as usize].name, &self.program.registers[b as usize].name);
        let place = format!("program `{}`, registers `{a}` and `{b}`", self.program.name);
        Finding::new(FindingKind::Overlap, place, format!("they share memory and can be live at once: {text}"))
    }

    /// Whether `a` is done before `b` is filled; otherwise a task that may still use `a`.
    fn precedes(&self, a: u32, b: u32) -> Result<(), u32> {
        let producer = self.graph.producer[b as usize];
        // The task that fills `b` may read `a` while it does so, if it says that it works in place.
        let inplace = self.register(b).inplace_of.contains(&a);
        let late = self.uses(a).find(|&task| !(self.within.before(task, producer) || inplace && task == producer));
        late.map_or(Ok(()), Err)
    }

    fn uses(&self, register: u32) -> impl Iterator<Item = u32> + '_ {
        let consumers = &self.graph.consumers[register as usize];
        std::iter::once(self.graph.producer[register as usize]).chain(consumers.iter().copied())
    }

    fn register(&self, id: u32) -> &Register {
        &self.program.registers[id as usize]
    }
}
