//! A channel: messages from one rank to another of the same host, through memory that both have mapped.
//!
//! A ring of entries. Each has its number, which the writer stores last, and small messages inline; larger ones are read where the
//! writer has them, in a segment of its process. The reader stores how many messages it has taken. Each of the two waits by
//! polling, then on a futex; it says so before it sleeps, so that the other end wakes it. `ring.rs` has this protocol, and this file the
//! layout of its words and messages.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::ring::{ReaderPosition, Ring, WriterPosition};
use crate::segment::{Place, Segment};

/// Entries of a channel's ring.
const ENTRIES: u32 = 8;

/// Bytes of an entry, and of what precedes an inline message in it. The first line holds messages of 32 bytes.
const ENTRY: usize = 8192;
const HEADER: usize = 32;

/// The largest message that is copied into the ring.
pub const INLINE: usize = ENTRY - HEADER;

/// Places of the numbers that both ends use, on lines of their own, and of the ring.
const TAKEN: usize = 0;
const READER_SLEEPS: usize = 64;
const WRITER_SLEEPS: usize = 128;
const RING: usize = 192;

/// Bytes of a channel.
pub const CHANNEL: usize = RING + ENTRIES as usize * ENTRY;

/// Places of the numbers in an entry.
const NUMBER: usize = 0;
const ID: usize = 4;
const REGION: usize = 8;
const FD: usize = 12;
const LENGTH: usize = 16;
const OFFSET: usize = 24;
/// The length of the segment of a message that is not inline.
const SEGMENT_LENGTH: usize = 32;

/// Segments of a writer that stay mapped.
const MAX_REGIONS: usize = 16;

/// The region of inline messages.
const NO_REGION: u32 = u32::MAX;

/// Bytes in a segment of the writer that other processes may read.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The segment's number, which is never used for another one.
    pub number: u32,
    pub place: Place,
    /// Where the bytes begin in it.
    pub offset: usize,
}

/// The end that writes. Its channel is in its own process' segment.
#[derive(Debug)]
pub struct Writer {
    at: usize,
    position: WriterPosition,
}

/// The end that reads.
#[derive(Debug)]
pub struct Reader {
    segment: Segment,
    at: usize,
    pid: u32,
    position: ReaderPosition,
    /// Segments of the writer that messages were in, by their numbers.
    regions: Vec<(u32, Segment)>,
}

/// The words of a channel at a byte of a segment.
struct Words<'s>(&'s Segment, usize);

impl Ring for Words<'_> {
    type Word = AtomicU32;
    const ENTRIES: u32 = ENTRIES;

    fn number(&self, message: u32) -> &AtomicU32 {
        self.0.atomic(entry(self.1, message) + NUMBER)
    }

    fn taken(&self) -> &AtomicU32 {
        self.0.atomic(self.1 + TAKEN)
    }

    fn reader_sleeps(&self) -> &AtomicU32 {
        self.0.atomic(self.1 + READER_SLEEPS)
    }

    fn writer_sleeps(&self) -> &AtomicU32 {
        self.0.atomic(self.1 + WRITER_SLEEPS)
    }
}

impl Writer {
    /// Over the channel at a byte of the own segment.
    pub fn new(at: usize) -> Writer {
        Writer { at, position: WriterPosition::default() }
    }

    /// Whether the ring has an entry free.
    pub fn has_room(&mut self, own: &Segment) -> bool {
        self.position.has_room(&Words(own, self.at))
    }

    /// Whether the reader has taken a message.
    pub fn is_taken(&self, own: &Segment, message: u32) -> bool {
        self.position.is_taken(&Words(own, self.at), message)
    }

    /// Publishes a message of `len` bytes for rendezvous `id`, which `fill` writes. There must be room.
    pub fn write(&mut self, own: &Segment, id: u32, len: usize, fill: impl FnOnce(&mut [u8])) {
        let at = self.next();
        fill(own.bytes_mut(at + HEADER, len));
        self.publish(own, at, id, NO_REGION, len);
    }

