//! Zeroed memory for rearranged weights.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// A zero-initialized array. Large arrays are mapped separately, on huge pages where available.
pub struct ZeroFilled<T>(Memory<T>);

enum Memory<T> {
    Heap(Vec<T>),
    Mapped(MmapMut, usize),
}

/// From this many bytes on, the memory is mapped.
const MAP_THRESHOLD_BYTES: usize = 4 << 20;

impl<T: Pod> ZeroFilled<T> {
    /// `len` zeros.
    pub fn new(len: usize) -> ZeroFilled<T> {
        let bytes = len * size_of::<T>();
        let map = (bytes >= MAP_THRESHOLD_BYTES).then(|| of_plan::zeroed_pages(bytes).ok()).flatten();
        ZeroFilled(match map {
            Some(map) => Memory::Mapped(map, len),
            None => Memory::Heap(vec![T::zeroed(); len]),
        })
    }
}

impl<T> From<Vec<T>> for ZeroFilled<T> {
    fn from(v: Vec<T>) -> Self {
        ZeroFilled(Memory::Heap(v))
    }
}

impl<T: Pod> AsRef<[u8]> for ZeroFilled<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl<T: Pod> Deref for ZeroFilled<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Memory::Heap(v) => v,
            Memory::Mapped(map, len) => &bytemuck::cast_slice(map)[..*len],
        }
    }
}

impl<T: Pod> DerefMut for ZeroFilled<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Memory::Heap(v) => v,
            Memory::Mapped(map, len) => &mut bytemuck::cast_slice_mut(map)[..*len],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_mapped_arrays_start_zeroed() {
        for len in [0, 3, MAP_THRESHOLD_BYTES / 4, MAP_THRESHOLD_BYTES / 4 + 5] {
            let mut z = ZeroFilled::<f32>::new(len);
            assert!(z.len() == len && z.iter().all(|x| *x == 0.0));
            if let Some(last) = z.last_mut() {
                *last = 1.0;
                assert_eq!(z.as_ref()[4 * len - 4..], 1f32.to_ne_bytes());
            }
        }
    }
}
