//! What other ranks send, read from any bytes: the entrance of fuzz targets.
//!
//! The first byte of an input chooses a reader. Proofs and checksums are those of an end that knows the job's token, because the end of
//! a connection that went wrong knows it as well.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use of_runtime::{Tensor, Value};

use crate::attempts::Attempt;
use crate::error::JoinError;
use crate::group::Command;
use crate::handshake::{HELLO, Identity, Purpose, accept_over, connect_over};
use crate::monitor::Message;
use crate::peer::PeerInfo;
use crate::rendezvous::{answer_of, over, own_peer, read_answer, read_peer, refusal, table};
use crate::stream_link::{MAX_FRAME, StreamLink, Took, checksum, frame_bytes};
use crate::wire::{HEADER, Header};

/// The token of the job.
const TOKEN: &str = "token";

/// Ranks of the job.
const RANKS: u32 = 3;

/// The readers, by the first byte of an input.
const READERS: [fn(&[u8]); 5] = [server, client, frames, monitor, command];

const SERVER: u8 = 0;
const CLIENT: u8 = 1;
const FRAMES: u8 = 2;
const MONITOR: u8 = 3;
const COMMAND: u8 = 4;

/// Reads bytes as a message of another rank, by the reader that the first byte names.
///
/// # Panics
/// When a reader is wrong.
pub fn rank_wire(data: &[u8]) {
    if let Some((reader, data)) = data.split_first() {
        READERS[usize::from(*reader) % READERS.len()](data);
    }
}

/// Inputs from which a fuzzer starts: right messages of each kind.
///
/// # Panics
/// When a tensor cannot be made.
pub fn rank_wire_seeds() -> Vec<Vec<u8>> {
    let of = |reader: u8, parts: &[&[u8]]| [&[reader], &parts.concat()[..]].concat();
    let peer = |rank: u32| PeerInfo { rank, address: address(), host: format!("host{rank}"), pid: 9 + rank };
    let peers: Vec<PeerInfo> = (0..RANKS).map(peer).collect();
    let peers: Vec<&PeerInfo> = peers.iter().collect();
    let hello = |rank: u32, purpose| identity(rank).hello(purpose).unwrap_or([0; HELLO]);
    let own = own_peer(4711, "host").unwrap_or_default();
    let mut seeds: Vec<Vec<u8>> = [Purpose::Rendezvous, Purpose::Data, Purpose::Control]
        .map(|purpose| of(SERVER, &[&hello(2, purpose), &own]))
        .into();
    let missing = JoinError::Missing { missing: vec![0, 2], seconds: 1.5, ranks: RANKS };
    for answer in
        [table(&peers, None), table(&peers, Some(Attempt::default())), over(), refusal("no"), answer_of(&missing)]
    {
        seeds.push(of(CLIENT, &[&hello(u32::MAX, Purpose::Rendezvous), &answer]));
    }
    for (style, lengths) in [(0, &[5usize, 0, 300][..]), (1, &[40_000]), (3, &[1, 70_000, 2]), (7, &[0, 0])] {
        seeds.push(of(FRAMES, &[&[style], &messages(lengths)]));
    }
    let heartbeats = [0; 3];
    let stop = Message::stop("rank 1 (process 7 on host) failed: a division by zero");
    seeds.push(of(MONITOR, &[&heartbeats, &stop, &[2]]));
    seeds.push(of(MONITOR, &[&Message::stop(""), &heartbeats, &stop]));
    let tensor = Tensor::from_elements(vec![2, 3], &[1.0f32, -2.0, 3.5, 0.0, 5.0, 6.0]).expect("six elements");
    let empty = Tensor::from_elements(vec![0, 4], &[0i64; 0]).expect("no elements");
    let inputs = vec![Value::from(tensor.clone()), Value::from(empty)];
    let commands =
        [Command::Run(inputs.into()), Command::Get(3), Command::Set(1, tensor), Command::Reset, Command::End];
    seeds.extend(commands.map(|command| of(COMMAND, &[&command.encode()])));
    seeds
}

