//! The rendezvous: a server collects where each rank listens and tells all ranks. It is not needed afterwards.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::attempts::{Attempt, Watch};
use crate::error::JoinError;
use crate::handshake::{self, Identity, Purpose, SERVER};
use crate::peer::{PeerInfo, host_name};
use crate::stream::Stream;
use crate::tls::Tls;
use crate::wire::{read_len, read_text, read_u32, write_text};

/// The time between two looks at a listener or for a server.
const PAUSE: Duration = Duration::from_millis(20);

/// The time between two questions for the address of a host.
const NAME_PAUSE: Duration = Duration::from_millis(250);

/// What an answer says of a job that restarts lost ranks: before all ranks were connected for the first time, and after that.
const RESTARTS: u8 = 1;
const RESTARTS_AFTER_BEGIN: u8 = 2;

/// The first byte of the server's answer.
const JOINED: u8 = 0;
const REFUSED: u8 = 1;
const MISSING: u8 = 2;
const OVER: u8 = 3;

/// The server of a rendezvous. One rank has it, or a launcher.
#[derive(Debug)]
pub struct RendezvousServer {
    listener: TcpListener,
    identity: Identity,
}

/// A rank that has come.
pub(crate) struct Registered {
    pub stream: Stream,
    pub peer: PeerInfo,
    plan: [u8; 32],
}

/// Where all ranks are.
pub(crate) struct Registration {
    pub peers: Vec<PeerInfo>,
    pub attempt: Attempt,
    /// The connection to a server that waits until all ranks have connected.
    pub watch: Option<Watch>,
}

impl RendezvousServer {
    /// Listens at an address for the ranks of the job with this token.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn bind(address: SocketAddr, ranks: u32, token: &str) -> Result<RendezvousServer, JoinError> {
        let listener = TcpListener::bind(address).map_err(JoinError::io(format!("listen at {address}")))?;
        Ok(RendezvousServer { listener, identity: Identity::of_server(ranks, token) })
    }

    /// As [`RendezvousServer::bind`], at `HOST:PORT`.
    ///
    /// # Errors
    /// When the host is not known, or the address cannot be had.
    pub fn bind_named(address: &str, ranks: u32, token: &str) -> Result<RendezvousServer, JoinError> {
        RendezvousServer::bind(listening(address, resolve(address)?, !token.is_empty()), ranks, token)
    }

    /// The same, with encrypted connections.
    pub fn with_tls(self, tls: Option<Tls>) -> RendezvousServer {
        RendezvousServer { identity: self.identity.with_tls(tls), ..self }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> Result<SocketAddr, JoinError> {
        self.listener.local_addr().map_err(JoinError::io("get the address of the rendezvous"))
    }

    /// Waits for all ranks and tells each where the others are; tells those that came why, if that fails.
    ///
    /// # Errors
    /// When a rank does not come within `timeout`, comes twice, or has another plan.
    pub fn serve(&self, timeout: Duration) -> Result<(), JoinError> {
        self.serve_until(Some(Instant::now() + timeout), timeout)
    }

    /// As [`RendezvousServer::serve`], for ranks that a launcher has started and watches: the time begins when the first one comes, since ranks
    /// may compile a plan before.
    ///
    /// # Errors
    /// As [`RendezvousServer::serve`].
    pub fn serve_started(&self, timeout: Duration) -> Result<(), JoinError> {
        self.serve_until(None, timeout)
    }

    /// Without a deadline the first rank to come sets it.
    fn serve_until(&self, deadline: Option<Instant>, timeout: Duration) -> Result<(), JoinError> {
        let mut came: Vec<Option<Registered>> = (0..self.identity.ranks).map(|_| None).collect();
        let result = self.collect(&mut came, deadline, timeout);
        let peers: Vec<&PeerInfo> = came.iter().flatten().map(|registered| &registered.peer).collect();
        let answer = match &result {
            Ok(()) => table(&peers, None),
            Err(error) => answer_of(error),
        };
        let mut sent = Ok(());
        for registered in came.iter_mut().flatten() {
            let written = registered.stream.write_all(&answer);
            sent = sent.and(written.map_err(JoinError::io(format!("answer {}", registered.peer))));
        }
        result.and(sent)
    }

    fn collect(
        &self,
        came: &mut [Option<Registered>],
        mut deadline: Option<Instant>,
        timeout: Duration,
    ) -> Result<(), JoinError> {
        while came.iter().any(Option::is_none) {
            let Some(stream) = accept_until(&self.listener, deadline.unwrap_or_else(|| Instant::now() + timeout))?
            else {
                if deadline.is_none() {
                    continue;
                }
                let missing = came.iter().zip(0..).filter(|(rank, _)| rank.is_none()).map(|(_, rank)| rank);
                return Err(JoinError::Missing {
                    missing: missing.collect(),
                    seconds: timeout.as_secs_f64(),
                    ranks: self.identity.ranks,
                });
            };
            match self.registered(stream) {
                Ok(mut registered) => {
                    if let Some(error) = conflict(came, &registered) {
                        // It is not among those that came, and has to know as well.
                        let _ = registered.stream.write_all(&refusal(&error.to_string()));
                        return Err(error);
                    }
                    deadline.get_or_insert_with(|| Instant::now() + timeout);
                    let at = registered.peer.rank as usize;
                    came[at] = Some(registered);
                }
                Err(error @ JoinError::Ranks { .. }) => return Err(error),
                // Whoever it was, the ranks may still come.
                Err(error) => tracing::warn!(%error, "a connection to the rendezvous failed"),
            }
        }
        Ok(())
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.identity.ranks
    }

    pub(crate) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    pub(crate) fn registered(&self, stream: TcpStream) -> Result<Registered, JoinError> {
        let address = stream.peer_addr();
        let (mut stream, other) = handshake::accept(stream, &self.identity)?;
        let address = address.map_err(JoinError::io("get the address of a rank"))?;
        if other.purpose != Purpose::Rendezvous as u32 || other.rank == SERVER {
            return Err(JoinError::Stranger { peer: address, problem: "it wants something else than a rendezvous" });
        }
        let peer = read_peer(&mut stream, other.rank, address.ip());
        let peer = peer.map_err(JoinError::io(format!("read what rank {} says", other.rank)))?;
        Ok(Registered { stream, peer, plan: other.plan })
    }
}

