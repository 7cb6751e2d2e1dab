//! Buffers with lifetimes, packed into one chunk in the order of time.

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
    pub fn overlaps(&self, other: &Buffer) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The offsets of buffers that are assigned in the order of their first steps, and the peak. Takes time in proportion to
/// `n log n`: the gaps between live buffers are kept sorted, because no buffer begins before one that is placed.
pub fn offsets_in_time(buffers: &[Buffer]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..buffers.len()).filter(|i| buffers[*i].bytes > 0).collect();
    order.sort_unstable_by_key(|&i| (buffers[i].first, i));
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
