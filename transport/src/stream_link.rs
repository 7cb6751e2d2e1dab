//! Links over a stream, TCP or another: messages in frames, which are sent and received without blocking.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use of_runtime::{Chunk, TransferBlock};
use rustix::net::sockopt::set_tcp_congestion;

use crate::blocks::{contiguous, pack};
use crate::peer::PeerInfo;
use crate::stream::Stream;
use crate::wire::{HEADER, Header};

/// Where so many bytes of a rank wait in memory, nothing more is read from it: the rest stays in memory of the system, so that a rank that comes late to a
/// rendezvous takes no more memory than others.
const WAITING: usize = MIN_FRAME;

/// Memory for a message is taken in steps of this size, as its bytes come.
const STEP: usize = 4 << 20;

/// The longest frame: so many bytes, as many of the sender's and of the target, and what is on its way fit into the caches of a core.
pub(crate) const MAX_FRAME: usize = 512 << 10;

/// The longest frame over TLS: while one end encrypts it, the other one decrypts the frame before.
const MAX_ENCRYPTED_FRAME: usize = 128 << 10;

/// The shortest frame but for the last one: with its header, half of a packet of the loopback interface. Shorter ones are slower by their calls.
const MIN_FRAME: usize = 32 << 10;

/// Bytes of a frame of a message of so many bytes, but for the last one, over a stream with this longest frame: a checksum is computed while others are on
/// their way.
pub(crate) fn frame_bytes(message: usize, max: usize) -> usize {
    (message / 4).clamp(MIN_FRAME, max).next_multiple_of(Chunk::ALIGN)
}

/// The checksum of a frame behind so many bytes of its message. It is another one elsewhere, so frames that change places are noticed.
pub(crate) fn checksum(done: usize, frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(done as u32);
    hasher.update(frame);
    hasher.finalize()
}

/// Bytes of small frames that are read at once.
const BUFFER: usize = 32 << 10;

/// The congestion control of connections within a host, which every Linux has. Nothing is congested there, and one that paces what is sent by timers (BBR) makes
/// long messages take twice as long.
const WITHIN_HOST: &str = "reno";

/// Whether both ends of a connection are on this host.
fn is_within_host(tcp: &TcpStream) -> bool {
    matches!((tcp.local_addr(), tcp.peer_addr()), (Ok(own), Ok(peer)) if own.ip() == peer.ip() || peer.ip().is_loopback())
}

/// Memory of a message that is kept for the next.
const MAX_SPARE: usize = 64 << 20;

/// How long a message may be under way from a rank that has left, where no end of the stream says that nothing follows.
const LATE: Duration = Duration::from_secs(2);

/// The connection for data to another rank.
#[derive(Debug)]
pub struct StreamLink<S> {
    pub peer: PeerInfo,
    stream: BufReader<S>,
    partial: Partial,
    /// Whole messages that are not taken yet.
    messages: VecDeque<Arrived>,
    waiting: usize,
    /// The memory of a message that was taken, for the next.
    spare: Vec<u8>,
    /// Messages that were begun, and that have come whole.
    sent: u32,
    received: u32,
    /// Whether the other end closed the connection.
    pub closed: bool,
    /// Whether the stream has an end.
    ends: bool,
    /// Whether it is encrypted, at both ends.
    is_encrypted: bool,
    /// When it was known that the rank has left, where the stream has no end.
    gone_since: Option<Instant>,
}

/// A message that has come whole, or its end, where chunks of it were taken before.
#[derive(Debug)]
struct Arrived {
    /// The number of its rendezvous.
    id: u32,
    /// Memory that begins with its bytes, and how many they are.
    memory: Vec<u8>,
    len: usize,
    /// Bytes that were taken.
    taken: usize,
}

/// What was taken of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    Nothing,
    Chunk,
    /// The end of it.
    End,
}

/// A message of which a part has come.
#[derive(Debug, Default)]
struct Partial {
    /// The number of its rendezvous, its length, and its own number.
    message: (u32, u64, u32),
    /// Bytes of its frames that are whole.
    done: usize,
    /// The header of this frame, or of the next one where this one's is known.
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    got: usize,
    expected: Option<Header>,
    /// Memory for its bytes behind those that were taken, as far as it goes.
    bytes: Vec<u8>,
    /// Bytes that have come.
    filled: usize,
    /// Bytes that were taken.
    taken: usize,
}

