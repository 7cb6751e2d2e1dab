//! The transport between processes: shared memory between those of one host, TCP between others.
//!
//! One thread at a time is in a rendezvous. It sends its blocks and takes those of all ranks without blocking, because a rank
//! that only sent would wait for one that only sends. A block of a later rendezvous waits in memory; beyond a limit the rank
//! that sends waits. All ranks take part in rendezvous in one order, so the earliest one that is not over can always go on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use of_plan::Runs;
use of_runtime::{StopReason, Stopped, TransferBlock, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::JoinError;
use crate::handshake::{self, Identity, Purpose};
use crate::monitor::{self, Monitor, lock};
use crate::peer::PeerInfo;
use crate::rendezvous::{RendezvousServer, accept_until, register, resolve};
use crate::shared::{OwnMemory, Sent, SharedLink};
use crate::tcp::{Message, TcpLink};

/// The time that a rank polls before it sleeps. One that sleeps is woken some 10 us later.
const SPIN: Duration = Duration::from_micros(100);

/// Polls between looks at the clock.
const POLLS: u32 = 64;

/// The longest sleep: what wakes a rank from shared memory is a block, but not the end of the job.
const TICK: Duration = Duration::from_millis(20);

/// The longest sleep of a rank that waits for several things, of which one wakes it.
const SHORT_TICK: Duration = Duration::from_millis(1);

/// Over what ranks exchange data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// Shared memory between processes of one host, and TCP between others.
    #[default]
    Auto,
    /// TCP.
    Tcp,
    /// Shared memory: all ranks must be on one host.
    SharedMemory,
}

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
    /// Over what they exchange data.
    pub link: LinkChoice,
}

/// Ranks that are processes.
#[derive(Debug)]
pub struct ProcessTransport {
    rank: u32,
    links: Mutex<Vec<Option<Link>>>,
    /// What the ranks of this host read, where this process has shared memory.
    memory: Option<OwnMemory>,
    /// Whether some do.
    shares: bool,
    monitor: Arc<Monitor>,
    watcher: Option<JoinHandle<()>>,
    /// One more than the rendezvous that this rank is in, or was in when it stopped.
    current: AtomicU64,
    spin: Duration,
}

/// The link for data to another rank.
#[derive(Debug)]
enum Link {
    Tcp(TcpLink),
    Shared(SharedLink),
}

/// A block that is sent.
struct Outgoing<'a> {
    block: TransferBlock<'a>,
    state: State<'a>,
}

enum State<'a> {
    New,
    /// Sent in part.
    Message(Message<'a>),
    /// The receiver reads it.
    Waits {
        message: u32,
        staging: Option<u32>,
    },
    Done,
}

