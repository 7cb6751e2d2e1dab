//! Transfers between ranks that overlap with computation.
//!
//! A rank may go on while data is under way, up to the first step that needs it. Memory is planned for that: what a transfer reads and
//! writes is in use until then. A transfer is asynchronous where there is computation between its place and that step.
//!
//! In a program with microbatches, a transfer that a microbatch needs ends in its phase, because the next microbatch has it again. One that
//! takes place once may end in a later phase: the first microbatch computes while parameters are gathered.
//!
//! Transfers between pipeline stages are asynchronous where the pipeline says that they overlap: their phases come earlier in its schedule.

use std::collections::HashMap;

use super::{Step, StepGraph, StepKind};

/// So many transfers that are under way at once may keep their memory, and more while it is not larger than this; before a rank launches
/// others, the first of them must have ended where its memory is needed.
const IN_FLIGHT: usize = 4;
const IN_FLIGHT_BYTES: u64 = 64 << 20;

/// To hand a transfer to the thread that executes it, and to learn of its end, takes about so long, in nanoseconds.
const HANDOFF: f64 = 20_000.0;

/// Rates at which a core computes products and moves bytes, per nanosecond: rough, since they are compared with the handoff.
const FLOPS: f64 = 50.0;
const BYTES: f64 = 10.0;

/// The proof that memory is safe takes a bit for each pair of steps.
const MAX_STEPS: usize = 8_000;

impl StepGraph {
    /// Decides which transfers are asynchronous.
    pub(crate) fn overlap_transfers(&mut self) {
        let transfers =
            |step: &Step| matches!(&step.kind, StepKind::Backend { rendezvous, .. } if !rendezvous.is_empty());
        if self.merges_collectives || !self.symbols.is_empty() || self.steps.iter().any(transfers) {
            return;
        }
        if self.time.is_in_stages() {
            return self.launch_between_stages();
        }
        let is_async = |step: &Step| matches!(step.kind, StepKind::Backend { is_async: true, .. });
        let is_proven_by_pairs = self.time.phases.is_empty();
        if (is_proven_by_pairs && self.steps.len() > MAX_STEPS) || self.steps.iter().any(is_async) {
            return;
        }
        // Nanoseconds of computation before each step.
        let mut before = vec![0.0];
        for step in &self.steps {
            let last = before[before.len() - 1];
            let computes =
                matches!(step.kind, StepKind::Kernel { .. } | StepKind::Backend { .. } | StepKind::Control { .. });
            let time = (step.flops.all() as f64 / FLOPS).max(step.bytes as f64 / BYTES);
            before.push(last + if computes { time } else { 0.0 });
        }
        let is_async =
            |_: &Step, from, until| before[until] - before[from + 1] >= HANDOFF && self.may_end_before(from, until);
        for (transfer, until) in self.waits(is_async) {
            if let StepKind::Boxing { is_async, .. } = &mut self.steps[transfer].kind {
                *is_async = until.is_some();
            }
        }
    }

    /// Whether a transfer may end as late as the step that waits for it, and its memory still be safe.
    fn may_end_before(&self, transfer: usize, until: usize) -> bool {
        if self.time.phases.is_empty() {
            // Control edges order what reuses the memory.
            return true;
        }
        let own = self.time.phase_of(transfer);
        let in_time =
            self.time.phases[own].times == 1 || (until < self.steps.len() && self.time.phase_of(until) == own);
        // A step may compute the next value of a variable in its place.
        let variable = |slot: &usize| self.slots[*slot].variable;
        let reads: Vec<usize> = self.steps[transfer].reads().iter().filter_map(variable).collect();
        let updates = |step: &Step| step.writes().iter().filter_map(variable).any(|k| reads.contains(&k));
        in_time && !self.steps[transfer + 1..until].iter().any(updates)
    }

