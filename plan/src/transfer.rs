//! Transfers between ranks (boxing): which rank sends which block to which, from the SBP layouts before and after.
//!
//! One rule serves all collectives. A rank needs its part of the tensor in the target layout. It takes each element from
//! a rank that has it: from itself along broadcast axes, from the owner of the slice along split axes, from the one
//! owner of a pipeline stage, and from every rank along partial axes, whose values are reduced. So all-gather,
//! reduce-scatter, all-to-all, slice and the send of a pipeline stage are one task with different layouts.

use crate::layout::{AxisLayout, LayoutKind, OPEN, block, coords, holds, partial_kind, slices};

/// The transfer of a tensor between layouts: the same description for all ranks that take part.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Transfer {
    /// Number of the transfer, its rendezvous key: ranks with equal numbers exchange data. Each rank executes its transfers in
    /// ascending order.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Axes of the mesh along which ranks exchange data, ascending. Ranks that differ along other axes do not take part.
    #[prost(uint32, repeated, tag = "2")]
    pub axes: Vec<u32>,
    /// Extents of the tensor that those ranks hold together; -1 where a run decides. Then all parts are equal.
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
    /// The layout before, along each of `axes`.
    #[prost(message, repeated, tag = "4")]
    pub from: Vec<AxisLayout>,
    /// The layout after, along each of `axes`.
    #[prost(message, repeated, tag = "5")]
    pub to: Vec<AxisLayout>,
    /// Where it is one round of several ([`crate::AllReduce`]): factors of the number of ranks along its only axis. The rank's number along
    /// that axis has a digit for each factor, the first varying fastest, and `from` and `to` have a layout for each digit.
    #[prost(uint32, repeated, tag = "6")]
    pub factors: Vec<u32>,
}

/// The group of ranks that exchange data in a transfer, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Ranks along each of the transfer's axes, or its factors.
    pub shape: Vec<usize>,
    /// The ranks, the last axis varying fastest.
    pub ranks: Vec<u32>,
    /// The index of this rank in `ranks`.
    pub me: usize,
}

/// A block of a row-major tensor as the runs of elements that it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// The first element.
    start: usize,
    /// Elements of a run.
    len: usize,
    /// Count and stride of each nested loop, outermost first.
    steps: Vec<(usize, usize)>,
}

/// A block that a rank receives from a rank of its group, possibly itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTransfer {
    /// The sender, an index in the group.
    pub peer: usize,
    /// The block within the sender's part before.
    pub theirs: Runs,
    /// The block within the receiver's part after.
    pub mine: Runs,
    /// Whether it is reduced into the values that are there, rather than overwriting them.
    pub combines: bool,
}

/// Start and length along each axis of a tensor.
pub(crate) type Block = Vec<(usize, usize)>;

/// A block that a receiver copies from a sender, in coordinates of the whole tensor.
pub(crate) struct BlockCopy {
    /// The block.
    pub common: Block,
    /// The sender's part before.
    pub held: Block,
    /// The receiver's part after.
    pub needed: Block,
    /// Whether it is reduced into the values that are there.
    pub combines: bool,
}

impl Runs {
    /// The runs of `block` in memory that stores `outer` in row-major order.
    pub fn of(block: &[(usize, usize)], outer: &[(usize, usize)]) -> Self {
        let (mut len, mut stride, mut start) = (1, 1, 0);
        let mut steps = Vec::new();
        let mut whole = true;
        for ((at, n), (from, extent)) in block.iter().zip(outer).rev() {
            start += (at - from) * stride;
            if whole {
                len *= n;
                whole = n == extent;
            } else if *n != 1 {
                steps.push((*n, stride));
            }
            stride *= extent;
        }
        steps.reverse();
        Self { start, len, steps }
    }

