//! The contents of a section while a plan is built: blobs at offsets, each distinct one stored once.
//!
//! Equal weights are stored once (weight deduplication).

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::checksum::{Checksum, checksum};
use crate::format::{VALUE_ALIGN, align_up};
use crate::mapped_bytes::MappedBytes;

/// Bytes and their offset in a section. They are copied only when the file is written.
#[derive(Clone)]
pub(crate) struct Blob<'a> {
    pub offset: u64,
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync + 'a>,
}

impl<'a> Blob<'a> {
    /// Bytes at an offset.
    pub fn new(offset: u64, bytes: impl AsRef<[u8]> + Send + Sync + 'a) -> Self {
        Self { offset, bytes: Arc::new(bytes) }
    }

    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// The offset of its end in the section.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes().len() as u64
    }
}

impl fmt::Debug for Blob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.bytes().len(), self.offset)
    }
}

/// The blobs of a section, by ascending offset. Equal bytes are kept once.
#[derive(Debug, Default)]
pub(crate) struct Blobs<'a> {
    all: Vec<Blob<'a>>,
    by_checksum: HashMap<Checksum, Vec<usize>>,
}

impl<'a> Blobs<'a> {
    /// Adds bytes, unless equal ones are there already, and returns their offset.
    pub fn add(&mut self, bytes: impl AsRef<[u8]> + Send + Sync + 'a) -> u64 {
        let alike = self.by_checksum.entry(checksum(bytes.as_ref())).or_default();
        if let Some(&i) = alike.iter().find(|i| self.all[**i].bytes() == bytes.as_ref()) {
            return self.all[i].offset;
        }
        alike.push(self.all.len());
        let offset = align_up(self.all.last().map_or(0, Blob::end), VALUE_ALIGN);
        self.all.push(match zeros(bytes.as_ref()) {
            Some(pages) => Blob::new(offset, pages),
            None => Blob::new(offset, bytes),
        });
        offset
    }
}

/// Zeros from this size on take no memory.
const ZEROS_FROM: usize = 1 << 20;

/// Pages that were never written, which take no memory, in place of many zeros: gradients by scattering begin with such constants.
fn zeros(bytes: &[u8]) -> Option<MappedBytes> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let all_zero = bytes.len() >= ZEROS_FROM && bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()]);
    // Without memory for it, the bytes stay as they are.
    if all_zero { MappedBytes::fill(bytes.len(), |_| Ok(())).ok() } else { None }
}

impl<'a> Deref for Blobs<'a> {
    type Target = [Blob<'a>];

    fn deref(&self) -> &[Blob<'a>] {
        &self.all
    }
}
