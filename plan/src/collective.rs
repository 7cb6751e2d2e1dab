//! A rank's share in a transfer as calls of a library of collectives.
//!
//! Such libraries know a few patterns, of which each rank's part is one run of elements. A transfer is any of its layouts: so
//! what a rank gives is packed into a run where it is none, the library is called, and what came is unpacked. Which calls a
//! transfer becomes follows from its layouts and the number of ranks alone, so that all ranks make the same ones.

use crate::transfer::{Block, Taken};
use crate::{AxisLayout, Group, LayoutKind, Transfer};

/// A rank's share in a transfer: moves, then calls that go together, then moves. Places and sizes are in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The ranks that the library connects, by the numbers that they have for it; it is not called where there is one.
    pub ranks: Vec<u32>,
    /// Which of them it is.
    pub me: usize,
    /// How values combine, where calls combine them.
    pub combines: Option<LayoutKind>,
    /// The kind of a partial value that arises: before anything else, all of the part after gets what changes nothing when values
    /// of this kind are combined.
    pub fills: Option<LayoutKind>,
    /// What is moved before.
    pub pack: Vec<Move>,
    /// What the library does.
    pub calls: Vec<CollectiveCall>,
    /// What is moved after.
    pub unpack: Vec<Move>,
    /// Elements of memory to pack into and unpack from.
    pub staging: usize,
}

/// Where elements lie: so many behind the first of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// The rank's part before.
    Before(usize),
    /// The rank's part after.
    After(usize),
    /// What is packed.
    Staging(usize),
}

/// Elements that go from one place to another, in runs that lie apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The first element.
    pub from: Spot,
    /// Where it goes.
    pub to: Spot,
    /// Elements of a run.
    pub len: usize,
    /// How often, and how far apart there and here, from the outermost.
    pub steps: Vec<(usize, usize, usize)>,
}

/// One call of a library; ranks are numbers in [`Collective::ranks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum CollectiveCall {
    /// All get the combination of what all have.
    AllReduce { from: Spot, to: Spot, count: usize },
    /// Of the combination of what all have, cut into as many equal parts, each gets its own, of `count` elements.
    ReduceScatter { from: Spot, to: Spot, count: usize },
    /// One gets the combination of what all have.
    Reduce { from: Spot, to: Spot, count: usize, root: usize },
    /// All get what all have, of `count` elements each, one behind the other.
    AllGather { from: Spot, to: Spot, count: usize },
    /// To another, who receives as many.
    Send { from: Spot, count: usize, peer: usize },
    /// From another, who sends as many.
    Receive { to: Spot, count: usize, peer: usize },
}

impl Spot {
    /// The memory's place `at`, counted from this one on.
    fn behind(self, at: usize) -> Self {
        match self {
            Spot::Before(first) => Spot::Before(first + at),
            Spot::After(first) => Spot::After(first + at),
            Spot::Staging(first) => Spot::Staging(first + at),
        }
    }
}

impl Move {
    /// The elements of `block` from where `held` lies to where `needed` does; both are row-major.
    fn of(block: &Block, (from, held): (Spot, &Block), (to, needed): (Spot, &Block)) -> Self {
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
        Self { from: from.behind(starts.0), to: to.behind(starts.1), len, steps }
    }

    /// Whether it is one run.
    fn is_run(&self) -> bool {
        self.steps.is_empty()
    }

    /// How many elements go.
    pub fn elements(&self) -> usize {
        self.len * self.steps.iter().map(|(n, ..)| n).product::<usize>()
    }

    /// How many elements there are there, and here, from the first that goes to the last.
    pub fn spans(&self) -> (usize, usize) {
        let far = |of: fn(&(usize, usize, usize)) -> usize| {
            self.len + self.steps.iter().map(|step| (step.0 - 1) * of(step)).sum::<usize>()
        };
        (far(|step| step.1), far(|step| step.2))
    }
}