    /// Where each run starts, in order; all have [`Runs::len`] elements.
    pub fn starts(&self) -> impl Iterator<Item = usize> + '_ {
        self.starts_from(0)
    }

    /// The same without the first `skipped` runs, which take no time.
    pub fn starts_from(&self, skipped: usize) -> impl Iterator<Item = usize> + '_ {
        let count: usize = self.steps.iter().map(|(n, _)| n).product();
        (skipped..count).map(|mut i| {
            let mut at = self.start;
            for (n, stride) in self.steps.iter().rev() {
                at += i % n * stride;
                i /= n;
            }
            at
        })
    }

    /// Elements of a run.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.elements() == 0
    }

    /// Elements of all runs.
    pub fn elements(&self) -> usize {
        self.len * self.steps.iter().map(|(n, _)| n).product::<usize>()
    }

    /// The element behind the last.
    pub fn end(&self) -> usize {
        self.start + self.len + self.steps.iter().map(|(n, stride)| (n - 1) * stride).sum::<usize>()
    }
}

impl Transfer {
    /// Whether it is well formed on a mesh of this shape; if not, why.
    pub fn check(&self, mesh: &[usize]) -> Result<(), String> {
        let ascending = self.axes.windows(2).all(|w| w[0] < w[1]);
        if !ascending || self.axes.iter().any(|a| *a as usize >= mesh.len()) {
            return Err(format!("its axes {:?} are not those of a mesh of {}", self.axes, mesh.len()));
        }
        if !self.factors.is_empty() {
            let product = self.factors.iter().try_fold(1usize, |n, f| n.checked_mul(*f as usize));
            let [axis] = self.axes[..] else { return Err("it has factors of several axes".into()) };
            if product != Some(mesh[axis as usize]) {
                return Err(format!("{:?} are not factors of {} ranks", self.factors, mesh[axis as usize]));
            }
        }
        let shape = self.shape(mesh);
        if self.from.len() != shape.len() || self.to.len() != shape.len() {
            return Err("it has no layout for each of its axes".into());
        }
        let all = || self.from.iter().chain(&self.to);
        if all().any(|l| LayoutKind::try_from(l.kind).is_err()) {
            return Err("a layout is not known".into());
        }
        if all().any(|l| l.kind() == LayoutKind::Split && l.dim as usize >= self.dims.len()) {
            return Err("an axis is split that the tensor does not have".into());
        }
        let outside = |(l, n): (&AxisLayout, &usize)| l.kind() == LayoutKind::At && l.dim as usize >= *n;
        if self.from.iter().zip(&shape).chain(self.to.iter().zip(&shape)).any(outside) {
            return Err("it is on a rank that the mesh does not have".into());
        }
        let mut kinds = all().map(AxisLayout::kind).filter(|k| k.is_partial());
        if kinds.next().is_some_and(|first| kinds.any(|k| k != first)) {
            return Err("partial values of several kinds".into());
        }
        if self.is_open() && all().any(|l| l.kind() == LayoutKind::At) {
            return Err("stages exchange tensors of known extents".into());
        }
        let known = self.dims.iter().filter(|d| **d != OPEN);
        let count = known.copied().try_fold(1i64, |n, d| n.checked_mul(d).filter(|n| *n > 0));
        count.map(|_| ()).ok_or_else(|| format!("no tensor has extents {:?}", self.dims))
    }

    /// Whether a run decides some of its extents.
    pub fn is_open(&self) -> bool {
        self.dims.contains(&OPEN)
    }

    /// The same where a rank's part has these extents before; nothing where it cannot have them.
    pub fn of_part(&self, group: &Group, part: &[i64]) -> Option<Transfer> {
        let slices = |axis: usize| slices(&self.from, &group.shape, axis) as i64;
        let extent = |(axis, (d, own)): (usize, (&i64, &i64))| match *d {
            OPEN => own.checked_mul(slices(axis)),
            known => Some(known),
        };
        let dims = self.dims.iter().zip(part).enumerate().map(extent).collect::<Option<Vec<i64>>>()?;
        let whole = Transfer { dims, ..self.clone() };
        (whole.part_dims(group, false) == part).then_some(whole)
    }