/// A message that is sent.
#[derive(Debug)]
pub struct Message<'a> {
    id: u32,
    number: u32,
    bytes: Cow<'a, [u8]>,
    /// Bytes of a frame but for the last one.
    frame_bytes: usize,
    header: [u8; HEADER],
    /// Bytes of the frames before this one.
    done: usize,
    /// Whether this frame has its header.
    is_begun: bool,
    /// Bytes of this frame that are sent, its header's included.
    sent: usize,
    /// Whether the stream took all, and whether it has sent it.
    is_written: bool,
    is_sent: bool,
}

impl<'a> Message<'a> {
    /// The message of a block. One that is not in one piece is packed.
    fn of(id: u32, number: u32, block: &TransferBlock<'a>, max_frame: usize) -> Message<'a> {
        let bytes: Cow<'a, [u8]> = match contiguous(block) {
            Some(bytes) => bytes.into(),
            None => {
                let mut packed = vec![0; block.block.elements() * block.element];
                pack(block, &mut packed);
                packed.into()
            }
        };
        let frame_bytes = frame_bytes(bytes.len(), max_frame);
        let (header, is_written) = ([0; HEADER], false);
        Message {
            id,
            number,
            bytes,
            frame_bytes,
            header,
            done: 0,
            is_begun: false,
            sent: 0,
            is_written,
            is_sent: false,
        }
    }

    /// Computes the header of this frame, just before the system reads it: then it is in the cache.
    fn begin(&mut self) {
        if !self.is_begun {
            let (id, number, length) = (self.id, self.number, self.bytes.len() as u64);
            let header = Header { id, length, crc: checksum(self.done, self.frame()), number };
            (self.header, self.is_begun) = (header.encode(), true);
        }
    }

    /// The bytes of this frame.
    fn frame(&self) -> &[u8] {
        let len = self.bytes.len();
        &self.bytes[self.done..(self.done + self.frame_bytes).min(len)]
    }

    /// Whether all is sent.
    pub fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Counts bytes that were sent.
    fn advance(&mut self, sent: usize) {
        self.sent += sent;
        let frame = self.frame().len();
        if self.sent == HEADER + frame {
            (self.done, self.sent, self.is_begun) = (self.done + frame, 0, false);
            self.is_written = self.done >= self.bytes.len();
        }
    }
}

impl StreamLink<Stream> {
    /// Over an open connection.
    pub fn new(peer: PeerInfo, stream: Stream) -> io::Result<StreamLink<Stream>> {
        if let Some(tcp) = stream.tcp() {
            tcp.set_nonblocking(true)?;
            if is_within_host(tcp)
                && let Err(error) = set_tcp_congestion(tcp, WITHIN_HOST)
            {
                tracing::debug!(%peer, %error, "the system's congestion control stays");
            }
        }
        let ends = stream.tcp().is_some();
        let is_encrypted = matches!(stream, Stream::Tls(_));
        Ok(StreamLink { ends, is_encrypted, ..StreamLink::over(peer, stream) })
    }
}

impl<S: Read + Write> StreamLink<S> {
    /// Over a stream that does not block.
    pub fn over(peer: PeerInfo, stream: S) -> StreamLink<S> {
        let (partial, messages, spare) = (Partial::default(), VecDeque::new(), Vec::new());
        let stream = BufReader::with_capacity(BUFFER, stream);
        StreamLink {
            peer,
            stream,
            partial,
            messages,
            waiting: 0,
            spare,
            sent: 0,
            received: 0,
            closed: false,
            ends: true,
            is_encrypted: false,
            gone_since: None,
        }
    }

