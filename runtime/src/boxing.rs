//! Boxing at run time: one rank's part of a transfer. It sends blocks of its part and receives blocks of others'.

use of_plan::{BoxingExec, ElementType, Runs, Transfer};

use crate::combine::{Combine, combine, identity_element};
use crate::device::Buffer;
use crate::rank_context::RankContext;
use crate::task_context::Context;
use crate::transport::{Chunk, Stopped, TransferBlock};
use crate::{RunError, Value};

/// A rank's part of a transfer, over its transport.
#[derive(Debug)]
pub struct RankTransfer {
    id: u32,
    rank_context: RankContext,
    /// Bytes of an element, and of the rank's parts before and after.
    element: usize,
    bytes: (usize, usize),
    /// The identity element for elements of the target that no block fills.
    gaps: Option<Vec<u8>>,
    /// Blocks to send: the receiver, and the block within this rank's part.
    sends: Vec<(u32, Runs)>,
    /// The senders, in the order of reduction.
    from: Vec<u32>,
    /// The target block of each sender.
    targets: Vec<TargetBlock>,
    /// The rank's own block: its position in the order of reduction, source and target.
    own: Option<(usize, Runs, TargetBlock)>,
}

/// A block of the target.
#[derive(Debug)]
struct TargetBlock {
    block: Runs,
    /// Its reduction into the values that are there; none to overwrite them.
    combine: Option<Combine>,
}

impl RankTransfer {
    /// The part of a rank; `None` where elements of the type cannot be reduced, or are smaller than a byte.
    pub fn new(transfer: &Transfer, rank_context: &RankContext, dtype: ElementType) -> Option<Self> {
        let group = transfer.group(&rank_context.mesh, rank_context.rank);
        let element = dtype.bits() as usize / 8;
        let combined = transfer.partial_kind().map(|kind| (kind, combine(dtype, kind)));
        let bytes = |after| transfer.elements(&group, group.me, after).checked_mul(element).filter(|_| element > 0);
        let bytes = (bytes(false)?, bytes(true)?);
        let gaps = match combined {
            Some((kind, _)) if transfer.leaves_gaps() => Some(identity_element(dtype, kind)?),
            _ => None,
        };
        let (mut from, mut targets, mut own) = (Vec::new(), Vec::new(), None);
        for part in transfer.receives(&group) {
            let how: Option<Combine> = if part.combines { Some(combined?.1?) } else { None };
            let block = TargetBlock { block: part.mine, combine: how };
            if part.peer == group.me {
                own = Some((targets.len(), part.theirs, block));
            } else {
                from.push(group.ranks[part.peer]);
                targets.push(block);
            }
        }
        let sends = transfer.sends(&group).into_iter().map(|(to, block)| (group.ranks[to], block)).collect();
        Some(Self {
            id: transfer.id,
            rank_context: rank_context.clone(),
            element,
            bytes,
            gaps,
            sends,
            from,
            targets,
            own,
        })
    }

    /// Bytes of the rank's parts before and after.
    pub fn bytes(&self) -> (usize, usize) {
        self.bytes
    }

    /// Executes the rendezvous with the other ranks: computes the target part from the source part.
    ///
    /// # Errors
    /// When a rank stopped.
    pub fn run(&self, mine: &[u8], target: &mut [u8]) -> Result<(), Stopped> {
        self.run_with(mine, target, false)
    }

