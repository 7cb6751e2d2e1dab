//! Memory of a flight recorder: words that any thread of this process writes, in a mapped file or in memory of this process.
//!
//! What is stored in a mapped file is in the system's page cache at once, so it survives the end of the process by any signal.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use of_plan::pages::{MmapMut, MmapRaw};

/// Words that are always read and written as a whole.
#[derive(Debug)]
pub(crate) struct EventMemory {
    map: MmapRaw,
}

impl EventMemory {
    /// Zeros in memory of this process.
    pub fn anonymous(words: usize) -> io::Result<Self> {
        Ok(Self { map: MmapMut::map_anon((words * 8).max(8))?.into() })
    }

    /// Zeros in a new file, which replaces one of that name. They are written, because a page for which the file system has no room
    /// when it is first used ends the process by a signal.
    pub fn file(path: &Path, words: usize) -> io::Result<Self> {
        // Another process may have the old file mapped, so it is not cut to a new length.
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        let zeros = io::copy(&mut io::repeat(0).take(words as u64 * 8), &mut file);
        let mapped = zeros.and_then(|_| map(&file, words * 8)).inspect_err(|_| {
            // What is left has no use.
            let _ = std::fs::remove_file(path);
        });
        Ok(Self { map: mapped? })
    }

    /// A word.
    ///
    /// # Panics
    /// Where there is none of this number.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.len(), "a word is outside of its memory");
        // SAFETY: the mapping begins at a page, so the address is aligned; it is inside of the mapping, which lives as long as
        // `self`. All accesses of this process are atomic.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(at * 8).cast()) }
    }

    /// Number of words.
    #[inline]
    pub fn len(&self) -> usize {
        self.map.len() / 8
    }

    /// Stores bytes from a word on; the last word is filled with zeros.
    pub fn store_bytes(&self, at: usize, bytes: &[u8]) {
        for (chunk, at) in bytes.chunks(8).zip(at..) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(at).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// A copy of all bytes, while others may write.
    pub fn copy(&self) -> Vec<u8> {
        (0..self.len()).flat_map(|at| self.word(at).load(Ordering::Acquire).to_le_bytes()).collect()
    }
}

#[cfg(not(target_family = "wasm"))]
fn map(file: &File, bytes: usize) -> io::Result<MmapRaw> {
    memmap2::MmapOptions::new().len(bytes).map_raw(file)
}

/// No file can be mapped here.
#[cfg(target_family = "wasm")]
fn map(_: &File, _: usize) -> io::Result<MmapRaw> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The time stamp counter of this processor. It takes half the time of the system's clock.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn time_stamp() -> u64 {
    // SAFETY: the instruction reads a counter, and every processor of this architecture has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}
