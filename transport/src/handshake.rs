//! The handshake of a connection: both ends say who they are and prove that they know the job's token, without sending it.
//!
//! Each end sends a hello with a random nonce, then a keyed hash (BLAKE3) over both hellos, so that a recorded proof is of no
//! use for another connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::JoinError;

/// The first bytes of a hello, with the version of the format.
const MAGIC: [u8; 8] = *b"of-rank\x03";

/// Bytes of a hello.
const HELLO: usize = 8 + 4 + 4 + 4 + 32 + 32;

/// How long one end waits for the other's part of the handshake.
const PATIENCE: Duration = Duration::from_secs(5);

/// The rank that the rendezvous server says it is.
pub(crate) const SERVER: u32 = u32::MAX;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Purpose {
    Rendezvous = 0,
    Data = 1,
    Control = 2,
}

/// Who a rank is, for the others.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The rank.
    pub rank: u32,
    /// Ranks of the job.
    pub ranks: u32,
    /// The plan ([`crate::plan_hash`]).
    pub plan: [u8; 32],
    key: [u8; 32],
}

impl Identity {
    /// A rank of the job with this token.
    pub fn new(rank: u32, ranks: u32, plan: [u8; 32], token: &str) -> Identity {
        Identity { rank, ranks, plan, key: blake3::derive_key("of-transport 2026 job token", token.as_bytes()) }
    }

    /// The server of a rendezvous.
    pub(crate) fn of_server(ranks: u32, token: &str) -> Identity {
        Identity::new(SERVER, ranks, [0; 32], token)
    }

    fn hello(&self, purpose: Purpose) -> Result<[u8; HELLO], JoinError> {
        let mut nonce = [0u8; 32];
        let random = rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty());
        random.map_err(|e| JoinError::io("get random bytes")(e.into()))?;
        let mut out = [0; HELLO];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&(purpose as u32).to_le_bytes());
        out[12..16].copy_from_slice(&self.rank.to_le_bytes());
        out[16..20].copy_from_slice(&self.ranks.to_le_bytes());
        out[20..52].copy_from_slice(&self.plan);
        out[52..].copy_from_slice(&nonce);
        Ok(out)
    }

    fn proof(&self, role: &[u8; 6], client: &[u8; HELLO], server: &[u8; HELLO]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(role).update(client).update(server);
        hasher.finalize()
    }
}

/// Who the other end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub rank: u32,
    pub purpose: u32,
    pub plan: [u8; 32],
}

/// The handshake of the end that connected.
pub(crate) fn connect(stream: &mut TcpStream, own: &Identity, purpose: Purpose) -> Result<Other, JoinError> {
    let peer = prepared(stream)?;
    let mine = own.hello(purpose)?;
    let lost = || JoinError::io(format!("shake hands with {peer}"));
    stream.write_all(&mine).map_err(lost())?;
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs).map_err(lost())?;
    stream.write_all(own.proof(b"client", &mine, &theirs).as_bytes()).map_err(lost())?;
    verify(stream, &own.proof(b"server", &mine, &theirs), peer)?;
    accepted(&theirs, own, peer)
}

/// The handshake of the end that listened.
pub(crate) fn accept(stream: &mut TcpStream, own: &Identity) -> Result<Other, JoinError> {
    let peer = prepared(stream)?;
    let lost = || JoinError::io(format!("shake hands with {peer}"));
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs).map_err(lost())?;
    if theirs[..8] != MAGIC {
        return Err(JoinError::Stranger { peer, problem: "it does not speak this protocol" });
    }
    // What it is for is the client's to say.
    let mine = own.hello(Purpose::Rendezvous)?;
    stream.write_all(&mine).map_err(lost())?;
    verify(stream, &own.proof(b"client", &theirs, &mine), peer)?;
    stream.write_all(own.proof(b"server", &theirs, &mine).as_bytes()).map_err(lost())?;
    accepted(&theirs, own, peer)
}

fn prepared(stream: &TcpStream) -> Result<SocketAddr, JoinError> {
    let prepare = || {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.peer_addr()
    };
    prepare().map_err(JoinError::io("prepare a connection"))
}

fn verify(stream: &mut TcpStream, want: &blake3::Hash, peer: SocketAddr) -> Result<(), JoinError> {
    let mut got = [0; 32];
    // An end that refuses the other's proof closes the connection.
    let read = stream.read_exact(&mut got);
    // Hashes compare in constant time.
    if read.is_err() || blake3::Hash::from_bytes(got) != *want {
        return Err(JoinError::Stranger { peer, problem: "its job token is another" });
    }
    Ok(())
}

fn accepted(hello: &[u8; HELLO], own: &Identity, peer: SocketAddr) -> Result<Other, JoinError> {
    let word = |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]);
    if hello[..8] != MAGIC {
        return Err(JoinError::Stranger { peer, problem: "it does not speak this protocol" });
    }
    let (purpose, rank, ranks) = (word(8), word(12), word(16));
    if ranks != own.ranks {
        return Err(JoinError::Ranks { rank, peer, theirs: ranks, ours: own.ranks });
    }
    let mut plan = [0; 32];
    plan.copy_from_slice(&hello[20..52]);
    // The server compares the plans of all ranks; it has none.
    if rank != SERVER && own.rank != SERVER && plan != own.plan {
        return Err(JoinError::Plan { rank, peer });
    }
    if rank >= ranks && rank != SERVER {
        return Err(JoinError::Stranger { peer, problem: "there is no such rank" });
    }
    Ok(Other { rank, purpose, plan })
}
