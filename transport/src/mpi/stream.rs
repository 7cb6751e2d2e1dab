//! The bytes between two ranks as messages of MPI: a stream that does not block.
//!
//! What is written is copied into buffers that MPI sends; buffers for what comes are with MPI before it comes. Frames, their
//! checksums and numbers are those of every stream (`stream_link.rs`).

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use super::Mpi;
use super::library::Request;

/// The longest message.
const MESSAGE: usize = 128 << 10;

/// Messages that are sent at once, and that are received.
const SENDS: usize = 8;
const RECEIVES: usize = 8;

/// A buffer that MPI reads or writes while there is a request.
struct Buffer {
    /// Of `MESSAGE` bytes. Its memory stays where it is.
    bytes: Vec<u8>,
    request: Option<Request>,
}

/// A stream to a rank.
pub(crate) struct MpiStream {
    mpi: Arc<Mpi>,
    peer: u32,
    /// In the order in which they were sent. Those without a request are free.
    sends: VecDeque<Buffer>,
    /// In the order in which messages come into them.
    receives: VecDeque<Buffer>,
    /// The message that is read: its memory, how many bytes came, and how many were taken.
    reading: Option<(Vec<u8>, usize, usize)>,
}

impl fmt::Debug for MpiStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

fn failed(what: String) -> io::Error {
    io::Error::other(what)
}

impl MpiStream {
    /// A stream to a rank.
    ///
    /// # Errors
    /// When MPI fails.
    pub fn new(mpi: Arc<Mpi>, peer: u32) -> io::Result<MpiStream> {
        let mut stream = MpiStream { mpi, peer, sends: VecDeque::new(), receives: VecDeque::new(), reading: None };
        for _ in 0..RECEIVES {
            stream.receive_into(vec![0; MESSAGE])?;
        }
        Ok(stream)
    }

    fn receive_into(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        // SAFETY: the buffer keeps the memory until the request is over, and reads it only then. Where it cannot, in `drop`, the
        // memory is leaked.
        let request = unsafe { self.mpi.calls.receive(bytes.as_mut_ptr(), bytes.len(), self.peer) };
        self.receives.push_back(Buffer { bytes, request: Some(request.map_err(failed)?) });
        Ok(())
    }

    /// Finds which messages were sent. Returns whether one is not.
    fn are_under_way(&mut self) -> io::Result<bool> {
        let mut under_way = false;
        for buffer in &mut self.sends {
            if let Some(request) = &mut buffer.request {
                match self.mpi.calls.test(request).map_err(failed)? {
                    Some(_) => buffer.request = None,
                    None => under_way = true,
                }
            }
        }
        Ok(under_way)
    }

    /// Memory for a message, if there is some.
    fn free(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.sends.iter().all(|buffer| buffer.request.is_some()) {
            if self.sends.len() < SENDS {
                return Ok(Some(vec![0; MESSAGE]));
            }
            self.are_under_way()?;
        }
        let free = self.sends.iter().position(|buffer| buffer.request.is_none());
        Ok(free.and_then(|at| self.sends.remove(at)).map(|buffer| buffer.bytes))
    }

    fn check(&self) -> io::Result<()> {
        match self.mpi.is_abandoned() {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

impl Read for MpiStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        if self.reading.is_none() {
            let Some(buffer) = self.receives.front_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
            if let Some(request) = &mut buffer.request {
                let Some(len) = self.mpi.calls.test(request).map_err(failed)? else {
                    return Err(io::ErrorKind::WouldBlock.into());
                };
                buffer.request = None;
                if len > MESSAGE {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
                }
                self.reading = self.receives.pop_front().map(|buffer| (buffer.bytes, len, 0));
            }
        }
        let Some((bytes, len, taken)) = &mut self.reading else { return Err(io::ErrorKind::WouldBlock.into()) };
        let n = to.len().min(*len - *taken);
        to[..n].copy_from_slice(&bytes[*taken..*taken + n]);
        *taken += n;
        if taken == len
            && let Some((bytes, ..)) = self.reading.take()
        {
            self.receive_into(bytes)?;
        }
        Ok(n)
    }
}

impl Write for MpiStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check()?;
        let Some(mut bytes) = self.free()? else { return Err(io::ErrorKind::WouldBlock.into()) };
        let mut len = 0;
        for part in parts {
            let n = part.len().min(MESSAGE - len);
            bytes[len..len + n].copy_from_slice(&part[..n]);
            len += n;
        }
        if len == 0 {
            self.sends.push_back(Buffer { bytes, request: None });
            return Ok(0);
        }
        // SAFETY: the buffer keeps the bytes until the request is over, and writes them only then. Where it cannot, in `drop`, the
        // memory is leaked.
        let request = unsafe { self.mpi.calls.send(&bytes[..len], self.peer) };
        self.sends.push_back(Buffer { bytes, request: Some(request.map_err(failed)?) });
        Ok(len)
    }

    /// Messages are sent only while this program calls MPI, so a rank does not leave a rendezvous before.
    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        if self.are_under_way()? { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }
}

impl Drop for MpiStream {
    fn drop(&mut self) {
        let lost = self.mpi.is_abandoned();
        let receives = self.receives.drain(..).map(|buffer| (buffer, true));
        for (Buffer { bytes, request }, receives) in receives.chain(self.sends.drain(..).map(|buffer| (buffer, false)))
        {
            let Some(mut request) = request else { continue };
            let is_over = !lost
                && match receives {
                    true => self.mpi.calls.cancel(request).is_ok(),
                    false => matches!(self.mpi.calls.test(&mut request), Ok(Some(_))),
                };
            if !is_over {
                // MPI may still read or write it.
                std::mem::forget(bytes);
            }
        }
    }
}