impl Collective {
    /// The share of a rank in a transfer on a mesh of this shape.
    ///
    /// # Errors
    /// Why it is not the work of such a library. What is well formed for one rank is for all.
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
                exchange(transfer, &group, transfer.meeting(mesh, rank))
            };
            return Ok(Self { fills: transfer.partial_kind().filter(|_| transfer.leaves_gaps()), ..share });
        }
        if pairs().all(combines) && transfer.to.iter().all(everywhere) {
            let count = transfer.elements(&group, group.me, false);
            let call = CollectiveCall::AllReduce { from: Spot::Before(0), to: Spot::After(0), count };
            return Ok(Self { calls: vec![call], combines: transfer.partial_kind(), ..Self::among(&group) });
        }
        if pairs().all(combines) && transfer.to.iter().all(split) {
            return Ok(scatter(transfer, &group));
        }
        Err("it combines values along some axes of the mesh and does something else along others".into())
    }

    /// Nothing yet, among all ranks of a group.
    fn among(group: &Group) -> Self {
        let (pack, calls, unpack) = Default::default();
        let (ranks, me, combines, fills) = (group.ranks.clone(), group.me, None, None);
        Self { ranks, me, combines, fills, pack, calls, unpack, staging: 0 }
    }

    /// Room for more packed elements.
    fn room(&mut self, elements: usize) -> Spot {
        self.staging += elements;
        Spot::Staging(self.staging - elements)
    }

    /// Where elements of the part before lie as one run: packed where they are none.
    fn run_of(&mut self, block: &Block, held: &Block) -> Spot {
        let there = Move::of(block, (Spot::Before(0), held), (Spot::Before(0), block));
        if there.is_run() || there.elements() == 0 {
            return there.from;
        }
        let room = self.room(there.elements());
        self.pack.push(Move { to: room, ..there });
        room
    }

    /// Where one run of elements of the part after is received: where it belongs, or to be unpacked.
    fn run_for(&mut self, block: &Block, needed: &Block) -> Spot {
        let there = Move::of(block, (Spot::After(0), block), (Spot::After(0), needed));
        if there.is_run() {
            return there.to;
        }
        let room = self.room(there.elements());
        self.unpack.push(Move { from: room, ..there });
        room
    }
}

/// Slices become the whole on all ranks.
fn gather(transfer: &Transfer, group: &Group) -> Collective {
    let mut out = Collective::among(group);
    let all: Vec<Block> = (0..group.ranks.len()).map(|i| transfer.held(group, i, false)).collect();
    let whole = transfer.held(group, group.me, true);
    let count = elements(&all[0]);
    if all.iter().any(|b| elements(b) != count) {
        return exchange(transfer, group, group.ranks.clone());
    }
    let moves = |from: Spot| -> Vec<Move> {
        let of =
            |(i, block): (usize, &Block)| Move::of(block, (from.behind(i * count), block), (Spot::After(0), &whole));
        all.iter().enumerate().map(of).collect()
    };
    let in_place = moves(Spot::After(0)).iter().all(|m| m.is_run() && m.from == m.to);
    let to = if in_place { Spot::After(0) } else { out.room(count * all.len()) };
    if !in_place {
        out.unpack = moves(to);
    }
    out.calls.push(CollectiveCall::AllGather { from: Spot::Before(0), to, count });
    out
}

/// Values are combined and each rank gets a slice.
fn scatter(transfer: &Transfer, group: &Group) -> Collective {
    let mut out = Collective { combines: transfer.partial_kind(), ..Collective::among(group) };
    let all: Vec<Block> = (0..group.ranks.len()).map(|i| transfer.held(group, i, true)).collect();
    let whole = transfer.held(group, group.me, false);
    let count = elements(&all[0]);
    let runs: Vec<Spot> = all.iter().map(|block| out.run_of(block, &whole)).collect();
    let in_order = runs.iter().enumerate().all(|(i, run)| *run == runs[0].behind(i * count));
    if in_order && all.iter().all(|b| elements(b) == count) {
        out.calls.push(CollectiveCall::ReduceScatter { from: runs[0], to: Spot::After(0), count });
        return out;
    }
    for ((root, block), from) in all.iter().enumerate().zip(runs) {
        let count = elements(block);
        if count > 0 {
            out.calls.push(CollectiveCall::Reduce { from, to: Spot::After(0), count, root });
        }
    }
    out
}

