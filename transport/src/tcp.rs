//! Links over TCP: frames, which are sent and received without blocking.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::TcpStream;

use of_runtime::TransferBlock;

use crate::blocks::{contiguous, pack};
use crate::peer::PeerInfo;
use crate::wire::{HEADER, Header};

/// Bytes of frames of later rendezvous that wait in memory for each rank.
const WAITING: usize = 16 << 20;

/// Memory for a frame is taken in steps of this size, as its bytes come.
const STEP: usize = 4 << 20;

/// Bytes of small frames that are read at once.
const BUFFER: usize = 32 << 10;

/// Memory of a frame that is kept for the next.
const MAX_SPARE: usize = 64 << 20;

/// The connection for data to another rank.
#[derive(Debug)]
pub struct TcpLink {
    pub peer: PeerInfo,
    stream: BufReader<TcpStream>,
    frame: Partial,
    /// Whole frames that are not taken yet: the number of the rendezvous, and the bytes.
    frames: VecDeque<(u32, Vec<u8>)>,
    waiting: usize,
    /// The memory of a frame that was taken, for the next.
    spare: Vec<u8>,
    /// Whether the other end closed the connection.
    pub closed: bool,
}

/// A frame of which a part has come.
#[derive(Debug, Default)]
struct Partial {
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    got: usize,
    expected: Option<Header>,
    /// Memory for its bytes, as far as it goes.
    bytes: Vec<u8>,
    /// Bytes that have come.
    filled: usize,
}

/// A frame that is sent.
#[derive(Debug)]
pub struct Frame<'a> {
    header: [u8; HEADER],
    bytes: Cow<'a, [u8]>,
    sent: usize,
}

impl<'a> Frame<'a> {
    /// The frame of a block. One that is not in one piece is packed.
    pub fn of(id: u32, block: &TransferBlock<'a>) -> Frame<'a> {
        let bytes: Cow<'a, [u8]> = match contiguous(block) {
            Some(bytes) => bytes.into(),
            None => {
                let mut packed = vec![0; block.block.elements() * block.element];
                pack(block, &mut packed);
                packed.into()
            }
        };
        Frame { header: Header::of(id, &bytes).encode(), bytes, sent: 0 }
    }

    /// Bytes that are not sent yet.
    pub fn left(&self) -> usize {
        HEADER + self.bytes.len() - self.sent
    }
}

impl TcpLink {
    /// Over an open connection.
    pub fn new(peer: PeerInfo, stream: TcpStream) -> io::Result<TcpLink> {
        stream.set_nonblocking(true)?;
        let (frame, frames, spare) = (Partial::default(), VecDeque::new(), Vec::new());
        let stream = BufReader::with_capacity(BUFFER, stream);
        Ok(TcpLink { peer, stream, frame, frames, waiting: 0, spare, closed: false })
    }

    /// The connection, to wait for.
    pub fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Whether there is memory for more frames that wait.
    pub fn has_room(&self) -> bool {
        self.waiting < WAITING
    }

    /// Whether nothing more will come.
    pub fn is_over(&self) -> bool {
        self.closed && self.frames.is_empty()
    }

    /// Sends as much of a frame as the connection takes. Returns whether that was something.
    pub fn send(&mut self, frame: &mut Frame<'_>) -> Result<bool, String> {
        let mut progress = false;
        while frame.left() > 0 {
            let header = &frame.header[frame.sent.min(HEADER)..];
            let bytes = &frame.bytes[frame.sent.saturating_sub(HEADER)..];
            match self.stream.get_mut().write_vectored(&[IoSlice::new(header), IoSlice::new(bytes)]) {
                Ok(n) => {
                    frame.sent += n;
                    progress = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("{} cannot be sent to: {e}", self.peer)),
            }
        }
        Ok(progress)
    }

    /// Reads what has come of frames. Returns whether that was something.
    pub fn receive(&mut self) -> Result<bool, String> {
        let mut progress = false;
        while !self.closed {
            let got = match self.frame.read(&mut self.stream) {
                Ok(0) => {
                    self.closed = true;
                    if self.frame.got > 0 {
                        return Err(format!("{} ended in the middle of a message", self.peer));
                    }
                    break;
                }
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    return Err(format!("{} sent a damaged message: {e}", self.peer));
                }
                Err(e) => return Err(format!("{} is lost: {e}", self.peer)),
            };
            progress |= got > 0;
            let Some((id, bytes)) = self.frame.whole().map_err(|what| format!("{} {what}", self.peer))? else {
                continue;
            };
            self.frame.bytes = std::mem::take(&mut self.spare);
            self.waiting += bytes.len();
            self.frames.push_back((id, bytes));
            // Most often, a frame is all that has come.
            if self.waiting >= WAITING || self.stream.buffer().is_empty() {
                break;
            }
        }
        Ok(progress)
    }

    /// Passes the bytes that this rank sent in rendezvous `id` to `take`. Returns whether they have come.
    pub fn take(&mut self, id: u32, take: &mut dyn FnMut(&[u8])) -> Result<bool, String> {
        match self.frames.front() {
            None => return Ok(false),
            Some((own, _)) if *own != id => return Err(format!("{} is in transfer {own} instead of {id}", self.peer)),
            Some((_, bytes)) => take(bytes),
        }
        if let Some((_, bytes)) = self.frames.pop_front() {
            self.waiting -= bytes.len();
            if bytes.len() <= MAX_SPARE && bytes.len() > self.spare.len() {
                self.spare = bytes;
            }
        }
        Ok(true)
    }
}

impl Partial {
    /// Reads once.
    fn read(&mut self, from: &mut impl Read) -> io::Result<usize> {
        let Some(length) = self.expected.map(|header| header.length) else {
            let got = from.read(&mut self.header[self.got..])?;
            self.got += got;
            if self.got == HEADER {
                let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its header is none");
                self.expected = Some(Header::decode(&self.header).ok_or_else(damaged)?);
            }
            return Ok(got);
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if self.filled == self.bytes.len() {
            let step = (length - self.filled).min(STEP.max(self.filled));
            self.bytes.try_reserve_exact(step).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            self.bytes.resize(self.filled + step, 0);
        }
        let end = self.bytes.len().min(length);
        let got = from.read(&mut self.bytes[self.filled..end])?;
        self.filled += got;
        Ok(got)
    }

    /// The frame, if it is whole.
    fn whole(&mut self) -> Result<Option<(u32, Vec<u8>)>, String> {
        let Some(header) = self.expected.filter(|header| header.length == self.filled as u64) else {
            return Ok(None);
        };
        let filled = self.filled;
        let mut bytes = std::mem::take(self).bytes;
        bytes.truncate(filled);
        if crc32fast::hash(&bytes) != header.crc {
            return Err(format!("sent a damaged message of {} bytes: its checksum does not match", bytes.len()));
        }
        Ok(Some((header.id, bytes)))
    }
}
