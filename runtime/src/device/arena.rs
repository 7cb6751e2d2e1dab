//! The memory of a session: one allocation a chunk at the start, and none after that.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use of_plan::pages::MmapRaw;
use of_plan::{Chunk, PlanFile};

/// The chunks of a program, and the plan whose weights its buffers may point into.
#[derive(Debug)]
pub(crate) struct Arena {
    chunks: Vec<Arc<MmapRaw>>,
    plan: Arc<PlanFile>,
}

impl Arena {
    /// Reserves the chunks. Their pages come when they are first touched, and are zero. An error says which failed.
    pub fn new(plan: Arc<PlanFile>, chunks: &[Chunk]) -> Result<Self, (usize, io::Error)> {
        Self::with(plan, chunks, &|_, len| Ok(Arc::new(of_plan::zeroed_pages(len)?.into())))
    }

    /// As [`Arena::new`], of memory that `zeroed` gives for a chunk of so many bytes.
    pub fn with(
        plan: Arc<PlanFile>,
        chunks: &[Chunk],
        zeroed: &dyn Fn(&Chunk, usize) -> io::Result<Arc<MmapRaw>>,
    ) -> Result<Self, (usize, io::Error)> {
        let reserve = |(index, chunk): (usize, &Chunk)| {
            let len = usize::try_from(chunk.bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory));
            len.and_then(|len| zeroed(chunk, len)).map_err(|error| (index, error))
        };
        let chunks = chunks.iter().enumerate().map(reserve).collect::<Result<_, _>>()?;
        Ok(Self { chunks, plan })
    }

    /// The memory of a chunk.
    pub fn memory(&self, chunk: usize) -> Option<Arc<MmapRaw>> {
        self.chunks.get(chunk).map(Arc::clone)
    }

    /// The plan whose weights its buffers may point into.
    pub fn plan(&self) -> &Arc<PlanFile> {
        &self.plan
    }

    /// `num` buffers of `len` bytes, `stride` apart, in a chunk; `None` when they do not fit in it.
    pub fn block(self: &Arc<Self>, chunk: u32, offset: u64, len: u64, stride: u64, num: u32) -> Option<Buffer> {
        let chunk = self.chunks.get(chunk as usize)?;
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let (stride, num) = (usize::try_from(stride).ok()?, num.max(1) as usize);
        let end = stride.checked_mul(num - 1)?.checked_add(offset)?.checked_add(len)?;
        if end > chunk.len() || (num > 1 && stride < len) {
            return None;
        }
        // SAFETY: `offset <= end <= chunk.len()`, so the address is inside the chunk or just past it.
        let start = NonNull::new(unsafe { chunk.as_mut_ptr().add(offset) })?;
        Some(Buffer { start, len, stride, num, writable: true, _arena: Arc::clone(self) })
    }

    /// A weight from a byte on; `None` when it is shorter. It is only ever read.
    pub fn weight(self: &Arc<Self>, index: u32, byte_offset: u64) -> Option<Buffer> {
        let bytes = self.plan.weight(index)?.get(usize::try_from(byte_offset).ok()?..)?;
        let start = NonNull::from(bytes).cast();
        Some(Buffer { start, len: bytes.len(), stride: 0, num: 1, writable: false, _arena: Arc::clone(self) })
    }
}

/// Bytes at a fixed address: a register with its copies, or a weight. It keeps what it points into alive.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    start: NonNull<u8>,
    len: usize,
    stride: usize,
    num: usize,
    writable: bool,
    _arena: Arc<Arena>,
}

// SAFETY: a buffer is an address in memory that its arena keeps; who may access it when is settled by the register
// tokens, which travel between threads in messages that order the accesses.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared use only reads the address.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The buffer from byte `bytes` on; `None` past its end.
    pub fn skip(mut self, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes <= self.len)?;
        // SAFETY: `bytes <= len`, so the address is inside the buffer or just past it.
        self.start = unsafe { self.start.add(bytes) };
        self.len -= bytes;
        Some(self)
    }

    /// The first bytes only; `None` when there are fewer.
    pub fn truncate(mut self, len: u64) -> Option<Self> {
        self.len = usize::try_from(len).ok().filter(|&len| len <= self.len)?;
        Some(self)
    }

    /// Makes the buffer empty.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Whether the address depends on the iteration.
    pub fn slides(&self) -> bool {
        self.num > 1
    }

    /// The address for an iteration.
    pub fn address(&self, iteration: u64) -> *mut u8 {
        let copy = if self.num == 1 { 0 } else { (iteration % self.num as u64) as usize };
        self.start.as_ptr().wrapping_add(copy * self.stride)
    }

    /// The bytes for an iteration. Only for an actor that holds the register and acts on that iteration.
    pub fn bytes(&self, iteration: u64) -> &[u8] {
        // SAFETY: `block` and `weight` checked that all copies are in memory that `_arena` keeps alive, which is
        // initialised (zero pages or the plan's bytes). The actor holds the register, so no other actor writes to it.
        unsafe { std::slice::from_raw_parts(self.address(iteration), self.len) }
    }

    /// The bytes for an iteration, to be filled; `None` for a weight. Only for the actor that produces the register and
    /// acts on that iteration, once at a time.
    #[allow(clippy::mut_from_ref, reason = "the register tokens give one actor at a time exclusive access")]
    pub fn bytes_mut(&self, iteration: u64) -> Option<&mut [u8]> {
        // SAFETY: the address is valid as in `bytes`, and writable as it is in a chunk. The actor holds the register's
        // free copy, so no other actor reads or writes it, nor any register that shares its memory.
        self.writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.address(iteration), self.len) })
    }

    /// Copies the first bytes of another buffer, which may overlap; `false` when one is too short or not writable.
    pub fn copy_from(&self, src: &Buffer, bytes: usize, iteration: u64) -> bool {
        if !self.writable || bytes > self.len.min(src.len) {
            return false;
        }
        // SAFETY: both places are valid for `bytes` bytes as in `bytes` and `bytes_mut`; `copy` allows overlap.
        unsafe { std::ptr::copy(src.address(iteration), self.address(iteration), bytes) };
        true
    }
}
