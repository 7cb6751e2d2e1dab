//! Owned bytes at the alignment that kernels want.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Owned bytes that start at a multiple of 64.
#[derive(Clone, Default)]
pub struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    /// That many zeros.
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line([0; 64]); len.div_ceil(64)], len }
    }

    /// How many bytes it can hold without a new allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.lines.len() * 64
    }

    /// The same memory with another length, as long as it can hold that; the bytes are whatever they were.
    pub(crate) fn with_len(mut self, len: usize) -> Self {
        self.len = len.min(self.capacity());
        self
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut aligned = Self::zeroed(bytes.len());
        aligned.copy_from_slice(bytes);
        aligned
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `lines` holds at least `len` initialised bytes one after another (a `Line` is 64 bytes without
        // padding), and they are borrowed as long as `self` is.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively; every byte pattern is a valid `Line`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl PartialEq for AlignedBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}
