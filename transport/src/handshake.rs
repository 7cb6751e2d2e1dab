//! The handshake of a connection: both ends say who they are and prove that they know the job's token, without sending it.
//!
//! Each end sends a hello with a random nonce, then a keyed hash (BLAKE3) over both hellos, so that a recorded proof is of no
//! use for another connection. Inside of an encrypted connection, the hash is over a secret of that connection as well, so a
//! proof that an end between the two passes on is of no use either.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::JoinError;
use crate::stream::Stream;
use crate::tls::{Refusal, Tls, is_no_tls, refusal};

/// The first bytes of a hello, with the version of the format.
const MAGIC: [u8; 8] = *b"of-rank\x05";

/// Bytes of a hello.
pub(crate) const HELLO: usize = 8 + 4 + 4 + 4 + 4 + 32 + 32;

/// What is wrong with an end that does not prove that it knows the token.
const OTHER_TOKEN: &str = "its job token is another";

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
    /// How often the ranks of the job have joined before: connections of an earlier time are refused.
    attempt: u32,
    key: [u8; 32],
    tls: Option<Tls>,
}

/// The first byte of a TLS record of a handshake. Source: RFC 8446, section 5.1.
const TLS_HANDSHAKE: u8 = 0x16;

/// The first byte of a TLS record of an alert, by the same source.
const TLS_ALERT_RECORD: u8 = 0x15;

/// A fatal alert of TLS, `protocol_version`: what an end that needs TLS answers one without.
const TLS_ALERT: [u8; 7] = [TLS_ALERT_RECORD, 3, 3, 0, 2, 2, 70];

impl Identity {
    /// A rank of the job with this token.
    pub fn new(rank: u32, ranks: u32, plan: [u8; 32], token: &str) -> Identity {
        Identity {
            rank,
            ranks,
            plan,
            attempt: 0,
            key: blake3::derive_key("of-transport 2026 job token", token.as_bytes()),
            tls: None,
        }
    }

    /// The same, with encrypted connections.
    pub fn with_tls(self, tls: Option<Tls>) -> Identity {
        Identity { tls, ..self }
    }

    /// The same, for ranks that have joined so often before.
    pub(crate) fn with_attempt(self, attempt: u32) -> Identity {
        Identity { attempt, ..self }
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.attempt
    }

    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The server of a rendezvous.
    pub(crate) fn of_server(ranks: u32, token: &str) -> Identity {
        Identity::new(SERVER, ranks, [0; 32], token)
    }

    pub(crate) fn hello(&self, purpose: Purpose) -> Result<[u8; HELLO], JoinError> {
        let mut nonce = [0u8; 32];
        let random = rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty());
        random.map_err(|e| JoinError::io("get random bytes")(e.into()))?;
        let mut out = [0; HELLO];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&(purpose as u32).to_le_bytes());
        out[12..16].copy_from_slice(&self.rank.to_le_bytes());
        out[16..20].copy_from_slice(&self.ranks.to_le_bytes());
        out[20..24].copy_from_slice(&self.attempt.to_le_bytes());
        out[24..56].copy_from_slice(&self.plan);
        out[56..].copy_from_slice(&nonce);
        Ok(out)
    }

    /// The proof of an end, inside of a connection with this secret.
    pub(crate) fn proof(&self, role: &[u8; 6], hellos: [&[u8; HELLO]; 2], secret: Option<&[u8; 32]>) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(role).update(hellos[0]).update(hellos[1]);
        secret.inspect(|secret| _ = hasher.update(*secret));
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

