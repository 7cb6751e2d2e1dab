//! Files in memory, whose pages can be given back while they are mapped.
//!
//! A page of a mapped file counts as memory of this process from its first read on. [`release`] gives pages back: the next read gets them
//! from the file again. So what is read once, such as the first values of variables, need not take memory for as long as the file is mapped.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memmap2::Mmap;

/// The mapped files of this process, by their addresses.
static MAPPED: Mutex<BTreeMap<usize, Weak<Mmap>>> = Mutex::new(BTreeMap::new());

fn mapped() -> MutexGuard<'static, BTreeMap<usize, Weak<Mmap>>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A read-only map of a file, whose pages [`release`] gives back.
pub struct MappedFile {
    map: Arc<Mmap>,
}

impl MappedFile {
    /// Takes a map of a file.
    pub fn new(map: Mmap) -> MappedFile {
        let map = Arc::new(map);
        mapped().insert(map.as_ptr() as usize, Arc::downgrade(&map));
        MappedFile { map }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        mapped().remove(&(self.map.as_ptr() as usize));
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes)", self.len())
    }
}

/// Gives back the memory of `bytes` if they are in a [`MappedFile`]; other bytes stay. They can be read as before: their pages are read from the
/// file again, from the system's cache if that still has them. Only a hint, which systems other than Unix do not take.
pub fn release(bytes: &[u8]) {
    let start = bytes.as_ptr() as usize;
    // The lock is not held meanwhile, so that many threads can release.
    let found = mapped().range(..=start).next_back().and_then(|(_, map)| map.upgrade());
    let Some(map) = found else { return };
    let offset = start - map.as_ptr() as usize;
    if offset.checked_add(bytes.len()).is_none_or(|end| end > map.len()) || bytes.is_empty() {
        return;
    }
    #[cfg(unix)]
    {
        // SAFETY: the map is read-only, so none of its pages differs from the file: a page that is dropped comes back with the same bytes. That
        // the file does not change under a map is what every map of a file relies on.
        #[allow(unsafe_code, reason = "the pages of a read-only map of a file can be dropped")]
        let released = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes.len()) };
        // A page that stays takes memory and does no harm.
        let _ = released;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// KiB of files that are mapped and in memory, at the addresses of a map.
    fn resident(map: &MappedFile) -> u64 {
        let start = format!("{:x}-", map.as_ptr() as usize);
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let own = smaps.lines().skip_while(|line| !line.starts_with(&start)).find(|line| line.starts_with("Rss:"));
        own.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn map(bytes: &[u8], dir: &std::path::Path) -> MappedFile {
        let path = dir.join("f");
        fs::write(&path, bytes).unwrap();
        // SAFETY: no one else knows the file.
        #[allow(unsafe_code, reason = "mapping a file cannot be done without")]
        MappedFile::new(unsafe { Mmap::map(&File::open(path).unwrap()).unwrap() })
    }

    #[test]
    fn released_pages_take_no_memory_and_read_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..1 << 20).map(|i: u32| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let map = map(&bytes, dir.path());
        assert_eq!(&*map, &bytes[..]);
        assert_eq!(resident(&map), 1024);
        release(&map[1 << 19..]);
        assert_eq!(resident(&map), 512);
        release(&map);
        assert_eq!(resident(&map), 0);
        assert_eq!(&*map, &bytes[..]);
    }

    #[test]
    fn bytes_of_no_file_stay() {
        let dir = tempfile::tempdir().unwrap();
        let map = map(&[7; 8192], dir.path());
        let own = vec![5u8; 1 << 16];
        release(&own);
        release(&[]);
        assert!(own.iter().all(|b| *b == 5));
        // The address of a map that is gone may be that of anything.
        let at = map.as_ptr() as usize;
        drop(map);
        assert!(!mapped().contains_key(&at));
    }
}