    /// The extents of the part of this rank of a group, before or after.
    pub fn part_dims(&self, group: &Group, after: bool) -> Vec<i64> {
        self.held(group, group.me, after).into_iter().map(|(_, n)| n as i64).collect()
    }

    /// Whether every rank has all that it needs, so that none waits for another.
    pub fn is_local(&self) -> bool {
        self.from.iter().all(|layout| layout.kind() == LayoutKind::Broadcast)
    }

    /// Ranks along each of its axes, or its factors.
    fn shape(&self, mesh: &[usize]) -> Vec<usize> {
        match self.factors.is_empty() {
            true => self.axes.iter().map(|a| mesh[*a as usize]).collect(),
            false => self.factors.iter().map(|f| *f as usize).collect(),
        }
    }

    /// The group of `rank` on a mesh of this shape.
    pub fn group(&self, mesh: &[usize], rank: u32) -> Group {
        let own = coords(mesh, rank as usize);
        let shape = self.shape(mesh);
        let count: usize = shape.iter().product();
        let mut me = 0;
        let ranks = (0..count).map(|i| {
            let mut at = own.clone();
            let position = coords(&shape, i);
            match (self.factors.is_empty(), &self.axes[..]) {
                (false, [axis]) => {
                    let digits = shape.iter().zip(&position).rev();
                    at[*axis as usize] = digits.fold(0, |number, (n, digit)| number * n + digit);
                }
                _ => self.axes.iter().zip(position).for_each(|(a, c)| at[*a as usize] = c),
            }
            if at == own {
                me = i;
            }
            mesh.iter().zip(&at).fold(0, |r, (n, c)| r * n + c) as u32
        });
        let ranks = ranks.collect();
        Group { shape, ranks, me }
    }

    /// The extents. An open one has an element for each rank of the group, so that each has a part.
    fn extents(&self, group: &Group) -> Vec<usize> {
        let all = group.ranks.len();
        self.dims.iter().map(|d| usize::try_from(*d).unwrap_or(all)).collect()
    }

    /// Elements that member `i` of a group holds, before or after.
    pub fn elements(&self, group: &Group, i: usize, after: bool) -> usize {
        let layout = if after { &self.to } else { &self.from };
        if !holds(layout, &coords(&group.shape, i)) {
            return 0;
        }
        self.held(group, i, after).iter().map(|(_, n)| n).product()
    }

    /// The block that member `i` of a group has, before or after, where it has one.
    pub(crate) fn held(&self, group: &Group, i: usize, after: bool) -> Block {
        let layout = if after { &self.to } else { &self.from };
        block(layout, &group.shape, &coords(&group.shape, i), &self.extents(group))
    }

    /// The participants of the rendezvous of `rank`, itself included: those of its group that have a part before or after; none where it has
    /// none itself.
    pub fn participants(&self, mesh: &[usize], rank: u32) -> Vec<u32> {
        let group = self.group(mesh, rank);
        let member = |i: &usize| {
            let coords = coords(&group.shape, *i);
            holds(&self.from, &coords) || holds(&self.to, &coords)
        };
        if !member(&group.me) {
            return Vec::new();
        }
        (0..group.ranks.len()).filter(member).map(|i| group.ranks[i]).collect()
    }

    /// The reduction of partial values; `None` if neither layout is partial.
    pub fn partial_kind(&self) -> Option<LayoutKind> {
        partial_kind(&self.from).or_else(|| partial_kind(&self.to))
    }

    /// Whether a rank's target may have elements that no block fills: they get the identity element of the reduction.
    pub fn leaves_gaps(&self) -> bool {
        self.from.iter().zip(&self.to).any(|(from, to)| to.kind().is_partial() && !from.kind().is_partial())
    }

    /// The block that member `to` takes from member `from`, in the memory of both.
    fn part(&self, group: &Group, from: usize, to: usize) -> Option<BlockTransfer> {
        let BlockCopy { common, held, needed, combines } = self.taken(group, from, to)?;
        Some(BlockTransfer { peer: from, theirs: Runs::of(&common, &held), mine: Runs::of(&common, &needed), combines })
    }

