//! Lowering of a transfer to calls of a collective library (NCCL): one rank's part.
//!
//! Such a library knows a few patterns (all-reduce, all-gather, send ...) on contiguous elements. A transfer has arbitrary
//! layouts. So a rank packs its data into contiguous staging memory where needed, calls the library, and unpacks the
//! result. The calls depend only on the layouts and the number of ranks, so all ranks issue the same ones.

use crate::transfer::{Block, BlockCopy};
use crate::{AxisLayout, Group, LayoutKind, Transfer};

/// One rank's part of a transfer: packing copies, one group of library calls, unpacking copies. Offsets and sizes are in
/// elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The ranks of the library's communicator, in its numbering. With a single rank no call is made.
    pub ranks: Vec<u32>,
    /// The index of this rank in `ranks`.
    pub me: usize,
    /// The reduction of the calls, where they reduce.
    pub combines: Option<LayoutKind>,
    /// The kind of a partial value that this transfer creates. All of the target is first filled with the identity element of
    /// this reduction.
    pub fills: Option<LayoutKind>,
    /// Copies before the calls.
    pub pack: Vec<StridedCopy>,
    /// The library's calls.
    pub calls: Vec<CollectiveCall>,
    /// Copies after the calls.
    pub unpack: Vec<StridedCopy>,
    /// Elements of staging memory.
    pub staging: usize,
}

/// An offset in elements into one of a transfer's three buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferOffset {
    /// Into the source: the rank's part before the transfer.
    Before(usize),
    /// Into the target: the rank's part after the transfer.
    After(usize),
    /// Into the staging memory.
    Staging(usize),
}

/// A copy of strided runs of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedCopy {
    /// The first element.
    pub from: BufferOffset,
    /// The first element of the destination.
    pub to: BufferOffset,
    /// Elements of a run.
    pub len: usize,
    /// For each nested loop, outermost first: count, source stride, destination stride.
    pub steps: Vec<(usize, usize, usize)>,
}

/// One call of a library; ranks are numbers in [`Collective::ranks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields `from`, `to`, `count`, `peer` and `root` explain themselves")]
pub enum CollectiveCall {
    /// Every rank gets the reduction of all ranks' values.
    AllReduce { from: BufferOffset, to: BufferOffset, count: usize },
    /// The reduction of all ranks' values is cut into equal parts; each rank gets its own, of `count` elements.
    ReduceScatter { from: BufferOffset, to: BufferOffset, count: usize },
    /// One rank, `root`, gets the reduction of all ranks' values.
    Reduce { from: BufferOffset, to: BufferOffset, count: usize, root: usize },
    /// Every rank gets all ranks' values, `count` elements each, concatenated.
    AllGather { from: BufferOffset, to: BufferOffset, count: usize },
    /// To another rank, which receives as many elements.
    Send { from: BufferOffset, count: usize, peer: usize },
    /// From another rank, which sends as many elements.
    Receive { to: BufferOffset, count: usize, peer: usize },
}

impl BufferOffset {
    /// The offset `at` elements after this one.
    fn plus(self, at: usize) -> Self {
        match self {
            BufferOffset::Before(first) => BufferOffset::Before(first + at),
            BufferOffset::After(first) => BufferOffset::After(first + at),
            BufferOffset::Staging(first) => BufferOffset::Staging(first + at),
        }
    }
}

impl StridedCopy {
    /// The copy of `block` from a buffer that stores `held` to one that stores `needed`; both are row-major.
    fn of(block: &Block, (from, held): (BufferOffset, &Block), (to, needed): (BufferOffset, &Block)) -> Self {
        let (mut strides, mut starts) = ((1, 1), (0, 0));
        let mut steps: Vec<(usize, usize, usize)> = vec![(1, 1, 1)];
        for (((at, n), (s, m)), (t, k)) in block.iter().zip(held).zip(needed).rev() {
            starts = (starts.0 + (at - s) * strides.0, starts.1 + (at - t) * strides.1);
            if *n != 1 {
                // What follows without a gap on both sides is one run, or steps of one length.
                match steps.last_mut() {
                    Some((count, a, b)) if strides == (*a * *count, *b * *count) => *count *= n,
                    _ => steps.push((*n, strides.0, strides.1)),
                }
            }
            strides = (strides.0 * m, strides.1 * k);
        }
        let len = steps.remove(0).0;
        steps.reverse();
        Self { from: from.plus(starts.0), to: to.plus(starts.1), len, steps }
    }

