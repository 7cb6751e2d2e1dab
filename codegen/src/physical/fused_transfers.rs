//! Small transfers between ranks that share a rendezvous.
//!
//! A rendezvous takes its time however few bytes it moves. Transfers that follow one another become one task, which sends the blocks of all of
//! them as one message. Each element is reduced in the order in which it is without that. All ranks of a rendezvous must have the same
//! transfers in it, so what is fused is decided for the programs of all ranks together.

use std::collections::HashMap;

use of_ir::DType;
use of_plan::{LayoutKind, Transfer};

use super::{BufferSlot, Operand, Step, StepGraph, StepKind};

/// A further transfer of a step, with its source and target.
#[derive(Clone, PartialEq, Debug)]
pub struct FusedStep {
    /// What is transferred.
    pub transfer: Transfer,
    /// The rank's part before.
    pub src: Operand,
    /// Its part after.
    pub dst: usize,
}

/// Fuses transfers that follow one another on all ranks, up to so many bytes in a rendezvous. Gives the new place of each step of each graph;
/// none where nothing changed.
pub(crate) fn fuse_transfers(graphs: &mut [&mut StepGraph], most: u64) -> Vec<Vec<usize>> {
    // How many graphs have each transfer, and how many have two of them one after another.
    let (mut having, mut followed): (HashMap<u32, usize>, HashMap<(u32, u32), usize>) = Default::default();
    for graph in graphs.iter() {
        let all = graph.steps.iter().filter_map(Step::transfer);
        all.for_each(|transfer| *having.entry(transfer.id).or_default() += 1);
        graph.neighbours(most).for_each(|pair| *followed.entry(pair).or_default() += 1);
    }
    let on_all = |(a, b): (u32, u32)| {
        let count = followed.get(&(a, b));
        count.is_some() && count == having.get(&a) && count == having.get(&b)
    };
    graphs.iter_mut().map(|graph| graph.fuse(most, &on_all)).collect()
}

impl Step {
    /// The transfer of a step; of several, the first one.
    fn transfer(&self) -> Option<&Transfer> {
        self.boxings().next().map(|(transfer, ..)| transfer)
    }

    /// The transfers of a step, each with its source and target.
    pub(super) fn boxings(&self) -> impl Iterator<Item = (&Transfer, &Operand, usize)> {
        let (first, fused) = match &self.kind {
            StepKind::Boxing { transfer, src, dst, fused, .. } => (Some((transfer, src, *dst)), &fused[..]),
            _ => (None, &[][..]),
        };
        first.into_iter().chain(fused.iter().map(|own| (&own.transfer, &own.src, own.dst)))
    }

    /// Adds the transfer of a step to the rendezvous of this one.
    fn join(&mut self, step: Step) {
        let StepKind::Boxing { transfer: first, fused, .. } = &mut self.kind else { return };
        let StepKind::Boxing { transfer, src, dst, .. } = step.kind else { return };
        let (from, to) = (first.id, transfer.id);
        fused.push(FusedStep { transfer, src, dst });
        self.name = format!("transfers {from} to {to}");
        self.locations.extend(step.locations);
        self.bytes += step.bytes;
    }
}

