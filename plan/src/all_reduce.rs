//! The algorithms of an all-reduce, each as the transfers that it is made of.

use crate::layout::{AxisLayout, LayoutKind};
use crate::transfer::Transfer;

/// How ranks reduce partial values that all of them need.
///
/// With `n` ranks, `b` bytes, a rendezvous that takes `a` seconds, a message that costs its rank `o` seconds, and `g` seconds per byte, a rank needs about
///
/// | algorithm | seconds |
/// |---|---|
/// | [`AllReduce::Exchange`] | `a + (n - 1) (o + b g)` |
/// | [`AllReduce::ReduceScatter`] | `2 (a + (n - 1) o) + 2 (n - 1) / n b g` |
/// | [`AllReduce::HalvingDoubling`] | `2 (k a + m o) + 2 (n - 1) / n b g`, and passes over partial sums |
///
/// where `n` is the product of `k` prime factors, whose sum less `k` is `m`: `k` and `m` are `log2(n)` for a power of two. A ring would send the bytes of the
/// second row in `2 (n - 1)` rounds that wait for one another, `2 (n - 1) (a + o)`. The messages of the second row go straight to their receivers, so it is never slower.
///
/// Each element of a reduction is combined on one rank or, in the exchange, in one order on all of them. So all ranks get the same bits. That order is the
/// order of the ranks' numbers in the first two. The third combines neighbours first: `(x0 + x1) + (x2 + x3)`. A number of ranks always uses the same order for a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduce {
    /// Each rank reads the values of all others: one rendezvous, for short messages.
    Exchange,
    /// Each rank reduces a slice, and gathers those of the others: two rendezvous, as Thakur, Rabenseifner and Gropp do for long messages
    /// ("Optimization of Collective Communication Operations in MPICH", 2005).
    ReduceScatter,
    /// Both of these in a round for each prime factor of the number of ranks: recursive halving and doubling (same source) for a power of two.
    /// Neighbours exchange in the first round, where blocks are largest.
    ///
    /// Other numbers of ranks need no extra ranks to fold in and out: the three ranks of a round with factor 3 exchange thirds. Folding would
    /// send the whole vector of each extra rank twice. A prime number of ranks has one round each way, which is [`AllReduce::ReduceScatter`].
    HalvingDoubling,
}

impl AllReduce {
    /// Bytes from which on a rank reads twice its data instead of the data of all ranks.
    const MIN_SCATTERED: u64 = 16384;
    /// Ranks from which on messages may take longer than their bytes.
    const MIN_HALVING_RANKS: u32 = 16;
    /// The largest slice of a rank whose message takes longer than its bytes.
    const MAX_HALVING_SLICE: u64 = 4096;

    /// The algorithm for so many ranks and bytes.
    ///
    /// `a` and `o` are not known when a plan is made: a rank may read another's memory, or send over a network. So the limits are those that were measured on
    /// both (docs/performance.md, "Messages between ranks"), and a plan takes halving only where both gain or lose little.
    pub fn of(ranks: u32, bytes: u64) -> Self {
        if ranks <= 2 || bytes < Self::MIN_SCATTERED {
            return Self::Exchange;
        }
        let is_short = ranks >= Self::MIN_HALVING_RANKS && bytes <= Self::MAX_HALVING_SLICE * u64::from(ranks);
        match is_short && prime_factors(ranks).len() > 1 {
            true => Self::HalvingDoubling,
            false => Self::ReduceScatter,
        }
    }

    /// The transfers of the reduction that `whole` describes, along one axis of so many ranks, in order. Their numbers ascend from that of `whole`.
    /// All but an exchange take the tensor as a flat list of elements.
    pub fn transfers(self, whole: &Transfer, ranks: u32) -> Vec<Transfer> {
        let factors = match self {
            Self::Exchange => return vec![whole.clone()],
            Self::ReduceScatter => Vec::new(),
            Self::HalvingDoubling => prime_factors(ranks),
        };
        let digits = factors.len().max(1);
        let (split, whole_again) = (AxisLayout::split(0), AxisLayout::of(LayoutKind::Broadcast));
        let mut now = vec![whole.from.first().copied().unwrap_or(whole_again); digits];
        let dims = vec![whole.dims.iter().product()];
        let rounds = (0..digits).map(|digit| (digit, split)).chain((0..digits).rev().map(|digit| (digit, whole_again)));
        let round = |(id, (digit, layout)): (u32, (usize, AxisLayout))| {
            let from = now.clone();
            now[digit] = layout;
            let (axes, dims, factors) = (whole.axes.clone(), dims.clone(), factors.clone());
            Transfer { id, axes, dims, from, to: now.clone(), factors }
        };
        (whole.id..).zip(rounds).map(round).collect()
    }
}

