//! Boxing at run time: one rank's part of a transfer. It sends blocks of its part and receives blocks of others'.

use of_plan::{BoxingExec, ElementType, FusedSends, Runs, Transfer};

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
        let element = self.element;
        let mut receipt = Receipt::new(self, mine, target);
        if !self.from.is_empty() || !self.sends.is_empty() {
            let blocks: Vec<TransferBlock<'_>> =
                self.sends.iter().map(|(to, block)| TransferBlock { to: *to, bytes: mine, block, element }).collect();
            let (transport, me) = (&self.rank_context.transport, self.rank_context.rank);
            let mut take = |chunk: Chunk<'_>| receipt.take(chunk);
            transport.rendezvous_in_chunks(me, self.id, &blocks, &self.from, concurrent, &mut take)?;
        }
        if receipt.end() { Ok(()) } else { Err(self.misfit()) }
    }

    /// Ends the ranks, because a block is longer or shorter than its place.
    fn misfit(&self) -> Stopped {
        self.rank_context.transport.fail(&format!("a block of transfer {} is not as long as its place", self.id));
        Stopped
    }
}

/// The receipt of the blocks of a transfer.
struct Receipt<'a> {
    transfer: &'a RankTransfer,
    mine: &'a [u8],
    target: &'a mut [u8],
    /// The rank's own block, until it is in the target.
    own: Option<&'a (usize, Runs, TargetBlock)>,
    /// Whether the first sender's chunks and the rank's own block are combined in one pass.
    together: bool,
    fits: bool,
}

impl<'a> Receipt<'a> {
    fn new(transfer: &'a RankTransfer, mine: &'a [u8], target: &'a mut [u8]) -> Self {
        if let Some(identity_element) = &transfer.gaps {
            target.chunks_exact_mut(identity_element.len()).for_each(|x| x.copy_from_slice(identity_element));
        }
        Self { transfer, mine, target, own: transfer.own.as_ref(), together: false, fits: true }
    }

    /// Puts the rank's own block, whose position in the order comes before that of a sender, so that all ranks reduce in the same order.
    fn put_own(&mut self, before: usize) {
        let element = self.transfer.element;
        if let Some((_, from, block)) = self.own.take_if(|(at, ..)| *at <= before) {
            self.fits &= block.put(self.target, element, &Block { bytes: self.mine, runs: from, element });
        }
    }

    /// Puts a chunk, whose sender is an index in the transfer's senders.
    fn take(&mut self, chunk: Chunk<'_>) {
        let element = self.transfer.element;
        let theirs = &self.transfer.targets[chunk.sender];
        // A transport may give a block of bytes.
        let TransferBlock { bytes, block: runs, element: of, .. } = chunk.block;
        let received = Block { bytes, runs, element: of };
        let (at, last) = (chunk.at, chunk.is_last());
        if chunk.sender == 0
            && let Some((place, runs, block)) = self.own.filter(|_| at == 0 || self.together)
        {
            let mine = Block { bytes: self.mine, runs, element };
            let of = (at, chunk.of, *place == 0);
            self.together = *place < 2 && put_both(self.target, element, (block, &mine), (theirs, &received), of);
            if self.together {
                self.own.take_if(|_| last);
                return;
            }
            self.fits &= at == 0;
        }
        self.put_own(chunk.sender);
        self.fits &= theirs.block.elements() * element == chunk.of
            && put_at(self.target, (&theirs.block, element, at), &received, theirs.combine);
    }

    /// Ends it. Returns whether all blocks fitted into their places.
    fn end(mut self) -> bool {
        self.put_own(self.transfer.targets.len());
        self.fits
    }
}

/// A rank's part of a transfer from one of its registers to another, or of several in one rendezvous.
pub(crate) struct BoxingCall {
    /// The transfers, each with the rank's parts before and after.
    transfers: Vec<(RankTransfer, Buffer, Buffer)>,
    /// What is sent, if there are several.
    fused: Option<FusedCall>,
}

/// What a rank sends and receives in a rendezvous of several transfers.
struct FusedCall {
    staging: Buffer,
    /// The blocks that are packed: the transfer, the block within the rank's part before, and its place in `staging`.
    packed: Vec<(usize, Runs, Runs)>,
    /// The receivers, each with its part of `staging`.
    sends: Vec<(u32, Runs)>,
    /// The senders, in the order of reduction.
    from: Vec<u32>,
    /// What each of them sends: the transfer, the index of the sender among that transfer's, and the place in the message in bytes.
    pieces: Vec<Vec<(usize, usize, std::ops::Range<usize>)>>,
}

