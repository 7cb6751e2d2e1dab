//! The body of a request as the network delivers it: frames that are joined only where a tensor spans several.

use std::collections::VecDeque;
use std::fmt::Display;

use bytes::{Buf, Bytes};
use http_body::Body;
use http_body_util::BodyExt;

use crate::core::Limits;
use crate::error::{ErrorKind, ServeError};

/// Received bytes, taken from the front.
#[derive(Debug, Default)]
pub struct Frames {
    frames: VecDeque<Bytes>,
    /// Small frames at the end, joined: a client may send each byte in a frame of its own, which takes many times its size.
    small: Vec<u8>,
    len: usize,
}

/// Smaller frames are joined.
const SMALL: usize = 1024;
/// Joined frames are no longer than this.
const JOINED: usize = 64 << 10;

/// Receives a body.
///
/// # Errors
/// When it is too large, takes too long or is cut off.
pub async fn receive<B>(body: B, limits: &Limits) -> Result<Frames, ServeError>
where
    B: Body<Data = Bytes, Error: Display> + Unpin,
{
    let late = |_| ServeError::new(ErrorKind::Deadline, "the request did not arrive in time");
    tokio::time::timeout(limits.time, collect(body, limits.body)).await.map_err(late)?
}

async fn collect<B>(mut body: B, limit: usize) -> Result<Frames, ServeError>
where
    B: Body<Data = Bytes, Error: Display> + Unpin,
{
    let too_large = || ServeError::new(ErrorKind::TooLarge, format!("the request has more than {limit} bytes"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut frames = Frames::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ServeError::invalid(format!("the request is cut off: {e}")))?;
        if let Ok(data) = frame.into_data() {
            if frames.len() + data.len() > limit {
                return Err(too_large());
            }
            frames.push(data);
        }
    }
    Ok(frames)
}

impl Frames {
    /// Adds a frame at the end.
    pub fn push(&mut self, frame: Bytes) {
        self.len += frame.len();
        if frame.len() >= SMALL {
            self.flush();
            self.frames.push_back(frame);
            return;
        }
        self.small.extend_from_slice(&frame);
        if self.small.len() >= JOINED {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.frames.push_back(std::mem::take(&mut self.small).into());
        }
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Takes so many bytes from the front: a part of a frame, or a copy where they are in several frames, or are not aligned to
    /// `align` bytes. `None` where fewer are left.
    pub fn split_front(&mut self, len: usize, align: usize) -> Option<Bytes> {
        if len > self.len {
            return None;
        }
        self.flush();
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

impl Buf for Frames {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.frames.front().map_or(&self.small, |frame| frame)
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.len, "{count} of {} bytes are skipped", self.len);
        self.flush();
        self.len -= count;
        let mut left = count;
        while let Some(first) = self.frames.front_mut().filter(|_| left > 0) {
            let part = left.min(first.len());
            first.advance(part);
            left -= part;
            if first.is_empty() {
                self.frames.pop_front();
            }
        }
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let left = self.len;
        self.split_front(len, 1).unwrap_or_else(|| panic!("{len} of {left} bytes are taken"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_only_across_frames() {
        let mut frames = Frames::default();
        let first = Bytes::from(vec![1; SMALL]);
        frames.push(first.clone());
        frames.push(Bytes::new());
        frames.push(Bytes::from(vec![2; SMALL]));
        assert_eq!(frames.split_front(SMALL - 1, 1).unwrap().as_ptr(), first.as_ptr());
        assert_eq!((frames.split_front(2, 1).unwrap()[..].to_vec(), frames.len()), (vec![1, 2], SMALL - 1));
        assert_eq!((frames.split_front(SMALL, 1), frames.split_front(SMALL - 1, 1).unwrap().len()), (None, SMALL - 1));
        assert_eq!(frames.split_front(0, 1).unwrap().len(), 0);
    }

    #[test]
    fn small_frames_are_joined() {
        let mut frames = Frames::default();
        (0..JOINED + 10).for_each(|i| frames.push(Bytes::from(vec![i as u8])));
        assert_eq!((frames.frames.len(), frames.small.len(), frames.len()), (1, 10, JOINED + 10));
        frames.push(Bytes::from(vec![0; SMALL]));
        assert_eq!(frames.frames.len(), 3, "in their order");
        let all = frames.split_front(JOINED + 10, 1).unwrap();
        assert!(all.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }

    #[test]
    fn unaligned_bytes_are_copied_to_where_they_are_aligned() {
        let frame = Bytes::from(vec![7_u8; 64]);
        let mut frames = Frames::default();
        let skip = frame.as_ptr().align_offset(8) + 1;
        frames.push(frame);
        frames.split_front(skip, 1).unwrap();
        let part = frames.split_front(16, 8).unwrap();
        assert_eq!((part.as_ptr() as usize % 8, part.len()), (0, 16));
    }

    #[test]
    fn frames_are_read_in_their_order() {
        let mut frames = Frames::default();
        for (value, len) in [(1, 2), (2, SMALL), (3, SMALL + 1), (4, 5)] {
            frames.push(Bytes::from(vec![value; len]));
        }
        let large = frames.frames[2].clone();
        assert_eq!((frames.get_u8(), frames.get_u16(), frames.remaining()), (1, 0x0102, 2 * SMALL + 5));
        frames.advance(SMALL - 1);
        assert_eq!(frames.copy_to_bytes(SMALL).as_ptr(), large.as_ptr());
        assert_eq!((frames.copy_to_bytes(3)[..].to_vec(), frames.chunk()), (vec![3, 4, 4], &[4, 4, 4][..]));
        frames.advance(3);
        assert!(!frames.has_remaining() && frames.chunk().is_empty());
    }
}
