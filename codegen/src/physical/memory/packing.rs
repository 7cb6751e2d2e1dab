//! Buffers with lifetimes, and their offsets in one chunk.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A buffer with its lifetime: the range of steps, both ends included, during which it holds a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Size in bytes.
    pub bytes: u64,
    /// The step that writes it first.
    pub first: u32,
    /// The last step that reads it.
    pub last: u32,
}

impl Buffer {
    /// Whether both hold a value at some step.
    pub(crate) fn overlaps(&self, other: &Buffer) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

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

/// The offsets of buffers that are assigned in the order of their first steps, and the peak. Takes time in proportion to
/// `n log n`: the gaps between live buffers are kept sorted, because no buffer begins before one that is placed.
pub(crate) fn offsets_in_time(buffers: &[Buffer]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..buffers.len()).filter(|i| buffers[*i].bytes > 0).collect();
    of_ir::sort::by_key(&mut order, |i| (buffers[*i].first, *i));
    let (mut offsets, mut peak) = (vec![0u64; buffers.len()], 0);
    let mut live: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::new();
    let mut gaps = Gaps::default();
    for i in order {
        let b = buffers[i];
        while let Some(Reverse((_, dead))) = live.peek().copied().filter(|Reverse((last, _))| *last < b.first) {
            live.pop();
            gaps.free(offsets[dead], buffers[dead].bytes);
        }
        offsets[i] = gaps.take(b.bytes);
        peak = peak.max(offsets[i] + b.bytes);
        live.push(Reverse((b.last, i)));
    }
    (offsets, peak)
}

/// Free memory below the top of all live buffers.
#[derive(Default)]
struct Gaps {
    /// The size of the gap at each offset.
    sizes: BTreeMap<u64, u64>,
    /// Sizes and offsets of the same gaps.
    by_size: BTreeSet<(u64, u64)>,
    /// The end of the topmost live buffer.
    top: u64,
}

impl Gaps {
    /// The offset of the smallest gap of this many bytes or more, else the top.
    fn take(&mut self, bytes: u64) -> u64 {
        let Some((size, at)) = self.by_size.range((bytes, 0)..).next().copied() else {
            self.top += bytes;
            return self.top - bytes;
        };
        self.remove(at, size);
        if size > bytes {
            self.insert(at + bytes, size - bytes);
        }
        at
    }

    /// Frees a buffer: joins it with the gaps on both sides.
    fn free(&mut self, at: u64, bytes: u64) {
        let (mut from, mut to) = (at, at + bytes);
        if let Some((before, size)) = self.sizes.range(..at).next_back().map(|(k, v)| (*k, *v))
            && before + size == at
        {
            self.remove(before, size);
            from = before;
        }
        if let Some(size) = self.sizes.get(&to).copied() {
            self.remove(to, size);
            to += size;
        }
        if to == self.top {
            self.top = from;
        } else {
            self.insert(from, to - from);
        }
    }

    fn insert(&mut self, at: u64, size: u64) {
        self.sizes.insert(at, size);
        self.by_size.insert((size, at));
    }

    fn remove(&mut self, at: u64, size: u64) {
        self.sizes.remove(&at);
        self.by_size.remove(&(size, at));
    }
}
