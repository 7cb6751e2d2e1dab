//! Static memory planning: assigns each buffer an offset in one chunk, by lifetime.

mod exact;
mod packing;

pub use of_plan::packing::Buffer;
pub use packing::Packing;

use of_plan::packing::offsets_in_time;
use packing::assign;

/// A sort key for buffers, largest first.
type Order = fn(&Buffer) -> (u64, u64);

/// Packs `buffers`, each aligned to `align` bytes (a power of two). Tries several orders, then improves the best until it
/// reaches the lower bound or the step limit; few buffers are then searched completely. For very many buffers the first order
/// near the bound is taken, beginning with the order of time, which takes no quadratic time.
///
/// Each order uses best fit: a buffer goes into the smallest sufficient gap between buffers of overlapping lifetimes, else on
/// top of them.
pub fn pack(buffers: &[Buffer], align: u64) -> Packing {
    let sized: Vec<Buffer> = buffers.iter().map(|b| Buffer { bytes: b.bytes.next_multiple_of(align), ..*b }).collect();
    let lower_bound = max_live_bytes(&sized);
    let orders: [Order; 4] = [
        |b| (b.bytes, u64::from(b.last - b.first)),
        |b| (b.bytes.saturating_mul(u64::from(b.last - b.first + 1)), b.bytes),
        |b| (u64::from(b.last - b.first), b.bytes),
        |b| (u64::MAX - u64::from(b.first), b.bytes),
    ];
    let mut best = Packing { offsets: Vec::new(), peak: u64::MAX, lower_bound };
    let mut best_order = Vec::new();
    let many = buffers.len() > FULL_SEARCH_LIMIT;
    if many {
        (best.offsets, best.peak) = offsets_in_time(&sized);
    }
    let accepted = lower_bound + if many { lower_bound / 1000 } else { 0 };
    let mut pairs = if many { MAX_PAIRS } else { usize::MAX };
    for key in orders {
        if best.peak <= accepted {
            return best;
        }
        // Each order compares each buffer with all before.
        let Some(rest) = pairs.checked_sub(sized.len().saturating_mul(sized.len()) / 2) else { return best };
        pairs = rest;
        let mut order: Vec<usize> = (0..sized.len()).collect();
        of_ir::sort::by_key(&mut order, |i| (std::cmp::Reverse(key(&sized[*i])), *i));
        let (offsets, peak) = offsets_in_order(&sized, &order);
        if peak < best.peak {
            (best.offsets, best.peak, best_order) = (offsets, peak, order);
        }
    }
    if many || best.peak <= accepted {
        return best;
    }
    local_search(&sized, best_order, &mut best);
    if buffers.len() <= EXACT_SEARCH_LIMIT {
        exact::search(&sized, &mut best);
    }
    best
}

/// With more buffers than this, the order of time is tried first, and a peak within a thousandth of the bound is accepted: each
/// other order takes seconds.
const FULL_SEARCH_LIMIT: usize = 20_000;

/// Limit of buffer pairs compared in all orders of very many buffers: ten seconds.
const MAX_PAIRS: usize = 6_000_000_000;

/// Maximum number of buffers for a complete search.
const EXACT_SEARCH_LIMIT: usize = 200;

/// Limit of buffer pairs compared while an order is improved: a tenth of a second.
const LOCAL_SEARCH_PAIRS: usize = 40_000_000;

/// Improves a packing: repeatedly moves a topmost buffer before an earlier one of overlapping lifetime, and keeps the order
/// unless the peak rises. Deterministic.
fn local_search(buffers: &[Buffer], mut order: Vec<usize>, best: &mut Packing) {
    let n = buffers.len();
    let (mut offsets, mut peak) = (best.offsets.clone(), best.peak);
    // A linear congruential generator (Knuth's constants), of which the upper bits are used.
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    for _ in 0..(LOCAL_SEARCH_PAIRS / (n * n).max(1)).min(4000) {
        let top: Vec<usize> = (0..n).filter(|k| offsets[order[*k]] + buffers[order[*k]].bytes == peak).collect();
        let from = top[random(top.len())];
        let own = buffers[order[from]];
        let before: Vec<usize> = (0..from).filter(|k| own.overlaps(&buffers[order[*k]])).collect();
        // A topmost buffer without earlier overlapping buffers has offset 0: the peak equals the bound.
        let Some(to) = before.get(random(before.len())) else { return };
        let mut next = order.clone();
        let moved = next.remove(from);
        next.insert(*to, moved);
        let (o, p) = offsets_in_order(buffers, &next);
        if p <= peak {
            (order, offsets, peak) = (next, o, p);
        }
        if peak < best.peak {
            (best.offsets, best.peak) = (offsets.clone(), peak);
        }
        if peak == best.lower_bound {
            return;
        }
    }
}

fn max_live_bytes(buffers: &[Buffer]) -> u64 {
    // The end event of a buffer comes one step after its last step, because both ends are included.
    let mut events: Vec<(u64, i128)> = Vec::with_capacity(2 * buffers.len());
    for b in buffers {
        events.push((u64::from(b.first), i128::from(b.bytes)));
        events.push((u64::from(b.last) + 1, -i128::from(b.bytes)));
    }
    events.sort_unstable();
    let (mut alive, mut most) = (0i128, 0i128);
    for (_, change) in events {
        alive += change;
        most = most.max(alive);
    }
    most as u64
}