impl ProcessTransport {
    /// Joins the other ranks of a job.
    ///
    /// # Errors
    /// When a rank does not come in time, has another plan or token, or the network fails.
    pub fn join(identity: &Identity, options: &JoinOptions) -> Result<ProcessTransport, JoinError> {
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
    ) -> Result<ProcessTransport, JoinError> {
        let own = identity.rank as usize;
        let memory = match options.link {
            LinkChoice::Tcp => Err("this rank was started with TCP alone".to_owned()),
            _ => OwnMemory::new(peers.len()).map_err(|e| format!("this rank has no shared memory: {e}")),
        };
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
                return Err(JoinError::Unconnected {
                    peer: peers[own + 1 + missing].to_string(),
                    seconds: options.join_timeout.as_secs_f64(),
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
        let links = data.into_iter().zip(peers).map(|(stream, peer)| {
            stream.map(|stream| Link::of(stream, memory.as_ref(), identity.rank, peer, options.link)).transpose()
        });
        let links: Vec<Option<Link>> = links.collect::<Result<_, _>>()?;
        let monitors = peers.iter().cloned().zip(control).map(|(peer, stream)| Some((peer, stream?))).collect();
        let monitor = Monitor::new(monitors, options.peer_timeout).map_err(JoinError::io("prepare connections"))?;
        let monitor = Arc::new(monitor);
        let watcher = monitor::start(&monitor).map_err(JoinError::io("start a thread"))?;
        let own_host = &peers[own].host;
        let local = peers.iter().filter(|peer| peer.host == *own_host).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if local <= cores { SPIN } else { Duration::ZERO };
        tracing::debug!(rank = identity.rank, ranks = identity.ranks, "joined");
        Ok(ProcessTransport {
            rank: identity.rank,
            shares: links.iter().flatten().any(|link| matches!(link, Link::Shared(_))),
            links: Mutex::new(links),
            memory: memory.ok(),
            monitor,
            watcher: Some(watcher),
            current: AtomicU64::new(0),
            spin,
        })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The other ranks.
    pub fn peers(&self) -> Vec<PeerInfo> {
        lock(&self.links).iter().flatten().map(|link| link.peer().clone()).collect()
    }

    /// The ranks with which this one shares memory.
    pub fn sharing(&self) -> Vec<u32> {
        let links = lock(&self.links);
        let shared = links.iter().flatten().filter(|link| matches!(link, Link::Shared(_)));
        shared.map(|link| link.peer().rank).collect()
    }

    fn exchange(
        &self,
        links: &mut [Option<Link>],
        id: u32,
        outgoing: &mut [Outgoing<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), String> {
        let (mut taken, mut idle) = (0, 0u32);
        let mut idle_since: Option<Instant> = None;
        loop {
            if self.monitor.stopped() {
                return Err(String::new());
            }
            let mut progress = false;
            for out in outgoing.iter_mut().filter(|out| !out.is_done()) {
                progress |= out.advance(id, link_to(links, out.block.to)?, self.memory.as_ref())?;
            }
            for link in links.iter_mut() {
                if let Some(Link::Tcp(link)) = link.as_mut()
                    && link.has_room()
                {
                    progress |= link.receive()?;
                }
            }
            while let Some(rank) = from.get(taken) {
                let mut pass = |bytes: &[u8]| {
                    let block = Runs::of(&[(0, bytes.len())], &[(0, bytes.len())]);
                    take(taken, TransferBlock { to: self.rank, bytes, block: &block, element: 1 });
                };
                if !link_to(links, *rank)?.take(id, &mut pass)? {
                    break;
                }
                taken += 1;
                progress = true;
            }
            if taken == from.len() && outgoing.iter().all(Outgoing::is_done) {
                return Ok(());
            }
            if progress {
                (idle, idle_since) = (0, None);
                continue;
            }
            idle += 1;
            if idle % POLLS != 1 {
                std::hint::spin_loop();
                continue;
            }
            self.check_peers(links, id, outgoing, &from[taken..])?;
            if idle_since.get_or_insert_with(Instant::now).elapsed() >= self.spin {
                self.sleep(links, outgoing, from.get(taken));
            }
        }
    }

    /// An error where this rank waits for one that has left.
    fn check_peers(
        &self,
        links: &mut [Option<Link>],
        id: u32,
        outgoing: &mut [Outgoing<'_>],
        from: &[u32],
    ) -> Result<(), String> {
        let gone = |link: &Link| Err(format!("{} has left, and was waited for", link.peer()));
        for rank in from.iter().filter(|rank| self.monitor.is_gone(**rank)) {
            let link = link_to(links, *rank)?;
            if link.is_over() {
                return gone(link);
            }
        }
        for out in outgoing.iter_mut().filter(|out| !out.is_done() && self.monitor.is_gone(out.block.to)) {
            // Over TCP, to send fails. What was taken from shared memory is known once the peer is gone.
            let link = link_to(links, out.block.to)?;
            if matches!(link, Link::Shared(_)) && !out.advance(id, link, self.memory.as_ref())? {
                return gone(link);
            }
        }
        Ok(())
    }

    /// Waits until something comes, can be sent, or the job ends.
    fn sleep(&self, links: &[Option<Link>], outgoing: &[Outgoing<'_>], next: Option<&u32>) {
        let link = |rank: u32| links.get(rank as usize).and_then(Option::as_ref);
        let waits_for = |out: &&Outgoing<'_>| !out.is_done() && matches!(link(out.block.to), Some(Link::Shared(_)));
        let sent = outgoing.iter().find(waits_for);
        let next_shared = next.and_then(|rank| match link(*rank) {
            Some(Link::Shared(link)) => Some(link),
            _ => None,
        });
        let by_tcp = |rank: u32| matches!(link(rank), Some(Link::Tcp(_)));
        let tcp =
            next.is_some_and(|rank| by_tcp(*rank)) || outgoing.iter().any(|out| !out.is_done() && by_tcp(out.block.to));
        if tcp {
            return self.poll(
                links,
                outgoing,
                if sent.is_some() || next_shared.is_some() { SHORT_TICK } else { TICK * 5 },
            );
        }
        // A block that finds no room is sent only when this rank wakes.
        let blocked = outgoing.iter().any(|out| matches!(out.state, State::New));
        match (next_shared, sent, &self.memory) {
            (Some(link), ..) => link.sleep_for_block(if blocked { SHORT_TICK } else { TICK }),
            (None, Some(out), Some(memory)) => {
                let message = if let State::Waits { message, .. } = out.state { Some(message) } else { None };
                if let Some(Link::Shared(link)) = link(out.block.to) {
                    link.sleep_until_taken(memory, message, if blocked { SHORT_TICK } else { TICK });
                }
            }
            _ => std::thread::sleep(SHORT_TICK),
        }
    }

    /// Waits for connections.
    fn poll(&self, links: &[Option<Link>], outgoing: &[Outgoing<'_>], timeout: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as _ };
        let mut fds = vec![PollFd::new(&self.monitor.woken, PollFlags::IN)];
        for (rank, link) in links.iter().enumerate() {
            let Some(Link::Tcp(link)) = link.as_ref() else { continue };
            if link.closed {
                continue;
            }
            let sending = outgoing.iter().any(|out| out.block.to as usize == rank && !out.is_done());
            let write = if sending { PollFlags::OUT } else { PollFlags::empty() };
            let read = if link.has_room() { PollFlags::IN } else { PollFlags::empty() };
            fds.push(PollFd::new(link.stream(), read | write));
        }
        if poll(&mut fds, Some(&timeout)).is_err() {
            std::thread::sleep(SHORT_TICK);
        }
        self.monitor.drain();
    }
}

impl Transport for ProcessTransport {
    fn rendezvous(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), Stopped> {
        debug_assert_eq!(me, self.rank);
        let new = blocks.iter().map(|block| Outgoing { block: *block, state: State::New });
        let mut outgoing: Vec<Outgoing<'_>> = new.collect();
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

    fn memory(&self, len: usize) -> std::io::Result<Arc<MmapRaw>> {
        match &self.memory {
            Some(memory) if self.shares => memory.lend(len),
            _ => Ok(Arc::new(of_plan::zeroed_pages(len)?.into())),
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

impl Drop for ProcessTransport {
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

impl Outgoing<'_> {
    fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Sends what can be sent. Returns whether that was something.
    fn advance(&mut self, id: u32, link: &mut Link, memory: Option<&OwnMemory>) -> Result<bool, String> {
        match (link, memory) {
            (Link::Tcp(link), _) => {
                let mut message = match std::mem::replace(&mut self.state, State::Done) {
                    State::Message(message) => message,
                    _ => Message::of(id, &self.block),
                };
                let progress = link.send(&mut message)?;
                if !message.is_sent() {
                    self.state = State::Message(message);
                }
                Ok(progress)
            }
            (Link::Shared(link), Some(memory)) => {
                if let State::Waits { message, staging } = self.state {
                    let taken = link.is_taken(memory, message, staging);
                    if taken {
                        self.state = State::Done;
                    }
                    return Ok(taken);
                }
                let Some(sent) = link.send(memory, id, &self.block)? else { return Ok(false) };
                self.state = match sent {
                    Sent::Done => State::Done,
                    Sent::Waits { message, staging } => State::Waits { message, staging },
                };
                Ok(true)
            }
            (Link::Shared(link), None) => Err(format!("{} shares no memory", link.peer)),
        }
    }
}

impl Link {
    /// Over a connection, whose other end does the same.
    fn of(
        mut stream: TcpStream,
        memory: Result<&OwnMemory, &String>,
        rank: u32,
        peer: &PeerInfo,
        choice: LinkChoice,
    ) -> Result<Link, JoinError> {
        let shared = SharedLink::negotiate(&mut stream, memory.map_err(String::as_str), rank, peer);
        match shared.map_err(JoinError::io(format!("agree on a link with {peer}")))? {
            Ok(link) => {
                tracing::debug!(%peer, "shared memory");
                Ok(Link::Shared(link))
            }
            Err(problem) if choice == LinkChoice::SharedMemory => {
                Err(JoinError::NoSharedMemory { peer: peer.to_string(), problem })
            }
            Err(why) => {
                tracing::debug!(%peer, %why, "TCP");
                TcpLink::new(peer.clone(), stream).map(Link::Tcp).map_err(JoinError::io("prepare connections"))
            }
        }
    }

    fn peer(&self) -> &PeerInfo {
        match self {
            Link::Tcp(link) => &link.peer,
            Link::Shared(link) => &link.peer,
        }
    }

    /// Passes the block that the peer sent in rendezvous `id` to `take`. Returns whether it has come.
    fn take(&mut self, id: u32, take: &mut dyn FnMut(&[u8])) -> Result<bool, String> {
        match self {
            Link::Shared(link) => link.take(id, take),
            Link::Tcp(link) => link.take(id, take),
        }
    }

    /// Whether nothing more will come from a peer that has left.
    fn is_over(&self) -> bool {
        match self {
            Link::Tcp(link) => link.is_over(),
            Link::Shared(link) => !link.has_block(),
        }
    }
}
