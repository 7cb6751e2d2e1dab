//! Memory that processes of one host share: a memfd that each of them maps.
//!
//! Everything unsafe of the transport stands here. Who may read or write which bytes is settled by the atomics of a channel
//! (`channel.rs`), whose stores release what was written before.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};

/// The name of the memory, as `/proc` shows it.
const NAME: &str = "of-rank";

/// No process can shrink a segment that another has mapped.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::SEAL);

/// A mapped segment.
#[derive(Debug)]
pub struct Segment {
    map: Arc<MmapRaw>,
    file: File,
}

/// Where a process finds a segment of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub pid: u32,
    pub fd: u32,
    pub len: u64,
}

impl Segment {
    /// A segment of zeros.
    pub fn create(len: usize) -> io::Result<Segment> {
        let file = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Segment::map(file, len)
    }

    /// The segment of another process of this host and user.
    pub fn open(place: Place) -> io::Result<Segment> {
        let path = format!("/proc/{}/fd/{}", place.pid, place.fd);
        // Whatever else is there is not opened.
        if !std::fs::read_link(&path)?.to_string_lossy().starts_with(&format!("/memfd:{NAME}")) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("'{path}' is not the memory of a rank")));
        }
        let file = File::options().read(true).write(true).open(&path)?;
        let len = usize::try_from(place.len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        if !fcntl_get_seals(&file)?.contains(SEALS) || file.metadata()?.len() != place.len {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("'{path}' is not of its length")));
        }
        Segment::map(file, len)
    }

    fn map(file: File, len: usize) -> io::Result<Segment> {
        let map = memmap2::MmapOptions::new().len(len).map_raw(&file)?;
        Ok(Segment { map: Arc::new(map), file })
    }

    /// Where other processes find it.
    pub fn place(&self) -> Place {
        Place { pid: std::process::id(), fd: self.file.as_raw_fd() as u32, len: self.map.len() as u64 }
    }

    /// Its memory, and the file by which others find it.
    pub fn into_parts(self) -> (Arc<MmapRaw>, File) {
        (self.map, self.file)
    }

    /// Its memory.
    pub fn memory(&self) -> &Arc<MmapRaw> {
        &self.map
    }

    /// The number at a byte.
    ///
    /// # Panics
    /// Where it is not inside the segment, or not aligned.
    pub fn atomic(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.map.len(), "a number is outside of its segment");
        // SAFETY: the address is aligned and inside the mapping, which lives as long as `self`. All accesses to this place, in
        // every process, are atomic.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    /// Bytes that no process writes to while the slice exists.
    ///
    /// # Panics
    /// Where they are not inside the segment.
    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.map.len()), "bytes are outside of their segment");
        // SAFETY: the bytes are inside the mapping, which is initialised and lives as long as `self`. The channel's writer
        // published them, and writes again only once this reader has said that it has taken them.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at), len) }
    }

    /// Bytes that no other process reads or writes while the slice exists.
    ///
    /// # Panics
    /// Where they are not inside the segment.
    #[allow(clippy::mut_from_ref, reason = "a channel has one writer, which holds its end exclusively")]
    pub fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.map.len()), "bytes are outside of their segment");
        // SAFETY: as in `bytes`; the readers have taken what was published here before.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(at), len) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn another_mapping_sees_what_is_written() {
        let own = Segment::create(4096).unwrap();
        let other = Segment::open(own.place()).unwrap();
        own.bytes_mut(8, 5).copy_from_slice(b"hello");
        own.atomic(0).store(7, Ordering::Release);
        assert_eq!((other.atomic(0).load(Ordering::Acquire), other.bytes(8, 5)), (7, b"hello".as_slice()));
    }

    #[test]
    fn only_the_memory_of_ranks_is_opened() {
        let own = Segment::create(4096).unwrap();
        let null = File::open("/dev/null").unwrap();
        assert!(Segment::open(Place { fd: null.as_raw_fd() as u32, ..own.place() }).is_err());
        assert!(Segment::open(Place { len: 8192, ..own.place() }).is_err());
        assert!(Segment::open(Place { fd: 1 << 20, ..own.place() }).is_err());
        assert!(ftruncate(&own.file, 0).is_err());
    }
}