    /// As [`RankTransfer::run`]; `concurrent` says that another thread of the rank computes meanwhile.
    fn run_with(&self, mine: &[u8], target: &mut [u8], concurrent: bool) -> Result<(), Stopped> {
        if let Some(identity_element) = &self.gaps {
            target.chunks_exact_mut(identity_element.len()).for_each(|x| x.copy_from_slice(identity_element));
        }
        let element = self.element;
        let mut own = self.own.as_ref();
        // The rank's own block has its position in the order, so that all ranks reduce in the same order.
        let put_own = |own: &mut Option<&(usize, Runs, TargetBlock)>, before: usize, target: &mut [u8]| {
            if let Some((_, from, block)) = own.take_if(|(at, ..)| *at <= before) {
                return block.put(target, element, &Block { bytes: mine, runs: from, element });
            }
            true
        };
        let mut fits = true;
        // Whether the first sender's chunks and the rank's own block are combined in one pass.
        let mut together = false;
        if !self.from.is_empty() || !self.sends.is_empty() {
            let blocks: Vec<TransferBlock<'_>> =
                self.sends.iter().map(|(to, block)| TransferBlock { to: *to, bytes: mine, block, element }).collect();
            let mut take = |chunk: Chunk<'_>| {
                let theirs = &self.targets[chunk.sender];
                // A transport may give a block of bytes.
                let TransferBlock { bytes, block: runs, element: of, .. } = chunk.block;
                let received = Block { bytes, runs, element: of };
                let (at, last) = (chunk.at, chunk.is_last());
                if chunk.sender == 0
                    && let Some((place, runs, block)) = own.filter(|_| at == 0 || together)
                {
                    let mine = Block { bytes: mine, runs, element };
                    let of = (at, chunk.of, *place == 0);
                    together = *place < 2 && put_both(target, element, (block, &mine), (theirs, &received), of);
                    if together {
                        own.take_if(|_| last);
                        return;
                    }
                    fits &= at == 0;
                }
                fits &= put_own(&mut own, chunk.sender, target)
                    && theirs.block.elements() * element == chunk.of
                    && put_at(target, (&theirs.block, element, at), &received, theirs.combine);
            };
            let (transport, me) = (&self.rank_context.transport, self.rank_context.rank);
            transport.rendezvous_in_chunks(me, self.id, &blocks, &self.from, concurrent, &mut take)?;
        }
        fits &= put_own(&mut own, self.targets.len(), target);
        if !fits {
            self.rank_context.transport.fail(&format!("a block of transfer {} is not as long as its place", self.id));
            return Err(Stopped);
        }
        Ok(())
    }
}

/// A rank's part of a transfer from one of its registers to another.
pub(crate) struct BoxingCall {
    transfer: RankTransfer,
    src: Buffer,
    dst: Buffer,
}

impl BoxingCall {
    /// Binds a rank's transfer; `None` where its elements cannot be reduced or a buffer is too short.
    pub fn new(
        exec: &BoxingExec,
        rank_context: &RankContext,
        dtype: ElementType,
        src: Buffer,
        dst: Buffer,
    ) -> Option<Self> {
        let transfer = RankTransfer::new(&exec.transfer, rank_context, dtype)?;
        let (before, after) = transfer.bytes();
        Some(Self { src: src.truncate(before as u64)?, dst: dst.truncate(after as u64)?, transfer })
    }

    /// Executes the rendezvous with the other ranks.
    pub fn run(&self, iteration: u64) -> Result<(), RunError> {
        self.run_with(iteration, false)
    }

    /// The same on a thread that runs while others compute.
    pub fn run_concurrently(&self, iteration: u64) -> Result<(), RunError> {
        self.run_with(iteration, true)
    }

    fn run_with(&self, iteration: u64, concurrent: bool) -> Result<(), RunError> {
        let target = self.dst.bytes_mut(iteration);
        let target = target.ok_or_else(|| RunError::Internal("receives into a constant".into()))?;
        self.transfer.run_with(self.src.bytes(iteration), target, concurrent).map_err(|Stopped| RunError::Stopped)
    }
}

/// A rank's part of a transfer of open extents, from one object register to another.
pub(crate) struct OpenTransfer {
    transfer: Transfer,
    rank_context: RankContext,
    dtype: ElementType,
    src: u32,
    dst: u32,
    /// For the extents of the last run: most runs have the same.
    last: Option<OpenPart>,
}

/// What follows from the extents of the rank's part before: the transfer, and the extents of its part after.
struct OpenPart {
    before: Vec<i64>,
    after: Vec<i64>,
    transfer: RankTransfer,
}

impl OpenTransfer {
    /// Between object registers `src` and `dst`; `None` where elements of the type cannot be reduced.
    pub fn new(
        transfer: &Transfer,
        rank_context: &RankContext,
        dtype: ElementType,
        src: u32,
        dst: u32,
    ) -> Option<Self> {
        // The extents of an example say whether the elements can be reduced.
        RankTransfer::new(transfer, rank_context, dtype)?;
        let (transfer, rank_context) = (transfer.clone(), rank_context.clone());
        Some(Self { transfer, rank_context, dtype, src, dst, last: None })
    }

