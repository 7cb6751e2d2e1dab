//! A stream of bytes in the simulator, as TCP gives it: what is written comes in pieces, later, and in order. A fault breaks that.
//! Some streams hold what is written until they are flushed, as TLS and MPI do.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::rc::Rc;

/// Bytes that are under way or not yet read, at most.
const ROOM: usize = 40_000;

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Pipe {
    /// Written, and not delivered.
    under_way: VecDeque<Vec<u8>>,
    ready: VecDeque<u8>,
    size: usize,
    /// The writer has closed it: behind the last byte, the stream ends.
    pub closed: bool,
    /// The reader is gone, or the system gave the connection up.
    pub reset: bool,
    /// Nothing is delivered any more.
    pub cut: bool,
}

/// What happens to a piece on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Flip,
    Lose,
    Repeat,
    Swap,
}

impl Pipe {
    /// Whether there is a piece to deliver.
    pub fn can_deliver(&self) -> bool {
        !self.cut && !self.reset && !self.under_way.is_empty()
    }

    /// Delivers a piece, damaged or not. Returns whether the damage was done.
    pub fn deliver(&mut self, damage: Option<Damage>, rng: &mut fastrand::Rng) -> bool {
        let mut done = damage.is_some();
        if damage == Some(Damage::Swap) {
            done = self.under_way.len() > 1;
            if done {
                self.under_way.swap(0, 1);
            }
        }
        let Some(mut piece) = self.under_way.pop_front() else { return false };
        match damage {
            Some(Damage::Flip) => {
                let at = rng.usize(..piece.len());
                piece[at] ^= 1 << rng.u8(..8);
            }
            Some(Damage::Lose) => {
                self.size -= piece.len();
                return true;
            }
            Some(Damage::Repeat) => {
                self.size += piece.len();
                self.ready.extend(&piece);
            }
            Some(Damage::Swap) | None => {}
        }
        self.ready.extend(&piece);
        done
    }
}

/// Bytes that a stream holds, at most.
const HELD: usize = 10_000;

/// An end of a connection.
#[derive(Debug)]
pub struct Stream {
    /// What was written and not sent, where the stream holds it.
    pub held: Option<Vec<u8>>,
    pub outgoing: Rc<RefCell<Pipe>>,
    pub incoming: Rc<RefCell<Pipe>>,
    pub rng: fastrand::Rng,
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.incoming.borrow_mut();
        if pipe.ready.is_empty() || to.is_empty() {
            return match () {
                () if pipe.reset => Err(io::ErrorKind::ConnectionReset.into()),
                () if pipe.closed && pipe.under_way.is_empty() && !pipe.cut => Ok(0),
                () => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let n = self.rng.usize(1..=to.len().min(pipe.ready.len()));
        to[..n].iter_mut().zip(pipe.ready.drain(..n)).for_each(|(to, byte)| *to = byte);
        pipe.size -= n;
        Ok(n)
    }

    fn read_vectored(&mut self, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_all(to)
    }
}

impl Stream {
    /// Fills one buffer after the other, as TCP does, or the first alone.
    fn read_all(&mut self, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut whole = vec![0; if self.rng.bool() { to.iter().map(|to| to.len()).sum() } else { to[0].len() }];
        let n = self.read(&mut whole)?;
        let mut rest = &whole[..n];
        for to in to {
            let (now, later) = rest.split_at(to.len().min(rest.len()));
            to[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(n)
    }
}

impl Write for Stream {
    /// A header and its frame may be one piece, as with TCP.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let whole: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.write(&whole)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if self.held.as_ref().is_some_and(|held| held.len() == HELD) {
            self.flush()?;
        }
        let Some(held) = &mut self.held else { return self.send(from) };
        let n = from.len().min(HELD - held.len());
        held.extend(&from[..n]);
        // It is sent now, or later.
        match if self.rng.bool() { self.flush() } else { Ok(()) } {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(n),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(mut held) = self.held.take() else { return Ok(()) };
        let sent = self.send_all(&mut held);
        self.held = Some(held);
        sent
    }
}

impl Stream {
    fn send_all(&mut self, held: &mut Vec<u8>) -> io::Result<()> {
        while !held.is_empty() {
            let n = self.send(held)?;
            held.drain(..n);
        }
        Ok(())
    }

    fn send(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut pipe = self.outgoing.borrow_mut();
        if pipe.reset {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = ROOM - pipe.size.min(ROOM);
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = if self.rng.bool() { from.len() } else { self.rng.usize(1..=from.len()) }.min(room);
        pipe.size += n;
        pipe.under_way.push_back(from[..n].to_vec());
        Ok(n)
    }
}
