//! Links over a stream, TCP or another: messages in frames, which are sent and received without blocking.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::time::{Duration, Instant};

use of_runtime::TransferBlock;

use crate::blocks::{contiguous, pack};
use crate::peer::PeerInfo;
use crate::stream::Stream;
use crate::wire::{HEADER, Header};

/// Bytes of messages of later rendezvous that wait in memory for each rank.
const WAITING: usize = 16 << 20;

/// Memory for a message is taken in steps of this size, as its bytes come.
const STEP: usize = 4 << 20;

/// Bytes of a frame of a message of so many bytes, but for the last one: its checksum is computed while others are on their way.
fn frame_bytes(message: usize) -> usize {
    (message / 4).clamp(16 << 10, 128 << 10)
}

/// The checksum of a frame behind so many bytes of its message. It is another one elsewhere, so frames that change places are noticed.
fn checksum(done: usize, frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(done as u32);
    hasher.update(frame);
    hasher.finalize()
}

/// Bytes of small frames that are read at once.
const BUFFER: usize = 32 << 10;

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
    /// Whole messages that are not taken yet: the number of the rendezvous, and the bytes.
    messages: VecDeque<(u32, Vec<u8>)>,
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
    /// When it was known that the rank has left, where the stream has no end.
    gone_since: Option<Instant>,
}

/// A message of which a part has come.
#[derive(Debug, Default)]
struct Partial {
    /// The number of its rendezvous, its length, and its own number.
    message: (u32, u64, u32),
    /// Bytes of its frames that are whole.
    done: usize,
    /// The header of the next frame.
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    got: usize,
    expected: Option<Header>,
    /// Memory for its bytes, as far as it goes.
    bytes: Vec<u8>,
    /// Bytes that have come.
    filled: usize,
}

/// A message that is sent.
#[derive(Debug)]
pub struct Message<'a> {
    id: u32,
    number: u32,
    bytes: Cow<'a, [u8]>,
    header: [u8; HEADER],
    /// Bytes of the frames before this one.
    done: usize,
    /// Bytes of this frame that are sent, its header's included.
    sent: usize,
    /// Whether the stream took all, and whether it has sent it.
    is_written: bool,
    is_sent: bool,
}

impl<'a> Message<'a> {
    /// The message of a block. One that is not in one piece is packed.
    fn of(id: u32, number: u32, block: &TransferBlock<'a>) -> Message<'a> {
        let bytes: Cow<'a, [u8]> = match contiguous(block) {
            Some(bytes) => bytes.into(),
            None => {
                let mut packed = vec![0; block.block.elements() * block.element];
                pack(block, &mut packed);
                packed.into()
            }
        };
        let mut message =
            Message { id, number, bytes, header: [0; HEADER], done: 0, sent: 0, is_written: false, is_sent: false };
        message.begin();
        message
    }

    fn begin(&mut self) {
        let (id, number, length) = (self.id, self.number, self.bytes.len() as u64);
        let header = Header { id, length, crc: checksum(self.done, self.frame()), number };
        (self.header, self.sent) = (header.encode(), 0);
    }

    /// The bytes of this frame.
    fn frame(&self) -> &[u8] {
        let len = self.bytes.len();
        &self.bytes[self.done..(self.done + frame_bytes(len)).min(len)]
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
            self.done += frame;
            if self.done < self.bytes.len() {
                self.begin();
            } else {
                self.is_written = true;
            }
        }
    }
}