/// The offsets of buffers that are assigned one after another, and the peak.
fn offsets_in_order(buffers: &[Buffer], order: &[usize]) -> (Vec<u64>, u64) {
    let mut offsets = vec![0u64; buffers.len()];
    // Contiguous, because each buffer is compared with all earlier ones.
    let mut placed: Vec<(Buffer, u64)> = Vec::with_capacity(buffers.len());
    let mut peak = 0;
    for &i in order {
        offsets[i] = assign(&mut placed, buffers[i]);
        peak = peak.max(offsets[i] + buffers[i].bytes);
    }
    (offsets, peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64, n: usize) -> Vec<Buffer> {
        let mut r = of_ops::sample::Rng::new(seed);
        (0..n)
            .map(|_| {
                let first = r.int(0, 40) as u32;
                Buffer { bytes: r.int(0, 1000) as u64, first, last: first + r.int(0, 12) as u32 }
            })
            .collect()
    }

    #[test]
    fn buffers_of_overlapping_lifetimes_have_disjoint_memory() {
        for seed in 0..200 {
            let b = random(seed, 40);
            check(&b, &pack(&b, 64), &format!("seed {seed}"));
        }
    }

    #[test]
    fn order_of_time_is_a_packing_without_quadratic_search() {
        for seed in 0..200 {
            // Buffers without bytes may be anywhere.
            let sized = |b: &Buffer| Buffer { bytes: b.bytes.next_multiple_of(64).max(64), ..*b };
            let b: Vec<Buffer> = random(seed, 40).iter().map(sized).collect();
            let mut order: Vec<usize> = (0..b.len()).collect();
            of_ir::sort::by_key(&mut order, |i| (b[*i].first, *i));
            let (offsets, peak) = offsets_in_time(&b);
            // A buffer that begins later than all before sees the gaps between the live ones, as the general search does.
            assert_eq!((offsets, peak), offsets_in_order(&b, &order), "seed {seed}");
        }
    }

    fn check(b: &[Buffer], p: &Packing, what: &str) {
        assert!(p.peak >= p.lower_bound);
        for i in 0..b.len() {
            assert!(p.offsets[i].is_multiple_of(64) && p.offsets[i] + b[i].bytes <= p.peak);
            for j in 0..i {
                let apart = p.offsets[i] + b[i].bytes <= p.offsets[j] || p.offsets[j] + b[j].bytes <= p.offsets[i];
                assert!(!b[i].overlaps(&b[j]) || apart, "{what}: {i} and {j}");
            }
        }
    }

    #[test]
    fn packings_of_few_buffers_are_optimal() {
        for seed in 0..100 {
            let p = pack(&random(seed, 40), 64);
            assert_eq!(p.peak, p.lower_bound, "seed {seed}");
        }
    }

    /// Tries all orders, each buffer as low as earlier ones allow: this reaches every packing that cannot be compacted.
    fn least(buffers: &[Buffer], placed: &mut Vec<(Buffer, u64)>, waiting: &[usize]) -> u64 {
        let peak = placed.iter().map(|(b, at)| at + b.bytes).max().unwrap_or(0);
        let tried = waiting.iter().map(|i| {
            let b = buffers[*i];
            let top = |(c, at): &(Buffer, u64)| if c.overlaps(&b) { at + c.bytes } else { 0 };
            let at = placed.iter().map(top).max().unwrap_or(0);
            placed.push((b, at));
            let rest: Vec<usize> = waiting.iter().copied().filter(|j| j != i).collect();
            let peak = least(buffers, placed, &rest);
            placed.pop();
            peak
        });
        tried.min().unwrap_or(peak)
    }

    /// Asserts that the search finds and proves the least memory.
    fn assert_optimal(buffers: &[Buffer], what: &str) -> Packing {
        let lower_bound = max_live_bytes(buffers);
        let mut p = Packing { offsets: Vec::new(), peak: u64::MAX, lower_bound };
        exact::search(buffers, &mut p);
        let all: Vec<usize> = (0..buffers.len()).collect();
        assert_eq!(p.peak, least(buffers, &mut Vec::new(), &all), "{what}");
        assert_eq!(p.lower_bound, p.peak, "{what}");
        check(buffers, &p, what);
        p
    }

    #[test]
    fn complete_search_finds_the_least_memory() {
        for seed in 0..300 {
            let mut r = of_ops::sample::Rng::new(seed);
            let buffers: Vec<Buffer> = (0..7)
                .map(|_| {
                    let first = r.int(0, 5) as u32;
                    Buffer { bytes: 64 * r.int(0, 6) as u64, first, last: first + r.int(0, 3) as u32 }
                })
                .collect();
            assert_optimal(&buffers, &format!("seed {seed}"));
        }
    }

    #[test]
    fn least_memory_may_exceed_the_most_live_bytes() {
        let of = [
            (2, 0, 0),
            (2, 0, 1),
            (2, 0, 0),
            (1, 1, 2),
            (3, 1, 3),
            (1, 2, 2),
            (1, 2, 3),
            (2, 3, 4),
            (2, 4, 4),
            (2, 4, 4),
        ];
        let buffers = of.map(|(units, first, last)| Buffer { bytes: 64 * units, first, last });
        assert_eq!((max_live_bytes(&buffers), assert_optimal(&buffers, "six units live").peak), (6 * 64, 7 * 64));
    }

    #[test]
    fn empty_packing_has_no_peak() {
        assert_eq!(pack(&[], 64), Packing { offsets: Vec::new(), peak: 0, lower_bound: 0 });
    }

    #[test]
    fn a_chain_needs_its_two_largest_neighbours() {
        let b: Vec<Buffer> = (0..10).map(|i| Buffer { bytes: 64, first: i, last: i + 1 }).collect();
        let p = pack(&b, 64);
        assert_eq!((p.peak, p.lower_bound), (128, 128));
    }
}