impl FusedCall {
    fn new(
        exec: &BoxingExec,
        rank_context: &RankContext,
        transfers: &[(RankTransfer, Buffer, Buffer)],
        staging: Buffer,
    ) -> Option<Self> {
        let sends = FusedSends::of(exec, &rank_context.mesh, rank_context.rank);
        let element = transfers.first()?.0.element;
        let within = |range: std::ops::Range<usize>| Runs::of(&[(range.start, range.len())], &[(0, sends.elements)]);
        let packed = sends.blocks.iter().map(|own| {
            let place = within(own.at..own.at + own.block.elements());
            (own.transfer, own.block.clone(), place)
        });
        let packed = packed.collect();
        // The senders of each transfer are in the order of the group.
        let group = exec.transfer.group(&rank_context.mesh, rank_context.rank);
        let (mut from, mut pieces) = (Vec::new(), Vec::new());
        for rank in group.ranks {
            let (mut own, mut end) = (Vec::new(), 0);
            for (index, (transfer, ..)) in transfers.iter().enumerate() {
                let Some(sender) = transfer.from.iter().position(|sender| *sender == rank) else { continue };
                let start = end;
                end += transfer.targets[sender].block.elements() * element;
                own.push((index, sender, start..end));
            }
            if !own.is_empty() {
                from.push(rank);
                pieces.push(own);
            }
        }
        let staging = staging.truncate((sends.elements * element) as u64)?;
        let sends = sends.receivers.iter().map(|(to, range)| (*to, within(range.clone()))).collect();
        Some(Self { staging, packed, sends, from, pieces })
    }

    /// Passes the parts of a chunk of a message to the transfers that they belong to. Returns whether the message is as long as these expect.
    fn distribute(&self, chunk: &Chunk<'_>, receipts: &mut [Receipt<'_>]) -> bool {
        let pieces = &self.pieces[chunk.sender];
        let TransferBlock { to, bytes, block, element } = chunk.block;
        let Some(bytes) = one_run(block, element).and_then(|range| bytes.get(range)) else { return false };
        let end = chunk.at + bytes.len();
        for (transfer, sender, place) in pieces {
            let (first, last) = (place.start.max(chunk.at), place.end.min(end));
            if first >= last {
                continue;
            }
            let part = &bytes[first - chunk.at..last - chunk.at];
            let block = &Runs::of(&[(0, part.len())], &[(0, part.len())]);
            let block = TransferBlock { to, bytes: part, block, element: 1 };
            let (at, of) = (first - place.start, place.len());
            receipts[*transfer].take(Chunk { sender: *sender, at, of, block });
        }
        pieces.last().is_some_and(|(.., place)| place.end == chunk.of)
    }
}

impl BoxingCall {
    /// Binds a rank's transfers, each with its parts before and after, and the memory of what it sends, if they are several; `None` where
    /// their elements cannot be reduced or a buffer is too short.
    pub fn new(
        exec: &BoxingExec,
        rank_context: &RankContext,
        dtype: ElementType,
        buffers: Vec<(Buffer, Buffer)>,
        staging: Option<Buffer>,
    ) -> Option<Self> {
        let bind = |((transfer, ..), (src, dst)): ((&Transfer, _, _), (Buffer, Buffer))| {
            let transfer = RankTransfer::new(transfer, rank_context, dtype)?;
            let (before, after) = transfer.bytes();
            Some((transfer, src.truncate(before as u64)?, dst.truncate(after as u64)?))
        };
        let transfers = exec.transfers().zip(buffers).map(bind).collect::<Option<Vec<_>>>()?;
        let fused = match staging {
            Some(staging) => Some(FusedCall::new(exec, rank_context, &transfers, staging)?),
            None => None,
        };
        Some(Self { transfers, fused })
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
        let constant = || RunError::Internal("receives into a constant".into());
        if let Some(fused) = &self.fused {
            return self.run_fused(fused, iteration, concurrent, constant);
        }
        for (transfer, src, dst) in &self.transfers {
            let target = dst.bytes_mut(iteration).ok_or_else(constant)?;
            transfer.run_with(src.bytes(iteration), target, concurrent).map_err(|Stopped| RunError::Stopped)?;
        }
        Ok(())
    }

    /// One rendezvous for all transfers. Each combines its blocks in its own order, so elements are what they would be alone.
    fn run_fused(
        &self,
        fused: &FusedCall,
        iteration: u64,
        concurrent: bool,
        constant: impl Fn() -> RunError,
    ) -> Result<(), RunError> {
        let Some((first, ..)) = self.transfers.first() else { return Ok(()) };
        let element = first.element;
        let staging = fused.staging.bytes_mut(iteration).ok_or_else(&constant)?;
        let mut fits = true;
        for (transfer, block, place) in &fused.packed {
            let from = Block { bytes: self.transfers[*transfer].1.bytes(iteration), runs: block, element };
            fits &= put(staging, (place, element), &from, None);
        }
        let bytes: &[u8] = staging;
        let mut receipts = Vec::with_capacity(self.transfers.len());
        for (transfer, src, dst) in &self.transfers {
            let target = dst.bytes_mut(iteration).ok_or_else(&constant)?;
            receipts.push(Receipt::new(transfer, src.bytes(iteration), target));
        }
        let sends = fused.sends.iter();
        let blocks: Vec<TransferBlock<'_>> =
            sends.map(|(to, block)| TransferBlock { to: *to, bytes, block, element }).collect();
        let mut take = |chunk: Chunk<'_>| fits &= fused.distribute(&chunk, &mut receipts);
        let RankContext { transport, rank, .. } = &first.rank_context;
        let done = transport.rendezvous_in_chunks(*rank, first.id, &blocks, &fused.from, concurrent, &mut take);
        done.map_err(|Stopped| RunError::Stopped)?;
        receipts.into_iter().for_each(|receipt| fits &= receipt.end());
        if fits { Ok(()) } else { Err(first.misfit()).map_err(|Stopped| RunError::Stopped) }
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
