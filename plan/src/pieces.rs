//! The bytes of a section while a plan is built.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

use crate::checksum::{Checksum, checksum};
use crate::format::{VALUE_ALIGN, align_up};

/// Bytes and their offset in a section; they lie somewhere else until they are written.
pub(crate) struct Piece<'a> {
    pub offset: u64,
    bytes: Box<dyn AsRef<[u8]> + 'a>,
}

impl<'a> Piece<'a> {
    /// Bytes at an offset.
    pub fn new(offset: u64, bytes: impl AsRef<[u8]> + 'a) -> Self {
        Self { offset, bytes: Box::new(bytes) }
    }

    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Where it ends in its section.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes().len() as u64
    }
}

impl fmt::Debug for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.bytes().len(), self.offset)
    }
}

/// The pieces of a section, by ascending offset. Equal bytes are kept once.
#[derive(Debug, Default)]
pub(crate) struct Pieces<'a> {
    all: Vec<Piece<'a>>,
    by_checksum: HashMap<Checksum, Vec<usize>>,
}

impl<'a> Pieces<'a> {
    /// The offset at which these bytes are, now or already.
    pub fn add(&mut self, bytes: impl AsRef<[u8]> + 'a) -> u64 {
        let alike = self.by_checksum.entry(checksum(bytes.as_ref())).or_default();
        if let Some(&i) = alike.iter().find(|i| self.all[**i].bytes() == bytes.as_ref()) {
            return self.all[i].offset;
        }
        alike.push(self.all.len());
        let offset = align_up(self.all.last().map_or(0, Piece::end), VALUE_ALIGN);
        self.all.push(Piece::new(offset, bytes));
        offset
    }
}

impl<'a> Deref for Pieces<'a> {
    type Target = [Piece<'a>];

    fn deref(&self) -> &[Piece<'a>] {
        &self.all
    }
}
