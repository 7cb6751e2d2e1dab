//! The offsets of buffers in one chunk.

use of_plan::packing::Buffer;

/// A packing: offsets in one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packing {
    /// The offset of each buffer, in the order given.
    pub offsets: Vec<u64>,
    /// Size of the chunk.
    pub peak: u64,
    /// A proven lower bound of any packing: the most bytes live at one step, or the result of a complete search.
    pub lower_bound: u64,
}

/// Assigns a buffer to the smallest sufficient gap between placed ones, which are sorted by offset, else on top.
pub(crate) fn assign(placed: &mut Vec<(Buffer, u64)>, b: Buffer) -> u64 {
    let (mut at, mut best_gap, mut end) = (None, u64::MAX, 0u64);
    for (c, offset) in placed.iter() {
        if !c.overlaps(&b) || c.bytes == 0 {
            continue;
        }
        if let Some(gap) = offset.checked_sub(end)
            && gap >= b.bytes
            && gap < best_gap
        {
            (at, best_gap) = (Some(end), gap);
        }
        end = end.max(offset + c.bytes);
    }
    let own = at.unwrap_or(end);
    let position = placed.partition_point(|(_, offset)| *offset <= own);
    placed.insert(position, (b, own));
    own
}