/// The handshake of the end that connected, to a rank or to the server of the rendezvous.
pub(crate) fn connect(
    tcp: TcpStream,
    own: &Identity,
    purpose: Purpose,
    to: Option<u32>,
) -> Result<(Stream, Other), JoinError> {
    let peer = prepared(&tcp)?;
    let mut stream = match &own.tls {
        None => Stream::Plain(tcp),
        Some(tls) => Stream::Tls(Box::new(tls.connect(tcp, to).map_err(|e| match e.kind() {
            // What an end without TLS does with bytes that it does not know.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
                JoinError::Tls { peer, problem: "it does not speak TLS: it ends the connection".into() }
            }
            _ if is_silence(&e) => stranger(purpose, peer, SILENT),
            _ if is_no_tls(&e) => stranger(purpose, peer, "it does not speak TLS, which this rank was started with"),
            _ => failed(peer, e),
        })?)),
    };
    let secret = stream.channel_secret().map_err(|e| failed(peer, e))?;
    let other = connect_over(&mut stream, own, purpose, secret.as_ref(), peer).map_err(|error| match error {
        JoinError::NoRendezvous { problem: SILENT, .. } => {
            let answer = stream.tcp().and_then(|tcp| provoked(tcp).ok().flatten());
            stranger(purpose, peer, answer.unwrap_or(SILENT))
        }
        error => error,
    })?;
    Ok((stream, other))
}

/// What a server is that says nothing until it has got a line of text, as HTTP servers do.
fn provoked(mut tcp: &TcpStream) -> io::Result<Option<&'static str>> {
    tcp.set_read_timeout(Some(Duration::from_secs(1)))?;
    tcp.write_all(b"\r\n\r\n")?;
    let mut first = [0; 16];
    let come = tcp.read(&mut first)?;
    Ok((come > 0).then(|| foreign(&first[..come])))
}

/// What is wrong with an end that accepts a connection and then says nothing.
const SILENT: &str = "it accepts the connection and says nothing";

/// What is wrong with an end that closes the connection when it gets a hello. An older or newer of-opt does so, too.
const CLOSES: &str = "it ends the connection without an answer: it is another program, or another version of of-opt";

/// Whether a read took longer than the patience.
fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The error of an end that is not of this job, by what the connection is for.
fn stranger(purpose: Purpose, peer: SocketAddr, problem: &'static str) -> JoinError {
    match purpose {
        Purpose::Rendezvous => JoinError::NoRendezvous { address: peer, problem },
        Purpose::Data | Purpose::Control => JoinError::Stranger { peer, problem },
    }
}

/// What an answer is that does not begin as a hello.
fn foreign(first: &[u8]) -> &'static str {
    match first {
        // A page alone is what HTTP 0.9 answers.
        _ if [b"HTTP/", b"<!DOC", b"<html"].iter().any(|begin| first.starts_with(*begin)) => "an HTTP server answers",
        _ if first.starts_with(b"SSH-") => "an SSH server answers",
        // Of servers for mail and files: a code and a greeting.
        _ if first.starts_with(b"220") => "a server for mail or files answers",
        _ if first.starts_with(&MAGIC[..7]) => "another version of of-opt answers",
        [TLS_ALERT_RECORD, ..] | [TLS_HANDSHAKE, ..] => "a server that needs TLS answers",
        _ => "it answers in another protocol",
    }
}

/// The same, over a stream with this secret.
pub(crate) fn connect_over(
    stream: &mut (impl Read + Write),
    own: &Identity,
    purpose: Purpose,
    secret: Option<&[u8; 32]>,
    peer: SocketAddr,
) -> Result<Other, JoinError> {
    let mine = own.hello(purpose)?;
    let lost = |e| failed(peer, e);
    stream.write_all(&mine).map_err(lost)?;
    let mut theirs = [0; HELLO];
    // What another program answers may be shorter than a hello.
    let (first, rest) = theirs.split_at_mut(MAGIC.len());
    let mut come = 0;
    while come < first.len() && first[..come] == MAGIC[..come] {
        match stream.read(&mut first[come..]) {
            Ok(0) => return Err(stranger(purpose, peer, CLOSES)),
            Ok(n) => come += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if is_silence(&e) => return Err(stranger(purpose, peer, SILENT)),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(stranger(purpose, peer, CLOSES)),
            Err(e) => return Err(lost(e)),
        }
    }
    let alert = come.min(TLS_ALERT.len());
    if own.tls.is_none() && first[..alert] == TLS_ALERT[..alert] {
        return Err(JoinError::Stranger { peer, problem: "it needs TLS, and this rank was started without" });
    }
    if *first != MAGIC {
        return Err(stranger(purpose, peer, foreign(&first[..come])));
    }
    stream.read_exact(rest).map_err(lost)?;
    let proof = |role| own.proof(role, [&mine, &theirs], secret);
    stream.write_all(proof(b"client").as_bytes()).map_err(lost)?;
    verify(stream, &proof(b"server"), peer)?;
    accepted(&theirs, own, peer)
}

