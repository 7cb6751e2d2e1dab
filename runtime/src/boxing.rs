//! A rank's share in a transfer: it gives others what they need of its part, and takes what it needs of theirs.

use std::sync::Arc;

use of_plan::{BoxingExec, ElementType, Runs};

use crate::RunError;
use crate::combine::{Combine, combine, neutral};
use crate::device::Buffer;
use crate::transport::{Offer, Stopped, Transport};
use crate::work::Context;

/// Where a rank sits: what its session needs besides the template's program.
#[derive(Clone)]
pub(crate) struct Seat {
    pub rank: u32,
    /// Ranks along each axis of the mesh.
    pub mesh: Vec<usize>,
    /// The weights that it has in place of the template's.
    pub own: Vec<of_plan::OwnWeight>,
    pub transport: Arc<dyn Transport>,
}

impl Seat {
    /// The weight that stands for one of the template's.
    pub fn weight(&self, of: u32) -> u32 {
        self.own.iter().find(|own| own.of == of).map_or(of, |own| own.by)
    }
}

/// Everything that one task's share in a transfer needs.
pub(crate) struct BoxingCall {
    id: u32,
    rank: u32,
    transport: Arc<dyn Transport>,
    src: Buffer,
    dst: Buffer,
    element: usize,
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
struct Place {
    block: Runs,
    /// How it is combined with what is there; nothing to overwrite it.
    combine: Option<Combine>,
}

impl BoxingCall {
    /// Binds a transfer for the rank of a seat; `None` where its elements do not combine or buffers are too short.
    pub fn new(exec: &BoxingExec, seat: &Seat, dtype: ElementType, src: Buffer, dst: Buffer) -> Option<Self> {
        let transfer = &exec.transfer;
        let group = transfer.group(&seat.mesh, seat.rank);
        let element = dtype.bits() as usize / 8;
        let combined = transfer.partial_kind().map(|kind| (kind, combine(dtype, kind)));
        let bytes = |after| transfer.elements(&group, group.me, after).checked_mul(element);
        let (src, dst) = (src.truncate(bytes(false)? as u64)?, dst.truncate(bytes(true)? as u64)?);
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
        let (id, rank, transport) = (transfer.id, seat.rank, Arc::clone(&seat.transport));
        Some(Self { id, rank, transport, src, dst, element, gaps, offers, from, places, own })
    }

    /// Meets the other ranks.
    pub fn run(&self, context: &Context<'_>) -> Result<(), RunError> {
        let mine = self.src.bytes(context.piece);
        let target = self.dst.bytes_mut(context.piece);
        let target = target.ok_or_else(|| context.internal("receives into a constant"))?;
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
            let met = self.transport.meet(self.rank, self.id, &offers, &self.from, &mut |place, offer| {
                put_own(place, target);
                self.places[place].put(target, Block { bytes: offer.bytes, runs: offer.block, element });
            });
            met.map_err(|Stopped| RunError::Stopped)?;
        }
        put_own(self.places.len(), target);
        Ok(())
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