impl StreamLink<Stream> {
    /// Over an open connection.
    pub fn new(peer: PeerInfo, stream: Stream) -> io::Result<StreamLink<Stream>> {
        if let Some(tcp) = stream.tcp() {
            tcp.set_nonblocking(true)?;
        }
        let ends = stream.tcp().is_some();
        Ok(StreamLink { ends, ..StreamLink::over(peer, stream) })
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
            gone_since: None,
        }
    }

    /// The next message to send: a block.
    pub fn message<'a>(&mut self, id: u32, block: &TransferBlock<'a>) -> Message<'a> {
        self.sent = self.sent.wrapping_add(1);
        Message::of(id, self.sent, block)
    }

    /// The connection, to wait for.
    pub fn stream(&self) -> &S {
        self.stream.get_ref()
    }

    /// Whether there is memory for more messages that wait.
    pub fn has_room(&self) -> bool {
        self.waiting < WAITING
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

    /// Sends as much of a message as the connection takes. Returns whether that was something.
    pub fn send(&mut self, message: &mut Message<'_>) -> Result<bool, String> {
        let mut progress = false;
        while !message.is_written {
            let header = &message.header[message.sent.min(HEADER)..];
            let bytes = &message.frame()[message.sent.saturating_sub(HEADER)..];
            match self.stream.get_mut().write_vectored(&[IoSlice::new(header), IoSlice::new(bytes)]) {
                Ok(n) => {
                    message.advance(n);
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

    /// Reads what has come of messages. Returns whether that was something.
    pub fn receive(&mut self) -> Result<bool, String> {
        let mut progress = false;
        while !self.closed {
            let got = match self.partial.read(&mut self.stream) {
                Ok(0) => {
                    self.closed = true;
                    if self.partial.got > 0 || self.partial.done > 0 {
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
            let Some((id, bytes)) = self.partial.whole().map_err(|what| format!("{} {what}", self.peer))? else {
                continue;
            };
            self.received = want;
            self.partial.bytes = std::mem::take(&mut self.spare);
            self.waiting += bytes.len();
            self.messages.push_back((id, bytes));
            // Most often, a message is all that has come.
            if self.waiting >= WAITING || self.stream.buffer().is_empty() {
                break;
            }
        }
        Ok(progress)
    }

    /// Passes the bytes that this rank sent in rendezvous `id` to `take`. Returns whether they have come.
    pub fn take(&mut self, id: u32, take: &mut dyn FnMut(&[u8])) -> Result<bool, String> {
        match self.messages.front() {
            None => return Ok(false),
            Some((own, _)) if *own != id => return Err(format!("{} is in transfer {own} instead of {id}", self.peer)),
            Some((_, bytes)) => take(bytes),
        }
        if let Some((_, bytes)) = self.messages.pop_front() {
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
        let damaged = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
        let Some(header) = self.expected else {
            let got = from.read(&mut self.header[self.got..])?;
            self.got += got;
            if self.got == HEADER {
                let header = Header::decode(&self.header).ok_or_else(|| damaged("its header is none"))?;
                if self.done > 0 && (header.id, header.length, header.number) != self.message {
                    return Err(damaged("a frame of another message follows"));
                }
                self.message = (header.id, header.length, header.number);
                self.expected = Some(header);
            }
            return Ok(got);
        };
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if self.filled == self.bytes.len() {
            let step = (length - self.filled).min(STEP.max(self.filled));
            self.bytes.try_reserve_exact(step).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            self.bytes.resize(self.filled + step, 0);
        }
        let end = self.bytes.len().min(length).min(self.done + frame_bytes(length));
        let got = from.read(&mut self.bytes[self.filled..end])?;
        self.filled += got;
        Ok(got)
    }

    /// The message, if it is whole.
    fn whole(&mut self) -> Result<Option<(u32, Vec<u8>)>, String> {
        let Some(header) = self.expected else { return Ok(None) };
        let frame = frame_bytes(usize::try_from(header.length).unwrap_or(usize::MAX));
        let end = header.length.min((self.done + frame) as u64);
        if (self.filled as u64) < end {
            return Ok(None);
        }
        if checksum(self.done, &self.bytes[self.done..self.filled]) != header.crc {
            return Err(format!("sent a damaged message of {} bytes: a checksum does not match", header.length));
        }
        if end < header.length {
            (self.done, self.got, self.expected) = (self.filled, 0, None);
            return Ok(None);
        }
        let filled = self.filled;
        let mut bytes = std::mem::take(self).bytes;
        bytes.truncate(filled);
        Ok(Some((header.id, bytes)))
    }
}
