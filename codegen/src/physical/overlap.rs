//! Transfers between ranks that overlap with computation.
//!
//! A rank may go on while data is under way, up to the first step that needs it. Memory is planned for that: what a transfer reads and
//! writes is in use until then. A transfer is asynchronous where there is computation between its place and that step.
//!
//! In a program with microbatches, transfers between pipeline stages are, where the pipeline says that they overlap: their phases come
//! earlier in its schedule.

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
        if !self.time.phases.is_empty() {
            return self.launch_between_stages();
        }
        let is_async = |step: &Step| matches!(step.kind, StepKind::Backend { is_async: true, .. });
        if self.steps.len() > MAX_STEPS || self.steps.iter().any(is_async) {
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
        for (transfer, until) in self.waits(|_, from, until| before[until] - before[from + 1] >= HANDOFF) {
            if let StepKind::Boxing { is_async, .. } = &mut self.steps[transfer].kind {
                *is_async = until.is_some();
            }
        }
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

    /// For each asynchronous transfer the step up to which its memory is in use, in a program without microbatches.
    pub(crate) fn ends_of_transfers(&self) -> Vec<(usize, usize)> {
        if !self.time.phases.is_empty() {
            return Vec::new();
        }
        let is_async = |step: &Step, _, _| matches!(step.kind, StepKind::Boxing { is_async: true, .. });
        let mut ends: Vec<(usize, usize)> =
            self.waits(is_async).into_iter().filter_map(|(transfer, until)| Some((transfer, until?))).collect();
        ends.sort_unstable();
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
        let last = self.steps.len().saturating_sub(1);
        ends.iter_mut().for_each(|(_, until)| *until = (*until).min(last));
        ends
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
