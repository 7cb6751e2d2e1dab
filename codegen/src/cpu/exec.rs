//! Runs blobs in this process, for tests and measurements; programs that run plans have the runtime's loader.

use memmap2::{Mmap, MmapMut};

use super::flatten::Blob;

/// Why a blob cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No executable memory.
    #[error("no executable memory: {0}")]
    Memory(#[from] std::io::Error),
    /// The entry is not inside the code.
    #[error("the entry {entry} lies outside the {len} bytes of code")]
    Entry {
        /// The entry's offset.
        entry: usize,
        /// Bytes of code.
        len: usize,
    },
}

type Function = unsafe extern "C" fn(args: *const *mut u8, begin: i64, end: i64, scratch: *mut u8);

/// A blob in executable memory.
#[derive(Debug)]
pub struct Loaded {
    function: Function,
    /// Keeps the code where it is.
    _map: Mmap,
}

impl Loaded {
    /// Maps a blob.
    ///
    /// # Errors
    /// If the system gives no executable memory or the entry lies outside the code.
    pub fn new(blob: &Blob) -> Result<Self, ExecError> {
        if blob.entry >= blob.code.len() {
            return Err(ExecError::Entry { entry: blob.entry, len: blob.code.len() });
        }
        let mut map = MmapMut::map_anon(blob.code.len())?;
        map[..blob.code.len()].copy_from_slice(&blob.code);
        let map = map.make_exec()?;
        // SAFETY: the entry is inside the mapped code, which by contract of `Blob` is a function of this type, and the
        // map lives as long as the function can be called.
        let function = unsafe { std::mem::transmute::<*const u8, Function>(map.as_ptr().add(blob.entry)) };
        Ok(Self { function, _map: map })
    }

    /// Runs iterations `begin..end`.
    ///
    /// # Safety
    /// The blob must come from a kernel with as many parameters as there are `args`; each must point to a buffer,
    /// aligned to 64 bytes, of the size that the kernel accesses, writable where the kernel writes and not in use by
    /// anybody else; `scratch` must point to the kernel's scratch bytes, aligned to 64.
    pub unsafe fn call(&self, args: &[*mut u8], begin: usize, end: usize, scratch: *mut u8) {
        // SAFETY: the caller's promises are those the code needs.
        unsafe { (self.function)(args.as_ptr(), begin as i64, end as i64, scratch) }
    }
}
