//! Links between ranks of one host: they agree on shared memory, and exchange blocks through it.

use std::fs::File;
use std::io::{self, Read, Write};

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use memmap2::MmapRaw;
use of_runtime::TransferBlock;

use crate::blocks::{contiguous, pack};
use crate::channel::{CHANNEL, INLINE, Reader, Region, Writer};
use crate::monitor::lock;
use crate::peer::PeerInfo;
use crate::segment::{Place, Segment};

/// Bytes before the first channel of a segment: a nonce, from which the other end knows that it is the one that was offered.
const CHANNELS: usize = 64;
const NONCE: usize = 32;

/// Bytes of an offer: the host, pid, descriptor, length, and nonce.
const OFFER: usize = 32 + 4 + 4 + 8 + NONCE;

/// The smallest memory for blocks that are not in shared memory.
const MIN_STAGING: usize = 1 << 20;

/// The memory of this rank that the others of its host read.
#[derive(Debug)]
pub struct OwnMemory {
    /// The nonce, and a channel to each rank.
    channels: Segment,
    nonce: [u8; NONCE],
    /// What must be equal for the files of two processes in `/proc` to be the same.
    host: [u8; 32],
    regions: Mutex<Regions>,
}

/// Segments that blocks are in.
#[derive(Debug, Default)]
struct Regions {
    /// Memory that the runtime owns.
    lent: Vec<Lent>,
    /// Memory for blocks that are elsewhere, or in pieces.
    staging: Vec<Staging>,
    /// Segments so far.
    count: u32,
}

/// A segment that the runtime owns. The file is kept while it does.
#[derive(Debug)]
struct Lent {
    number: u32,
    place: Place,
    memory: Weak<MmapRaw>,
    _file: File,
}

#[derive(Debug)]
struct Staging {
    number: u32,
    segment: Segment,
    used: bool,
}

/// How a block was sent.
#[derive(Clone, Copy, Debug)]
pub enum Sent {
    /// It was copied.
    Done,
    /// The receiver reads it in this message, from the staging memory with this number where there is one.
    Waits { message: u32, staging: Option<u32> },
}

/// The link to a rank of this host.
#[derive(Debug)]
pub struct SharedLink {
    pub peer: PeerInfo,
    writer: Writer,
    reader: Reader,
}

impl OwnMemory {
    /// Memory for channels to so many ranks.
    pub fn new(ranks: usize) -> io::Result<OwnMemory> {
        let len = CHANNEL.checked_mul(ranks).and_then(|n| n.checked_add(CHANNELS)).ok_or(io::ErrorKind::OutOfMemory)?;
        let channels = Segment::create(len)?;
        let mut nonce = [0; NONCE];
        rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty())?;
        channels.bytes_mut(0, NONCE).copy_from_slice(&nonce);
        Ok(OwnMemory { channels, nonce, host: host()?, regions: Mutex::default() })
    }

    /// Zeroed memory for the runtime, which the other ranks can read.
    pub fn lend(&self, len: usize) -> io::Result<Arc<MmapRaw>> {
        let segment = Segment::create(len.max(1))?;
        let place = segment.place();
        let (memory, file) = segment.into_parts();
        let mut regions = lock(&self.regions);
        regions.lent.retain(|lent| lent.memory.strong_count() > 0);
        let (number, weak) = (regions.next(), Arc::downgrade(&memory));
        regions.lent.push(Lent { number, place, memory: weak, _file: file });
        Ok(memory)
    }

    fn offer(&self) -> [u8; OFFER] {
        let mut out = [0; OFFER];
        let Place { pid, fd, len } = self.channels.place();
        out[..32].copy_from_slice(&self.host);
        out[32..36].copy_from_slice(&pid.to_le_bytes());
        out[36..40].copy_from_slice(&fd.to_le_bytes());
        out[40..48].copy_from_slice(&len.to_le_bytes());
        out[48..].copy_from_slice(&self.nonce);
        out
    }

    /// The segment of channels that another process offers, if this one reaches it.
    fn accept(&self, offer: &[u8; OFFER]) -> Result<Segment, String> {
        if offer[..32] != self.host {
            return Err("it is on another host, or in another container".into());
        }
        let word = |at: usize| u32::from_le_bytes([offer[at], offer[at + 1], offer[at + 2], offer[at + 3]]);
        let place = Place { pid: word(32), fd: word(36), len: u64::from(word(40)) | u64::from(word(44)) << 32 };
        let segment = Segment::open(place).map_err(|e| format!("its memory cannot be opened: {e}"))?;
        let is_it = place.len == self.channels.place().len && segment.bytes(0, NONCE) == &offer[48..];
        if is_it { Ok(segment) } else { Err("its memory is not what it offered".into()) }
    }
}

impl Regions {
    fn next(&mut self) -> u32 {
        self.count += 1;
        self.count
    }

    /// Where bytes are, if the other ranks can read them there.
    fn find(&self, bytes: &[u8]) -> Option<Region> {
        let at = bytes.as_ptr() as usize;
        self.lent.iter().find_map(|lent| {
            let memory = lent.memory.upgrade()?;
            let offset = at.checked_sub(memory.as_ptr() as usize)?;
            let inside = offset.checked_add(bytes.len())? <= memory.len();
            inside.then_some(Region { number: lent.number, place: lent.place, offset })
        })
    }