    /// Executes the rendezvous with the other ranks.
    pub fn run(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        let guard = context.objects.read(self.src, context.iteration);
        let value = guard.as_deref().and_then(Option::as_ref).and_then(Value::as_tensor);
        let value = value.ok_or_else(|| context.empty(self.src))?;
        let bytes = value.bytes().ok_or_else(|| context.internal("sends a value that has no bytes"))?;
        let part = match self.last.take().filter(|last| last.before == value.dims()) {
            Some(last) => last,
            None => self.part(value.dims()).ok_or_else(|| {
                let what = format!("sends a part of {:?}, which its layout does not have", value.dims());
                context.internal(&what)
            })?,
        };
        let mut target = context.room(self.dst, &part.after, part.transfer.bytes().1)?;
        let room = target.bytes_mut().ok_or_else(|| context.internal("receives into a value that has no bytes"))?;
        part.transfer.run(bytes, room).map_err(|Stopped| RunError::Stopped)?;
        drop(guard);
        self.last = Some(part);
        context.store(self.dst, Some(target.into()))
    }

    fn part(&self, before: &[i64]) -> Option<OpenPart> {
        let group = self.transfer.group(&self.rank_context.mesh, self.rank_context.rank);
        let whole = self.transfer.of_part(&group, before)?;
        let transfer = RankTransfer::new(&whole, &self.rank_context, self.dtype)?;
        Some(OpenPart { before: before.to_vec(), after: whole.part_dims(&group, true), transfer })
    }
}

/// Elements of a part.
pub(crate) struct Block<'a> {
    pub bytes: &'a [u8],
    pub runs: &'a Runs,
    pub element: usize,
}

impl TargetBlock {
    fn put(&self, target: &mut [u8], element: usize, from: &Block<'_>) -> bool {
        put(target, (&self.block, element), from, self.combine)
    }
}

