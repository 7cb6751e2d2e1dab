//! The order of the samples of an epoch.

/// The order of samples in an epoch: the same for one seed on every machine.
pub fn sample_order(samples: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    random_of(seed, epoch).shuffle(&mut order);
    order
}

/// The random numbers of the order of an epoch.
pub(super) fn random_of(seed: u64, epoch: usize) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed ^ (epoch as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_order_depends_on_seed_and_epoch_alone() {
        assert_eq!(sample_order(100, 3, 1), sample_order(100, 3, 1));
        assert_ne!(sample_order(100, 3, 1), sample_order(100, 3, 2));
        assert_ne!(sample_order(100, 3, 1), sample_order(100, 4, 1));
    }
}
