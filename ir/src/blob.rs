//! Immutable bytes with shared ownership: owned memory or a mapped file, whole or a part of it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use of_files::MappedFile;

/// Shared immutable bytes. Cloning and slicing never copy.
#[derive(Clone)]
pub struct Blob {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Blob {
    /// Takes ownership of `bytes`.
    pub fn new(bytes: Vec<u8>) -> Blob {
        let range = 0..bytes.len();
        Blob { owner: Arc::new(bytes), range }
    }

    /// Shares bytes that something else holds: a mapping, a slice of a larger buffer.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Blob {
        let range = 0..owner.as_ref().len();
        Blob { owner: Arc::new(owner), range }
    }

    /// Maps a file read-only.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped.
    pub fn map(path: &Path) -> io::Result<Blob> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Blob::new(Vec::new()));
        }
        // SAFETY: the map is private and read-only. Another process that truncates the file while it is mapped makes
        // reads fault; that is the contract of every tool that maps its inputs, and README says so.
        #[allow(unsafe_code, reason = "mapping a file cannot be done without")]
        let map = MappedFile::new(unsafe { memmap2::Mmap::map(&file)? });
        let range = 0..map.len();
        Ok(Blob { owner: Arc::new(map), range })
    }

    /// A part of it; `None` where `range` is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<Blob> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Blob { owner: self.owner.clone(), range: start..start + (range.end - range.start) })
    }

    /// Whether both are the very same bytes in memory.
    pub fn same(&self, other: &Blob) -> bool {
        std::ptr::eq(&**self, &**other)
    }
}

impl std::ops::Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Blob) -> bool {
        self.same(other) || **self == **other
    }
}

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blob({} bytes)", self.len())
    }
}