/// Puts a chunk of a block and as much of the rank's own, of which the later one is combined with the other, so that the target passes through memory
/// once. Returns whether the blocks are such that it could.
fn put_both(
    target: &mut [u8],
    element: usize,
    own: (&TargetBlock, &Block<'_>),
    theirs: (&TargetBlock, &Block<'_>),
    (at, of, is_own_first): (usize, usize, bool),
) -> bool {
    let ((to, mine), (same, chunk)) = (own, theirs);
    let (first, second) = if is_own_first { (to, same) } else { (same, to) };
    let (None, Some(combine)) = (first.combine, second.combine) else { return false };
    if to.block != same.block || to.block.elements() * element != of {
        return false;
    }
    let Some(chunk) = one_run(chunk.runs, chunk.element).and_then(|range| chunk.bytes.get(range)) else { return false };
    let part = at..at + chunk.len();
    let (Some(target), Some(mine)) = (
        one_run(&to.block, element).and_then(|range| target.get_mut(range)?.get_mut(part.clone())),
        one_run(mine.runs, mine.element).and_then(|range| mine.bytes.get(range)?.get(part)),
    ) else {
        return false;
    };
    let (a, b) = if is_own_first { (mine, chunk) } else { (chunk, mine) };
    (combine.both)(target, a, b);
    true
}

/// The bytes of a block of one run.
fn one_run(runs: &Runs, element: usize) -> Option<std::ops::Range<usize>> {
    let mut starts = runs.starts();
    let start = starts.next()? * element;
    starts.next().is_none().then(|| start..start + runs.len() * element)
}

/// Puts a block into another of as many bytes, in elements of so many: overwrites it, or combines with what is there. Both are
/// row-major, so their elements come in the same order, in runs of other lengths. Returns whether they fit.
pub(crate) fn put(
    target: &mut [u8],
    (to, element): (&Runs, usize),
    from: &Block<'_>,
    combine: Option<Combine>,
) -> bool {
    to.elements() * element == from.runs.elements() * from.element && put_at(target, (to, element, 0), from, combine)
}

/// The same with a chunk of a block, which is so many bytes from its beginning.
fn put_at(
    target: &mut [u8],
    (to, element, at): (&Runs, usize, usize),
    from: &Block<'_>,
    combine: Option<Combine>,
) -> bool {
    let (long, short) = (to.len() * element, from.runs.len() * from.element);
    if at + from.runs.elements() * from.element > to.elements() * element {
        return false;
    }
    if long == 0 || short == 0 {
        return true;
    }
    let mut starts = from.runs.starts();
    let mut skipped = at % long;
    // What is left of the current run of `from`.
    let mut rest: &[u8] = &[];
    for start in to.starts_from(at / long) {
        let space = target.get_mut(start * element + skipped..start * element + long);
        let Some(mut space) = space else { return false };
        skipped = 0;
        while !space.is_empty() {
            if rest.is_empty() {
                let Some(start) = starts.next().map(|start| start * from.element) else { return true };
                let Some(run) = from.bytes.get(start..start + short) else { return false };
                rest = run;
            }
            let n = rest.len().min(space.len());
            let (now, later) = space.split_at_mut(n);
            let (source, next) = rest.split_at(n);
            match combine {
                Some(f) => (f.into)(now, source),
                None => now.copy_from_slice(source),
            }
            (space, rest) = (later, next);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use of_plan::LayoutKind;

    use super::*;

    #[test]
    fn blocks_of_different_shapes_are_copied_and_reduced() {
        // Columns 1 and 2 of a 2 x 4 matrix into rows 1 and 2 of a 4 x 2 one.
        let from = Runs::of(&[(0, 2), (1, 2)], &[(0, 2), (0, 4)]);
        let to = Runs::of(&[(1, 2), (0, 2)], &[(0, 4), (0, 2)]);
        let source: Vec<u8> = (0..8).collect();
        let mut target = vec![9u8; 8];
        let block = Block { bytes: &source, runs: &from, element: 1 };
        assert!(put(&mut target, (&to, 1), &block, None));
        assert_eq!(target, [9, 9, 1, 2, 5, 6, 9, 9]);
        let sum = combine(ElementType::Ui8, LayoutKind::Sum);
        assert!(put(&mut target, (&to, 1), &block, sum));
        assert_eq!(target, [9, 9, 2, 4, 10, 12, 9, 9]);
        // The same block as elements of two bytes, from bytes one after another; and one that is too short.
        let (two, packed) = (Runs::of(&[(1, 2), (0, 1)], &[(0, 4), (0, 1)]), Runs::of(&[(0, 4)], &[(0, 4)]));
        let bytes = Block { bytes: &[1, 2, 3, 4], runs: &packed, element: 1 };
        assert!(put(&mut target, (&two, 2), &bytes, None));
        assert_eq!(target, [9, 9, 1, 2, 3, 4, 9, 9]);
        assert!(!put(&mut target, (&to, 2), &bytes, None));
    }

    #[test]
    fn chunks_of_a_block_give_what_the_block_gives() {
        let sum = combine(ElementType::Ui8, LayoutKind::Sum);
        let source: Vec<u8> = (0..60).collect();
        // Columns, rows, and a block of one run, of a 10 x 12 matrix.
        for block in [[(0, 10), (3, 6)], [(4, 5), (0, 12)], [(0, 5), (0, 12)]] {
            let to = Runs::of(&block, &[(0, 10), (0, 12)]);
            let whole = Runs::of(&[(0, 60)], &[(0, 60)]);
            let mut want = vec![1; 120];
            assert!(put(&mut want, (&to, 1), &Block { bytes: &source, runs: &whole, element: 1 }, sum));
            for len in [1, 5, 6, 7, 12, 59, 60] {
                let mut got = vec![1; 120];
                for (i, chunk) in source.chunks(len).enumerate() {
                    let runs = Runs::of(&[(0, chunk.len())], &[(0, chunk.len())]);
                    let chunk = Block { bytes: chunk, runs: &runs, element: 1 };
                    assert!(put_at(&mut got, (&to, 1, i * len), &chunk, sum));
                }
                assert_eq!(got, want, "{block:?} in chunks of {len}");
            }
            let chunk = Block { bytes: &source, runs: &whole, element: 1 };
            assert!(!put_at(&mut want, (&to, 1, 1), &chunk, sum), "a chunk behind the end");
        }
    }
}