    /// Whether it is one run.
    fn is_run(&self) -> bool {
        self.steps.is_empty()
    }

    /// How many elements are copied.
    pub fn elements(&self) -> usize {
        self.len * self.steps.iter().map(|(n, ..)| n).product::<usize>()
    }

    /// The span of elements from the first to the last, in the source and in the destination.
    pub fn spans(&self) -> (usize, usize) {
        let far = |of: fn(&(usize, usize, usize)) -> usize| {
            self.len + self.steps.iter().map(|step| (step.0 - 1) * of(step)).sum::<usize>()
        };
        (far(|step| step.1), far(|step| step.2))
    }
}

impl Collective {
    /// One rank's part of a transfer on a mesh of this shape.
    ///
    /// # Errors
    /// Why the library cannot do it. If one rank succeeds, all do.
    pub fn of(transfer: &Transfer, mesh: &[usize], rank: u32) -> Result<Self, String> {
        transfer.check(mesh)?;
        let group = transfer.group(mesh, rank);
        let combines = |(from, to): (&AxisLayout, &AxisLayout)| from.kind().is_partial() && !to.kind().is_partial();
        let (pairs, split) =
            (|| transfer.from.iter().zip(&transfer.to), |l: &AxisLayout| l.kind() == LayoutKind::Split);
        let everywhere = |l: &AxisLayout| l.kind() == LayoutKind::Broadcast;
        if !pairs().any(combines) {
            let share = if pairs().all(|(from, to)| split(from) && everywhere(to)) {
                gather(transfer, &group)
            } else {
                exchange(transfer, &group, transfer.participants(mesh, rank))
            };
            return Ok(Self { fills: transfer.partial_kind().filter(|_| transfer.leaves_gaps()), ..share });
        }
        if pairs().all(combines) && transfer.to.iter().all(everywhere) {
            let count = transfer.elements(&group, group.me, false);
            let call = CollectiveCall::AllReduce { from: BufferOffset::Before(0), to: BufferOffset::After(0), count };
            return Ok(Self { calls: vec![call], combines: transfer.partial_kind(), ..Self::among(&group) });
        }
        if pairs().all(combines) && transfer.to.iter().all(split) {
            return Ok(scatter(transfer, &group));
        }
        Err("it combines values along some axes of the mesh and does something else along others".into())
    }

    /// An empty collective of all ranks of a group.
    fn among(group: &Group) -> Self {
        let (pack, calls, unpack) = Default::default();
        let (ranks, me, combines, fills) = (group.ranks.clone(), group.me, None, None);
        Self { ranks, me, combines, fills, pack, calls, unpack, staging: 0 }
    }

    /// Reserves staging memory for more elements.
    fn stage(&mut self, elements: usize) -> BufferOffset {
        self.staging += elements;
        BufferOffset::Staging(self.staging - elements)
    }

    /// Offset of the elements as one contiguous run. Packs them into staging where they are not contiguous.
    fn source_run(&mut self, block: &Block, held: &Block) -> BufferOffset {
        let there = StridedCopy::of(block, (BufferOffset::Before(0), held), (BufferOffset::Before(0), block));
        if there.is_run() || there.elements() == 0 {
            return there.from;
        }
        let room = self.stage(there.elements());
        self.pack.push(StridedCopy { to: room, ..there });
        room
    }

