//! The transport between processes over TCP.
//!
//! One thread at a time is in a rendezvous. It sends its frames and reads those of all ranks without blocking, because a rank
//! that only sent would wait for one that only sends. A frame of a later rendezvous waits in memory; beyond a limit the rank
//! that sends waits. All ranks take part in rendezvous in one order, so the earliest one that is not over can always go on.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use of_plan::Runs;
use of_runtime::{StopReason, Stopped, TransferBlock, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::JoinError;
use crate::handshake::{self, Identity, Purpose};
use crate::monitor::{self, Monitor, lock};
use crate::peer::PeerInfo;
use crate::rendezvous::{RendezvousServer, accept_until, register, resolve};
use crate::wire::{HEADER, Header};

/// Bytes of frames of later rendezvous that wait in memory for each rank.
const WAITING: usize = 16 << 20;

/// Memory for a frame is taken in steps of this size, as its bytes come.
const STEP: usize = 4 << 20;

/// The time that a rank polls before it sleeps. One that sleeps is woken some 10 us later.
const SPIN: Duration = Duration::from_micros(100);

/// How a rank joins the others.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// `HOST:PORT` of the rendezvous.
    pub rendezvous: String,
    /// Whether this rank serves the rendezvous there. Otherwise another rank or a launcher does.
    pub serve: bool,
    /// The job's token, which all ranks have. Without one, all ranks must be on this host.
    pub token: Option<String>,
    /// How long ranks wait for one another in the beginning.
    pub join_timeout: Duration,
    /// After how long a silent rank counts as lost.
    pub peer_timeout: Duration,
}

/// Ranks that are processes, connected by TCP.
#[derive(Debug)]
pub struct TcpTransport {
    rank: u32,
    links: Mutex<Vec<Option<Link>>>,
    monitor: Arc<Monitor>,
    watcher: Option<JoinHandle<()>>,
    /// One more than the rendezvous that this rank is in, or was in when it stopped.
    current: AtomicU64,
    spin: Duration,
}

/// The connection for data to another rank.
#[derive(Debug)]
struct Link {
    peer: PeerInfo,
    stream: TcpStream,
    frame: Partial,
    /// Whole frames that are not taken yet: the number of the rendezvous, and the bytes.
    frames: VecDeque<(u32, Vec<u8>)>,
    waiting: usize,
    /// Whether the other end closed the connection.
    closed: bool,
}

/// A frame of which a part has come.
#[derive(Debug, Default)]
struct Partial {
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    got: usize,
    expected: Option<Header>,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that have come.
    filled: usize,
}

/// A frame that is sent.
struct Outgoing<'a> {
    to: u32,
    header: [u8; HEADER],
    bytes: Cow<'a, [u8]>,
    sent: usize,
}