fn address() -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, 1), 4000).into()
}

fn identity(rank: u32) -> Identity {
    Identity::new(rank, RANKS, [7; 32], TOKEN)
}

/// The other end of a connection: it says a hello from the input, proves that it knows the token, and says the rest of the input.
struct OtherEnd<'d> {
    hello: [u8; HELLO],
    rest: &'d [u8],
    is_client: bool,
    written: Vec<u8>,
    incoming: VecDeque<u8>,
}

impl<'d> OtherEnd<'d> {
    /// `None` where the input is shorter than a hello.
    fn new(data: &'d [u8], is_client: bool) -> Option<OtherEnd<'d>> {
        let (hello, rest) = data.split_first_chunk::<HELLO>()?;
        let incoming = if is_client { hello.to_vec().into() } else { VecDeque::new() };
        Some(OtherEnd { hello: *hello, rest, is_client, written: Vec::new(), incoming })
    }
}

impl Read for OtherEnd<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.incoming.read(to)
    }
}

impl Write for OtherEnd<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.extend_from_slice(bytes);
        if let Ok(hello) = <&[u8; HELLO]>::try_from(&self.written[..]) {
            let proof = match self.is_client {
                true => identity(0).proof(b"client", [&self.hello, hello], None),
                false => {
                    self.incoming.extend(self.hello);
                    identity(0).proof(b"server", [hello, &self.hello], None)
                }
            };
            self.incoming.extend(proof.as_bytes());
            self.incoming.extend(self.rest);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A rank that connects to this one, or to the server of the rendezvous.
fn server(data: &[u8]) {
    for own in [identity(1), Identity::of_server(RANKS, TOKEN)] {
        let Some(mut other) = OtherEnd::new(data, true) else { return };
        let Ok(who) = accept_over(&mut other, &own, None, address()) else { continue };
        assert!(who.rank < RANKS || who.rank == u32::MAX, "rank {} of {RANKS}", who.rank);
        if let Ok(peer) = read_peer(&mut other, who.rank, address().ip()) {
            assert!(peer.host.len() <= data.len());
        }
    }
}

/// A server of the rendezvous, or a rank, to which this one connects.
fn client(data: &[u8]) {
    let Some(mut other) = OtherEnd::new(data, false) else { return };
    if connect_over(&mut other, &identity(1), Purpose::Rendezvous, None, address()).is_ok() {
        // Whatever it says, it is an answer or an error.
        let _ = read_answer(&mut other, RANKS, address()).map(drop);
    }
}

/// Frames in pieces of several sizes, with a pause after each.
struct Pieces<'d> {
    bytes: &'d [u8],
    size: usize,
    pauses: bool,
}