    /// The block that member `to` takes from member `from`.
    pub(crate) fn taken(&self, group: &Group, from: usize, to: usize) -> Option<BlockCopy> {
        let (theirs, mine) = (coords(&group.shape, from), coords(&group.shape, to));
        let mut combines = false;
        for (a, (before, after)) in self.from.iter().zip(&self.to).enumerate() {
            let same = theirs[a] == mine[a];
            if after.kind() == LayoutKind::At && mine[a] != after.dim as usize {
                return None;
            }
            let takes = match (before.kind(), after.kind().is_partial()) {
                (LayoutKind::At, _) => theirs[a] == before.dim as usize,
                // It counts once: as the first rank's.
                (LayoutKind::Broadcast, true) => same && mine[a] == 0,
                (LayoutKind::Broadcast, false) | (_, true) => same,
                (LayoutKind::Split, false) => true,
                (_, false) => {
                    combines |= theirs[a] > 0;
                    true
                }
            };
            if !takes {
                return None;
            }
        }
        let (held, needed) = (self.held(group, from, false), self.held(group, to, true));
        let common: Option<Block> = held
            .iter()
            .zip(&needed)
            .map(|((s, n), (t, m))| {
                let start = (*s).max(*t);
                let len = (s + n).min(t + m).checked_sub(start)?;
                (len > 0).then_some((start, len))
            })
            .collect();
        Some(BlockCopy { common: common?, held, needed, combines })
    }

    /// What a rank takes, from itself too, in the order in which it is combined: the same on all ranks, so that all get
    /// the same bits.
    pub fn receives(&self, group: &Group) -> Vec<BlockTransfer> {
        (0..group.ranks.len()).filter_map(|from| self.part(group, from, group.me)).collect()
    }