/// The prime factors of a number, ascending; of 1 none.
fn prime_factors(mut n: u32) -> Vec<u32> {
    let mut factors = Vec::new();
    let mut next = 2;
    while n > 1 && next <= n / next {
        match n % next {
            0 => {
                factors.push(next);
                n /= next;
            }
            _ => next += 1,
        }
    }
    factors.extend((n > 1).then_some(n));
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [AllReduce; 3] = [AllReduce::Exchange, AllReduce::ReduceScatter, AllReduce::HalvingDoubling];

    fn sum(dims: &[i64]) -> Transfer {
        let (from, to) = (vec![AxisLayout::of(LayoutKind::Sum)], vec![AxisLayout::of(LayoutKind::Broadcast)]);
        Transfer { id: 6, axes: vec![1], dims: dims.to_vec(), from, to, ..Transfer::default() }
    }

    /// The bytes that rank 0 sends in a round, in elements, and to how many ranks.
    fn sent(round: &Transfer, ranks: u32) -> (usize, usize) {
        let group = round.group(&[1, ranks as usize], 0);
        let sends = round.sends(&group);
        (sends.iter().map(|(_, block)| block.elements()).sum(), sends.len())
    }

    #[test]
    fn numbers_of_ranks_have_rounds_for_their_prime_factors() {
        let factors = [1, 2, 3, 4, 6, 7, 12, 30, 49, 97, 4096].map(prime_factors);
        let few: Vec<&[u32]> = factors[..10].iter().map(Vec::as_slice).collect();
        let want: [&[u32]; 10] = [&[], &[2], &[3], &[2, 2], &[2, 3], &[7], &[2, 2, 3], &[2, 3, 5], &[7, 7], &[97]];
        assert_eq!((few, factors[10].len()), (want.to_vec(), 12));
    }

    #[test]
    fn halving_sends_few_messages_and_as_few_bytes() {
        let rounds = |how: AllReduce, ranks| -> Vec<(usize, usize)> {
            how.transfers(&sum(&[4, 24]), ranks).iter().map(|round| sent(round, ranks)).collect()
        };
        assert_eq!(rounds(AllReduce::Exchange, 8), [(7 * 96, 7)]);
        assert_eq!(rounds(AllReduce::ReduceScatter, 8), [(84, 7), (84, 7)]);
        assert_eq!(rounds(AllReduce::HalvingDoubling, 8), [(48, 1), (24, 1), (12, 1), (12, 1), (24, 1), (48, 1)]);
        assert_eq!(rounds(AllReduce::HalvingDoubling, 6), [(48, 1), (32, 2), (32, 2), (48, 1)]);
        assert_eq!(rounds(AllReduce::HalvingDoubling, 7), rounds(AllReduce::ReduceScatter, 7));
    }

    #[test]
    fn neighbours_exchange_the_largest_blocks() {
        let rounds = AllReduce::HalvingDoubling.transfers(&sum(&[64]), 8);
        let partners = rounds.iter().map(|round| {
            let group = round.group(&[1, 8], 5);
            assert_eq!(group.ranks[group.me], 5);
            round.sends(&group).iter().map(|(to, _)| group.ranks[*to]).collect::<Vec<_>>()
        });
        assert_eq!(partners.collect::<Vec<_>>(), [[4], [7], [1], [1], [7], [4]]);
        assert_eq!(rounds.iter().map(|round| round.id).collect::<Vec<_>>(), [6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn rounds_are_well_formed_and_agree_for_all_ranks() {
        for ranks in 2..=24u32 {
            for how in ALL {
                for round in how.transfers(&sum(&[7, 15]), ranks) {
                    round.check(&[2, ranks as usize]).unwrap();
                    let groups = (0..2 * ranks).map(|rank| (rank, round.group(&[2, ranks as usize], rank)));
                    for (rank, group) in groups {
                        assert_eq!((group.ranks[group.me], group.ranks.len()), (rank, ranks as usize));
                        assert!(group.ranks.iter().all(|other| other / ranks == rank / ranks));
                    }
                }
            }
        }
        let halving = &AllReduce::HalvingDoubling.transfers(&sum(&[64]), 8)[0];
        for factors in [vec![2, 2], vec![2, 2, 2, 2], vec![u32::MAX; 3], vec![0, 2, 4]] {
            assert!(Transfer { factors, ..halving.clone() }.check(&[1, 8]).is_err());
        }
        assert!(Transfer { axes: vec![0, 1], ..halving.clone() }.check(&[1, 8]).is_err());
        // Readers of before there were factors expect a layout for each axis.
        assert!(Transfer { factors: Vec::new(), ..halving.clone() }.check(&[1, 8]).is_err());
    }

    #[test]
    fn the_algorithm_depends_on_ranks_and_bytes() {
        let of = |ranks, bytes| AllReduce::of(ranks, bytes);
        assert_eq!([of(2, 1 << 30), of(8, 4096), of(64, 16383)], [AllReduce::Exchange; 3]);
        assert_eq!([of(3, 16384), of(8, 65536), of(17, 65536), of(16, 65537)], [AllReduce::ReduceScatter; 4]);
        assert_eq!([of(16, 16384), of(16, 65536), of(60, 65536)], [AllReduce::HalvingDoubling; 3]);
    }
}
