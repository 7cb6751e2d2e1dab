//! Owned bytes at the alignment that kernels want.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use of_plan::pages::MmapMut;

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// From this size on bytes are pages of their own, huge ones where the system has them: an ordinary page costs as much
/// when it is first touched as a kernel takes to fill it.
const PAGES_FROM: usize = 4 << 20;

/// Bytes that something outside of the runtime owns, such as an array of the caller. They must be initialised, stay where they
/// are, and start at a multiple of their elements' size.
pub trait ExternalBytes: Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];

    /// The bytes, to write to; `None` if they are read-only.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;
}

/// Bytes that start at a multiple of 64, or those of an external owner.
enum Memory {
    Lines(Vec<Line>),
    Pages(MmapMut),
    External(Box<dyn ExternalBytes>),
}

impl Memory {
    /// At least this many zeros.
    fn zeroed(len: usize) -> Memory {
        match Memory::pages(len) {
            Some(map) => Memory::Pages(map),
            None => Memory::Lines(vec![Line([0; 64]); len.div_ceil(64)]),
        }
    }

    /// Pages for this many bytes; `None` if they are few, or the system has no memory left.
    fn pages(len: usize) -> Option<MmapMut> {
        (len >= PAGES_FROM).then(|| Memory::mapped(len).ok())?
    }

    /// Pages for this many bytes.
    fn mapped(len: usize) -> io::Result<MmapMut> {
        let map = MmapMut::map_anon(len.checked_next_multiple_of(64).ok_or(io::ErrorKind::OutOfMemory)?)?;
        // A wish: a system without huge pages runs the same, slower.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(map)
    }

    /// Number of bytes.
    fn len(&self) -> usize {
        match self {
            Memory::Lines(lines) => lines.len() * 64,
            Memory::Pages(map) => map.len(),
            Memory::External(owner) => owner.bytes().len(),
        }
    }
}

impl From<&[u8]> for Memory {
    fn from(bytes: &[u8]) -> Self {
        if let Some(mut map) = Memory::pages(bytes.len()) {
            map[..bytes.len()].copy_from_slice(bytes);
            return Memory::Pages(map);
        }
        let line = |part: &[u8]| {
            let mut line = Line([0; 64]);
            line.0[..part.len()].copy_from_slice(part);
            line
        };
        Memory::Lines(bytes.chunks(64).map(line).collect())
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        match self {
            Memory::Lines(lines) => Memory::Lines(lines.clone()),
            Memory::Pages(map) => Memory::from(&map[..]),
            Memory::External(owner) => Memory::from(owner.bytes()),
        }
    }
}

/// Owned bytes that start at a multiple of 64, unless they are external. A clone shares them until one of the two is written to.
#[derive(Clone)]
pub struct AlignedBytes {
    memory: Arc<Memory>,
    len: usize,
}

impl AlignedBytes {
    /// This many zeros.
    pub fn zeroed(len: usize) -> Self {
        Self { memory: Arc::new(Memory::zeroed(len)), len }
    }

    /// This many zeros. The number comes from data, so the allocation may fail.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub fn try_zeroed(len: usize) -> io::Result<Self> {
        if len < PAGES_FROM {
            return Ok(Self::zeroed(len));
        }
        Ok(Self { memory: Arc::new(Memory::Pages(Memory::mapped(len)?)), len })
    }

    /// Bytes of an external owner, which is dropped with the last clone. A write to read-only ones copies them.
    pub fn external(owner: Box<dyn ExternalBytes>) -> Self {
        let len = owner.bytes().len();
        Self { memory: Arc::new(Memory::External(owner)), len }
    }

    /// Whether they have an external owner.
    pub fn is_external(&self) -> bool {
        matches!(*self.memory, Memory::External(_))
    }

    /// Whether they are the runtime's, and no other clone shares them.
    pub(crate) fn is_own(&mut self) -> bool {
        !self.is_external() && Arc::get_mut(&mut self.memory).is_some()
    }

    /// How many bytes it can hold without a new allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// The same memory with another length, as far as its capacity allows; the contents are not defined.
    pub(crate) fn with_len(mut self, len: usize) -> Self {
        self.len = len.min(self.capacity());
        self
    }
}

impl Default for AlignedBytes {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> Self {
        Self { memory: Arc::new(bytes.into()), len: bytes.len() }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.memory {
            // SAFETY: `lines` holds at least `len` initialised bytes one after another (a `Line` is 64 bytes without
            // padding), and they are borrowed as long as `self` is.
            Memory::Lines(lines) => unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), self.len) },
            Memory::Pages(map) => &map[..self.len],
            Memory::External(owner) => &owner.bytes()[..self.len],
        }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let memory = Arc::make_mut(&mut self.memory);
        if let Memory::External(owner) = memory
            && owner.bytes_mut().is_none()
        {
            *memory = Memory::from(owner.bytes());
        }
        match memory {
            // SAFETY: as in `deref`; `self` is borrowed exclusively and shares its lines with no clone now; every byte
            // pattern is a valid `Line`.
            Memory::Lines(lines) => unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), self.len) },
            Memory::Pages(map) => &mut map[..self.len],
            Memory::External(owner) => owner.bytes_mut().map_or(&mut [], |bytes| &mut bytes[..self.len]),
        }
    }
}

impl PartialEq for AlignedBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_until_one_is_written_to() {
        for len in [100, PAGES_FROM + 100] {
            let mut a = AlignedBytes::from(&(0..len).map(|i| i as u8).collect::<Vec<u8>>()[..]);
            let mut b = a.clone();
            assert_eq!((a.as_ptr(), a.is_own()), (b.as_ptr(), false));
            b[99] = 7;
            assert_eq!((a[99], b[99], a.is_own(), b.is_own()), (99, 7, true, true));
            assert_eq!((a[..99] == b[..99], b.as_ptr() as usize % 64), (true, 0));
            assert_eq!((a.len(), AlignedBytes::zeroed(len).iter().all(|x| *x == 0)), (len, true));
            assert_eq!(a.with_len(60), b.with_len(60));
        }
    }

    struct Foreign(Vec<u8>, bool);

    impl ExternalBytes for Foreign {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn bytes_mut(&mut self) -> Option<&mut [u8]> {
            self.1.then_some(&mut self.0[..])
        }
    }

    #[test]
    fn external_bytes_are_used_in_place_and_copied_where_they_are_shared_or_read_only() {
        let bytes = vec![7; 100];
        let at = bytes.as_ptr();
        let mut a = AlignedBytes::external(Box::new(Foreign(bytes, true)));
        a[1] = 8;
        assert_eq!((a.as_ptr(), a.len(), a.is_external(), a.is_own()), (at, 100, true, false));
        let mut b = a.clone();
        b[2] = 9;
        assert_eq!((b.is_external(), &a[..3], &b[..3]), (false, &[7, 8, 7][..], &[7, 8, 9][..]));
        let mut fixed = AlignedBytes::external(Box::new(Foreign(vec![5; 10], false)));
        assert!(fixed.is_external());
        fixed[0] = 6;
        assert_eq!((fixed.is_external(), &fixed[..2]), (false, &[6, 5][..]));
    }
}