/// What a rank says of itself, which came from this address.
pub(crate) fn read_peer(from: &mut impl Read, rank: u32, ip: IpAddr) -> io::Result<PeerInfo> {
    let odd = |_| io::Error::new(io::ErrorKind::InvalidData, "its port is out of range");
    let port = u16::try_from(read_u32(from)?).map_err(odd)?;
    let pid = read_u32(from)?;
    let host = read_text(from)?;
    Ok(PeerInfo { rank, address: SocketAddr::new(ip, port), host, pid })
}

/// What a rank that listens at `port` says of itself.
pub(crate) fn own_peer(port: u16, host: &str) -> io::Result<Vec<u8>> {
    let mut own = Vec::new();
    own.extend(u32::from(port).to_le_bytes());
    own.extend(std::process::id().to_le_bytes());
    write_text(&mut own, host)?;
    Ok(own)
}

/// Why a rank cannot belong to those that came.
fn conflict(came: &[Option<Registered>], new: &Registered) -> Option<JoinError> {
    if let Some(error) = other_plan(came, new) {
        return Some(error);
    }
    let PeerInfo { rank, address, .. } = new.peer;
    let same = came.get(rank as usize)?.as_ref()?;
    Some(JoinError::Twice { rank, first: same.peer.address, second: address })
}

/// Why a rank cannot run with those that came.
pub(crate) fn other_plan(came: &[Option<Registered>], new: &Registered) -> Option<JoinError> {
    let PeerInfo { rank, address, .. } = new.peer;
    came.iter().flatten().any(|other| other.plan != new.plan).then_some(JoinError::Plan { rank, peer: address })
}

/// What the server answers the ranks that came when the others do not.
pub(crate) fn answer_of(error: &JoinError) -> Vec<u8> {
    match error {
        JoinError::Missing { missing, seconds, .. } => absence(missing, *seconds),
        error => refusal(&error.to_string()),
    }
}

/// The answer to a rank that comes after the end of the job.
pub(crate) fn over() -> Vec<u8> {
    vec![OVER]
}

/// Registers a rank that listens at `port`, and waits for where all ranks are.
pub(crate) fn register(
    server: SocketAddr,
    identity: &Identity,
    port: u16,
    timeout: Duration,
) -> Result<Registration, JoinError> {
    let deadline = Instant::now() + timeout;
    let tcp = loop {
        match TcpStream::connect_timeout(&server, PAUSE.max(deadline.saturating_duration_since(Instant::now()))) {
            Ok(stream) => break stream,
            // The server may not listen yet.
            Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(error) => {
                let (address, seconds) = (server.to_string(), timeout.as_secs_f64());
                return Err(JoinError::NoServer { address, seconds, problem: error.to_string() });
            }
        }
    };
    let (mut stream, _) = handshake::connect(tcp, identity, Purpose::Rendezvous, None)?;
    let lost = || JoinError::io(format!("hear from the rendezvous at {server}"));
    let own = own_peer(port, &host_name()).map_err(lost())?;
    stream.write_all(&own).map_err(lost())?;
    // The server itself gives up after the timeout, and says why.
    let patience = Some(timeout + Duration::from_secs(10));
    stream.tcp().map_or(Ok(()), |tcp| tcp.set_read_timeout(patience)).map_err(lost())?;
    match read_answer(&mut stream, identity.ranks, server).map_err(lost())? {
        Answer::Joined(peers, attempt) => {
            let watch = attempt.is_some().then_some(Watch(stream));
            Ok(Registration { peers, attempt: attempt.unwrap_or_default(), watch })
        }
        Answer::Refused(error) => Err(error),
    }
}

