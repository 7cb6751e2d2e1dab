//! Checksums of sections.
//!
//! XXH3 with 128 bits, over those of leaves of 1 MiB, so that all cores share the work: reading a mapped file is then
//! bound by its page faults. They find what a disk or a transfer damaged; they are no signature.

use rayon::prelude::*;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// 128 bits, the lowest first.
pub(crate) type Checksum = [u8; 16];

const LEAF: usize = 1 << 20;

/// The checksum of bytes that are at hand.
pub(crate) fn checksum(bytes: &[u8]) -> Checksum {
    let leaves: Vec<Checksum> = bytes.par_chunks(LEAF).map(leaf).collect();
    leaf(leaves.as_flattened())
}

fn leaf(bytes: &[u8]) -> Checksum {
    xxh3_128(bytes).to_le_bytes()
}

/// The checksum of bytes that come piece by piece.
#[derive(Default)]
pub(crate) struct Hasher {
    leaves: Vec<Checksum>,
    /// The last leaf, with so many bytes.
    last: Xxh3,
    filled: usize,
}

impl Hasher {
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(LEAF - self.filled));
            self.last.update(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == LEAF {
                self.close();
            }
        }
    }

    pub(crate) fn finish(mut self) -> Checksum {
        if self.filled > 0 {
            self.close();
        }
        leaf(self.leaves.as_flattened())
    }

    fn close(&mut self) {
        self.leaves.push(self.last.digest128().to_le_bytes());
        self.last.reset();
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of any lengths give what the whole gives, at the ends of leaves too.
    #[test]
    fn pieces() {
        let mut random = fastrand::Rng::with_seed(1);
        for len in [0, 1, 1000, LEAF - 1, LEAF, LEAF + 1, 2 * LEAF, 3 * LEAF + 17] {
            let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            let (mut hasher, mut rest) = (Hasher::default(), bytes.as_slice());
            while !rest.is_empty() {
                let (piece, later) = rest.split_at(random.usize(0..=rest.len()));
                hasher.update(piece);
                rest = later;
            }
            assert_eq!(hasher.finish(), checksum(&bytes), "{len} bytes");
        }
    }

    /// A changed bit changes the checksum, wherever it is.
    #[test]
    fn changes() {
        let mut bytes = vec![0; 2 * LEAF + 5];
        let whole = checksum(&bytes);
        for at in [0, LEAF - 1, LEAF, 2 * LEAF + 4] {
            bytes[at] ^= 1;
            assert_ne!(checksum(&bytes), whole, "byte {at}");
            bytes[at] ^= 1;
        }
        assert_ne!(checksum(&bytes[..2 * LEAF]), whole);
    }
}