    /// Makes transfers asynchronous whose phases are launched. One that reads a variable is not: a later step may update it in its place.
    fn launch_between_stages(&mut self) {
        let launched = |place: usize| self.time.phases.get(self.time.phase_of(place)).is_some_and(|p| p.launches);
        let is_buffer = |slot: &usize| self.slots[*slot].variable.is_none() && self.slots[*slot].bytes.is_some();
        let own = |(place, step): (usize, &Step)| {
            let waits = matches!(&step.kind, StepKind::Boxing { transfer, .. } if !transfer.is_local());
            (waits && launched(place) && step.reads().iter().all(is_buffer)).then_some(place)
        };
        let places: Vec<usize> = self.steps.iter().enumerate().filter_map(own).collect();
        for place in places {
            if let StepKind::Boxing { is_async, .. } = &mut self.steps[place].kind {
                *is_async = true;
            }
        }
    }

    /// Whether some transfers are asynchronous.
    pub(crate) fn has_async_transfers(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.kind, StepKind::Boxing { is_async: true, .. }))
    }

    /// For each asynchronous transfer the step up to which its memory is in use; none of those that a pipeline launches, whose values have
    /// copies instead.
    pub(crate) fn ends_of_transfers(&self) -> Vec<(usize, usize)> {
        if self.time.is_in_stages() {
            return Vec::new();
        }
        let is_async = |step: &Step, _, _| matches!(step.kind, StepKind::Boxing { is_async: true, .. });
        let mut ends: Vec<(usize, usize)> =
            self.waits(is_async).into_iter().filter_map(|(transfer, until)| Some((transfer, until?))).collect();
        ends.sort_unstable();
        let last = self.steps.len().saturating_sub(1);
        if !self.time.phases.is_empty() {
            // No edges but those of values order the tasks, so memory is free when a step has waited.
            ends.iter_mut().for_each(|(transfer, until)| *until = self.last_act(*transfer, (*until).min(last)));
            return ends;
        }
        let places: Vec<usize> = ends.iter().map(|(transfer, _)| *transfer).collect();
        let bytes = |place: &usize| -> u64 {
            let step = &self.steps[*place];
            step.reads().iter().chain(&step.writes()).filter_map(|slot| self.slots[*slot].bytes).sum()
        };
        let bytes: Vec<u64> = places.iter().map(bytes).collect();
        // The first transfer after each that does not fit next to those in between.
        let (mut later, mut held) = (0, 0);
        for (number, (_, until)) in ends.iter_mut().enumerate() {
            while later < places.len() && (later < number + IN_FLIGHT || held + bytes[later] <= IN_FLIGHT_BYTES) {
                held += bytes[later];
                later += 1;
            }
            *until = places.get(later).map_or(*until, |place| *place.min(until));
            held -= bytes[number];
        }
        ends.iter_mut().for_each(|(_, until)| *until = (*until).min(last));
        ends
    }

    /// The step up to which memory is in use that is free when a later step has acted: that one, or the last of its microbatch, if it is in
    /// another phase.
    fn last_act(&self, transfer: usize, until: usize) -> usize {
        let phase = self.time.phase_of(until);
        let around = self.time.around(phase, self.steps.len()).filter(|_| phase != self.time.phase_of(transfer));
        around.map_or(until, |(_, last)| last as usize)
    }

    /// For each transfer that waits for other ranks, the first step that waits for it in turn, where `is_async` says that it is
    /// asynchronous. It gets the transfer, its place, and the step.
    fn waits(&self, is_async: impl Fn(&Step, usize, usize) -> bool) -> Vec<(usize, Option<usize>)> {
        let count = self.steps.len();
        let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
        for (place, step) in self.steps.iter().enumerate() {
            step.reads().into_iter().for_each(|slot| readers.entry(slot).or_default().push(place));
        }
        let mut found: HashMap<usize, usize> = HashMap::new();
        let (mut out, mut next) = (Vec::new(), None);
        for (place, step) in self.steps.iter().enumerate().rev() {
            let StepKind::Boxing { transfer, .. } = &step.kind else { continue };
            if transfer.is_local() {
                continue;
            }
            let results: Vec<usize> = step.boxings().map(|(.., dst)| dst).collect();
            // A later transfer that is asynchronous is itself waited for.
            let waits = |step: usize| found.get(&step).copied().unwrap_or(step);
            let of_readers =
                results.iter().filter_map(|dst| readers.get(dst)).flatten().filter(|reader| **reader > place);
            let until = of_readers.copied().chain(next).map(waits).min().unwrap_or(count);
            let concurrent = is_async(step, place, until);
            if concurrent {
                found.insert(place, until);
            }
            out.push((place, concurrent.then_some(until)));
            next = Some(place);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use of_plan::{AxisLayout, LayoutKind, Transfer};

    use super::*;
    use crate::kernel::extent::Extent;
    use crate::physical::phases::{PhaseRange, PhaseSteps};
    use crate::physical::{BufferRef, BufferSlot, Flops, Operand};

    /// A kernel that reads and writes slots, and takes so many microseconds by the rates above.
    fn kernel(reads: &[usize], write: usize, us: u64) -> Step {
        let whole = |slot: &usize| Operand::whole(BufferRef::Slot(*slot));
        let args = reads.iter().chain([&write]).map(whole).collect();
        let extent = Extent::from(1usize);
        let kind = StepKind::Kernel {
            code: 0,
            args,
            writes: vec![write],
            symbols: false,
            iterations: extent,
            grain: 1,
            scratch_bytes: 0,
        };
        step(kind, Flops::products(us * 1000 * FLOPS as u64))
    }

    fn step(kind: StepKind, flops: Flops) -> Step {
        Step { name: "s".into(), locations: Vec::new(), kind, flops, bytes: 0, reread: None, in_place: Vec::new() }
    }

    fn transfer(id: u32, src: usize, dst: usize, from: LayoutKind) -> Step {
        let layout = |kind| vec![AxisLayout::of(kind)];
        let transfer = Transfer {
            id,
            axes: vec![0],
            dims: vec![16],
            from: layout(from),
            to: layout(LayoutKind::Broadcast),
            ..Transfer::default()
        };
        let src = Operand::whole(BufferRef::Slot(src));
        step(
            StepKind::Boxing { transfer, src, dst, is_async: false, fused: Vec::new(), staging: None },
            Flops::default(),
        )
    }

    fn graph(steps: Vec<Step>) -> StepGraph {
        let slot = |n: usize| BufferSlot {
            name: format!("s{n}"),
            dtype: Some(of_ir::DType::F32),
            dims: vec![16],
            bytes: Some(64),
            extents: Vec::new(),
            variable: None,
        };
        let mut graph = StepGraph { slots: (0..12).map(slot).collect(), steps, ..StepGraph::default() };
        graph.overlap_transfers();
        graph
    }

    const SUM: LayoutKind = LayoutKind::Sum;

    #[test]
    fn transfers_with_computation_before_their_readers_are_asynchronous() {
        let backward = vec![
            kernel(&[], 0, 100),
            transfer(2, 0, 1, SUM),
            kernel(&[], 2, 100),
            transfer(4, 2, 3, SUM),
            kernel(&[1], 4, 100),
            kernel(&[3], 5, 100),
        ];
        // The second is launched as the first reader waits, but that takes long.
        assert_eq!(graph(backward).ends_of_transfers(), [(1, 4), (3, 5)]);
        // A reader that comes at once waits; so does one behind what takes no time.
        let chained = vec![kernel(&[], 0, 100), transfer(2, 0, 1, SUM), kernel(&[], 2, 1), kernel(&[1, 2], 3, 100)];
        assert_eq!(graph(chained).ends_of_transfers(), []);
        // What has no reader is waited for at the end, here by the last step.
        let last = vec![kernel(&[], 0, 100), transfer(2, 0, 1, SUM), kernel(&[], 2, 100)];
        assert_eq!(graph(last).ends_of_transfers(), [(1, 2)]);
    }

    /// The steps run once, in four microbatches, and once.
    fn in_microbatches(steps: [Vec<Step>; 3]) -> StepGraph {
        let mut first = 0;
        let phases = steps.iter().zip([1, 4, 1]).enumerate().map(|(part, (steps, times))| {
            first += steps.len();
            PhaseRange { first: first - steps.len(), part, times, launches: false }
        });
        let phases = phases.collect();
        let time = PhaseSteps { phases, schedule: vec![(vec![0], 1), (vec![1], 4), (vec![2], 1)] };
        let mut graph = StepGraph { time, ..graph(steps.into_iter().flatten().collect()) };
        graph.overlap_transfers();
        graph
    }

    #[test]
    fn the_first_microbatch_overlaps_with_what_precedes_it() {
        let gathers = vec![transfer(2, 0, 1, SUM), transfer(4, 2, 3, SUM)];
        let body = vec![kernel(&[1], 4, 100), kernel(&[4], 5, 100), kernel(&[3, 5], 6, 100), kernel(&[6], 7, 100)];
        let after = vec![transfer(6, 8, 9, SUM), kernel(&[], 10, 100), kernel(&[9], 11, 100)];
        // The first microbatch waits for the first at once, so that one blocks. The memory of the second is in use until the last microbatch.
        assert_eq!(in_microbatches([gathers, body, after]).ends_of_transfers(), [(1, 5), (6, 8)]);
    }

    #[test]
    fn a_transfer_of_each_microbatch_ends_in_it() {
        let body = vec![
            kernel(&[], 0, 100),
            transfer(2, 0, 1, SUM),
            kernel(&[], 2, 100),
            kernel(&[1, 2], 3, 100),
            transfer(4, 3, 4, SUM),
            kernel(&[], 5, 100),
        ];
        // Only what comes after the microbatches reads the second, which they have again.
        assert_eq!(in_microbatches([vec![], body, vec![kernel(&[4, 5], 6, 100)]]).ends_of_transfers(), [(1, 3)]);
    }

    #[test]
    fn a_variable_is_read_before_its_next_value_takes_its_place() {
        // Slots 0 and 6 are values of one variable, and the first microbatch waits for the transfer.
        let ends = |updated: usize, updated_last: usize| {
            let before = vec![transfer(2, 0, 1, SUM), kernel(&[], updated, 100)];
            let mut own = in_microbatches([before, vec![kernel(&[1], 3, 100)], vec![kernel(&[], updated_last, 100)]]);
            (own.slots[0].variable, own.slots[6].variable) = (Some(0), Some(0));
            own.overlap_transfers();
            own.ends_of_transfers()
        };
        assert_eq!(ends(4, 6), [(0, 2)]);
        assert_eq!(ends(6, 4), [], "it is updated while it is sent");
    }

    #[test]
    fn a_transfer_ends_before_one_that_is_not_asynchronous() {
        let steps = vec![
            kernel(&[], 0, 100),
            transfer(2, 0, 1, SUM),
            kernel(&[], 2, 100),
            transfer(4, 2, 3, SUM),
            kernel(&[3], 4, 100),
            kernel(&[1], 5, 100),
        ];
        assert_eq!(graph(steps).ends_of_transfers(), [(1, 3)]);
        // A local one in between is no rendezvous.
        let steps = vec![
            kernel(&[], 0, 100),
            transfer(2, 0, 1, SUM),
            transfer(4, 6, 7, LayoutKind::Broadcast),
            kernel(&[7], 2, 100),
            kernel(&[1], 5, 100),
        ];
        assert_eq!(graph(steps).ends_of_transfers(), [(1, 4)]);
    }
}