impl StepGraph {
    /// Pairs of transfers that follow one another and may be one rendezvous.
    fn neighbours(&self, most: u64) -> impl Iterator<Item = (u32, u32)> + '_ {
        let small = move |step: usize| self.small_transfer(step).filter(|(_, bytes)| *bytes <= most);
        let pair = move |step: usize| {
            let ((a, _), (b, _)) = small(step).zip(small(step + 1))?;
            let like = |transfer: &Transfer| {
                let Transfer { axes, from, to, factors, .. } = transfer.clone();
                (axes, from, to, factors)
            };
            let reads_it = self.steps[step].writes().iter().any(|slot| self.steps[step + 1].reads().contains(slot));
            let same = like(a) == like(b) && self.element(step) == self.element(step + 1);
            (same && !reads_it).then_some((a.id, b.id))
        };
        let is_fused = self.merges_collectives || self.time.is_in_stages();
        let steps = if is_fused { 0 } else { self.steps.len().saturating_sub(1) };
        // A rendezvous is in one phase.
        (0..steps).filter(|step| self.time.phase_of(*step) == self.time.phase_of(step + 1)).filter_map(pair)
    }

    /// The transfer of a step and its bytes on all ranks together, if it may share a rendezvous.
    fn small_transfer(&self, step: usize) -> Option<(&Transfer, u64)> {
        let transfer = self.steps[step].transfer()?;
        let layouts = || transfer.from.iter().chain(&transfer.to);
        // Blocks for several receivers are the same for all of them, or do not overlap.
        let is_plain = transfer.to.iter().all(|to| to.kind() == LayoutKind::Broadcast) || transfer.from.len() == 1;
        let is_exchange = is_plain && !transfer.is_local() && layouts().all(|l| l.kind() != LayoutKind::At);
        let is_buffer = |(src, ..): (&Operand, _)| src.slot().is_some_and(|slot| self.slots[slot].bytes.is_some());
        let is_exchange = is_exchange && self.steps[step].boxings().all(|(_, src, dst)| is_buffer((src, dst)));
        Some((transfer, self.whole_bytes(transfer, self.element(step)?)?)).filter(|_| is_exchange)
    }

    /// Bytes of the tensor that the ranks of a transfer hold together.
    fn whole_bytes(&self, transfer: &Transfer, dtype: DType) -> Option<u64> {
        let elements = transfer.dims.iter().try_fold(1u64, |n, d| n.checked_mul(u64::try_from(*d).ok()?))?;
        elements.checked_mul(dtype.bits()? as u64 / 8)
    }

    /// The type of the elements of a transfer.
    fn element(&self, step: usize) -> Option<DType> {
        match &self.steps[step].kind {
            StepKind::Boxing { dst, .. } => self.slots[*dst].dtype,
            _ => None,
        }
    }

    fn fuse(&mut self, most: u64, on_all: &dyn Fn((u32, u32)) -> bool) -> Vec<usize> {
        let follows: Vec<(u32, u32)> = self.neighbours(most).filter(|pair| on_all(*pair)).collect();
        if follows.is_empty() {
            return Vec::new();
        }
        let bytes: Vec<u64> = (0..self.steps.len()).map(|step| self.small_transfer(step).map_or(0, |t| t.1)).collect();
        let mut places = Vec::with_capacity(bytes.len());
        let mut out: Vec<Step> = Vec::with_capacity(bytes.len());
        // The last transfer of the step before, and the bytes of all of them.
        let mut last: Option<(u32, u64)> = None;
        for (step, bytes) in std::mem::take(&mut self.steps).into_iter().zip(bytes) {
            let id = step.transfer().map(|transfer| transfer.id);
            let joins =
                last.zip(id).filter(|((before, held), id)| follows.contains(&(*before, *id)) && held + bytes <= most);
            last = id.map(|id| (id, bytes + joins.map_or(0, |((_, held), _)| held)));
            match out.last_mut().filter(|_| joins.is_some()) {
                Some(first) => first.join(step),
                None => out.push(step),
            }
            places.push(out.len() - 1);
        }
        self.steps = out;
        let moved = |first: usize| places.get(first).copied().unwrap_or(self.steps.len());
        self.time.phases.iter_mut().for_each(|phase| phase.first = moved(phase.first));
        self.stage_fused();
        places
    }

    /// Gives fused transfers the slots of what they send.
    fn stage_fused(&mut self) {
        for step in 0..self.steps.len() {
            let Some(dtype) = self.element(step).filter(|_| self.steps[step].boxings().count() > 1) else { continue };
            // A rank sends each element of its parts at most once.
            let part = |(transfer, src, _): (&Transfer, &Operand, usize)| {
                let held = src.slot().and_then(|slot| self.slots[slot].bytes).unwrap_or(0).saturating_sub(src.offset);
                held.min(self.whole_bytes(transfer, dtype).unwrap_or(0))
            };
            let bytes: u64 = self.steps[step].boxings().map(part).sum();
            let element = dtype.bits().map_or(1, |bits| (bits as u64 / 8).max(1));
            let (name, slot) = (format!("{}/sent", self.steps[step].name), self.slots.len());
            let dims = vec![(bytes / element) as i64];
            let sent =
                BufferSlot { name, dtype: Some(dtype), dims, bytes: Some(bytes), extents: Vec::new(), variable: None };
            self.slots.push(sent);
            if let StepKind::Boxing { staging, .. } = &mut self.steps[step].kind {
                *staging = Some(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use of_plan::AxisLayout;

    use super::*;
    use crate::physical::{BufferRef, Flops};

    /// A transfer of so many floats from one slot to the next.
    fn transfer(id: u32, elements: i64, to: AxisLayout) -> Step {
        let (from, to) = (vec![AxisLayout::of(LayoutKind::Sum)], vec![to]);
        let transfer = Transfer { id, axes: vec![0], dims: vec![elements], from, to, ..Transfer::default() };
        let src = Operand::whole(BufferRef::Slot(2 * id as usize));
        let dst = 2 * id as usize + 1;
        step(StepKind::Boxing { transfer, src, dst, is_async: false, fused: Vec::new(), staging: None })
    }

    fn step(kind: StepKind) -> Step {
        Step {
            name: "s".into(),
            locations: Vec::new(),
            kind,
            flops: Flops::default(),
            bytes: 0,
            reread: None,
            in_place: Vec::new(),
        }
    }

    fn copy(from: usize, to: usize) -> Step {
        step(StepKind::Copy { src: Operand::whole(BufferRef::Slot(from)), dst: to })
    }

    fn graph(steps: Vec<Step>) -> StepGraph {
        let slot = |n: usize| BufferSlot {
            name: format!("s{n}"),
            dtype: Some(DType::F32),
            dims: vec![64],
            bytes: Some(256),
            extents: Vec::new(),
            variable: None,
        };
        StepGraph { slots: (0..40).map(slot).collect(), steps, ..StepGraph::default() }
    }

    /// The numbers of the transfers of each step.
    fn numbers(graph: &StepGraph) -> Vec<Vec<u32>> {
        graph.steps.iter().map(|step| step.boxings().map(|(transfer, ..)| transfer.id).collect()).collect()
    }

    const WHOLE: AxisLayout = AxisLayout { kind: LayoutKind::Broadcast as i32, dim: 0 };

    #[test]
    fn small_transfers_that_follow_one_another_are_one_step() {
        let small = |id| transfer(id, 16, WHOLE);
        let steps = vec![small(1), small(2), small(3), copy(3, 20), small(4), small(5), transfer(6, 64, WHOLE)];
        let mut own = graph(steps);
        let places = fuse_transfers(&mut [&mut own], 128);
        // Two of them have 128 bytes; the last one has more alone, and keeps its own rendezvous.
        let none = Vec::new;
        assert_eq!(numbers(&own), [vec![1, 2], vec![3], none(), vec![4, 5], vec![6]]);
        assert_eq!(places, [vec![0, 0, 1, 2, 3, 3, 4]]);
        let StepKind::Boxing { staging: Some(staging), .. } = own.steps[0].kind else { panic!("no register") };
        assert_eq!((own.slots[staging].bytes, &own.slots[staging].dims), (Some(128), &vec![32]));
        assert_eq!((own.steps[0].reads(), own.steps[0].writes()), (vec![2, 4], vec![3, 5, staging]));
        assert_eq!(own.steps[0].name, "transfers 1 to 2");
        // Without a bound there is nothing to share.
        let mut own = graph(vec![small(1), small(2)]);
        assert_eq!(fuse_transfers(&mut [&mut own], 0), [Vec::<usize>::new()]);
        assert_eq!(numbers(&own), [[1], [2]]);
    }

    #[test]
    fn only_transfers_of_one_kind_share_a_rendezvous() {
        let split = AxisLayout::split(0);
        let open = StepKind::Boxing {
            transfer: Transfer {
                id: 3,
                axes: vec![0],
                dims: vec![of_plan::OPEN],
                from: vec![AxisLayout::of(LayoutKind::Sum)],
                to: vec![WHOLE],
                ..Transfer::default()
            },
            src: Operand::whole(BufferRef::Slot(6)),
            dst: 7,
            is_async: false,
            fused: Vec::new(),
            staging: None,
        };
        for other in [transfer(3, 16, split), step(open)] {
            let mut own = graph(vec![transfer(2, 16, WHOLE), other]);
            fuse_transfers(&mut [&mut own], 1024);
            assert_eq!(numbers(&own), [[2], [3]]);
        }
        let mut scattered = graph(vec![transfer(2, 16, split), transfer(3, 16, split)]);
        fuse_transfers(&mut [&mut scattered], 1024);
        assert_eq!(numbers(&scattered), [[2, 3]]);
        // The second one sends the result of the first.
        let mut chained = graph(vec![transfer(2, 16, WHOLE), transfer(3, 16, WHOLE)]);
        let StepKind::Boxing { src, .. } = &mut chained.steps[1].kind else { panic!("no transfer") };
        *src = Operand::whole(BufferRef::Slot(5));
        fuse_transfers(&mut [&mut chained], 1024);
        assert_eq!(numbers(&chained), [[2], [3]]);
    }

    #[test]
    fn ranks_fuse_what_follows_one_another_on_all_of_them() {
        let small = |id| transfer(id, 16, WHOLE);
        let mut first = graph(vec![small(1), small(2), small(3), small(4)]);
        // On this rank something is computed between two of them, and it has no part in the last.
        let mut second = graph(vec![small(1), small(2), copy(3, 20), small(3)]);
        fuse_transfers(&mut [&mut first, &mut second], 1024);
        assert_eq!(numbers(&first), [vec![1, 2], vec![3], vec![4]]);
        assert_eq!(numbers(&second), [vec![1, 2], vec![], vec![3]]);
    }
}
