//! The transport between processes: shared memory between those of one host, TCP between others.
//!
//! One thread at a time is in a rendezvous. It sends its blocks and takes those of all ranks without blocking, because a rank
//! that only sent would wait for one that only sends. A block of a later rendezvous waits in memory; beyond a limit the rank
//! that sends waits. All ranks take part in rendezvous in one order, so the earliest one that is not over can always go on.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use of_runtime::flight_recorder::Event;
use of_runtime::{Chunk, FlightRecorder, StopReason, Stopped, TransferBlock, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::attempts::Watch;
use crate::error::JoinError;
use crate::exchange::{Exchange, Link, Outgoing, State, Step};
use crate::handshake::{self, Identity, Purpose};
use crate::monitor::{self, Monitor, lock};
use crate::mpi::{Mpi, MpiStream};
use crate::peer::PeerInfo;
use crate::rendezvous::{RendezvousServer, accept_until, listening, register, resolve, resolve_within};
use crate::shared::{OwnMemory, SharedLink};
use crate::stream::Stream;
use crate::stream_link::StreamLink;

/// The time that a rank polls before it sleeps. One that sleeps is woken some 10 us later.
const SPIN: Duration = Duration::from_micros(100);

/// Polls between looks at the clock.
const POLLS: u32 = 64;

/// The longest sleep: what wakes a rank from shared memory is a block, but not the end of the job.
const TICK: Duration = Duration::from_millis(20);

/// The longest sleep of a rank that waits for several things, of which one wakes it.
const SHORT_TICK: Duration = Duration::from_millis(1);

/// The sleep of a rank that waits for messages of MPI: as long as a wake of another takes, some times over.
const MPI_TICK: Duration = Duration::from_micros(50);

/// Over what ranks exchange data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// Shared memory between processes of one host, and MPI, where there is one, or TCP between others.
    #[default]
    Auto,
    /// TCP.
    Tcp,
    /// Shared memory: all ranks must be on one host.
    SharedMemory,
    /// MPI, with [`JoinOptions::mpi`].
    Mpi,
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
    /// MPI, for the ranks of its launcher.
    pub mpi: Option<Arc<Mpi>>,
    /// The ports at one of which this rank listens for others, where a firewall has a range open; otherwise the system chooses one.
    pub ports: Option<RangeInclusive<u16>>,
    /// What records the rank's acts, and the blocks that it exchanges.
    pub recorder: Option<Arc<FlightRecorder>>,
}

/// Ranks that are processes.
#[derive(Debug)]
pub struct ProcessTransport {
    rank: u32,
    attempt: u32,
    has_begun: bool,
    links: Mutex<Vec<Option<Link<Stream>>>>,
    /// What the ranks of this host read, where this process has shared memory.
    memory: Option<OwnMemory>,
    /// Whether some do.
    shares: bool,
    monitor: Arc<Monitor>,
    watcher: Option<JoinHandle<()>>,
    /// One more than the rendezvous that this rank is in, or was in when it stopped.
    current: AtomicU64,
    /// The ranks that it waited for when it stopped.
    waited_for: Mutex<Vec<String>>,
    own: PeerInfo,
    recorder: Option<Arc<FlightRecorder>>,
    mpi: Option<Arc<Mpi>>,
    spin: Duration,
}