/// Each takes what it needs from who has it.
fn exchange(transfer: &Transfer, group: &Group, met: Vec<u32>) -> Collective {
    let mut out = Collective::among(group);
    for (at, rank) in group.ranks.iter().enumerate() {
        let Some(peer) = met.iter().position(|r| r == rank) else { continue };
        let given = transfer.taken(group, group.me, at);
        if at == group.me {
            out.me = peer;
            out.pack.extend(given.map(|Taken { common, held, needed, .. }| {
                Move::of(&common, (Spot::Before(0), &held), (Spot::After(0), &needed))
            }));
            continue;
        }
        if let Some(Taken { common, held, .. }) = given {
            let from = out.run_of(&common, &held);
            out.calls.push(CollectiveCall::Send { from, count: elements(&common), peer });
        }
        if let Some(Taken { common, needed, .. }) = transfer.taken(group, at, group.me) {
            let to = out.run_for(&common, &needed);
            out.calls.push(CollectiveCall::Receive { to, count: elements(&common), peer });
        }
    }
    // What nobody sends to anybody concerns no other rank.
    let all = || 0..group.ranks.len();
    let sent = || all().any(|a| all().any(|b| a != b && transfer.taken(group, a, b).is_some()));
    if out.calls.is_empty() && !sent() {
        (out.ranks, out.me) = (vec![group.ranks[group.me]], 0);
    } else {
        out.ranks = met;
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
        fn at(&mut self, spot: Spot) -> &mut [f64] {
            match spot {
                Spot::Before(at) => &mut self.before[at..],
                Spot::After(at) => &mut self.after[at..],
                Spot::Staging(at) => &mut self.staging[at..],
            }
        }

        fn go(&mut self, m: &Move) {
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
                        let (from, sent) = sends.nth(nth(calls, k)).expect("nobody sends it");
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

    /// Every rank ends with its part of the tensor, whatever lies how; what is refused is refused on all ranks alike.
    #[test]
    fn the_calls_of_all_ranks_make_the_transfer() {
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
    fn runs_that_lie_in_order_are_not_packed() {
        let of = |dims: &[i64], from, to| {
            let t = Transfer { id: 1, axes: vec![0], dims: dims.to_vec(), from: vec![from], to: vec![to] };
            Collective::of(&t, &[4], 1).unwrap()
        };
        let (whole, sum) = (AxisLayout::of(LayoutKind::Broadcast), AxisLayout::of(LayoutKind::Sum));
        let rows = of(&[8, 6], AxisLayout::split(0), whole);
        let (from, after) = (Spot::Before(0), Spot::After(0));
        assert_eq!(rows.calls, [CollectiveCall::AllGather { from, to: after, count: 12 }]);
        assert_eq!((rows.staging, rows.pack.len(), rows.unpack.len()), (0, 0, 0));
        let columns = of(&[6, 8], AxisLayout::split(1), whole);
        assert_eq!(columns.calls, [CollectiveCall::AllGather { from, to: Spot::Staging(0), count: 12 }]);
        assert_eq!(
            columns.unpack[1],
            Move { from: Spot::Staging(12), to: Spot::After(2), len: 2, steps: vec![(6, 2, 8)] }
        );
        assert_eq!(columns.unpack[1].spans(), (12, 42));
        let sums = of(&[8, 6], sum, AxisLayout::split(0));
        assert_eq!(sums.calls, [CollectiveCall::ReduceScatter { from, to: after, count: 12 }]);
        assert_eq!((sums.combines, sums.staging), (Some(LayoutKind::Sum), 0));
        let uneven = of(&[6, 6], sum, AxisLayout::split(0));
        assert_eq!(uneven.calls[3], CollectiveCall::Reduce { from: Spot::Before(30), to: after, count: 6, root: 3 });
        // Nothing is sent where a rank cuts its slice.
        let cut = of(&[8, 6], whole, AxisLayout::split(0));
        assert_eq!((cut.ranks, cut.me, cut.calls.len(), cut.pack.len()), (vec![1], 0, 0, 1));
    }

    #[test]
    fn stages_connect_the_ranks_that_have_something() {
        let t = Transfer {
            id: 1,
            axes: vec![0, 1],
            dims: vec![4, 2],
            from: vec![AxisLayout::at(0), AxisLayout::split(0)],
            to: vec![AxisLayout::at(1), AxisLayout::of(LayoutKind::Broadcast)],
        };
        let of = |rank| Collective::of(&t, &[3, 2], rank).unwrap();
        assert_eq!((of(1).ranks, of(1).me), (vec![0, 1, 2, 3], 1));
        assert_eq!(of(1).calls.len(), 2);
        let got = of(2).calls;
        assert_eq!(got[1], CollectiveCall::Receive { to: Spot::After(4), count: 4, peer: 1 });
    }
}