impl TcpTransport {
    /// Joins the other ranks of a job.
    ///
    /// # Errors
    /// When a rank does not come in time, has another plan or token, or the network fails.
    pub fn join(identity: &Identity, options: &JoinOptions) -> Result<TcpTransport, JoinError> {
        let server = resolve(&options.rendezvous)?;
        if options.token.is_none() && !server.ip().is_loopback() {
            return Err(JoinError::NoToken(server));
        }
        let token = options.token.clone().unwrap_or_default();
        let served = match options.serve {
            true => Some(RendezvousServer::bind(server, identity.ranks, &token)?),
            false => None,
        };
        let own: IpAddr = match server.ip() {
            ip if ip.is_loopback() => ip,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let listener = TcpListener::bind((own, 0)).map_err(JoinError::io("listen for other ranks"))?;
        let port = listener.local_addr().map_err(JoinError::io("listen for other ranks"))?.port();
        let timeout = options.join_timeout;
        let peers = std::thread::scope(|scope| {
            let serving = served.as_ref().map(|server| scope.spawn(|| server.serve(timeout)));
            let peers = register(server, identity, port, timeout);
            // The server's error says more than its answer to this rank.
            let served = serving.map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())));
            served.and(peers)
        })?;
        Self::connect(identity, &listener, &peers, options)
    }

    /// Connects to the ranks below, and waits for those above.
    fn connect(
        identity: &Identity,
        listener: &TcpListener,
        peers: &[PeerInfo],
        options: &JoinOptions,
    ) -> Result<TcpTransport, JoinError> {
        let own = identity.rank as usize;
        let none = || (0..peers.len()).map(|_| None).collect::<Vec<Option<TcpStream>>>();
        let (mut data, mut control) = (none(), none());
        for (rank, peer) in peers.iter().enumerate().take(own) {
            for (purpose, to) in [(Purpose::Data, &mut data), (Purpose::Control, &mut control)] {
                let connected = TcpStream::connect_timeout(&peer.address, options.join_timeout);
                let mut stream = connected.map_err(JoinError::io(format!("connect to {peer} at {}", peer.address)))?;
                let other = handshake::connect(&mut stream, identity, purpose)?;
                if other.rank != peer.rank {
                    return Err(JoinError::Stranger { peer: peer.address, problem: "it is another rank" });
                }
                to[rank] = Some(stream);
            }
        }
        let deadline = Instant::now() + options.join_timeout;
        let open = |streams: &[Option<TcpStream>]| streams.iter().skip(own + 1).position(Option::is_none);
        while let Some(missing) = open(&data).or(open(&control)) {
            let Some(mut stream) = accept_until(listener, deadline)? else {
                return Err(JoinError::Missing {
                    missing: peers[own + 1 + missing].to_string(),
                    seconds: options.join_timeout.as_secs_f64(),
                    ranks: identity.ranks,
                });
            };
            match handshake::accept(&mut stream, identity) {
                Ok(other) if (other.rank as usize) < peers.len() => {
                    let to = if other.purpose == Purpose::Control as u32 { &mut control } else { &mut data };
                    to[other.rank as usize] = Some(stream);
                }
                Ok(_) => {}
                Err(error @ (JoinError::Plan { .. } | JoinError::Ranks { .. })) => return Err(error),
                // Whoever it was, the ranks may still come.
                Err(error) => tracing::warn!(%error, "a connection failed"),
            }
        }
        let prepared = || JoinError::io("prepare connections");
        let monitors = peers.iter().cloned().zip(control).map(|(peer, stream)| Some((peer, stream?))).collect();
        let monitor = Arc::new(Monitor::new(monitors, options.peer_timeout).map_err(prepared())?);
        let link = |(peer, stream): (&PeerInfo, Option<TcpStream>)| -> Result<Option<Link>, JoinError> {
            let Some(stream) = stream else { return Ok(None) };
            stream.set_nonblocking(true).map_err(prepared())?;
            let (frame, frames) = (Partial::default(), VecDeque::new());
            Ok(Some(Link { peer: peer.clone(), stream, frame, frames, waiting: 0, closed: false }))
        };
        let links = peers.iter().zip(data).map(link).collect::<Result<_, _>>()?;
        let watcher = monitor::start(&monitor).map_err(JoinError::io("start a thread"))?;
        let own_host = &peers[own].host;
        let local = peers.iter().filter(|peer| peer.host == *own_host).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if local <= cores { SPIN } else { Duration::ZERO };
        tracing::debug!(rank = identity.rank, ranks = identity.ranks, "joined");
        let current = AtomicU64::new(0);
        Ok(TcpTransport {
            rank: identity.rank,
            links: Mutex::new(links),
            monitor,
            watcher: Some(watcher),
            current,
            spin,
        })
    }

    /// The other ranks.
    pub fn peers(&self) -> Vec<PeerInfo> {
        lock(&self.links).iter().flatten().map(|link| link.peer.clone()).collect()
    }

    fn exchange(
        &self,
        links: &mut [Option<Link>],
        id: u32,
        outgoing: &mut [Outgoing<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), String> {
        let mut taken = 0;
        let mut idle_since: Option<Instant> = None;
        loop {
            if self.monitor.stopped() {
                return Err(String::new());
            }
            let mut progress = false;
            for out in outgoing.iter_mut().filter(|out| out.left() > 0) {
                let link = link_to(links, out.to)?;
                progress |= out.send(link)?;
            }
            for link in links.iter_mut().flatten().filter(|link| link.waiting < WAITING) {
                progress |= link.receive()?;
            }
            while let Some(rank) = from.get(taken) {
                let Some(bytes) = link_to(links, *rank)?.take(id)? else { break };
                let block = Runs::of(&[(0, bytes.len())], &[(0, bytes.len())]);
                take(taken, TransferBlock { to: self.rank, bytes: &bytes, block: &block, element: 1 });
                taken += 1;
                progress = true;
            }
            let sending = outgoing.iter().any(|out| out.left() > 0);
            if !sending && taken == from.len() {
                return Ok(());
            }
            if progress {
                idle_since = None;
                continue;
            }
            for rank in from.get(taken..).unwrap_or_default() {
                let link = link_to(links, *rank)?;
                if link.closed && link.frames.is_empty() && self.monitor.is_gone(*rank) {
                    return Err(format!("{} has left, and was waited for", link.peer));
                }
            }
            if idle_since.get_or_insert_with(Instant::now).elapsed() < self.spin {
                std::hint::spin_loop();
                continue;
            }
            self.sleep(links, outgoing);
        }
    }

    /// Waits until something comes, can be sent, or the monitor wakes this thread.
    fn sleep(&self, links: &[Option<Link>], outgoing: &[Outgoing<'_>]) {
        let tick = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut fds = vec![PollFd::new(&self.monitor.woken, PollFlags::IN)];
        for (rank, link) in links.iter().enumerate() {
            let Some(link) = link.as_ref().filter(|link| !link.closed) else { continue };
            let sending = outgoing.iter().any(|out| out.to as usize == rank && out.left() > 0);
            let write = if sending { PollFlags::OUT } else { PollFlags::empty() };
            let read = if link.waiting < WAITING { PollFlags::IN } else { PollFlags::empty() };
            fds.push(PollFd::new(&link.stream, read | write));
        }
        if poll(&mut fds, Some(&tick)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.monitor.drain();
    }
}

impl Transport for TcpTransport {
    fn rendezvous(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), Stopped> {
        debug_assert_eq!(me, self.rank);
        let mut outgoing: Vec<Outgoing<'_>> = blocks.iter().map(|block| Outgoing::of(id, block)).collect();
        let mut links = lock(&self.links);
        self.current.store(u64::from(id) + 1, Ordering::Release);
        match self.exchange(&mut links, id, &mut outgoing, from, take) {
            Ok(()) => {
                self.current.store(0, Ordering::Release);
                Ok(())
            }
            Err(why) => {
                if !why.is_empty() {
                    self.monitor.stop(why);
                }
                Err(Stopped)
            }
        }
    }

    fn stop(&self) {
        self.fail("it stopped");
    }

    fn fail(&self, why: &str) {
        self.monitor.stop(format!("rank {} (process {}) failed: {why}", self.rank, std::process::id()));
    }

    fn stopped(&self) -> bool {
        self.monitor.stopped()
    }

    fn reason(&self) -> Option<StopReason> {
        let transfer = self.current.load(Ordering::Acquire).checked_sub(1).map(|id| id as u32);
        self.monitor.reason().map(|text| StopReason { text, transfer })
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.monitor.leave();
        if let Some(watcher) = self.watcher.take() {
            // A panic of the thread has been printed where it happened.
            let _ = watcher.join();
        }
    }
}

fn link_to(links: &mut [Option<Link>], rank: u32) -> Result<&mut Link, String> {
    let link = links.get_mut(rank as usize).and_then(Option::as_mut);
    link.ok_or_else(|| format!("there is no connection to rank {rank}"))
}

impl<'a> Outgoing<'a> {
    /// The frame of a block. One that is not contiguous is packed.
    fn of(id: u32, block: &TransferBlock<'a>) -> Outgoing<'a> {
        let (run, element) = (block.block.len() * block.element, block.element);
        let piece = |start: usize| block.bytes.get(start * element..start * element + run).unwrap_or_default();
        let mut starts = block.block.starts();
        let first = starts.next().map(piece).unwrap_or_default();
        let bytes: Cow<'a, [u8]> = match starts.next() {
            None => first.into(),
            Some(second) => {
                let mut packed = first.to_vec();
                packed.extend_from_slice(piece(second));
                starts.for_each(|start| packed.extend_from_slice(piece(start)));
                packed.into()
            }
        };
        Outgoing { to: block.to, header: Header::of(id, &bytes).encode(), bytes, sent: 0 }
    }

    fn left(&self) -> usize {
        HEADER + self.bytes.len() - self.sent
    }

    /// Sends as much as the connection takes. Returns whether that was something.
    fn send(&mut self, link: &mut Link) -> Result<bool, String> {
        let mut progress = false;
        while self.left() > 0 {
            let header = &self.header[self.sent.min(HEADER)..];
            let bytes = &self.bytes[self.sent.saturating_sub(HEADER)..];
            match link.stream.write_vectored(&[IoSlice::new(header), IoSlice::new(bytes)]) {
                Ok(n) => {
                    self.sent += n;
                    progress = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("{} cannot be sent to: {e}", link.peer)),
            }
        }
        Ok(progress)
    }
}

impl Link {
    /// Reads what has come of frames. Returns whether that was something.
    fn receive(&mut self) -> Result<bool, String> {
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
            self.waiting += bytes.len();
            self.frames.push_back((id, bytes));
            if self.waiting >= WAITING {
                break;
            }
        }
        Ok(progress)
    }

    /// The bytes that this rank sent in rendezvous `id`, if they have come.
    fn take(&mut self, id: u32) -> Result<Option<Vec<u8>>, String> {
        match self.frames.front() {
            None => Ok(None),
            Some((own, _)) if *own != id => Err(format!("{} is in transfer {own} instead of {id}", self.peer)),
            Some(_) => {
                let bytes = self.frames.pop_front().map(|(_, bytes)| bytes);
                self.waiting -= bytes.as_ref().map_or(0, Vec::len);
                Ok(bytes)
            }
        }
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
        if self.filled == self.bytes.len() {
            let left = usize::try_from(length).unwrap_or(usize::MAX) - self.filled;
            let step = left.min(STEP.max(self.filled));
            self.bytes.try_reserve_exact(step).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            self.bytes.resize(self.filled + step, 0);
        }
        let got = from.read(&mut self.bytes[self.filled..])?;
        self.filled += got;
        Ok(got)
    }

    /// The frame, if it is whole.
    fn whole(&mut self) -> Result<Option<(u32, Vec<u8>)>, String> {
        let Some(header) = self.expected.filter(|header| header.length == self.filled as u64) else {
            return Ok(None);
        };
        let bytes = std::mem::take(self).bytes;
        if crc32fast::hash(&bytes) != header.crc {
            return Err(format!("sent a damaged message of {} bytes: its checksum does not match", bytes.len()));
        }
        Ok(Some((header.id, bytes)))
    }
}