impl ProcessTransport {
    /// Joins the other ranks of a job.
    ///
    /// # Errors
    /// When a rank does not come in time, has another plan or token, or the network fails.
    pub fn join(identity: &Identity, options: &JoinOptions) -> Result<ProcessTransport, JoinError> {
        let server = match options.serve {
            true => resolve(&options.rendezvous)?,
            false => resolve_within(&options.rendezvous, options.join_timeout)?,
        };
        if server.port() == 0 {
            let problem = "port 0 is none at which other ranks can connect".to_owned();
            return Err(JoinError::Address { address: options.rendezvous.clone(), problem });
        }
        if options.token.is_none() && !server.ip().is_loopback() {
            return Err(JoinError::NoToken(server));
        }
        let token = options.token.clone().unwrap_or_default();
        let listens = listening(&options.rendezvous, server, !token.is_empty());
        let served = match options.serve {
            true => Some(RendezvousServer::bind(listens, identity.ranks, &token)?.with_tls(identity.tls().cloned())),
            false => None,
        };
        let own: IpAddr = match listens.ip() {
            ip if ip.is_loopback() => ip,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let listener = listen(own, options.ports.as_ref(), identity.rank)?;
        let port = listener.local_addr().map_err(JoinError::io("listen for other ranks"))?.port();
        let timeout = options.join_timeout;
        let registration = std::thread::scope(|scope| {
            let serving = served.as_ref().map(|server| scope.spawn(|| server.serve(timeout)));
            let registration = register(server, identity, port, timeout);
            // The server's error says more than its answer to this rank.
            let served = serving.map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())));
            served.and(registration)
        })?;
        let identity = identity.clone().with_attempt(registration.attempt.number);
        let watch = registration.watch.as_ref();
        let mut transport = Self::connect(&identity, &listener, &registration.peers, options, watch)?;
        transport.has_begun = registration.attempt.has_begun;
        registration.watch.into_iter().for_each(Watch::connected);
        Ok(transport)
    }

    /// Connects to the ranks below, and waits for those above.
    fn connect(
        identity: &Identity,
        listener: &TcpListener,
        peers: &[PeerInfo],
        options: &JoinOptions,
        watch: Option<&Watch>,
    ) -> Result<ProcessTransport, JoinError> {
        let own = identity.rank as usize;
        let memory = match options.link {
            LinkChoice::Tcp => Err("this rank was started with TCP alone".to_owned()),
            LinkChoice::Mpi => Err("this rank was started with MPI alone".to_owned()),
            _ => OwnMemory::new(peers.len()).map_err(|e| format!("this rank has no shared memory: {e}")),
        };
        let none = || (0..peers.len()).map(|_| None).collect::<Vec<Option<Stream>>>();
        let (mut data, mut control) = (none(), none());
        for (rank, peer) in peers.iter().enumerate().take(own) {
            for (purpose, to) in [(Purpose::Data, &mut data), (Purpose::Control, &mut control)] {
                let connected = TcpStream::connect_timeout(&peer.address, options.join_timeout);
                let tcp = connected.map_err(JoinError::io(format!("connect to {peer} at {}", peer.address)))?;
                let (stream, other) = handshake::connect(tcp, identity, purpose, Some(peer.rank))?;
                if other.rank != peer.rank {
                    return Err(JoinError::Stranger { peer: peer.address, problem: "it is another rank" });
                }
                to[rank] = Some(stream);
            }
        }
        let deadline = Instant::now() + options.join_timeout;
        let open = |streams: &[Option<Stream>]| streams.iter().skip(own + 1).position(Option::is_none);
        while let Some(missing) = open(&data).or(open(&control)) {
            let next = watch.map_or(deadline, |_| deadline.min(Instant::now() + TICK));
            let Some(tcp) = accept_until(listener, next)? else {
                if watch.is_some_and(Watch::is_interrupted) {
                    return Err(JoinError::Interrupted);
                }
                if Instant::now() < deadline {
                    continue;
                }
                return Err(JoinError::Unconnected {
                    peer: peers[own + 1 + missing].to_string(),
                    seconds: options.join_timeout.as_secs_f64(),
                });
            };
            match handshake::accept(tcp, identity) {
                Ok((stream, other)) if (other.rank as usize) < peers.len() => {
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
            stream.map(|stream| Link::of(stream, memory.as_ref(), identity.rank, peer, options)).transpose()
        });
        let links: Vec<Option<Link<Stream>>> = links.collect::<Result<_, _>>()?;
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
            attempt: identity.attempt(),
            has_begun: false,
            shares: links.iter().flatten().any(|link| matches!(link, Link::Shared(_))),
            links: Mutex::new(links),
            memory: memory.ok(),
            monitor,
            watcher: Some(watcher),
            current: AtomicU64::new(0),
            waited_for: Mutex::default(),
            own: peers[own].clone(),
            recorder: options.recorder.clone(),
            mpi: options.mpi.clone(),
            spin,
        })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How often the ranks of the job have joined before, where lost ranks are started again.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether all ranks of the job were connected to one another in an earlier attempt, so that they may have done steps.
    pub fn has_begun(&self) -> bool {
        self.has_begun
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

    fn record(&self, event: Event) {
        self.recorder.iter().for_each(|recorder| recorder.record(event));
    }

    /// Executes a rendezvous to its end.
    fn exchange(
        &self,
        links: &mut [Option<Link<Stream>>],
        exchange: &mut Exchange<'_>,
        take: &mut dyn FnMut(Chunk<'_>),
        spin: Duration,
    ) -> Result<(), String> {
        let (memory, recorder) = (self.memory.as_ref(), self.recorder.as_deref());
        let mut idle = 0u32;
        let mut idle_since: Option<Instant> = None;
        loop {
            if self.monitor.stopped() {
                return Err(String::new());
            }
            match exchange.advance(links, memory, recorder, take)? {
                Step::Done => return Ok(()),
                Step::Progress => {
                    (idle, idle_since) = (0, None);
                    continue;
                }
                Step::Idle => idle += 1,
            }
            if idle % POLLS != 1 {
                std::hint::spin_loop();
                continue;
            }
            exchange.check_peers(links, memory, |rank| self.monitor.is_gone(rank))?;
            recorder.inspect(|recorder| exchange.record_wait(recorder));
            if idle_since.get_or_insert_with(Instant::now).elapsed() >= spin {
                self.sleep(links, exchange);
            }
        }
    }

    /// Waits until something comes, can be sent, or the job ends.
    fn sleep(&self, links: &[Option<Link<Stream>>], exchange: &Exchange<'_>) {
        let (outgoing, next) = (&exchange.outgoing, exchange.next());
        let link = |rank: u32| links.get(rank as usize).and_then(Option::as_ref);
        let waits_for = |out: &&Outgoing<'_>| !out.is_done() && matches!(link(out.block.to), Some(Link::Shared(_)));
        let sent = outgoing.iter().find(waits_for);
        let next_shared = next.and_then(|rank| match link(rank) {
            Some(Link::Shared(link)) => Some(link),
            _ => None,
        });
        let waits_for = |is: fn(&Stream) -> bool| {
            let by = |rank: u32| matches!(link(rank), Some(Link::Stream(link)) if is(link.stream()));
            next.is_some_and(by) || outgoing.iter().any(|out| !out.is_done() && by(out.block.to))
        };
        let (by_tcp, by_mpi) = (|stream: &Stream| stream.tcp().is_some(), |stream: &Stream| stream.tcp().is_none());
        // Nothing wakes a thread that waits for MPI.
        let tick = match () {
            () if waits_for(by_mpi) => MPI_TICK,
            () if sent.is_some() || next_shared.is_some() => SHORT_TICK,
            () => TICK * 5,
        };
        if waits_for(by_tcp) || waits_for(by_mpi) {
            return self.poll(links, exchange, tick);
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
    fn poll(&self, links: &[Option<Link<Stream>>], exchange: &Exchange<'_>, timeout: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as _ };
        let mut fds = vec![PollFd::new(&self.monitor.woken, PollFlags::IN)];
        for (rank, link) in links.iter().enumerate() {
            let Some(Link::Stream(link)) = link.as_ref() else { continue };
            if link.closed {
                continue;
            }
            let sending = exchange.outgoing.iter().any(|out| out.block.to as usize == rank && !out.is_done());
            let write = if sending { PollFlags::OUT } else { PollFlags::empty() };
            let read = if link.is_read(exchange.wants_whole(rank)) { PollFlags::IN } else { PollFlags::empty() };
            if let Some(tcp) = link.stream().tcp() {
                fds.push(PollFd::new(tcp, read | write));
            }
        }
        if poll(&mut fds, Some(&timeout)).is_err() {
            std::thread::sleep(SHORT_TICK);
        }
        self.monitor.drain();
    }

    /// Takes part in a rendezvous. The thread polls for some time before it sleeps.
    fn take_part(
        &self,
        mut exchange: Exchange<'_>,
        take: &mut dyn FnMut(Chunk<'_>),
        spin: Duration,
    ) -> Result<(), Stopped> {
        let id = exchange.id();
        let mut links = lock(&self.links);
        self.current.store(u64::from(id) + 1, Ordering::Release);
        self.record(Event::TransferBegins { transfer: id });
        match self.exchange(&mut links, &mut exchange, take, spin) {
            Ok(()) => {
                self.record(Event::TransferEnds { transfer: id });
                self.current.store(0, Ordering::Release);
                Ok(())
            }
            Err(why) => {
                let name = |rank: u32| links.get(rank as usize)?.as_ref().map(|link| link.peer().to_string());
                *lock(&self.waited_for) = exchange.waited_for().into_iter().filter_map(name).collect();
                if !why.is_empty() {
                    self.monitor.stop(why);
                }
                Err(Stopped)
            }
        }
    }
}

/// Listens at one of the ports, or at one that the system chooses.
fn listen(own: IpAddr, ports: Option<&RangeInclusive<u16>>, rank: u32) -> Result<TcpListener, JoinError> {
    let failed = JoinError::io("listen for other ranks");
    let Some(ports) = ports else { return TcpListener::bind((own, 0)).map_err(failed) };
    let mut problem = "there is none".to_owned();
    for port in ports.clone() {
        match TcpListener::bind((own, port)) {
            Ok(listener) => return Ok(listener),
            // Another rank of this host, or another program, has it.
            Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => {
                problem = error.to_string();
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Err(JoinError::NoPort { rank, first: *ports.start(), last: *ports.end(), problem })
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
        let mut whole = |chunk: Chunk<'_>| take(chunk.sender, chunk.block);
        self.take_part(Exchange::new(me, id, blocks, from), &mut whole, self.spin)
    }

    fn rendezvous_in_chunks(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        concurrently: bool,
        take: &mut dyn FnMut(Chunk<'_>),
    ) -> Result<(), Stopped> {
        let spin = if concurrently { Duration::ZERO } else { self.spin };
        self.take_part(Exchange::new(me, id, blocks, from).in_chunks(true), take, spin)
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
        self.monitor.stop(format!("{} failed: {why}", self.own));
    }

    fn stopped(&self) -> bool {
        self.monitor.stopped()
    }

    fn recorder(&self) -> Option<&Arc<FlightRecorder>> {
        self.recorder.as_ref()
    }

    fn own_name(&self) -> Option<String> {
        Some(format!("rank {} on {}", self.rank, self.own.host))
    }

    fn reason(&self) -> Option<StopReason> {
        let transfer = self.current.load(Ordering::Acquire).checked_sub(1).map(|id| id as u32);
        let waited_for = lock(&self.waited_for).clone();
        self.monitor.reason().map(|text| StopReason { text, transfer, waited_for })
    }
}

impl Drop for ProcessTransport {
    fn drop(&mut self) {
        if self.monitor.stopped() {
            self.mpi.as_ref().inspect(|mpi| mpi.abandon());
        }
        self.monitor.leave();
        if let Some(watcher) = self.watcher.take() {
            // A panic of the thread has been printed where it happened.
            let _ = watcher.join();
        }
    }
}

impl Link<Stream> {
    /// Over a connection, whose other end does the same.
    fn of(
        mut stream: Stream,
        memory: Result<&OwnMemory, &String>,
        rank: u32,
        peer: &PeerInfo,
        options: &JoinOptions,
    ) -> Result<Link<Stream>, JoinError> {
        let choice = options.link;
        let agree = || JoinError::io(format!("agree on a link with {peer}"));
        let shared = SharedLink::negotiate(&mut stream, memory.map_err(String::as_str), rank, peer);
        let why = match shared.map_err(agree())? {
            Ok(link) => {
                tracing::debug!(%peer, "shared memory");
                return Ok(Link::Shared(link));
            }
            Err(problem) if choice == LinkChoice::SharedMemory => {
                return Err(JoinError::NoSharedMemory { peer: peer.to_string(), problem });
            }
            Err(why) => why,
        };
        let mpi = options.mpi.as_ref().filter(|_| choice != LinkChoice::Tcp);
        let mut theirs = [0];
        stream.write_all(&[u8::from(mpi.is_some())]).and_then(|()| stream.read_exact(&mut theirs)).map_err(agree())?;
        if theirs != [u8::from(mpi.is_some())] {
            return Err(JoinError::MpiOfOne { peer: peer.to_string() });
        }
        let stream = match mpi {
            Some(mpi) => Stream::Mpi(MpiStream::new(Arc::clone(mpi), peer.rank).map_err(agree())?),
            None => stream,
        };
        tracing::debug!(%peer, %why, mpi = mpi.is_some(), "a stream");
        StreamLink::new(peer.clone(), stream).map(Link::Stream).map_err(JoinError::io("prepare connections"))
    }
}
