//! A rank's share in a transfer: it gives others what they need of its part, and takes what it needs of theirs.

use of_plan::{BoxingExec, ElementType, Runs, Transfer};

use crate::RunError;
use crate::combine::{Combine, combine, neutral};
use crate::device::Buffer;
use crate::rank_context::RankContext;
use crate::transport::{Offer, Stopped};
use crate::work::Context;

/// A rank's share in a transfer, over its transport.
#[derive(Debug)]
pub struct Share {
    id: u32,
    rank_context: RankContext,
    /// Bytes of an element, and of the rank's parts before and after.
    element: usize,
    bytes: (usize, usize),
    /// What places get that nobody fills.
    gaps: Option<Vec<u8>>,
    /// To whom, and which block of the own part.
    offers: Vec<(u32, Runs)>,
    /// From whom, in the order in which they are combined.
    from: Vec<u32>,
    /// Where each goes.
    places: Vec<Place>,
    /// Before which of them the rank's own block comes, and which block that is.
    own: Option<(usize, Runs, Place)>,
}

/// Where a block goes.
#[derive(Debug)]
struct Place {
    block: Runs,
    /// How it is combined with what is there; nothing to overwrite it.
    combine: Option<Combine>,
}

impl Share {
    /// The share of the rank at a rank context; `None` where elements of the type do not combine, or are no whole bytes.
    pub fn new(transfer: &Transfer, rank_context: &RankContext, dtype: ElementType) -> Option<Self> {
        let group = transfer.group(&rank_context.mesh, rank_context.rank);
        let element = dtype.bits() as usize / 8;
        let combined = transfer.partial_kind().map(|kind| (kind, combine(dtype, kind)));
        let bytes = |after| transfer.elements(&group, group.me, after).checked_mul(element).filter(|_| element > 0);
        let bytes = (bytes(false)?, bytes(true)?);
        let gaps = match combined {
            Some((kind, _)) if transfer.leaves_gaps() => Some(neutral(dtype, kind)?),
            _ => None,
        };
        let (mut from, mut places, mut own) = (Vec::new(), Vec::new(), None);
        for piece in transfer.receives(&group) {
            let how: Option<Combine> = if piece.combines { Some(combined?.1?) } else { None };
            let place = Place { block: piece.mine, combine: how };
            if piece.peer == group.me {
                own = Some((places.len(), piece.theirs, place));
            } else {
                from.push(group.ranks[piece.peer]);
                places.push(place);
            }
        }
        let offers = transfer.sends(&group).into_iter().map(|(to, block)| (group.ranks[to], block)).collect();
        Some(Self {
            id: transfer.id,
            rank_context: rank_context.clone(),
            element,
            bytes,
            gaps,
            offers,
            from,
            places,
            own,
        })
    }

    /// Bytes of the rank's parts before and after.
    pub fn bytes(&self) -> (usize, usize) {
        self.bytes
    }

    /// Meets the other ranks: makes the part after of the part before.
    ///
    /// # Errors
    /// When a rank stopped.
    pub fn run(&self, mine: &[u8], target: &mut [u8]) -> Result<(), Stopped> {
        if let Some(neutral) = &self.gaps {
            target.chunks_exact_mut(neutral.len()).for_each(|x| x.copy_from_slice(neutral));
        }
        let element = self.element;
        let mut own = self.own.as_ref();
        // The own block comes at its place in the order, so that all ranks combine alike.
        let mut put_own = |before: usize, target: &mut [u8]| {
            if let Some((_, from, place)) = own.take_if(|(at, ..)| *at <= before) {
                place.put(target, Block { bytes: mine, runs: from, element });
            }
        };
        if !self.from.is_empty() || !self.offers.is_empty() {
            let offers: Vec<Offer<'_>> =
                self.offers.iter().map(|(to, block)| Offer { to: *to, bytes: mine, block, element }).collect();
            self.rank_context.transport.rendezvous(
                self.rank_context.rank,
                self.id,
                &offers,
                &self.from,
                &mut |place, offer| {
                    put_own(place, target);
                    self.places[place].put(target, Block { bytes: offer.bytes, runs: offer.block, element });
                },
            )?;
        }
        put_own(self.places.len(), target);
        Ok(())
    }
}

/// A rank's share in a transfer from one of its registers to another.
pub(crate) struct BoxingCall {
    share: Share,
    src: Buffer,
    dst: Buffer,
}

impl BoxingCall {
    /// Binds a transfer for the rank of a rank context; `None` where its elements do not combine or buffers are too short.
    pub fn new(
        exec: &BoxingExec,
        rank_context: &RankContext,
        dtype: ElementType,
        src: Buffer,
        dst: Buffer,
    ) -> Option<Self> {
        let share = Share::new(&exec.transfer, rank_context, dtype)?;
        let (before, after) = share.bytes();
        Some(Self { src: src.truncate(before as u64)?, dst: dst.truncate(after as u64)?, share })
    }

    /// Meets the other ranks.
    pub fn run(&self, context: &Context<'_>) -> Result<(), RunError> {
        let target = self.dst.bytes_mut(context.piece);
        let target = target.ok_or_else(|| context.internal("receives into a constant"))?;
        self.share.run(self.src.bytes(context.piece), target).map_err(|Stopped| RunError::Stopped)
    }
}

/// Elements of a part.
pub(crate) struct Block<'a> {
    pub bytes: &'a [u8],
    pub runs: &'a Runs,
    pub element: usize,
}

impl Place {
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
    fn blocks_of_other_shapes_meet() {
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