    /// Offset at which one run of elements is received: in the target where it is contiguous there, else in staging memory, from
    /// which it is unpacked.
    fn target_run(&mut self, block: &Block, needed: &Block) -> BufferOffset {
        let there = StridedCopy::of(block, (BufferOffset::After(0), block), (BufferOffset::After(0), needed));
        if there.is_run() {
            return there.to;
        }
        let room = self.stage(there.elements());
        self.unpack.push(StridedCopy { from: room, ..there });
        room
    }
}

/// All-gather: every rank gets all slices.
fn gather(transfer: &Transfer, group: &Group) -> Collective {
    let mut out = Collective::among(group);
    let all: Vec<Block> = (0..group.ranks.len()).map(|i| transfer.held(group, i, false)).collect();
    let whole = transfer.held(group, group.me, true);
    let count = elements(&all[0]);
    if all.iter().any(|b| elements(b) != count) {
        return exchange(transfer, group, group.ranks.clone());
    }
    let moves = |from: BufferOffset| -> Vec<StridedCopy> {
        let of = |(i, block): (usize, &Block)| {
            StridedCopy::of(block, (from.plus(i * count), block), (BufferOffset::After(0), &whole))
        };
        all.iter().enumerate().map(of).collect()
    };
    let in_place = moves(BufferOffset::After(0)).iter().all(|m| m.is_run() && m.from == m.to);
    let to = if in_place { BufferOffset::After(0) } else { out.stage(count * all.len()) };
    if !in_place {
        out.unpack = moves(to);
    }
    out.calls.push(CollectiveCall::AllGather { from: BufferOffset::Before(0), to, count });
    out
}

/// Reduce-scatter: each rank gets a slice of the reduction.
fn scatter(transfer: &Transfer, group: &Group) -> Collective {
    let mut out = Collective { combines: transfer.partial_kind(), ..Collective::among(group) };
    let all: Vec<Block> = (0..group.ranks.len()).map(|i| transfer.held(group, i, true)).collect();
    let whole = transfer.held(group, group.me, false);
    let count = elements(&all[0]);
    let runs: Vec<BufferOffset> = all.iter().map(|block| out.source_run(block, &whole)).collect();
    let in_order = runs.iter().enumerate().all(|(i, run)| *run == runs[0].plus(i * count));
    if in_order && all.iter().all(|b| elements(b) == count) {
        out.calls.push(CollectiveCall::ReduceScatter { from: runs[0], to: BufferOffset::After(0), count });
        return out;
    }
    for ((root, block), from) in all.iter().enumerate().zip(runs) {
        let count = elements(block);
        if count > 0 {
            out.calls.push(CollectiveCall::Reduce { from, to: BufferOffset::After(0), count, root });
        }
    }
    out
}

/// Point-to-point: each rank receives the blocks that it lacks.
fn exchange(transfer: &Transfer, group: &Group, participants: Vec<u32>) -> Collective {
    let mut out = Collective::among(group);
    for (at, rank) in group.ranks.iter().enumerate() {
        let Some(peer) = participants.iter().position(|r| r == rank) else { continue };
        let given = transfer.taken(group, group.me, at);
        if at == group.me {
            out.me = peer;
            out.pack.extend(given.map(|BlockCopy { common, held, needed, .. }| {
                StridedCopy::of(&common, (BufferOffset::Before(0), &held), (BufferOffset::After(0), &needed))
            }));
            continue;
        }
        if let Some(BlockCopy { common, held, .. }) = given {
            let from = out.source_run(&common, &held);
            out.calls.push(CollectiveCall::Send { from, count: elements(&common), peer });
        }
        if let Some(BlockCopy { common, needed, .. }) = transfer.taken(group, at, group.me) {
            let to = out.target_run(&common, &needed);
            out.calls.push(CollectiveCall::Receive { to, count: elements(&common), peer });
        }
    }
    // A transfer without messages concerns no other rank.
    let all = || 0..group.ranks.len();
    let sent = || all().any(|a| all().any(|b| a != b && transfer.taken(group, a, b).is_some()));
    if out.calls.is_empty() && !sent() {
        (out.ranks, out.me) = (vec![group.ranks[group.me]], 0);
    } else {
        out.ranks = participants;
    }
    out
}

