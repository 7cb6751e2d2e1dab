//! The layout of a plan file.
//!
//! ```text
//! 0      magic (8)  version (4)  sections (4)  file length (8)  zero (8)  checksum of bytes 0..32 and the table (16)
//! 48     table: kind (4) zero (4) offset (8) length (8) zero (8) checksum (16), one entry a section, kinds ascending
//! 4096   sections, each at the first multiple of 4096 after the one before
//! ```
//! Numbers are little-endian. Every byte is covered: the header and the table by the header's checksum, sections by
//! their own, and the gaps must be zero. As the layout leaves no freedom, sections cannot overlap.

use crate::OpenError;
use crate::checksum::{Checksum, checksum};

/// The format version that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 8;
/// Sections start at multiples of this, so that they can be mapped by page.
pub const SECTION_ALIGN: u64 = 4096;
/// Weights and kernels start at multiples of this inside their sections.
pub const VALUE_ALIGN: u64 = 64;

/// The first bytes of every plan.
pub const MAGIC: [u8; 8] = *b"\x89OFPLAN\n";
pub(crate) const HEADER_LEN: usize = 48;
const ENTRY_LEN: usize = 48;
const MAX_SECTIONS: usize = 16;

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum SectionKind {
    /// The [`crate::Plan`], as a protocol buffer.
    Structure = 1,
    /// Kernels.
    Code = 2,
    /// Weights.
    Weights = 3,
    /// Bytes for backends.
    Payload = 4,
    /// The checksums of the leaves of all other sections, where one has more than one leaf.
    Leaves = 5,
}

impl SectionKind {
    /// Every kind of contents, in the order of the file.
    pub const ALL: [SectionKind; 4] = [Self::Structure, Self::Code, Self::Weights, Self::Payload];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            SectionKind::Structure => "structure",
            SectionKind::Code => "code",
            SectionKind::Weights => "weights",
            SectionKind::Payload => "payload",
            SectionKind::Leaves => "leaves",
        }
    }
}

/// An entry of the table of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub kind: SectionKind,
    pub offset: u64,
    pub len: u64,
    pub checksum: Checksum,
}

/// The next multiple of `align` (a power of two), or the largest number when there is none.
pub(crate) fn align_up(value: u64, align: u64) -> u64 {
    value.checked_add(align - 1).map_or(u64::MAX, |sum| sum & !(align - 1))
}

/// The header and the table of a file with these sections.
pub(crate) fn encode_header(sections: &[Section]) -> Vec<u8> {
    let end = sections.last().map_or(SECTION_ALIGN, |last| last.offset + last.len);
    let mut bytes = Vec::with_capacity(SECTION_ALIGN as usize);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&(sections.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&end.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[0; 16]);
    for section in sections {
        bytes.extend_from_slice(&(section.kind as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&section.offset.to_le_bytes());
        bytes.extend_from_slice(&section.len.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&section.checksum);
    }
    let checksum = header_checksum(&bytes, HEADER_LEN + sections.len() * ENTRY_LEN);
    bytes[32..HEADER_LEN].copy_from_slice(&checksum);
    bytes.resize(SECTION_ALIGN as usize, 0);
    bytes
}

fn header_checksum(bytes: &[u8], table_end: usize) -> Checksum {
    checksum(&[&bytes[..32], &bytes[HEADER_LEN..table_end]].concat())
}

/// Reads the header and the table, and checks all of the layout; the sections' checksums are left to the caller.
pub(crate) fn decode_header(bytes: &[u8]) -> Result<Vec<Section>, OpenError> {
    if bytes.get(..8).is_none_or(|magic| magic != MAGIC) {
        return Err(OpenError::NotAPlan);
    }
    if bytes.len() < SECTION_ALIGN as usize {
        return Err(damaged("the file ends inside of its header"));
    }
    let version = u32_at(bytes, 8);
    // The version comes first: the rest of the header may be laid out otherwise in other versions.
    if version > FORMAT_VERSION {
        return Err(OpenError::NewerVersion { found: version, supported: FORMAT_VERSION });
    }
    if version < FORMAT_VERSION {
        return Err(OpenError::OldVersion { found: version, supported: FORMAT_VERSION });
    }
    let count = u32_at(bytes, 12) as usize;
    if count > MAX_SECTIONS {
        return Err(damaged(format!("the header has {count} sections")));
    }
    let table_end = HEADER_LEN + count * ENTRY_LEN;
    if header_checksum(bytes, table_end) != bytes[32..HEADER_LEN] {
        return Err(damaged("the checksum of the header does not match"));
    }
    if u64_at(bytes, 16) != bytes.len() as u64 {
        return Err(damaged(format!("the file has {} bytes and should have {}", bytes.len(), u64_at(bytes, 16))));
    }
    let sections = (0..count).map(|i| decode_entry(&bytes[HEADER_LEN + i * ENTRY_LEN..][..ENTRY_LEN]));
    let sections = sections.collect::<Result<Vec<_>, _>>()?;
    check_layout(bytes, &sections, table_end as u64)?;
    Ok(sections)
}

fn decode_entry(entry: &[u8]) -> Result<Section, OpenError> {
    let number = u32_at(entry, 0);
    let kind = SectionKind::ALL.into_iter().chain([SectionKind::Leaves]).find(|&kind| kind as u32 == number);
    let kind = kind.ok_or_else(|| malformed(format!("section kind {number} is not known")))?;
    if entry[4..8] != [0; 4] || entry[24..32] != [0; 8] {
        return Err(malformed(format!("reserved fields of the {} section are set", kind.name())));
    }
    let mut checksum = Checksum::default();
    checksum.copy_from_slice(&entry[32..ENTRY_LEN]);
    Ok(Section { kind, offset: u64_at(entry, 8), len: u64_at(entry, 16), checksum })
}

/// Sections must stand in order, each at the first aligned place, with zeros between them, up to the file's end.
fn check_layout(bytes: &[u8], sections: &[Section], table_end: u64) -> Result<(), OpenError> {
    if bytes[24..32] != [0; 8] {
        return Err(malformed("reserved fields of the header are set"));
    }
    let mut end = table_end;
    let mut previous = None;
    for section in sections {
        let name = section.kind.name();
        if previous >= Some(section.kind) {
            return Err(malformed(format!("the {name} section is repeated or out of order")));
        }
        previous = Some(section.kind);
        if section.offset != align_up(end, SECTION_ALIGN) {
            return Err(malformed(format!("the {name} section does not start where the one before it ends")));
        }
        let next = section.offset.checked_add(section.len).filter(|&next| next <= bytes.len() as u64);
        let next = next.ok_or_else(|| malformed(format!("the {name} section reaches past the end of the file")))?;
        check_zero(&bytes[end as usize..section.offset as usize], name)?;
        end = next;
    }
    if sections.is_empty() || end != bytes.len() as u64 {
        return Err(malformed("the sections do not fill the file"));
    }
    Ok(())
}

fn check_zero(gap: &[u8], next: &str) -> Result<(), OpenError> {
    match gap.iter().position(|&byte| byte != 0) {
        Some(_) => Err(damaged(format!("the gap before the {next} section is not zero"))),
        None => Ok(()),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

pub(crate) fn damaged(what: impl Into<String>) -> OpenError {
    OpenError::Damaged { what: what.into() }
}

pub(crate) fn malformed(what: impl Into<String>) -> OpenError {
    OpenError::Malformed { what: what.into() }
}