    /// Staging memory of this length.
    fn stage(&mut self, len: usize) -> io::Result<&Staging> {
        let free = self.staging.iter().position(|s| !s.used && s.segment.memory().len() >= len);
        let index = match free {
            Some(index) => index,
            None => {
                // A larger one replaces those that are too small.
                self.staging.retain(|s| s.used);
                let size = len.max(MIN_STAGING).checked_next_power_of_two().ok_or(io::ErrorKind::OutOfMemory)?;
                let segment = Segment::create(size)?;
                let number = self.next();
                self.staging.push(Staging { number, segment, used: false });
                self.staging.len() - 1
            }
        };
        self.staging[index].used = true;
        Ok(&self.staging[index])
    }
}

impl SharedLink {
    /// Agrees with the other end of a connection on shared memory, or says why there is none. Both ends must call it.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn negotiate(
        stream: &mut (impl Read + Write),
        own: Result<&OwnMemory, &str>,
        rank: u32,
        peer: &PeerInfo,
    ) -> io::Result<Result<SharedLink, String>> {
        let offer = own.map_or([0; OFFER], OwnMemory::offer);
        stream.write_all(&offer)?;
        let mut theirs = [0; OFFER];
        stream.read_exact(&mut theirs)?;
        let segment = match own {
            Err(why) => Err(why.to_owned()),
            Ok(_) if theirs == [0; OFFER] => Err("the other rank offers none".into()),
            Ok(own) => own.accept(&theirs),
        };
        stream.write_all(&[u8::from(segment.is_ok())])?;
        let mut accepted = [0];
        stream.read_exact(&mut accepted)?;
        Ok(match segment {
            Ok(_) if accepted != [1] => Err("the other rank cannot open this one's memory".into()),
            Ok(segment) => {
                let reader = Reader::new(segment, channel(rank), word_of_pid(&theirs));
                Ok(SharedLink { peer: peer.clone(), writer: Writer::new(channel(peer.rank)), reader })
            }
            Err(why) => Err(why),
        })
    }

    /// A link to a rank of this process, for the simulator.
    #[cfg(test)]
    pub fn connected(theirs: &OwnMemory, rank: u32, peer: &PeerInfo) -> io::Result<SharedLink> {
        let reader = Reader::new(Segment::open(theirs.channels.place())?, channel(rank), std::process::id());
        Ok(SharedLink { peer: peer.clone(), writer: Writer::new(channel(peer.rank)), reader })
    }

    /// Writes the next message in part, as a process does that ends meanwhile.
    #[cfg(test)]
    pub fn tear(&mut self, own: &OwnMemory, rng: &mut fastrand::Rng) {
        if self.writer.has_room(&own.channels) {
            self.writer.tear(&own.channels, rng);
        }
    }

    /// Sends a block, if there is room.
    pub fn send(&mut self, own: &OwnMemory, id: u32, block: &TransferBlock<'_>) -> Result<Option<Sent>, String> {
        if !self.writer.has_room(&own.channels) {
            return Ok(None);
        }
        let len = block.block.elements() * block.element;
        if len <= INLINE {
            self.writer.write(&own.channels, id, len, |to| pack(block, to));
            return Ok(Some(Sent::Done));
        }
        let mut regions = lock(&own.regions);
        if let Some(region) = contiguous(block).and_then(|bytes| regions.find(bytes)) {
            let message = self.writer.write_in_place(&own.channels, id, &region, len);
            return Ok(Some(Sent::Waits { message, staging: None }));
        }
        let staging = regions.stage(len).map_err(|e| format!("shared memory of {len} bytes cannot be had: {e}"))?;
        pack(block, staging.segment.bytes_mut(0, len));
        let region = Region { number: staging.number, place: staging.segment.place(), offset: 0 };
        let message = self.writer.write_in_place(&own.channels, id, &region, len);
        Ok(Some(Sent::Waits { message, staging: Some(staging.number) }))
    }

    /// Whether the receiver has read a block.
    pub fn is_taken(&self, own: &OwnMemory, message: u32, staging: Option<u32>) -> bool {
        if !self.writer.is_taken(&own.channels, message) {
            return false;
        }
        if let Some(number) = staging {
            let mut regions = lock(&own.regions);
            regions.staging.iter_mut().filter(|s| s.number == number).for_each(|s| s.used = false);
        }
        true
    }

    /// Passes the block of rendezvous `id` to `take`. Returns whether it has come.
    pub fn take(&mut self, id: u32, take: impl FnOnce(&[u8])) -> Result<bool, String> {
        match self.reader.take(id, take) {
            Ok(Ok(taken)) => Ok(taken),
            Ok(Err(other)) => Err(format!("{} is in transfer {other} instead of {id}", self.peer)),
            Err(e) => Err(format!("{} sent a message that cannot be read: {e}", self.peer)),
        }
    }

    /// Whether a block has come.
    pub fn has_block(&self) -> bool {
        self.reader.has_message()
    }

    /// Sleeps until the peer's next block comes, at most for `timeout`.
    pub fn sleep_for_block(&self, timeout: Duration) {
        self.reader.sleep(timeout);
    }

    /// Sleeps until the peer has taken a message, or the one that makes room; at most for `timeout`.
    pub fn sleep_until_taken(&self, own: &OwnMemory, message: Option<u32>, timeout: Duration) {
        self.writer.sleep(&own.channels, message.unwrap_or_else(|| self.writer.oldest()), timeout);
    }
}

/// The place of the channel to a rank.
fn channel(to: u32) -> usize {
    CHANNELS + to as usize * CHANNEL
}

fn word_of_pid(offer: &[u8; OFFER]) -> u32 {
    u32::from_le_bytes([offer[32], offer[33], offer[34], offer[35]])
}

/// A hash of the boot and the process namespace.
fn host() -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&std::fs::read("/proc/sys/kernel/random/boot_id")?);
    hasher.update(std::fs::read_link("/proc/self/ns/pid")?.as_os_str().as_encoded_bytes());
    Ok(*hasher.finalize().as_bytes())
}