/// The handshake of the end that listened.
pub(crate) fn accept(mut tcp: TcpStream, own: &Identity) -> Result<(Stream, Other), JoinError> {
    let peer = prepared(&tcp)?;
    let lost = |e| failed(peer, e);
    let mut stream = match &own.tls {
        None => Stream::Plain(tcp),
        Some(tls) => {
            let mut first = [0];
            if tcp.peek(&mut first).map_err(lost)? == 1 && first[0] == MAGIC[0] {
                // It may be gone.
                let _ = tcp.write_all(&TLS_ALERT);
                return Err(JoinError::Stranger { peer, problem: "it speaks without TLS, which this job needs" });
            }
            Stream::Tls(Box::new(tls.accept(tcp).map_err(lost)?))
        }
    };
    let secret = stream.channel_secret().map_err(lost)?;
    let other = accept_over(&mut stream, own, secret.as_ref(), peer)?;
    Ok((stream, other))
}

/// The same, over a stream with this secret.
pub(crate) fn accept_over(
    stream: &mut (impl Read + Write),
    own: &Identity,
    secret: Option<&[u8; 32]>,
    peer: SocketAddr,
) -> Result<Other, JoinError> {
    let lost = |e| failed(peer, e);
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs).map_err(lost)?;
    if theirs[..8] != MAGIC {
        let problem = match theirs[0] {
            TLS_HANDSHAKE => "it speaks TLS, and this rank was started without",
            _ => "it does not speak this protocol",
        };
        return Err(JoinError::Stranger { peer, problem });
    }
    // What it is for is the client's to say.
    let mine = own.hello(Purpose::Rendezvous)?;
    stream.write_all(&mine).map_err(lost)?;
    let proof = |role| own.proof(role, [&theirs, &mine], secret);
    verify(stream, &proof(b"client"), peer)?;
    stream.write_all(proof(b"server").as_bytes()).map_err(lost)?;
    accepted(&theirs, own, peer)
}

/// The error of a connection that failed during the handshake.
fn failed(peer: SocketAddr, error: io::Error) -> JoinError {
    match refusal(&error) {
        Some(Refusal::Token) => JoinError::Stranger { peer, problem: OTHER_TOKEN },
        Some(Refusal::Other(problem)) => JoinError::Tls { peer, problem },
        None => JoinError::io(format!("shake hands with {peer}"))(error),
    }
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

fn verify(stream: &mut impl Read, want: &blake3::Hash, peer: SocketAddr) -> Result<(), JoinError> {
    let mut got = [0; 32];
    match stream.read_exact(&mut got) {
        Err(error) if refusal(&error).is_some() => Err(failed(peer, error)),
        // Hashes compare in constant time.
        Ok(()) if blake3::Hash::from_bytes(got) == *want => Ok(()),
        // An end that refuses the other's proof closes the connection.
        _ => Err(JoinError::Stranger { peer, problem: OTHER_TOKEN }),
    }
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
    plan.copy_from_slice(&hello[24..56]);
    // The server of the rendezvous says which attempt it is.
    if rank != SERVER && own.rank != SERVER && word(20) != own.attempt {
        return Err(JoinError::Stranger { peer, problem: "it is of another attempt of this job" });
    }
    // The server compares the plans of all ranks; it has none.
    if rank != SERVER && own.rank != SERVER && plan != own.plan {
        return Err(JoinError::Plan { rank, peer });
    }
    if rank >= ranks && rank != SERVER {
        return Err(JoinError::Stranger { peer, problem: "there is no such rank" });
    }
    Ok(Other { rank, purpose, plan })
}
