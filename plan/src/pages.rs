//! Memory in whole pages: maps of the system, or of the allocator where there are no maps (WebAssembly).

#[cfg(not(target_family = "wasm"))]
pub use memmap2::{Mmap, MmapMut, MmapRaw};

#[cfg(target_family = "wasm")]
pub use allocated::{Mmap, MmapMut, MmapRaw};

/// The part of memmap2's interface that plans and the runtime use, on memory of the allocator.
#[cfg(target_family = "wasm")]
mod allocated {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ops::{Deref, DerefMut};
    use std::ptr::NonNull;

    /// The alignment that maps have.
    const PAGE: usize = 4096;

    /// Memory whose bytes threads read and write through its address.
    #[derive(Debug)]
    pub struct MmapRaw {
        start: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: the memory is owned, and its address alone is shared.
    unsafe impl Send for MmapRaw {}
    // SAFETY: as above.
    unsafe impl Sync for MmapRaw {}

    impl MmapRaw {
        fn zeroed(len: usize) -> io::Result<Self> {
            let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
            if len == 0 {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let layout = Layout::from_size_align(len, PAGE).map_err(|_| out_of_memory())?;
            // SAFETY: the layout has bytes.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
            Ok(Self { start, layout })
        }

        /// The address.
        pub fn as_mut_ptr(&self) -> *mut u8 {
            self.start.as_ptr()
        }

        /// The number of bytes.
        #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
        pub fn len(&self) -> usize {
            self.layout.size()
        }
    }

    impl Drop for MmapRaw {
        fn drop(&mut self) {
            // SAFETY: `start` was allocated with this layout, and nothing else frees it.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }

    impl From<MmapMut> for MmapRaw {
        fn from(map: MmapMut) -> Self {
            map.0
        }
    }

    /// Bytes that can be written.
    #[derive(Debug)]
    pub struct MmapMut(MmapRaw);

    impl MmapMut {
        /// So many zeros.
        ///
        /// # Errors
        /// When there is no such memory, or for no bytes.
        pub fn map_anon(len: usize) -> io::Result<Self> {
            MmapRaw::zeroed(len).map(Self)
        }

        /// The same bytes, not to be written any more.
        ///
        /// # Errors
        /// None here; a map of the system may fail.
        pub fn make_read_only(self) -> io::Result<Mmap> {
            Ok(Mmap(self.0))
        }
    }

    impl Deref for MmapMut {
        type Target = [u8];

        fn deref(&self) -> &[u8] {
            // SAFETY: the bytes are allocated, initialised and borrowed with `self`.
            unsafe { std::slice::from_raw_parts(self.0.as_mut_ptr(), self.0.len()) }
        }
    }

    impl DerefMut for MmapMut {
        fn deref_mut(&mut self) -> &mut [u8] {
            // SAFETY: as above; `self` is borrowed exclusively and owns the memory alone.
            unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr(), self.0.len()) }
        }
    }

    /// Bytes that can be read.
    #[derive(Debug)]
    pub struct Mmap(MmapRaw);

    impl Deref for Mmap {
        type Target = [u8];

        fn deref(&self) -> &[u8] {
            // SAFETY: the bytes are allocated, initialised and never written.
            unsafe { std::slice::from_raw_parts(self.0.as_mut_ptr(), self.0.len()) }
        }
    }
}
