//! Microbatches in the physical graph: lifetimes over the schedule, copies of registers, and the phases of the program.

use of_ops::time::is_in_microbatches;
use of_plan::{Phase, Program, ScheduleLoop, VALUE_ALIGN};

use super::{BufferRef, StepGraph, StepKind, TimeCopy};

/// A phase of a graph with microbatches.
#[derive(Clone, Copy, Debug)]
pub struct PhaseRange {
    /// Its first step.
    pub first: usize,
    /// The part of the step, which is odd where the phase runs in microbatches.
    pub part: usize,
    /// How many times it runs.
    pub times: usize,
    /// Whether it is of transfers that the rank launches, to go on with other phases meanwhile.
    pub launches: bool,
}

/// The phases of a graph with microbatches.
#[derive(Clone, Debug, Default)]
pub struct PhaseSteps {
    /// The phases in order. A phase ends where the next begins.
    pub phases: Vec<PhaseRange>,
    /// Phases by index, and how many times they run one after another.
    pub schedule: Vec<(Vec<usize>, usize)>,
}

/// Lifetimes of slots by step, and how many copies each has.
pub(super) struct Lifetimes {
    pub first: Vec<u32>,
    pub last: Vec<u32>,
    pub copies: Vec<u32>,
}

impl PhaseSteps {
    /// The phase of a step.
    pub(super) fn phase_of(&self, step: usize) -> usize {
        self.phases.partition_point(|phase| phase.first <= step).saturating_sub(1)
    }

    /// Whether microbatches have several phases, as in the stages of a pipeline.
    pub(super) fn is_in_stages(&self) -> bool {
        self.phases.windows(2).any(|pair| is_in_microbatches(pair[0].part) && pair[0].part == pair[1].part)
    }

    /// The steps of the microbatches of which a phase is part, first and last; `None` for a phase that runs once.
    pub(super) fn around(&self, phase: usize, steps: usize) -> Option<(u32, u32)> {
        let part = self.phases.get(phase)?.part;
        let of_part = |p: &PhaseRange| p.part == part;
        let first = self.phases.iter().find(|p| of_part(p))?.first;
        let end = self.phases.iter().find(|p| p.part > part).map_or(steps, |p| p.first);
        (is_in_microbatches(part) && end > first).then(|| (first as u32, end as u32 - 1))
    }

    fn sequence(&self) -> impl Iterator<Item = usize> + '_ {
        self.schedule.iter().flat_map(|(phases, times)| (0..*times).flat_map(|_| phases.iter().copied()))
    }
}

impl StepGraph {
    /// Extends the lifetimes of what lives across phases. A value of a microbatch that another phase reads has as many copies as
    /// microbatches are in flight between both.
    pub(super) fn extend_lifetimes(&self, lifetimes: &mut Lifetimes) {
        let time = &self.time;
        if time.phases.is_empty() {
            return;
        }
        let mut writer = vec![None; self.slots.len()];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.slots.len()];
        for (i, step) in self.steps.iter().enumerate() {
            // What collects all microbatches has one value, which is there from the first to the last.
            let collects = matches!(&step.kind, StepKind::Time { copy, .. } if copy.collects());
            step.writes().into_iter().for_each(|s| writer[s] = Some((time.phase_of(i), collects)));
            step.reads().into_iter().for_each(|s| readers[s].push(time.phase_of(i)));
        }
        let launched = |phase: usize| time.phases.get(phase).is_some_and(|phase| phase.launches);
        for (slot, writer) in writer.iter().enumerate() {
            let Some((phase, collects)) = *writer else { continue };
            let own = time.around(phase, self.steps.len());
            let others = readers[slot].iter().filter(|reader| **reader != phase);
            // Each microbatch reads it, up to the last one.
            let read_until = others.clone().filter_map(|reader| Some(time.around(*reader, self.steps.len())?.1)).max();
            lifetimes.last[slot] = lifetimes.last[slot].max(read_until.unwrap_or(0));
            // Nothing that follows waits for the last transfer that reads it, or that sends and receives nothing.
            let receives_nothing = launched(phase) && readers[slot].is_empty();
            if receives_nothing || readers[slot].iter().any(|reader| launched(*reader)) {
                lifetimes.last[slot] = self.steps.len().saturating_sub(1) as u32;
            }
            let Some((first, last)) = own.filter(|_| collects || receives_nothing || others.clone().next().is_some())
            else {
                continue;
            };
            lifetimes.first[slot] = lifetimes.first[slot].min(first);
            lifetimes.last[slot] = lifetimes.last[slot].max(last);
            if !collects {
                lifetimes.copies[slot] = self.in_flight(phase, &readers[slot]);
            }
        }
    }

    /// For each slot the one whose slices it is, where these need no memory of their own: nothing else reads that one, and slices are
    /// aligned as registers are.
    pub(super) fn slices_of(&self) -> Vec<Option<usize>> {
        if self.time.phases.is_empty() {
            return vec![None; self.slots.len()];
        }
        let mut readers = vec![0usize; self.slots.len()];
        self.steps.iter().flat_map(|step| step.reads()).for_each(|slot| readers[slot] += 1);
        let mut of = vec![None; self.slots.len()];
        for step in &self.steps {
            let StepKind::Time { copy: TimeCopy::Unpack { bytes }, src, dst } = &step.kind else { continue };
            let BufferRef::Slot(from) = src.buffer else { continue };
            let whole = src.offset == 0 && self.slots[from].variable.is_none() && readers[from] == 1;
            if whole && bytes.is_multiple_of(VALUE_ALIGN) {
                of[*dst] = Some(from);
            }
        }
        of
    }

    /// The most microbatches that a phase has run while the last of some other phases has not.
    fn in_flight(&self, writer: usize, readers: &[usize]) -> u32 {
        let mut runs = vec![0u32; self.time.phases.len()];
        let mut most = 1;
        for phase in self.time.sequence() {
            if phase == writer {
                // The last transfer that was launched may be under way.
                let done =
                    |reader: usize| runs[reader] - u32::from(self.time.phases[reader].launches).min(runs[reader]);
                let done = readers.iter().filter(|reader| **reader != writer).map(|reader| done(*reader)).min();
                most = most.max(runs[writer] + 1 - done.unwrap_or(runs[writer]).min(runs[writer]));
            }
            runs[phase] += 1;
        }
        most
    }

    /// Writes phases and schedule into the program.
    pub(super) fn write_schedule(&self, program: &mut Program) {
        let ends = self.time.phases.iter().skip(1).map(|phase| phase.first).chain([self.steps.len()]);
        // Phases without steps are left out.
        let mut index_of = Vec::new();
        for (PhaseRange { first, times, .. }, end) in self.time.phases.iter().zip(ends) {
            index_of.push((end > *first).then_some(program.phases.len() as u32));
            if end > *first {
                let (first, tasks, times) = (*first as u32, (end - first) as u32, *times as u32);
                program.phases.push(Phase { first, tasks, times });
            }
        }
        let own = |(phases, times): &(Vec<usize>, usize)| {
            let phases: Vec<u32> = phases.iter().filter_map(|phase| index_of[*phase]).collect();
            (!phases.is_empty()).then_some(ScheduleLoop { phases, times: *times as u32 })
        };
        program.schedule = self.time.schedule.iter().filter_map(own).collect();
    }
}