/// What the server answers a rank.
pub(crate) enum Answer {
    /// Where the ranks are, and of a job that restarts lost ranks the attempt.
    Joined(Vec<PeerInfo>, Option<Attempt>),
    /// Why they do not join.
    Refused(JoinError),
}

/// Reads the answer of a server at this address to one of so many ranks.
pub(crate) fn read_answer(from: &mut impl Read, ranks: u32, server: SocketAddr) -> io::Result<Answer> {
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    Ok(match kind[0] {
        JOINED => {
            let (peers, attempt) = read_table(from, ranks, server)?;
            Answer::Joined(peers, attempt)
        }
        OVER => Answer::Refused(JoinError::Over),
        MISSING => Answer::Refused(read_absence(from, ranks)?),
        _ => Answer::Refused(JoinError::Refused(read_text(from)?)),
    })
}

/// A connection before the deadline; `None` after it.
pub(crate) fn accept_until(listener: &TcpListener, deadline: Instant) -> Result<Option<TcpStream>, JoinError> {
    listener.set_nonblocking(true).map_err(JoinError::io("wait for connections"))?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // A connection that was given up before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(JoinError::io("wait for connections")(error)),
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(PAUSE.min(Duration::from_millis(2)));
    }
}

/// The address that `HOST:PORT` names.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, JoinError> {
    let problem = |problem: String| JoinError::Address { address: address.to_owned(), problem };
    let mut found = address.to_socket_addrs().map_err(|e| problem(format!("{e}; it is HOST:PORT")))?;
    found.next().ok_or_else(|| problem("the host has no address".into()))
}

/// The same, of a rank that waits for the host to be known: Kubernetes knows the name of a pod when the pod has started.
pub(crate) fn resolve_within(address: &str, timeout: Duration) -> Result<SocketAddr, JoinError> {
    let deadline = Instant::now() + timeout;
    let mut waits = false;
    loop {
        match address.to_socket_addrs() {
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                if Instant::now() >= deadline {
                    let (address, seconds) = (address.to_owned(), timeout.as_secs_f64());
                    return Err(JoinError::NoServer { address, seconds, problem: error.to_string() });
                }
                if !waits {
                    tracing::warn!(address, %error, "the host of the rendezvous is not known yet");
                }
                waits = true;
                std::thread::sleep(NAME_PAUSE.min(deadline.saturating_duration_since(Instant::now())));
            }
            _ => return resolve(address),
        }
    }
}

/// Where to listen for connections to `HOST:PORT`, which names this address. Many systems give a host's own name a loopback address,
/// at which other hosts cannot connect: then all addresses of the host are meant, where the ranks prove who they are.
pub(crate) fn listening(text: &str, address: SocketAddr, has_token: bool) -> SocketAddr {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host).trim_matches(['[', ']']);
    let is_name = host.parse::<IpAddr>().is_err() && !host.eq_ignore_ascii_case("localhost");
    if !(is_name && has_token && address.ip().is_loopback()) {
        return address;
    }
    let all: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(all, address.port())
}

/// Where the ranks are, and of a job that restarts lost ranks the attempt.
pub(crate) fn table(peers: &[&PeerInfo], attempt: Option<Attempt>) -> Vec<u8> {
    let restarts = attempt.map_or(0, |attempt| if attempt.has_begun { RESTARTS_AFTER_BEGIN } else { RESTARTS });
    let mut out = vec![JOINED, restarts];
    out.extend(attempt.unwrap_or_default().number.to_le_bytes());
    out.extend((peers.len() as u32).to_le_bytes());
    for peer in peers {
        // Writing to memory does not fail.
        let _ = write_text(&mut out, &peer.address.to_string());
        let _ = write_text(&mut out, &peer.host);
        out.extend(peer.pid.to_le_bytes());
    }
    out
}

