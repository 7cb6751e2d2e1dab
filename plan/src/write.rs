//! Writing a plan: one pass over the bytes, into a file that is replaced atomically.

use std::io::{self, BufWriter, Cursor, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::blobs::Blob;
use crate::checksum::{Checksum, Hasher, leaf_count, root};
use crate::format::{SECTION_ALIGN, Section, SectionKind, align_up, encode_header};
use crate::leaves::has_leaves;
use crate::{PlanBuilder, WriteError, verify};
use of_files::AtomicFile;
use prost::Message;

impl PlanBuilder<'_> {
    /// Verifies the plan and writes it: a reader sees the old file or the new one and never a part of it, and the
    /// checksums detect a file that a power failure truncated.
    pub fn write_file(&self, path: impl AsRef<Path>) -> Result<(), WriteError> {
        let path = path.as_ref();
        verify(&self.plan).map_err(WriteError::Invalid)?;
        let write = || {
            let file = AtomicFile::new(path)?;
            let mut writer = BufWriter::with_capacity(1 << 20, file.create()?);
            self.stream(&mut writer)?;
            writer.flush()?;
            file.keep()
        };
        write().map_err(|source| WriteError::Io { path: path.to_owned(), source })
    }

    /// Verifies the plan and packs it into memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WriteError> {
        verify(&self.plan).map_err(WriteError::Invalid)?;
        self.pack()
    }

    /// Packs without verifying, for tests of the verifier and of readers.
    #[doc(hidden)]
    pub fn to_bytes_unverified(&self) -> Result<Vec<u8>, WriteError> {
        self.pack()
    }

    fn pack(&self) -> Result<Vec<u8>, WriteError> {
        let mut cursor = Cursor::new(Vec::new());
        self.stream(&mut cursor).map_err(|source| WriteError::Io { path: PathBuf::from("<memory>"), source })?;
        Ok(cursor.into_inner())
    }

    fn stream(&self, out: &mut (impl Write + Seek)) -> io::Result<()> {
        let structure = [Blob::new(0, self.plan.encode_to_vec())];
        stream([&structure, &self.code, &self.weights, &self.payload], out)
    }
}

/// A file with another structure and checksums that hold, for tests of the verifier and of readers.
///
/// # Panics
/// When the bytes are not a plan.
#[doc(hidden)]
pub fn with_structure(file: &[u8], structure: Vec<u8>) -> Vec<u8> {
    let sections = crate::format::decode_header(file).expect("a plan");
    let blobs = SectionKind::ALL.map(|kind| match kind {
        SectionKind::Structure => vec![Blob::new(0, structure.clone())],
        _ => {
            let own = sections.iter().filter(|section| section.kind == kind);
            own.map(|s| Blob::new(0, &file[s.offset as usize..(s.offset + s.len) as usize])).collect()
        }
    });
    let mut cursor = Cursor::new(Vec::new());
    stream(blobs.each_ref().map(Vec::as_slice), &mut cursor).expect("memory can be written");
    cursor.into_inner()
}

/// Writes a plan with the sections of [`SectionKind::ALL`].
pub(crate) fn stream(contents: [&[Blob<'_>]; 4], out: &mut (impl Write + Seek)) -> io::Result<()> {
    let mut writer = SectionWriter { out, position: 0, sections: Vec::new() };
    // The header is known only at the end, when everything is hashed; space for it is left free.
    writer.pad_to(SECTION_ALIGN)?;
    let mut leaves = Vec::new();
    for (kind, blobs) in SectionKind::ALL.into_iter().zip(contents) {
        leaves.extend(writer.section(kind, blobs)?);
    }
    if has_leaves(contents.map(end)) {
        writer.section(SectionKind::Leaves, &[Blob::new(0, leaves.as_flattened())])?;
    }
    let SectionWriter { out, sections, .. } = writer;
    let header = encode_header(&sections);
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&header)
}

struct SectionWriter<'a, W> {
    out: &'a mut W,
    position: u64,
    sections: Vec<Section>,
}

impl<W: Write> SectionWriter<'_, W> {
    /// Writes a section. Returns the checksums of its leaves.
    fn section(&mut self, kind: SectionKind, blobs: &[Blob<'_>]) -> io::Result<Vec<Checksum>> {
        let len = end(blobs);
        // An empty section is left out, so that the file ends with the last byte of the last section.
        if len == 0 {
            return Ok(Vec::new());
        }
        self.pad_to(align_up(self.position, SECTION_ALIGN))?;
        let offset = self.position;
        let mut hasher = Hasher::default();
        for blob in blobs {
            let gap = offset + blob.offset - self.position;
            hasher.update(&ZEROS[..gap as usize]);
            self.pad_to(offset + blob.offset)?;
            let bytes = blob.bytes();
            hasher.update(bytes);
            self.out.write_all(bytes)?;
            self.position += bytes.len() as u64;
            of_files::release(bytes);
        }
        let leaves = hasher.leaves();
        self.sections.push(Section { kind, offset, len, checksum: root(&leaves) });
        Ok(leaves)
    }

    fn pad_to(&mut self, position: u64) -> io::Result<()> {
        self.out.write_all(&ZEROS[..(position - self.position) as usize])?;
        self.position = position;
        Ok(())
    }
}

/// Bytes of a section.
pub(crate) fn end(blobs: &[Blob<'_>]) -> u64 {
    blobs.last().map_or(0, Blob::end)
}

/// Bytes of a file whose sections have these sizes.
pub(crate) fn sections_len(sections: [u64; 4]) -> u64 {
    let leaves = sections.into_iter().map(leaf_count).sum::<usize>() as u64 * size_of::<Checksum>() as u64;
    let leaves = has_leaves(sections).then_some(leaves);
    let sections = sections.into_iter().chain(leaves).filter(|len| *len > 0);
    sections.fold(SECTION_ALIGN, |at, len| align_up(at, SECTION_ALIGN) + len)
}

/// The checksum of a section with these blobs.
pub(crate) fn sections_checksum(blobs: &[Blob<'_>]) -> Checksum {
    let (mut hasher, mut at) = (Hasher::default(), 0);
    for blob in blobs {
        hasher.update(&ZEROS[..(blob.offset - at) as usize]);
        hasher.update(blob.bytes());
        at = blob.end();
    }
    hasher.finish()
}

/// No gap is larger than a section's alignment.
const ZEROS: [u8; SECTION_ALIGN as usize] = [0; SECTION_ALIGN as usize];
