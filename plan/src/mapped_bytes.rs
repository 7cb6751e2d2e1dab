//! The bytes of a plan in memory, page-aligned and read-only.

use std::fs::File;
use std::io;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

#[cfg(not(target_family = "wasm"))]
use memmap2::MmapOptions;
#[cfg(not(target_family = "wasm"))]
use of_files::MappedFile;

use crate::pages::{Mmap, MmapMut};

/// Memory of this size or more asks the system for huge pages: twice a huge page of x86-64.
#[cfg(target_os = "linux")]
const HUGE_PAGES_FROM: usize = 4 << 20;

/// `len` zeroed bytes, at least one, that start at a page boundary. Large ones use huge pages where the system
/// has them: reading weights from small pages takes 1.5 times as long, and half of the time of packing weights goes to
/// page faults.
///
/// # Errors
/// When the system has no such memory left.
pub fn zeroed_pages(len: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(len.max(1))?;
    #[cfg(target_os = "linux")]
    if len >= HUGE_PAGES_FROM {
        // Only a hint: without huge pages everything works, more slowly.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Ok(map)
}

/// Read-only bytes that start at a page boundary.
#[derive(Debug)]
pub(crate) struct MappedBytes {
    map: Map,
    /// A mapping cannot be empty, so empty input maps one byte.
    len: usize,
}

#[derive(Debug)]
enum Map {
    Memory(Mmap),
    #[cfg(not(target_family = "wasm"))]
    File(MappedFile),
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Map::Memory(map) => map,
            #[cfg(not(target_family = "wasm"))]
            Map::File(map) => map,
        }
    }
}

impl From<Mmap> for MappedBytes {
    fn from(map: Mmap) -> Self {
        Self { len: map.len(), map: Map::Memory(map) }
    }
}

impl AsRef<[u8]> for MappedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl MappedBytes {
    /// Maps a file, with its pages brought in at once: verifying the checksums reads all of them anyway.
    #[cfg(not(target_family = "wasm"))]
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::map(path, MmapOptions::new().populate())
    }

    /// A file, which cannot be mapped here.
    #[cfg(target_family = "wasm")]
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::read(path)
    }

    /// A file of which a part is read, which cannot be mapped here.
    #[cfg(target_family = "wasm")]
    pub fn file_in_part(path: &Path) -> io::Result<Self> {
        Self::read(path)
    }

    /// Maps a file of which a part is read.
    #[cfg(not(target_family = "wasm"))]
    pub fn file_in_part(path: &Path) -> io::Result<Self> {
        Self::map(path, &MmapOptions::new())
    }

    #[cfg(not(target_family = "wasm"))]
    fn map(path: &Path, options: &MmapOptions) -> io::Result<Self> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if meta.len() == 0 {
            return Self::copy(&[]);
        }
        // SAFETY: the map is private and read-only. Plans are written to a temporary name and renamed, so no writer of
        // this crate changes a file under a map. A foreign program that truncates or rewrites the file in place while
        // it is mapped breaks any mapped reader; that is the documented price of not copying the weights.
        let map = unsafe { options.map_copy_read_only(&file)? };
        Ok(Self { len: map.len(), map: Map::File(MappedFile::new(map)) })
    }

    /// Reads a file into page-aligned memory of this process.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let len = usize::try_from(meta.len()).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Self::fill(len, |to| file.read_exact(to))
    }

    /// Copies bytes into page-aligned memory.
    pub fn copy(bytes: &[u8]) -> io::Result<Self> {
        Self::fill(bytes.len(), |to| {
            to.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// Page-aligned memory of `len` bytes that `fill` writes.
    pub fn fill(len: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<Self> {
        let mut map = zeroed_pages(len)?;
        fill(&mut map[..len])?;
        Ok(Self { map: Map::Memory(map.make_read_only()?), len })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.len]
    }

    /// Whether the bytes are mapped from a file.
    pub fn is_file(&self) -> bool {
        !matches!(self.map, Map::Memory(_))
    }
}