    /// Publishes bytes of a region. There must be room. Returns the number of the message: the bytes may change once it is taken.
    pub fn write_in_place(&mut self, own: &Segment, id: u32, region: &Region, len: usize) -> u32 {
        let at = self.next();
        own.bytes_mut(at + FD, 4).copy_from_slice(&region.place.fd.to_le_bytes());
        own.bytes_mut(at + OFFSET, 8).copy_from_slice(&(region.offset as u64).to_le_bytes());
        own.bytes_mut(at + SEGMENT_LENGTH, 8).copy_from_slice(&region.place.len.to_le_bytes());
        self.publish(own, at, id, region.number, len);
        self.position.written()
    }

    /// Writes some of the next entry, but not its number, which comes last.
    #[cfg(test)]
    pub fn tear(&mut self, own: &Segment, rng: &mut fastrand::Rng) {
        let entry = own.bytes_mut(self.next() + ID, HEADER + 64);
        let len = rng.usize(..entry.len());
        entry[..len].iter_mut().for_each(|byte| *byte = rng.u8(..));
    }

    fn next(&self) -> usize {
        entry(self.at, self.position.next())
    }

    fn publish(&mut self, own: &Segment, at: usize, id: u32, region: u32, len: usize) {
        own.bytes_mut(at + ID, 4).copy_from_slice(&id.to_le_bytes());
        own.bytes_mut(at + REGION, 4).copy_from_slice(&region.to_le_bytes());
        own.bytes_mut(at + LENGTH, 8).copy_from_slice(&(len as u64).to_le_bytes());
        self.position.publish(&Words(own, self.at));
    }

    /// Sleeps until the reader takes a message, at most for `timeout`.
    pub fn sleep(&self, own: &Segment, until_taken: u32, timeout: Duration) {
        self.position.sleep(&Words(own, self.at), until_taken, timeout);
    }

    /// The message that must be taken for another to have room.
    pub fn oldest(&self) -> u32 {
        self.position.oldest::<Words<'_>>()
    }
}

impl Reader {
    /// Over the channel at a byte of the segment of another process.
    pub fn new(segment: Segment, at: usize, pid: u32) -> Reader {
        Reader { segment, at, pid, position: ReaderPosition::default(), regions: Vec::new() }
    }

    /// Passes the next message to `take`, if there is one, and tells the writer. Returns whether there was one, or the number of
    /// its rendezvous where that is not `id`.
    ///
    /// # Errors
    /// When the message cannot be read.
    pub fn take(&mut self, id: u32, take: impl FnOnce(&[u8])) -> io::Result<Result<bool, u32>> {
        if !self.has_message() {
            return Ok(Ok(false));
        }
        let at = entry(self.at, self.position.next());
        let word = |place: usize| {
            let b = self.segment.bytes(at + place, 4);
            u32::from_le_bytes([b[0], b[1], b[2], b[3]])
        };
        let long = |place: usize| u64::from(word(place)) | u64::from(word(place + 4)) << 32;
        if word(ID) != id {
            return Ok(Err(word(ID)));
        }
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a message is longer than its memory");
        let (region, len) = (word(REGION), usize::try_from(long(LENGTH)).map_err(|_| damaged())?);
        if region == NO_REGION {
            if len > INLINE {
                return Err(damaged());
            }
            take(self.segment.bytes(at + HEADER, len));
        } else {
            let offset = usize::try_from(long(OFFSET)).map_err(|_| damaged())?;
            let place = Place { pid: self.pid, fd: word(FD), len: long(SEGMENT_LENGTH) };
            if offset.checked_add(len).is_none_or(|end| end as u64 > place.len) {
                return Err(damaged());
            }
            let index = match self.regions.iter().position(|(number, _)| *number == region) {
                Some(index) => index,
                None => {
                    // The writer may have given up the oldest; if not, its next message opens it again.
                    if self.regions.len() == MAX_REGIONS {
                        self.regions.remove(0);
                    }
                    self.regions.push((region, Segment::open(place)?));
                    self.regions.len() - 1
                }
            };
            let segment = &self.regions[index].1;
            if segment.place().len != place.len {
                return Err(damaged());
            }
            take(segment.bytes(offset, len));
        }
        self.position.take(&Words(&self.segment, self.at));
        Ok(Ok(true))
    }