fn read_table(from: &mut impl Read, ranks: u32, server: SocketAddr) -> io::Result<(Vec<PeerInfo>, Option<Attempt>)> {
    let odd = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut restarts = [0];
    from.read_exact(&mut restarts)?;
    let number = read_u32(from)?;
    let attempt = (restarts != [0]).then_some(Attempt { number, has_begun: restarts == [RESTARTS_AFTER_BEGIN] });
    if read_len(from)? != ranks {
        return Err(odd("the table has another number of ranks"));
    }
    let entry = |rank: u32| {
        let address: SocketAddr = read_text(from)?.parse().map_err(|_| odd("an address is malformed"))?;
        // The server's own rank came to it by another address than the others can.
        let is_local = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
        let ip = if is_local(address.ip()) { server.ip() } else { address.ip() };
        let host = read_text(from)?;
        let pid = read_u32(from)?;
        Ok(PeerInfo { rank, address: SocketAddr::new(ip, address.port()), host, pid })
    };
    Ok(((0..ranks).map(entry).collect::<io::Result<_>>()?, attempt))
}

pub(crate) fn refusal(why: &str) -> Vec<u8> {
    let mut out = vec![REFUSED];
    // Writing to memory does not fail.
    let _ = write_text(&mut out, why);
    out
}

/// Which ranks did not come within so many seconds.
fn absence(missing: &[u32], seconds: f64) -> Vec<u8> {
    let mut out = vec![MISSING];
    out.extend(seconds.to_le_bytes());
    out.extend((missing.len() as u32).to_le_bytes());
    missing.iter().for_each(|rank| out.extend(rank.to_le_bytes()));
    out
}

fn read_absence(from: &mut impl Read, ranks: u32) -> io::Result<JoinError> {
    let mut seconds = [0; 8];
    from.read_exact(&mut seconds)?;
    let missing = (0..read_len(from)?.min(ranks)).map(|_| read_u32(from)).collect::<io::Result<Vec<u32>>>()?;
    Ok(JoinError::Missing { missing, seconds: f64::from_le_bytes(seconds), ranks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_whose_own_name_is_loopback_listen_at_all_addresses() {
        let at =
            |text: &str, address: &str, has_token| listening(text, address.parse().unwrap(), has_token).to_string();
        assert_eq!(at("node01:29400", "127.0.1.1:29400", true), "0.0.0.0:29400");
        assert_eq!(at("node01:29400", "[::1]:29400", true), "[::]:29400");
        // Without a token, everyone on the network could join.
        assert_eq!(at("node01:29400", "127.0.1.1:29400", false), "127.0.1.1:29400");
        assert_eq!(at("node01:29400", "10.0.0.7:29400", true), "10.0.0.7:29400");
        assert_eq!(at("localhost:29400", "127.0.0.1:29400", true), "127.0.0.1:29400");
        assert_eq!(at("127.0.0.1:29400", "127.0.0.1:29400", true), "127.0.0.1:29400");
        assert_eq!(at("[::1]:29400", "[::1]:29400", true), "[::1]:29400");
    }

    #[test]
    fn absent_ranks_are_named() {
        let bytes = absence(&[1, 3], 2.5);
        let error = read_absence(&mut &bytes[1..], 4).unwrap();
        assert!(matches!(&error, JoinError::Missing { missing, ranks: 4, .. } if *missing == [1, 3]), "{error}");
        for len in 1..bytes.len() {
            assert!(read_absence(&mut &bytes[1..len], 4).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn damaged_tables_are_errors() {
        let peer =
            |rank| PeerInfo { rank, address: SocketAddr::from(([10, 0, 0, 1], 4000)), host: "host".into(), pid: 9 };
        let peers = [peer(0), peer(1)];
        let all: Vec<_> = peers.iter().collect();
        let attempt = Attempt { number: 7, has_begun: true };
        let bytes = table(&all, Some(attempt));
        let server = SocketAddr::from(([10, 0, 0, 9], 1));
        assert_eq!(read_table(&mut &bytes[1..], 2, server).unwrap(), (peers.to_vec(), Some(attempt)));
        assert_eq!(read_table(&mut &table(&all, None)[1..], 2, server).unwrap(), (peers.to_vec(), None));
        assert!(read_table(&mut &bytes[1..], 3, server).is_err());
        for len in 1..bytes.len() {
            assert!(read_table(&mut &bytes[1..len], 2, server).is_err(), "{len} bytes");
        }
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..10_000 {
            let mut damaged = bytes.clone();
            let at = rng.usize(1..damaged.len());
            damaged[at] = rng.u8(..);
            // Whatever it says, it is read without a panic.
            let _ = read_table(&mut &damaged[1..], 2, server);
        }
    }
}
