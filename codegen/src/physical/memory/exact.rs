//! A complete search for the packing of least memory, for few buffers.
//!
//! Buffers that fit for any positions of the others are excluded.
//!
//! Consider the packing of least height with the least sum of offsets. Each of its buffers is at the bottom or on top of a
//! buffer with an overlapping lifetime, and none can move below the offset of a higher one. So the search assigns buffers in the
//! order of rising offsets, each as low as earlier ones allow, and skips choices that leave a gap for another buffer. It prunes
//! a branch if the remaining buffers cannot fit under the current height. The next height is the least that any branch required,
//! as in iterative deepening (Korf 1985). The order and the bounds are those of MiniMalloc (Moffitt 2023).

use crate::physical::memory::Buffer;
use crate::physical::memory::packing::{Packing, assign};

/// Work limit in buffers times sections: a tenth of a second.
const WORK_LIMIT: usize = 20_000_000;

/// Sets `best` to the packing of least height with an equal lower bound, unless the work limit is reached; then only the proven
/// bound is updated.
pub fn search(buffers: &[Buffer], best: &mut Packing) {
    let mut work = WORK_LIMIT;
    while best.lower_bound < best.peak {
        let height = best.lower_bound;
        let (constrained, unconstrained) = sorted(buffers, height);
        let own: Vec<Buffer> = constrained.iter().map(|i| buffers[*i]).collect();
        let mut search = Search { height, next: best.peak, work, ..Search::new(&own) };
        match search.assign(0, 0) {
            Some(true) => {
                let mut offsets = vec![0; buffers.len()];
                constrained.iter().zip(&search.offsets).for_each(|(i, offset)| offsets[*i] = *offset);
                let mut placed: Vec<(Buffer, u64)> = own.iter().copied().zip(search.offsets).collect();
                placed.sort_by_key(|(_, offset)| *offset);
                unconstrained.iter().rev().for_each(|i| offsets[*i] = assign(&mut placed, buffers[*i]));
                (best.peak, best.offsets) = (height, offsets);
            }
            Some(false) => best.lower_bound = search.next,
            None => return,
        }
        work = search.work;
    }
}

/// The buffers to search at a height, and the others: each of those fits for any positions of the searched buffers and the
/// others after it. `k` buffers leave `k + 1` gaps, the largest of which is at least their mean.
fn sorted(buffers: &[Buffer], height: u64) -> (Vec<usize>, Vec<usize>) {
    let (mut constrained, mut unconstrained): (Vec<usize>, Vec<usize>) = ((0..buffers.len()).collect(), Vec::new());
    let fits = |i: usize, among: &[usize]| {
        let others = among.iter().filter(|j| **j != i && buffers[**j].overlaps(&buffers[i])).map(|j| buffers[*j].bytes);
        let (count, taken) = others.fold((0, 0), |(count, taken), bytes| (count + 1, taken + bytes));
        height.saturating_sub(taken) >= buffers[i].bytes.saturating_mul(count + 1)
    };
    while let Some(at) = constrained.iter().position(|i| fits(*i, &constrained)) {
        unconstrained.push(constrained.remove(at));
    }
    (constrained, unconstrained)
}

/// The state of a search.
struct Search<'a> {
    buffers: &'a [Buffer],
    /// Lifetime of each buffer as a half-open range of sections; a section of time begins where a buffer does.
    lives: Vec<(usize, usize)>,
    /// The end of the highest buffer in each section.
    tops: Vec<u64>,
    /// Bytes of unplaced buffers in each section.
    left: Vec<u64>,
    /// Offsets of the placed buffers.
    offsets: Vec<u64>,
    /// The unplaced buffers.
    waiting: Vec<usize>,
    /// The current height.
    height: u64,
    /// The least greater height that some branch requires.
    next: u64,
    /// The remaining work.
    work: usize,
}

impl<'a> Search<'a> {
    fn new(buffers: &'a [Buffer]) -> Search<'a> {
        let mut begins: Vec<u32> = buffers.iter().map(|b| b.first).collect();
        begins.sort_unstable();
        begins.dedup();
        let section = |end: &dyn Fn(u32) -> bool| begins.partition_point(|t| end(*t));
        let lives: Vec<(usize, usize)> =
            buffers.iter().map(|b| (section(&|t| t < b.first), section(&|t| t <= b.last))).collect();
        let mut left = vec![0; begins.len()];
        for (b, (from, to)) in buffers.iter().zip(&lives) {
            left[*from..*to].iter_mut().for_each(|l| *l += b.bytes);
        }
        let (tops, offsets) = (vec![0; begins.len()], vec![0; buffers.len()]);
        let waiting = (0..buffers.len()).collect();
        Search { buffers, lives, tops, left, offsets, waiting, height: 0, next: 0, work: 0 }
    }

    /// Whether the unplaced buffers fit under the height with all offsets at least `lowest`, and at `lowest` only buffers from
    /// `after` on; `None` when the work limit is reached.
    fn assign(&mut self, lowest: u64, after: usize) -> Option<bool> {
        if self.waiting.is_empty() {
            return Some(true);
        }
        self.work = self.work.checked_sub(self.waiting.len() * self.tops.len())?;
        // The lowest offset of each unplaced buffer, and the lowest in each section.
        let mut floors = vec![u64::MAX; self.tops.len()];
        let mut needs = 0;
        let mut hole = u64::MAX;
        let mut choices = Vec::new();
        for &i in &self.waiting {
            let (from, to) = self.lives[i];
            let top = self.tops[from..to].iter().copied().max().unwrap_or(0);
            let at = top.max(lowest);
            let end = at + self.buffers[i].bytes;
            floors[from..to].iter_mut().for_each(|f| *f = (*f).min(at));
            (needs, hole) = (needs.max(end), hole.min(end));
            if (top, i) >= (lowest, after) {
                choices.push((at, std::cmp::Reverse(end), i));
            }
        }
        for (floor, left) in floors.iter().zip(&self.left).filter(|(_, left)| **left > 0) {
            needs = needs.max(floor + left);
        }
        if needs > self.height {
            self.next = self.next.min(needs);
            return Some(false);
        }
        choices.sort_unstable();
        for (at, _, i) in choices.into_iter().take_while(|(at, ..)| *at < hole) {
            let (bytes, (from, to)) = (self.buffers[i].bytes, self.lives[i]);
            let tops = self.tops[from..to].to_vec();
            self.tops[from..to].fill(at + bytes);
            self.left[from..to].iter_mut().for_each(|l| *l -= bytes);
            self.waiting.retain(|j| *j != i);
            self.offsets[i] = at;
            if self.assign(at, i + 1)? {
                return Some(true);
            }
            self.waiting.push(i);
            self.left[from..to].iter_mut().for_each(|l| *l += bytes);
            self.tops[from..to].copy_from_slice(&tops);
        }
        Some(false)
    }
}
