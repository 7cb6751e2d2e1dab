//! Scratch memory of kernels: one part for each worker.

use std::io;
use std::sync::Arc;

use of_plan::pages::{MmapMut, MmapRaw};

/// Scratch memory of one actor thread: its own part, and those of the pool's workers, which all actor threads share
/// because only one of them has the pool at a time.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    own: Arc<MmapRaw>,
    workers: Arc<MmapRaw>,
    stride: usize,
    count: usize,
}

impl Scratch {
    /// Parts of `bytes` bytes, for the calling thread and for `workers` others.
    pub fn new(bytes: u64, workers: usize) -> io::Result<Self> {
        let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = usize::try_from(bytes).ok().and_then(|bytes| bytes.max(1).checked_next_multiple_of(4096));
        let stride = bytes.ok_or_else(out_of_memory)?;
        let total = stride.checked_mul(workers.max(1)).ok_or_else(out_of_memory)?;
        let own = Arc::new(MmapMut::map_anon(stride)?.into());
        Ok(Self { own, workers: Arc::new(MmapMut::map_anon(total)?.into()), stride, count: workers })
    }

    /// The same for another actor thread: its own part is new.
    pub fn for_thread(&self) -> io::Result<Self> {
        Ok(Self { own: Arc::new(MmapMut::map_anon(self.stride)?.into()), ..self.clone() })
    }

    /// The part of a worker; 0 is the calling thread. It is aligned to a page.
    pub fn of(&self, worker: usize) -> *mut u8 {
        match worker {
            0 => self.own.as_mut_ptr(),
            // The pool never has more workers than the scratch was made for.
            worker => self.workers.as_mut_ptr().wrapping_add((worker - 1).min(self.count - 1) * self.stride),
        }
    }
}