    /// The next message to send: a block.
    pub fn message<'a>(&mut self, id: u32, block: &TransferBlock<'a>) -> Message<'a> {
        self.sent = self.sent.wrapping_add(1);
        Message::of(id, self.sent, block, self.max_frame())
    }

    /// The longest frame.
    fn max_frame(&self) -> usize {
        if self.is_encrypted { MAX_ENCRYPTED_FRAME } else { MAX_FRAME }
    }

    /// The connection, to wait for.
    pub fn stream(&self) -> &S {
        self.stream.get_ref()
    }

    /// Whether more is to be read: little waits to be taken, or it is wanted now and a part of it is of no use.
    pub fn is_read(&self, wanted_whole: bool) -> bool {
        self.waiting + (self.partial.done - self.partial.taken) < WAITING || (wanted_whole && self.messages.is_empty())
    }

    /// Whether nothing more will come from a rank that has left.
    pub fn is_over(&mut self) -> bool {
        self.messages.is_empty() && if self.ends { self.closed } else { self.is_late() }
    }

    /// Whether a rank that has left takes nothing more, as far as writing to it does not fail.
    pub fn is_deaf(&mut self) -> bool {
        !self.ends && self.is_late()
    }

    fn is_late(&mut self) -> bool {
        self.gone_since.get_or_insert_with(Instant::now).elapsed() > LATE
    }

    /// What has come and not been taken, for the simulator's reports.
    #[cfg(test)]
    pub fn describe(&self) -> String {
        let Partial { message, done, got, filled, expected, .. } = &self.partial;
        format!(
            "{} messages came, {} wait; next {message:?}: header {got}, known {}, {done} + {}; {} sent, closed {}",
            self.received,
            self.messages.len(),
            expected.is_some(),
            filled - done,
            self.sent,
            self.closed
        )
    }

    /// Sends as much of a message as the connection takes, at most about a long frame: what comes is to be read in between, so that little waits in the
    /// system's memory, which stays in the cache. Returns whether that was something.
    pub fn send(&mut self, message: &mut Message<'_>) -> Result<bool, String> {
        let mut progress = false;
        let mut budget = self.max_frame();
        while !message.is_written && budget > 0 {
            message.begin();
            let header = &message.header[message.sent.min(HEADER)..];
            let bytes = &message.frame()[message.sent.saturating_sub(HEADER)..];
            match self.stream.get_mut().write_vectored(&[IoSlice::new(header), IoSlice::new(bytes)]) {
                Ok(n) => {
                    message.advance(n);
                    budget = budget.saturating_sub(n);
                    progress = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("{} cannot be sent to: {e}", self.peer)),
            }
        }
        if message.is_written {
            // An encrypted stream may hold what the connection did not take.
            match self.stream.get_mut().flush() {
                Ok(()) => message.is_sent = true,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(format!("{} cannot be sent to: {e}", self.peer)),
            }
            progress |= message.is_sent;
        }
        Ok(progress)
    }

    /// Reads what has come of messages, at most to the end of a frame. Returns whether that was something.
    pub fn receive(&mut self) -> Result<bool, String> {
        let (mut progress, max_frame) = (false, self.max_frame());
        if self.partial.bytes.is_empty() {
            self.partial.bytes = std::mem::take(&mut self.spare);
        }
        while !self.closed {
            let got = match self.partial.read(&mut self.stream, max_frame) {
                Ok(0) => {
                    self.closed = true;
                    if self.partial.got > 0 || self.partial.expected.is_some() || self.partial.done > 0 {
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
            // The number of a rendezvous comes again in the next step, that of a message does not. It is in the header, because the
            // bytes behind a header that was repeated may never come.
            let ((.., number), want) = (self.partial.message, self.received.wrapping_add(1));
            if self.partial.expected.is_some() && number != want {
                return Err(format!(
                    "{} sent message {number}, and {want} was the next: one was lost or repeated",
                    self.peer
                ));
            }
            if !self.partial.ends_frame(max_frame).map_err(|what| format!("{} {what}", self.peer))? {
                continue;
            }
            if let Some(message) = self.partial.ends_message() {
                self.received = want;
                self.waiting += message.len;
                self.messages.push_back(message);
            }
            break;
        }
        Ok(progress)
    }

    /// Passes bytes that this rank sent in rendezvous `id` to `take`, with how many were before and how many there are in all: the whole message, or, in chunks,
    /// what has come of it.
    pub fn take(
        &mut self,
        id: u32,
        in_chunks: bool,
        take: &mut dyn FnMut(&[u8], usize, usize),
    ) -> Result<Took, String> {
        let other = |own: u32| Err(format!("{} is in transfer {own} instead of {id}", self.peer));
        match self.messages.front() {
            None if in_chunks && self.partial.done > self.partial.taken => {
                let partial = &mut self.partial;
                if partial.message.0 != id {
                    return other(partial.message.0);
                }
                take(partial.checked(), partial.taken, usize::try_from(partial.message.1).unwrap_or(usize::MAX));
                partial.forget_checked();
                return Ok(Took::Chunk);
            }
            None => return Ok(Took::Nothing),
            Some(message) if message.id != id => return other(message.id),
            Some(message) => take(&message.memory[..message.len], message.taken, message.taken + message.len),
        }
        if let Some(Arrived { memory, len, .. }) = self.messages.pop_front() {
            self.waiting -= len;
            if memory.len() <= MAX_SPARE && memory.len() > self.spare.len() {
                self.spare = memory;
            }
        }
        Ok(Took::End)
    }
}

impl Partial {
    /// Reads once.
    fn read(&mut self, from: &mut impl Read, max_frame: usize) -> io::Result<usize> {
        let Some(header) = self.expected else {
            let got = from.read(&mut self.header[self.got..])?;
            self.got += got;
            self.decode().map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
            return Ok(got);
        };
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        let filled = self.filled - self.taken;
        if filled == self.bytes.len() {
            let step =
                if filled == 0 { frame_bytes(length, max_frame) } else { STEP.max(filled) }.min(length - self.filled);
            self.bytes.try_reserve_exact(step).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            self.bytes.resize(filled + step, 0);
        }
        let end = length.min(self.done + frame_bytes(length, max_frame));
        let room = self.bytes.len().min(end - self.taken);
        let bytes = &mut self.bytes[filled..room];
        let space = bytes.len();
        let got = if self.taken + room == end && end < length {
            // The next header comes with this frame: one call fewer, and no bytes through a buffer.
            from.read_vectored(&mut [IoSliceMut::new(bytes), IoSliceMut::new(&mut self.header[self.got..])])?
        } else {
            from.read(bytes)?
        };
        self.filled += got.min(space);
        self.got += got.saturating_sub(space);
        Ok(got)
    }

    /// Decodes the header, if it is there.
    fn decode(&mut self) -> Result<(), &'static str> {
        if self.got == HEADER {
            let header = Header::decode(&self.header).ok_or("its header is none")?;
            let message = (header.id, header.length, header.number);
            if self.done > 0 && message != self.message {
                return Err("a frame of another message follows");
            }
            (self.message, self.expected, self.got) = (message, Some(header), 0);
        }
        Ok(())
    }

    /// Checks the frame, if it is whole. Returns whether it is.
    fn ends_frame(&mut self, max_frame: usize) -> Result<bool, String> {
        let Some(header) = self.expected else { return Ok(false) };
        let frame = frame_bytes(usize::try_from(header.length).unwrap_or(usize::MAX), max_frame);
        let end = header.length.min((self.done + frame) as u64);
        if (self.filled as u64) < end {
            return Ok(false);
        }
        if checksum(self.done, &self.bytes[self.done - self.taken..self.filled - self.taken]) != header.crc {
            return Err(format!("sent a damaged message of {} bytes: a checksum does not match", header.length));
        }
        (self.done, self.expected) = (self.filled, None);
        if end < header.length {
            self.decode().map_err(|what| format!("sent a damaged message: {what}"))?;
        }
        Ok(true)
    }

    /// The message behind a whole frame, if that was its last one.
    fn ends_message(&mut self) -> Option<Arrived> {
        let (id, length, _) = self.message;
        if (self.done as u64) < length {
            return None;
        }
        let Partial { bytes: memory, filled, taken, .. } = std::mem::take(self);
        Some(Arrived { id, memory, len: filled - taken, taken })
    }

    /// Bytes of whole frames that were not taken.
    fn checked(&self) -> &[u8] {
        &self.bytes[..self.done - self.taken]
    }

    /// Counts them as taken. Those of the next frame take their place.
    fn forget_checked(&mut self) {
        self.bytes.copy_within(self.done - self.taken..self.filled - self.taken, 0);
        self.taken = self.done;
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::sockopt::tcp_congestion;

    use super::*;

    #[test]
    fn connections_within_a_host_do_not_pace() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_within_host(&tcp));
        let peer = PeerInfo { rank: 1, address: listener.local_addr().unwrap(), host: "here".into(), pid: 1 };
        let link = StreamLink::new(peer, Stream::Plain(tcp)).unwrap();
        assert_eq!(tcp_congestion(link.stream().tcp().unwrap()).unwrap(), WITHIN_HOST);
    }
}
