//! The bytes of a plan in memory, page-aligned and read-only.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{Mmap, MmapMut, MmapOptions};

/// Memory from this size on is offered to the system for large pages: twice one of x86-64.
const MANY: usize = 4 << 20;

/// `len` zeroed bytes, at least one, that start at a page boundary. Many of them lie in large pages where the system has
/// some: weights that are read from one end to the other take half as long again by small ones, and half of the time of
/// packing them goes to their faults.
///
/// # Errors
/// When the system has no such memory left.
pub fn zeroed_pages(len: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(len.max(1))?;
    #[cfg(target_os = "linux")]
    if len >= MANY {
        // What the system does not have it says, and nothing depends on it.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Ok(map)
}

/// Read-only bytes that start at a page boundary.
#[derive(Debug)]
pub(crate) struct Map {
    map: Mmap,
    /// An empty map is not possible, so empty input has one byte more than it says.
    len: usize,
}

impl Map {
    /// Maps a file, with its pages brought in at once: verifying the checksums reads all of them anyway.
    pub fn file(path: &Path) -> io::Result<Self> {
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
        let map = unsafe { MmapOptions::new().populate().map_copy_read_only(&file)? };
        Ok(Self { len: map.len(), map })
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
        Ok(Self { map: map.make_read_only()?, len })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.len]
    }
}
