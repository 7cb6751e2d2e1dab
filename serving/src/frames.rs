//! The body of an HTTP request as the network delivers it: frames that are joined only where a tensor spans several.

use std::collections::VecDeque;

use bytes::Bytes;

/// Received bytes, taken from the front.
#[derive(Debug, Default)]
pub struct Frames {
    frames: VecDeque<Bytes>,
    len: usize,
}

impl Frames {
    /// Adds a frame at the end.
    pub fn push(&mut self, frame: Bytes) {
        if !frame.is_empty() {
            self.len += frame.len();
            self.frames.push_back(frame);
        }
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Takes so many bytes from the front: a part of a frame, or a copy where they are in several frames, or are not aligned to
    /// `align` bytes. `None` where fewer are left.
    pub fn take(&mut self, len: usize, align: usize) -> Option<Bytes> {
        if len > self.len {
            return None;
        }
        self.len -= len;
        if let Some(first) = self.frames.front_mut()
            && first.len() >= len
            && (first.as_ptr() as usize).is_multiple_of(align.max(1))
        {
            let part = first.split_to(len);
            if first.is_empty() {
                self.frames.pop_front();
            }
            return Some(part);
        }
        let mut joined = Vec::with_capacity(len);
        while joined.len() < len {
            let first = self.frames.front_mut()?;
            let part = first.split_to(first.len().min(len - joined.len()));
            joined.extend_from_slice(&part);
            if first.is_empty() {
                self.frames.pop_front();
            }
        }
        Some(joined.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_only_across_frames() {
        let mut frames = Frames::default();
        let first = Bytes::from(vec![1, 2, 3]);
        frames.push(first.clone());
        frames.push(Bytes::new());
        frames.push(Bytes::from(vec![4, 5]));
        assert_eq!(frames.take(2, 1).unwrap().as_ptr(), first.as_ptr());
        assert_eq!((frames.take(2, 1).unwrap()[..].to_vec(), frames.len()), (vec![3, 4], 1));
        assert_eq!((frames.take(2, 1), frames.take(1, 1).unwrap()[..].to_vec()), (None, vec![5]));
        assert_eq!(frames.take(0, 1).unwrap().len(), 0);
    }

    #[test]
    fn unaligned_bytes_are_copied_to_where_they_are_aligned() {
        let frame = Bytes::from(vec![7_u8; 64]);
        let mut frames = Frames::default();
        let skip = frame.as_ptr().align_offset(8) + 1;
        frames.push(frame);
        frames.take(skip, 1).unwrap();
        let part = frames.take(16, 8).unwrap();
        assert_eq!((part.as_ptr() as usize % 8, part.len()), (0, 16));
    }
}