    /// The blocks that a rank sends: the receiver as an index in the group, and the runs of elements.
    pub fn sends(&self, group: &Group) -> Vec<(usize, Runs)> {
        let others = (0..group.ranks.len()).filter(|to| *to != group.me);
        others.filter_map(|to| Some((to, self.part(group, group.me, to)?.theirs))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(dims: &[i64], from: &[AxisLayout], to: &[AxisLayout]) -> Transfer {
        let axes = (0..from.len() as u32).collect();
        Transfer { axes, dims: dims.to_vec(), from: from.to_vec(), to: to.to_vec(), ..Transfer::default() }
    }

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        let whole = [(0, 4), (0, 6)];
        let rows = Runs::of(&[(1, 2), (0, 6)], &whole);
        assert_eq!((rows.starts().collect::<Vec<_>>(), rows.len(), rows.end()), (vec![6], 12, 18));
        let columns = Runs::of(&[(1, 2), (2, 3)], &whole);
        assert_eq!((columns.starts().collect::<Vec<_>>(), columns.len(), columns.end()), (vec![8, 14], 3, 17));
        assert_eq!(columns.elements(), 6);
        let scalar = Runs::of(&[], &[]);
        assert_eq!((scalar.starts().collect::<Vec<_>>(), scalar.elements()), (vec![0], 1));
    }

    #[test]
    fn runs_decide_open_extents() {
        let split = AxisLayout::split(0);
        let t = transfer(&[-1, 5], &[split, split], &[AxisLayout::of(LayoutKind::Broadcast), split]);
        t.check(&[2, 2]).unwrap();
        let g = t.group(&[2, 2], 3);
        let whole = t.of_part(&g, &[3, 5]).unwrap();
        assert_eq!((whole.dims.as_slice(), whole.part_dims(&g, true)), (&[12, 5][..], vec![6, 5]));
        assert_eq!(t.of_part(&g, &[3, 4]), None);
        assert_eq!(t.of_part(&g, &[i64::MAX, 5]), None);
        let stages = Transfer { from: vec![AxisLayout::at(0), split], ..t };
        assert!(stages.check(&[2, 2]).is_err());
    }

    #[test]
    fn ranks_exchange_along_the_axes_alone() {
        let t = Transfer { axes: vec![1], ..transfer(&[8], &[AxisLayout::split(0)], &[AxisLayout::split(0)]) };
        let g = t.group(&[2, 3, 2], 9);
        assert_eq!((g.ranks, g.me, g.shape), (vec![7, 9, 11], 1, vec![3]));
    }

    #[test]
    fn sends_and_receives_agree() {
        use LayoutKind::{Broadcast, Sum};
        let all = [AxisLayout::of(Broadcast), AxisLayout::of(Sum), AxisLayout::split(0), AxisLayout::split(1)];
        for from in all.iter().flat_map(|a| all.iter().map(move |b| [*a, *b])) {
            for to in all.iter().flat_map(|a| all.iter().map(move |b| [*a, *b])) {
                let t = transfer(&[7, 5], &from, &to);
                t.check(&[2, 3]).unwrap();
                let (mut taken, mut given) = (Vec::new(), Vec::new());
                for rank in 0..6 {
                    let g = t.group(&[2, 3], rank);
                    assert_eq!(g.me, rank as usize);
                    for p in t.receives(&g) {
                        assert_eq!(p.theirs.elements(), p.mine.elements());
                        assert!(p.theirs.end() <= t.elements(&g, p.peer, false));
                        assert!(p.mine.end() <= t.elements(&g, g.me, true));
                        if p.peer != g.me {
                            taken.push((p.peer, g.me, p.theirs));
                        }
                    }
                    given.extend(t.sends(&g).into_iter().map(|(to, runs)| (g.me, to, runs)));
                }
                taken.sort_by_key(|(a, b, _)| (*a, *b));
                given.sort_by_key(|(a, b, _)| (*a, *b));
                assert_eq!(taken, given, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn stages_send_to_the_next() {
        // Rows on the two ranks of stage 0 go to both ranks of stage 1; stage 2 has no part in it.
        let whole = AxisLayout::of(LayoutKind::Broadcast);
        let t = transfer(&[4], &[AxisLayout::at(0), AxisLayout::split(0)], &[AxisLayout::at(1), whole]);
        let mesh = [3, 2];
        t.check(&mesh).unwrap();
        for rank in 0..6 {
            let g = t.group(&mesh, rank);
            let (before, after) = (t.elements(&g, g.me, false), t.elements(&g, g.me, true));
            let (from, to): (Vec<_>, Vec<_>) =
                (t.receives(&g).iter().map(|p| p.peer).collect(), t.sends(&g).iter().map(|(to, _)| *to).collect());
            match rank {
                0 | 1 => assert_eq!((before, after, from, to), (2, 0, vec![], vec![2, 3])),
                2 | 3 => assert_eq!((before, after, from, to), (0, 4, vec![0, 1], vec![])),
                _ => assert_eq!((before, after, from, to), (0, 0, vec![], vec![])),
            }
            let ranks = if rank < 4 { vec![0, 1, 2, 3] } else { vec![] };
            assert_eq!(t.participants(&mesh, rank), ranks);
        }
        assert!(t.check(&[1, 2]).is_err());
    }

    #[test]
    fn malformed_transfers_are_rejected() {
        let good = transfer(&[4], &[AxisLayout::split(0)], &[AxisLayout::of(LayoutKind::Broadcast)]);
        assert_eq!(good.check(&[2]), Ok(()));
        assert!(good.check(&[]).is_err());
        for bad in [
            Transfer { dims: vec![0], ..good.clone() },
            Transfer { dims: vec![i64::MAX, 2], ..good.clone() },
            Transfer { from: vec![AxisLayout::split(1)], ..good.clone() },
            Transfer { from: vec![], ..good.clone() },
            Transfer { from: vec![AxisLayout { kind: 99, dim: 0 }], ..good.clone() },
            Transfer {
                from: vec![AxisLayout::of(LayoutKind::Max)],
                to: vec![AxisLayout::of(LayoutKind::Sum)],
                ..good.clone()
            },
        ] {
            assert!(bad.check(&[2]).is_err(), "{bad:?}");
        }
    }
}