impl Read for Pieces<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.pauses = !self.pauses;
        if self.pauses {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let size = self.size.min(to.len());
        self.bytes.read(&mut to[..size])
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Messages of data. The first byte says in what pieces they come, and whether they are taken in chunks.
fn frames(data: &[u8]) {
    let Some((style, data)) = data.split_first() else { return };
    let mut bytes = data.to_vec();
    let sent = write_checksums(&mut bytes);
    let peer = PeerInfo { rank: 2, address: address(), host: "host".into(), pid: 7 };
    let size = [1 << 20, 1 << 15, 1000, 29][usize::from(style >> 1) % 4];
    let mut link = StreamLink::over(peer, Pieces { bytes: &bytes, size, pauses: false });
    let (mut id, mut taken, mut idle) = (0, Vec::new(), 0);
    // A read takes a byte at least, or is a pause.
    while idle < 4 {
        let Ok(came) = link.receive() else { break };
        let mut take = |chunk: &[u8], before: usize, all: usize| {
            assert!(before + chunk.len() <= all, "{before} and {} of {all}", chunk.len());
            taken.extend_from_slice(chunk);
        };
        let Ok(took) = link.take(id, style & 1 == 1, &mut take) else { break };
        id += u32::from(took == Took::End);
        idle = if came || took != Took::Nothing { 0 } else { idle + 1 };
    }
    assert!(sent.starts_with(&taken), "other bytes were taken than sent");
}

/// Writes the first bytes and the checksums of all frames, as far as their lengths are right. Returns the bytes of the messages.
fn write_checksums(bytes: &mut [u8]) -> Vec<u8> {
    let (mut at, mut done, mut sent) = (0, 0, Vec::new());
    while let Some((header, behind)) = bytes[at..].split_first_chunk_mut::<HEADER>() {
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = u64::from(word(8)) | u64::from(word(12)) << 32;
        let (id, number) = (word(4), word(20));
        let whole = usize::try_from(length).unwrap_or(usize::MAX);
        let len = frame_bytes(whole, MAX_FRAME).min(whole.saturating_sub(done)).min(behind.len());
        let frame = &behind[..len];
        *header = Header { id, length, crc: checksum(done, frame), number }.encode();
        sent.extend_from_slice(frame);
        at += HEADER + len;
        done = if done + len >= whole { 0 } else { done + len };
    }
    sent
}

/// Messages of these lengths, in frames whose checksums are written later.
fn messages(lengths: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    for (id, length) in (0u32..).zip(lengths) {
        let bytes: Vec<u8> = (0..*length).map(|at| (at % 251) as u8).collect();
        let mut frames: Vec<&[u8]> = bytes.chunks(frame_bytes(*length, MAX_FRAME)).collect();
        if frames.is_empty() {
            frames.push(&[]);
        }
        for frame in frames {
            out.extend(Header { id, length: *length as u64, crc: 0, number: id + 1 }.encode());
            out.extend(frame);
        }
    }
    out
}

/// Messages of a monitor, which come in two parts.
fn monitor(data: &[u8]) {
    let (first, second) = data.split_at(data.len() / 2);
    let mut inbox = Vec::new();
    for part in [first, second] {
        inbox.extend_from_slice(part);
        loop {
            let before = inbox.len();
            match Message::take(&mut inbox) {
                None => break,
                Some(Message::Damaged | Message::Bye) => return,
                Some(Message::Heartbeat) => assert_eq!(inbox.len() + 1, before),
                Some(Message::Stop(reason)) => {
                    assert!(inbox.len() < before);
                    let mut again = Message::stop(&reason);
                    // A text that was no UTF-8 may be longer than what was sent.
                    let is_whole = again.len() == reason.len() + 5;
                    assert!(Message::take(&mut again) == Some(Message::Stop(reason)) || !is_whole);
                }
            }
        }
    }
}

/// A command of the first rank.
fn command(data: &[u8]) {
    let Ok(command) = Command::decode(data) else { return };
    let bytes = command.encode();
    match Command::decode(&bytes) {
        Ok(again) => assert_eq!(again.encode(), bytes),
        Err(error) => panic!("the command that was read cannot be read again: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds reach what they are for, so changes of them do.
    #[test]
    fn seeds_are_right_messages() {
        let seeds = rank_wire_seeds();
        seeds.iter().for_each(|seed| rank_wire(seed));
        let of = |reader: u8| seeds.iter().filter(move |seed| seed[0] == reader).map(|seed| &seed[1..]);
        for data in of(SERVER) {
            let mut other = OtherEnd::new(data, true).unwrap();
            assert_eq!(accept_over(&mut other, &identity(1), None, address()).unwrap().rank, 2);
            assert_eq!(read_peer(&mut other, 2, address().ip()).unwrap().host, "host");
        }
        for data in of(CLIENT) {
            let mut other = OtherEnd::new(data, false).unwrap();
            connect_over(&mut other, &identity(1), Purpose::Rendezvous, None, address()).unwrap();
            assert!(read_answer(&mut other, RANKS, address()).is_ok());
        }
        for (data, len) in of(FRAMES).zip([305, 40_000, 70_003, 0]) {
            assert_eq!(write_checksums(&mut data[1..].to_vec()).len(), len);
        }
        assert!(of(COMMAND).all(|data| Command::decode(data).is_ok()));
    }
}