    /// Whether there is a message.
    pub fn has_message(&self) -> bool {
        self.position.has_message(&Words(&self.segment, self.at))
    }

    /// Sleeps until the next message comes, at most for `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        self.position.sleep(&Words(&self.segment, self.at), timeout);
    }
}

/// The place of a message's entry.
fn entry(channel: usize, message: u32) -> usize {
    channel + RING + (message % ENTRIES) as usize * ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// Sends messages of these lengths through a channel, and checks what comes.
    fn send_all(lens: &[usize], spins: bool) {
        let own = Segment::create(CHANNEL + 64).unwrap();
        let shared = Segment::create(1 << 20).unwrap();
        let mut reader = Reader::new(Segment::open(own.place()).unwrap(), 64, std::process::id());
        let byte = |id: usize| (id * 7) as u8;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = Writer::new(64);
                for (id, len) in lens.iter().enumerate() {
                    while !writer.has_room(&own) {
                        writer.sleep(&own, writer.oldest(), TICK);
                    }
                    if *len <= INLINE {
                        writer.write(&own, id as u32, *len, |to| to.fill(byte(id)));
                        continue;
                    }
                    let offset = id % 1000;
                    shared.bytes_mut(offset, *len).fill(byte(id));
                    let region = Region { number: 3, place: shared.place(), offset };
                    let message = writer.write_in_place(&own, id as u32, &region, *len);
                    while !writer.is_taken(&own, message) {
                        writer.sleep(&own, message, TICK);
                    }
                }
            });
            for (id, len) in lens.iter().enumerate() {
                let mut got = None;
                while !reader.take(id as u32, |b| got = Some(b.to_vec())).unwrap().unwrap() {
                    if spins {
                        std::thread::yield_now();
                    } else {
                        reader.sleep(TICK);
                    }
                }
                assert_eq!(got, Some(vec![byte(id); *len]), "message {id}");
            }
        });
    }

    #[test]
    fn messages_of_all_lengths_come_in_order() {
        let mut rng = fastrand::Rng::with_seed(5);
        let len = |rng: &mut fastrand::Rng| match rng.u32(0..10) {
            0 => 0,
            1 => INLINE,
            2 => INLINE + 1,
            3 => rng.usize(INLINE..1 << 19),
            _ => rng.usize(0..100),
        };
        let lens: Vec<usize> = (0..3000).map(|_| len(&mut rng)).collect();
        send_all(&lens, true);
        send_all(&lens, false);
    }

    #[test]
    fn messages_of_another_rendezvous_and_damaged_ones_are_errors() {
        let own = Segment::create(CHANNEL).unwrap();
        let open = || Reader::new(Segment::open(own.place()).unwrap(), 0, std::process::id());
        let mut writer = Writer::new(0);
        writer.write(&own, 4, 1, |to| to.fill(0));
        assert_eq!(open().take(5, |_| panic!("taken")).unwrap(), Err(4));
        let mut rng = fastrand::Rng::with_seed(6);
        for _ in 0..2000 {
            let at = entry(0, 1);
            own.bytes_mut(at + REGION, HEADER + 8 - REGION).iter_mut().for_each(|b| *b = rng.u8(..) & rng.u8(..));
            // The bytes may be a message; then they are inside the segment.
            let _ = open().take(4, |bytes| assert!(bytes.len() <= CHANNEL));
        }
    }
}