fn elements(block: &Block) -> usize {
    block.iter().map(|(_, n)| n).product()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coords;

    /// The memory of a rank.
    struct Memory {
        share: Collective,
        before: Vec<f64>,
        after: Vec<f64>,
        staging: Vec<f64>,
    }

    impl Memory {
        fn at(&mut self, spot: BufferOffset) -> &mut [f64] {
            match spot {
                BufferOffset::Before(at) => &mut self.before[at..],
                BufferOffset::After(at) => &mut self.after[at..],
                BufferOffset::Staging(at) => &mut self.staging[at..],
            }
        }

        fn go(&mut self, m: &StridedCopy) {
            let count: usize = m.steps.iter().map(|s| s.0).product();
            for i in 0..count {
                let (mut rest, mut from, mut to) = (i, 0, 0);
                for (n, a, b) in m.steps.iter().rev() {
                    (from, to, rest) = (from + rest % n * a, to + rest % n * b, rest / n);
                }
                let run = self.at(m.from)[from..from + m.len].to_vec();
                self.at(m.to)[to..to + m.len].copy_from_slice(&run);
            }
        }
    }

    /// The elements of a block of a row-major tensor whose elements are their places.
    fn places(dims: &[usize], block: &Block) -> Vec<f64> {
        let mut out = vec![0.0];
        for ((start, n), d) in block.iter().zip(dims) {
            out = out.iter().flat_map(|x| (0..*n).map(move |i| x * *d as f64 + (start + i) as f64)).collect();
        }
        out
    }

    /// Does what a library would, call by call, and says whether all ranks make calls that fit one another.
    fn call(all: &mut [Memory]) {
        let number = |all: &[Memory], rank: u32| all.iter().position(|m| m.share.ranks[m.share.me] == rank).unwrap();
        let done: Vec<Vec<CollectiveCall>> = all.iter().map(|m| m.share.calls.clone()).collect();
        for (me, calls) in done.iter().enumerate() {
            let ranks: Vec<usize> = all[me].share.ranks.clone().iter().map(|r| number(all, *r)).collect();
            let of = |all: &mut [Memory], i: usize, k: usize, n: usize| match done[ranks[i]][k] {
                CollectiveCall::AllReduce { from, .. }
                | CollectiveCall::ReduceScatter { from, .. }
                | CollectiveCall::Reduce { from, .. }
                | CollectiveCall::AllGather { from, .. } => all[ranks[i]].at(from)[..n].to_vec(),
                _ => panic!("another call"),
            };
            let sum = |all: &mut [Memory], k: usize, n: usize| {
                let mut out = vec![0.0; n];
                for i in 0..ranks.len() {
                    of(all, i, k, n).iter().zip(&mut out).for_each(|(x, to)| *to += x);
                }
                out
            };
            for (k, call) in calls.iter().enumerate() {
                let own = all[me].share.me;
                let (to, got) = match *call {
                    CollectiveCall::AllReduce { to, count, .. } => (to, sum(all, k, count)),
                    CollectiveCall::ReduceScatter { to, count, .. } => {
                        (to, sum(all, k, count * ranks.len())[own * count..][..count].to_vec())
                    }
                    CollectiveCall::Reduce { to, count, root, .. } if root == own => (to, sum(all, k, count)),
                    CollectiveCall::AllGather { to, count, .. } => {
                        (to, (0..ranks.len()).flat_map(|i| of(all, i, k, count)).collect())
                    }
                    CollectiveCall::Receive { to, count, peer } => {
                        let nth = |calls: &[CollectiveCall], up_to: usize| {
                            calls[..up_to]
                                .iter()
                                .filter(|c| matches!(c, CollectiveCall::Receive { peer: p, .. } if *p == peer))
                                .count()
                        };
                        let mut sends = done[ranks[peer]].iter().filter_map(|c| match c {
                            CollectiveCall::Send { from, count, peer } if *peer == own => Some((*from, *count)),
                            _ => None,
                        });
                        let (from, sent) = sends.nth(nth(calls, k)).expect("no rank sends it");
                        assert_eq!(sent, count);
                        (to, all[ranks[peer]].at(from)[..count].to_vec())
                    }
                    CollectiveCall::Reduce { .. } | CollectiveCall::Send { .. } => continue,
                };
                all[me].at(to)[..got.len()].copy_from_slice(&got);
            }
        }
    }

    fn layouts(axes: usize, dims: usize) -> Vec<Vec<AxisLayout>> {
        let one = |d: usize| AxisLayout::split(d as u32);
        let each: Vec<AxisLayout> = [LayoutKind::Broadcast, LayoutKind::Sum]
            .map(AxisLayout::of)
            .into_iter()
            .chain((0..dims).map(one))
            .collect();
        (0..axes).fold(vec![Vec::new()], |all, _| {
            all.iter().flat_map(|l: &Vec<AxisLayout>| each.iter().map(move |e| [&l[..], &[*e]].concat())).collect()
        })
    }

    /// Every rank ends with its part of the tensor for all layouts, and all ranks refuse the same transfers.
    #[test]
    fn collective_calls_implement_every_transfer() {
        let (mut made, mut refused, mut filled) = (0, 0, 0);
        for (mesh, dims) in
            [(vec![3], vec![6, 3]), (vec![3], vec![5, 4]), (vec![4], vec![2, 3, 8]), (vec![2, 2], vec![7, 4])]
        {
            for from in layouts(mesh.len(), dims.len()) {
                for to in layouts(mesh.len(), dims.len()) {
                    let extents = dims.iter().map(|d| *d as i64).collect();
                    let t = Transfer {
                        id: 1,
                        axes: (0..mesh.len() as u32).collect(),
                        dims: extents,
                        from: from.clone(),
                        to,
                        ..Transfer::default()
                    };
                    let count: u32 = mesh.iter().product::<usize>() as u32;
                    let shares: Vec<_> = (0..count).map(|rank| Collective::of(&t, &mesh, rank)).collect();
                    if shares.iter().any(Result::is_err) {
                        assert!(shares.iter().all(|s| *s == shares[0]), "{t:?}");
                        refused += 1;
                        continue;
                    }
                    made += 1;
                    let memory = |(rank, share): (u32, Collective)| {
                        let g = t.group(&mesh, rank);
                        let mut before = places(&dims, &t.held(&g, g.me, false));
                        // Of a partial value each rank has as much.
                        let ranks = |l: &&AxisLayout| l.kind() == LayoutKind::Sum;
                        let parts: usize = from.iter().zip(&mesh).filter(|(l, _)| ranks(l)).map(|(_, n)| n).product();
                        before.iter_mut().for_each(|x| *x /= parts as f64);
                        let (after, staging) = (vec![-1.0; t.elements(&g, g.me, true)], vec![-1.0; share.staging]);
                        Memory { share, before, after, staging }
                    };
                    let mut all: Vec<Memory> = (0..).zip(shares.into_iter().map(Result::unwrap)).map(memory).collect();
                    filled += usize::from(all[0].share.fills.is_some());
                    for m in &mut all {
                        if m.share.fills.is_some() {
                            m.after.fill(0.0);
                        }
                        m.share.pack.clone().iter().for_each(|x| m.go(x));
                    }
                    call(&mut all);
                    for m in &mut all {
                        m.share.unpack.clone().iter().for_each(|x| m.go(x));
                    }
                    let sum = |l: &AxisLayout| l.kind() == LayoutKind::Sum;
                    let arises: Vec<bool> = t.from.iter().zip(&t.to).map(|(a, b)| sum(b) && !sum(a)).collect();
                    for rank in 0..all.len() {
                        // The parts of a partial value that arises add up; of one that stays each rank has as much.
                        let mut got = vec![0.0; all[rank].after.len()];
                        for (other, m) in all.iter().enumerate() {
                            let pair = coords(&mesh, rank).into_iter().zip(coords(&mesh, other));
                            if pair.zip(&arises).all(|((a, b), arises)| *arises || a == b) {
                                got.iter_mut().zip(&m.after).for_each(|(to, x)| *to += x);
                            }
                        }
                        let g = t.group(&mesh, rank as u32);
                        let mut want = places(&dims, &t.held(&g, g.me, true));
                        let still = from.iter().zip(&t.to).zip(&mesh).filter(|((a, b), _)| sum(a) && sum(b));
                        let parts = still.map(|(_, n)| n).product::<usize>() as f64;
                        want.iter_mut().for_each(|x| *x /= parts);
                        let close = got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-9);
                        assert!(close && got.len() == want.len(), "{t:?} on rank {rank}: {got:?} {want:?}");
                    }
                }
            }
        }
        assert!(made > 100 && refused > 20 && filled > 50, "{made} made, {refused} refused, {filled} filled");
    }

    #[test]
    fn contiguous_parts_need_no_packing() {
        let of = |dims: &[i64], from, to| {
            let t = Transfer {
                id: 1,
                axes: vec![0],
                dims: dims.to_vec(),
                from: vec![from],
                to: vec![to],
                ..Transfer::default()
            };
            Collective::of(&t, &[4], 1).unwrap()
        };
        let (whole, sum) = (AxisLayout::of(LayoutKind::Broadcast), AxisLayout::of(LayoutKind::Sum));
        let rows = of(&[8, 6], AxisLayout::split(0), whole);
        let (from, after) = (BufferOffset::Before(0), BufferOffset::After(0));
        assert_eq!(rows.calls, [CollectiveCall::AllGather { from, to: after, count: 12 }]);
        assert_eq!((rows.staging, rows.pack.len(), rows.unpack.len()), (0, 0, 0));
        let columns = of(&[6, 8], AxisLayout::split(1), whole);
        assert_eq!(columns.calls, [CollectiveCall::AllGather { from, to: BufferOffset::Staging(0), count: 12 }]);
        assert_eq!(
            columns.unpack[1],
            StridedCopy { from: BufferOffset::Staging(12), to: BufferOffset::After(2), len: 2, steps: vec![(6, 2, 8)] }
        );
        assert_eq!(columns.unpack[1].spans(), (12, 42));
        let sums = of(&[8, 6], sum, AxisLayout::split(0));
        assert_eq!(sums.calls, [CollectiveCall::ReduceScatter { from, to: after, count: 12 }]);
        assert_eq!((sums.combines, sums.staging), (Some(LayoutKind::Sum), 0));
        let uneven = of(&[6, 6], sum, AxisLayout::split(0));
        assert_eq!(
            uneven.calls[3],
            CollectiveCall::Reduce { from: BufferOffset::Before(30), to: after, count: 6, root: 3 }
        );
        // Nothing is sent where a rank cuts its slice.
        let cut = of(&[8, 6], whole, AxisLayout::split(0));
        assert_eq!((cut.ranks, cut.me, cut.calls.len(), cut.pack.len()), (vec![1], 0, 0, 1));
    }

    #[test]
    fn pipeline_stages_send_and_receive() {
        let t = Transfer {
            id: 1,
            axes: vec![0, 1],
            dims: vec![4, 2],
            from: vec![AxisLayout::at(0), AxisLayout::split(0)],
            to: vec![AxisLayout::at(1), AxisLayout::of(LayoutKind::Broadcast)],
            ..Transfer::default()
        };
        let of = |rank| Collective::of(&t, &[3, 2], rank).unwrap();
        assert_eq!((of(1).ranks, of(1).me), (vec![0, 1, 2, 3], 1));
        assert_eq!(of(1).calls.len(), 2);
        let got = of(2).calls;
        assert_eq!(got[1], CollectiveCall::Receive { to: BufferOffset::After(4), count: 4, peer: 1 });
    }
}
