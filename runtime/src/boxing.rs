//! Boxing at run time: one rank's part of a transfer. It sends blocks of its part and receives blocks of others'.

use of_plan::{BoxingExec, ElementType, Runs, Transfer};

use crate::RunError;
use crate::combine::{Combine, combine, identity_element};
use crate::device::Buffer;
use crate::rank_context::RankContext;
use crate::task_context::Context;
use crate::transport::{Stopped, TransferBlock};

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
        if let Some(identity_element) = &self.gaps {
            target.chunks_exact_mut(identity_element.len()).for_each(|x| x.copy_from_slice(identity_element));
        }
        let element = self.element;
        let mut own = self.own.as_ref();
        // The rank's own block has its position in the order, so that all ranks reduce in the same order.
        let mut put_own = |before: usize, target: &mut [u8]| {
            if let Some((_, from, block)) = own.take_if(|(at, ..)| *at <= before) {
                block.put(target, Block { bytes: mine, runs: from, element });
            }
        };
        if !self.from.is_empty() || !self.sends.is_empty() {
            let blocks: Vec<TransferBlock<'_>> =
                self.sends.iter().map(|(to, block)| TransferBlock { to: *to, bytes: mine, block, element }).collect();
            self.rank_context.transport.rendezvous(
                self.rank_context.rank,
                self.id,
                &blocks,
                &self.from,
                &mut |sender, received| {
                    put_own(sender, target);
                    self.targets[sender].put(target, Block { bytes: received.bytes, runs: received.block, element });
                },
            )?;
        }
        put_own(self.targets.len(), target);
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
    pub fn run(&self, context: &Context<'_>) -> Result<(), RunError> {
        let target = self.dst.bytes_mut(context.iteration);
        let target = target.ok_or_else(|| context.internal("receives into a constant"))?;
        self.transfer.run(self.src.bytes(context.iteration), target).map_err(|Stopped| RunError::Stopped)
    }
}

/// Elements of a part.
pub(crate) struct Block<'a> {
    pub bytes: &'a [u8],
    pub runs: &'a Runs,
    pub element: usize,
}

impl TargetBlock {
    fn put(&self, target: &mut [u8], from: Block<'_>) {
        put(target, &self.block, &from, self.combine);
    }
}

/// Puts a block into another of as many elements: overwrites it, or combines with what is there. Both are row-major, so
/// their elements come in the same order, in runs of other lengths.
pub(crate) fn put(target: &mut [u8], to: &Runs, from: &Block<'_>, combine: Option<Combine>) {
    let element = from.element;
    let (long, short) = (to.len() * element, from.runs.len() * element);
    if long == 0 || short == 0 {
        return;
    }
    let mut starts = from.runs.starts();
    // What is left of the current run of `from`.
    let mut rest: &[u8] = &[];
    for start in to.starts() {
        let Some(mut space) = target.get_mut(start * element..start * element + long) else { return };
        while !space.is_empty() {
            if rest.is_empty() {
                let Some(run) = starts.next().and_then(|s| from.bytes.get(s * element..s * element + short)) else {
                    return;
                };
                rest = run;
            }
            let n = rest.len().min(space.len());
            let (now, later) = space.split_at_mut(n);
            let (source, next) = rest.split_at(n);
            match combine {
                Some(f) => f(now, source),
                None => now.copy_from_slice(source),
            }
            (space, rest) = (later, next);
        }
    }
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
        put(&mut target, &to, &Block { bytes: &source, runs: &from, element: 1 }, None);
        assert_eq!(target, [9, 9, 1, 2, 5, 6, 9, 9]);
        let sum = combine(ElementType::Ui8, LayoutKind::Sum);
        put(&mut target, &to, &Block { bytes: &source, runs: &from, element: 1 }, sum);
        assert_eq!(target, [9, 9, 2, 4, 10, 12, 9, 9]);
    }
}
