//! Checksums of sections.
//!
//! A section's checksum is the XXH3-128 of the XXH3-128 checksums of its leaves of 1 MiB. So all cores share the work, and
//! page faults bound the time to read a mapped file. Checksums detect damage by a disk or a transfer; they are no
//! signature.

#[cfg(feature = "parallel")]
use rayon::prelude::*;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// 128 bits, the lowest first.
pub(crate) type Checksum = [u8; 16];

/// Bytes of a leaf.
pub(crate) const LEAF: usize = 1 << 20;

/// The checksum of bytes in memory.
pub(crate) fn checksum(bytes: &[u8]) -> Checksum {
    #[cfg(feature = "parallel")]
    let leaves: Vec<Checksum> = bytes.par_chunks(LEAF).map(leaf).collect();
    #[cfg(not(feature = "parallel"))]
    let leaves: Vec<Checksum> = bytes.chunks(LEAF).map(leaf).collect();
    root(&leaves)
}

/// The checksum of a section whose leaves have these.
pub(crate) fn root(leaves: &[Checksum]) -> Checksum {
    leaf(leaves.as_flattened())
}

/// Leaves of so many bytes.
pub(crate) fn leaf_count(len: u64) -> usize {
    len.div_ceil(LEAF as u64) as usize
}

/// The checksum of a leaf.
pub(crate) fn leaf(bytes: &[u8]) -> Checksum {
    xxh3_128(bytes).to_le_bytes()
}

/// An incremental checksum.
#[derive(Default)]
pub(crate) struct Hasher {
    leaves: Vec<Checksum>,
    /// The last, incomplete leaf and its length.
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

    pub(crate) fn finish(self) -> Checksum {
        root(&self.leaves())
    }

    /// The checksums of the leaves.
    pub(crate) fn leaves(mut self) -> Vec<Checksum> {
        if self.filled > 0 {
            self.close();
        }
        self.leaves
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

    /// An incremental checksum equals that of the whole, at the ends of leaves too.
    #[test]
    fn incremental_checksum_equals_that_of_the_whole() {
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
    fn any_changed_bit_changes_the_checksum() {
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
