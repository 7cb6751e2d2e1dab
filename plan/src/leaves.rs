//! The leaves of a file's sections: parts of 1 MiB that are verified one by one, so that who needs a part of a file reads no more.
//!
//! The checksums of all leaves are a section at the end of the file, where some section has more than one. That they are the right ones
//! follows from the checksums of the sections, which are made of them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::OpenError;
use crate::checksum::{Checksum, LEAF, leaf, leaf_count, root};
use crate::format::{Section, SectionKind, damaged, malformed};

/// The checksums of the leaves of each section, in the order of the table.
pub(crate) type LeafTable<'a> = Vec<&'a [Checksum]>;

/// Whether files with sections of these sizes have checksums of leaves.
pub(crate) fn has_leaves(sections: impl IntoIterator<Item = u64>) -> bool {
    sections.into_iter().any(|len| len > LEAF as u64)
}

/// The checksums of leaves in a file; `None` where each section is one leaf at most.
pub(crate) fn table<'a>(bytes: &'a [u8], sections: &[Section]) -> Result<Option<LeafTable<'a>>, OpenError> {
    let contents = || sections.iter().filter(|section| section.kind != SectionKind::Leaves);
    let stored = sections.iter().find(|section| section.kind == SectionKind::Leaves);
    let expected = has_leaves(contents().map(|section| section.len));
    let Some(stored) = stored.filter(|_| expected) else {
        return match expected == stored.is_some() {
            true => Ok(None),
            false => Err(malformed("a section of leaves is missing, or is not needed")),
        };
    };
    let stored = bytes.get(stored.offset as usize..(stored.offset + stored.len) as usize).unwrap_or_default();
    let (mut rest, uneven) = stored.as_chunks::<16>();
    let mut table = Vec::with_capacity(sections.len());
    for section in contents() {
        let Some((own, later)) = rest.split_at_checked(leaf_count(section.len)) else {
            return Err(malformed("the section of leaves is too short"));
        };
        if root(own) != section.checksum {
            let name = section.kind.name();
            return Err(damaged(format!("the checksums of the leaves of the {name} section do not match its own")));
        }
        table.push(own);
        rest = later;
    }
    match rest.is_empty() && uneven.is_empty() {
        true => Ok(Some(table)),
        false => Err(malformed("the section of leaves is too long")),
    }
}

/// The leaves of a section of a file that is read in part.
#[derive(Debug)]
pub(crate) struct Leaves {
    kind: SectionKind,
    checksums: Vec<Checksum>,
    verified: Vec<AtomicBool>,
}

impl Leaves {
    /// Of which none is verified.
    pub fn new(kind: SectionKind, checksums: &[Checksum]) -> Leaves {
        let verified = checksums.iter().map(|_| AtomicBool::new(false)).collect();
        Leaves { kind, checksums: checksums.to_vec(), verified }
    }

    pub fn kind(&self) -> SectionKind {
        self.kind
    }

    /// Verifies the leaves of the section with a range of its bytes that were not verified before.
    ///
    /// # Errors
    /// When one is damaged.
    pub fn verify(&self, section: &[u8], range: Range<u64>) -> Result<(), OpenError> {
        let (first, end) = (range.start as usize / LEAF, (range.end as usize).div_ceil(LEAF));
        for number in first..if range.is_empty() { first } else { end } {
            let known = self.verified.get(number).zip(self.checksums.get(number));
            let Some((verified, checksum)) = known else { return Err(malformed("a range is outside of its section")) };
            if verified.load(Ordering::Acquire) {
                continue;
            }
            let start = number * LEAF;
            let bytes = section.get(start..section.len().min(start + LEAF)).unwrap_or_default();
            if leaf(bytes) != *checksum {
                let name = self.kind.name();
                return Err(damaged(format!("the checksum of leaf {number} of the {name} section does not match")));
            }
            verified.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Leaves that are verified.
    pub fn count(&self) -> usize {
        self.verified.iter().filter(|verified| verified.load(Ordering::Acquire)).count()
    }
}
