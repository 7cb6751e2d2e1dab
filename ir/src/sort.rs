//! Stable sorts that share one compiled implementation.
//!
//! The standard library compiles a sort of about 6 kB for each type and comparison. These sort positions through a function pointer and
//! then move the elements, which is enough wherever sorting takes no measurable time.

use std::cmp::Ordering;

/// Sorts by a comparison; equal elements keep their order.
pub fn by<T>(list: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let order = sorted_positions(list.len(), &|a, b| compare(&list[a], &list[b]));
    arrange(list, order);
}

/// Sorts by a key; elements with equal keys keep their order.
pub fn by_key<T, K: Ord>(list: &mut [T], key: impl Fn(&T) -> K) {
    by(list, |a, b| key(a).cmp(&key(b)));
}

/// The positions `0..n` in the order of `compare`.
fn sorted_positions(n: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| compare(*a, *b));
    order
}

/// Moves each element `order[i]` to position `i`.
fn arrange<T>(list: &mut [T], mut order: Vec<usize>) {
    for i in 0..order.len() {
        // Follow the cycle that begins here; a position that has its element refers to itself.
        let mut at = i;
        while order[at] != i {
            let from = order[at];
            list.swap(at, from);
            order[at] = at;
            at = from;
        }
        order[at] = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_are_those_of_the_standard_library() {
        let mut state = 1u64;
        for n in 0..200 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as usize % (n / 2 + 1)
            };
            let list: Vec<(usize, usize)> = (0..n).map(|i| (next(), i)).collect();
            let (mut got, mut want) = (list.clone(), list.clone());
            by_key(&mut got, |x| x.0);
            want.sort_by_key(|x| x.0);
            assert_eq!(got, want);
            by(&mut got, |a, b| b.1.cmp(&a.1));
            want.sort_by_key(|x| std::cmp::Reverse(x.1));
            assert_eq!(got, want);
        }
    }
}
