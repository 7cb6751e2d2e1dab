//! The monitor: a thread that tells the other ranks that this one lives, notices those that do not, and passes on why a rank
//! failed.
//!
//! It has a connection to each rank. A rank sends a heartbeat every tenth of the time within which a lost rank is noticed. A process
//! that ends closes its connections, which is noticed at once; one that is stopped or cut off is silent. So is one that waits for a core,
//! because many ranks share those of a host: the system says that its process is not stopped, and it has more time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::local_process::LocalProcess;
use crate::peer::PeerInfo;
use crate::send_queue::unacknowledged;
use crate::stream::Stream;

/// The longest reason that is passed on.
const MAX_REASON: usize = 64 << 10;

/// Messages: one byte, and after a stop the length and text of its reason.
const HEARTBEAT: u8 = 0;
const STOP: u8 = 1;
const BYE: u8 = 2;

/// A rank is lost when it was silent for so many hundredths of the time within which that is to be noticed. Its last heartbeat was up to
/// ten of them before it stopped, and the next look is up to five after the silence was long enough.
const SILENCE: u32 = 85;

/// A rank is lost, too, when it acknowledged nothing of what this one sent for so many hundredths of that time: the way to it may be gone
/// while the way back is not, and then the other rank's reason for the end would come late, behind what it sends again. The first
/// heartbeat that is lost is sent up to ten hundredths after the way was.
const UNACKNOWLEDGED: u32 = 75;

/// A silent rank of this host whose process goes on, and whose system acknowledges what it gets, has so many times that time: it waits
/// for a core.
const STARVED: u32 = 30;

/// The longest time that a system takes to acknowledge what it gets, of a process that does not read it. Source: RFC 9293, section 3.8.6.3
/// allows 0.5 s; Linux takes 40 ms.
const DELAYED: Duration = Duration::from_millis(60);

/// Ranks beyond so many make this one pause after it has looked, for so long each: their heartbeats come all the time, and to wake for each
/// would take the cores that they share.
const FEW: usize = 8;
const PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// What the threads of a transport know of the job's end.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// For each rank its connection; none for the own rank.
    links: Vec<Option<Link>>,
    stopped: AtomicBool,
    /// Whether it was reported that a rank waits for a core.
    starved: AtomicBool,
    reason: Mutex<Option<String>>,
    /// Set when the own rank leaves.
    leaving: AtomicBool,
    /// Written to wake the thread that waits for data.
    wake: UnixStream,
    /// The other end of `wake`.
    pub woken: UnixStream,
    timeout: Duration,
}

/// The connection to a rank's monitor.
#[derive(Debug)]
struct Link {
    peer: PeerInfo,
    /// Threads of this rank write to it, and the monitor's reads it.
    stream: Mutex<Stream>,
    /// The same connection, to wait for.
    tcp: TcpStream,
    /// Whether it left in order, or is lost.
    gone: AtomicBool,
    /// Its process, where it is on this host.
    process: Option<LocalProcess>,
}

/// A message that has not come whole.
#[derive(Default)]
struct Inbox {
    bytes: Vec<u8>,
    heard: Option<Instant>,
    /// When all was acknowledged last.
    acknowledged: Option<Instant>,
}

/// What a rank tells another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// It lives.
    Heartbeat,
    /// The job ends, for this reason.
    Stop(String),
    /// It leaves in order.
    Bye,
    /// The bytes are no message.
    Damaged,
}

impl Message {
    /// Takes the first message of what has come; `None` where there is no whole one.
    pub fn take(bytes: &mut Vec<u8>) -> Option<Message> {
        let message = match *bytes.first()? {
            HEARTBEAT => Message::Heartbeat,
            BYE => Message::Bye,
            STOP => {
                let len = bytes.get(1..5)?;
                let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
                if len > MAX_REASON {
                    return Some(Message::Damaged);
                }
                let text = String::from_utf8_lossy(bytes.get(5..5 + len)?).into_owned();
                bytes.drain(..4 + len);
                Message::Stop(text)
            }
            _ => return Some(Message::Damaged),
        };
        bytes.remove(0);
        Some(message)
    }

    /// The bytes of a stop with this reason, cut where it is too long.
    pub fn stop(reason: &str) -> Vec<u8> {
        let text = &reason[..reason.floor_char_boundary(MAX_REASON)];
        let mut message = vec![STOP];
        message.extend((text.len() as u32).to_le_bytes());
        message.extend(text.as_bytes());
        message
    }
}

impl Monitor {
    /// Over connections that are open.
    pub fn new(links: Vec<Option<(PeerInfo, Stream)>>, timeout: Duration) -> io::Result<Monitor> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let link = |link: Option<(PeerInfo, Stream)>| -> io::Result<Option<Link>> {
            let Some((peer, stream)) = link else { return Ok(None) };
            let tcp = stream.tcp().ok_or(io::ErrorKind::Unsupported)?.try_clone()?;
            tcp.set_nonblocking(true)?;
            let process = LocalProcess::of(&peer);
            Ok(Some(Link { peer, stream: Mutex::new(stream), tcp, gone: AtomicBool::new(false), process }))
        };
        let links = links.into_iter().map(link).collect::<io::Result<_>>()?;
        let (stopped, leaving, starved) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        Ok(Monitor { links, stopped, starved, reason: Mutex::default(), leaving, wake, woken, timeout })
    }

    /// Watches the other ranks until this one leaves.
    pub fn watch(&self) {
        let beat = self.timeout / 10;
        let tick = Timespec { tv_sec: 0, tv_nsec: (beat / 2).min(Duration::from_millis(100)).as_nanos() as _ };
        let mut inboxes: Vec<Inbox> = self.links.iter().map(|_| Inbox::default()).collect();
        let (mut last_beat, mut last_look) = (Instant::now(), Instant::now());
        self.send(&[HEARTBEAT]);
        while !self.leaving.load(Ordering::Acquire) {
            self.wait(&tick);
            let now = Instant::now();
            // This process itself was stopped: what the others sent meanwhile is still to be read.
            if now - last_look > self.timeout / 2 {
                inboxes.iter_mut().for_each(|inbox| (inbox.heard, inbox.acknowledged) = (Some(now), Some(now)));
            }
            last_look = now;
            for (link, inbox) in self.links.iter().zip(&mut inboxes) {
                if let Some(link) = link.as_ref().filter(|link| !link.gone.load(Ordering::Acquire)) {
                    self.look(link, inbox, now);
                }
            }
            // Behind the looks: what was sent just before them could not be acknowledged yet.
            if now - last_beat >= beat {
                self.send(&[HEARTBEAT]);
                last_beat = now;
            }
            let many = self.links.len().saturating_sub(FEW) as u32;
            if many > 0 && !self.stopped() {
                std::thread::sleep((PAUSE * many).min(LONGEST_PAUSE).min(beat / 2));
            }
        }
    }

    /// Waits for a message, at most a tick.
    fn wait(&self, tick: &Timespec) {
        let open = self.links.iter().flatten().filter(|link| !link.gone.load(Ordering::Acquire));
        let mut fds: Vec<PollFd<'_>> = open.map(|link| PollFd::new(&link.tcp, PollFlags::IN)).collect();
        if poll(&mut fds, Some(tick)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads what a rank sent, and checks that it lives.
    fn look(&self, link: &Link, inbox: &mut Inbox, now: Instant) {
        let mut bytes = [0; 4096];
        loop {
            let got = lock(&link.stream).read(&mut bytes);
            match got {
                Ok(0) => return self.lost(link, "ended without a word: its connection is closed"),
                Ok(n) => {
                    inbox.heard = Some(now);
                    inbox.bytes.extend_from_slice(&bytes[..n]);
                    if !self.take(link, &mut inbox.bytes) {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return self.lost(link, &format!("is lost: {e}")),
            }
        }
        let heard = *inbox.heard.get_or_insert(now);
        // Where the system does not say it, the other rank's silence does.
        if unacknowledged(&link.tcp).unwrap_or(0) == 0 {
            inbox.acknowledged = Some(now);
        }
        let acknowledged = *inbox.acknowledged.get_or_insert(now);
        if now - heard > self.timeout * SILENCE / 100 && !self.is_starved(link, now - heard, now - acknowledged) {
            let what = format!("has not answered for {:.1} s: it was stopped, or cut off", (now - heard).as_secs_f64());
            return self.lost(link, &what);
        }
        if now - acknowledged > self.timeout * UNACKNOWLEDGED / 100 {
            let seconds = (now - acknowledged).as_secs_f64();
            self.lost(link, &format!("has not acknowledged what was sent to it for {seconds:.1} s: it is cut off"));
        }
    }

    /// Whether a silent rank only waits for a core: it is on this host, nothing has stopped its process, its system acknowledges what it
    /// gets, and it is not silent for very long. A rank that is cut off has its process, too, and acknowledges nothing.
    fn is_starved(&self, link: &Link, silence: Duration, unacknowledged: Duration) -> bool {
        let is = link.process.is_some_and(LocalProcess::is_going)
            && unacknowledged <= DELAYED.max(self.timeout / 10)
            && silence < self.timeout * STARVED;
        if is && self.reports(link.peer.rank) && !self.starved.swap(true, Ordering::AcqRel) {
            let (rank, seconds) = (link.peer.rank, silence.as_secs_f64());
            tracing::warn!(
                "rank {rank} has not answered for {seconds:.1} s, and its process is not stopped: it waits for a core of this host, which \
                 has too few for its ranks"
            );
        }
        is
    }

    /// Whether this rank reports that another one waits for a core: of those of a host, the first other one does.
    fn reports(&self, silent: u32) -> bool {
        let own = self.links.iter().position(Option::is_none).unwrap_or(0);
        let local = |link: &&Link| link.process.is_some() && link.peer.rank != silent;
        self.links.iter().flatten().filter(local).all(|link| own < link.peer.rank as usize)
    }

    /// Takes the whole messages of `bytes`. Returns whether the rank is still there.
    fn take(&self, link: &Link, bytes: &mut Vec<u8>) -> bool {
        loop {
            match Message::take(bytes) {
                None => return true,
                Some(Message::Heartbeat) => {}
                Some(Message::Stop(reason)) => _ = self.note(reason),
                Some(Message::Bye) => {
                    link.gone.store(true, Ordering::Release);
                    self.wake();
                    return false;
                }
                Some(Message::Damaged) => {
                    self.lost(link, "sent a damaged message");
                    return false;
                }
            }
        }
    }

    /// Ends the job, as a rank is lost.
    fn lost(&self, link: &Link, how: &str) {
        link.gone.store(true, Ordering::Release);
        // A rank that heard this one's goodbye leaves without its own, while others may still have work.
        if !self.leaving.load(Ordering::Acquire) {
            self.stop(format!("{} {how}", link.peer));
        }
    }

    /// Ends the job for this reason, on all ranks. The first reason counts.
    pub fn stop(&self, reason: String) {
        if self.note(reason.clone()) {
            self.send(&Message::stop(&reason));
        }
    }

    /// Whether this is the first reason.
    fn note(&self, reason: String) -> bool {
        let mut known = lock(&self.reason);
        let first = known.is_none();
        known.get_or_insert(reason);
        drop(known);
        self.stopped.store(true, Ordering::Release);
        self.wake();
        first
    }

    /// Whether the job has ended.
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Why it ended.
    pub fn reason(&self) -> Option<String> {
        lock(&self.reason).clone()
    }

    /// Whether a rank has left in order, or is lost.
    pub fn is_gone(&self, rank: u32) -> bool {
        self.links[rank as usize].as_ref().is_some_and(|link| link.gone.load(Ordering::Acquire))
    }

    /// Says goodbye. The thread ends.
    pub fn leave(&self) {
        if !self.leaving.swap(true, Ordering::AcqRel) {
            self.send(&[BYE]);
        }
    }

    /// Sends to all ranks that are there, from any thread: the system takes a message whole while its buffer has room. A rank that takes nothing for so long that its buffers are full is noticed by its
    /// silence.
    fn send(&self, message: &[u8]) {
        for link in self.links.iter().flatten().filter(|link| !link.gone.load(Ordering::Acquire)) {
            // A rank that is gone is noticed when it is read.
            let mut stream = lock(&link.stream);
            let _ = stream.write(message).and_then(|_| stream.flush());
        }
    }

    fn wake(&self) {
        // Where the buffer is full, the other end wakes anyway.
        let _ = (&self.wake).write(&[0]);
    }

    /// Takes what woke the thread that waits for data.
    pub fn drain(&self) {
        let mut bytes = [0; 64];
        while (&self.woken).read(&mut bytes).is_ok_and(|n| n > 0) {}
    }
}

/// Starts the thread.
pub(crate) fn start(monitor: &Arc<Monitor>) -> io::Result<std::thread::JoinHandle<()>> {
    let monitor = Arc::clone(monitor);
    std::thread::Builder::new().name("of-monitor".into()).spawn(move || monitor.watch())
}

/// The guard of a mutex whose holder may have panicked: what it protects is always whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::peer::host_name;

    /// A monitor with a silent rank in this process, which is not stopped, or on another host; and the end of that rank.
    fn with_silent_rank(host: &str, timeout: Duration) -> (Monitor, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, address) = listener.accept().unwrap();
        let peer = PeerInfo { rank: 1, address, host: host.into(), pid: std::process::id() };
        (Monitor::new(vec![None, Some((peer, Stream::Plain(stream)))], timeout).unwrap(), other)
    }

    /// Looks at the rank once, `silence` after it was heard.
    fn looked(monitor: &Monitor, silence: Duration) -> Option<String> {
        let now = Instant::now() + silence;
        let mut inbox = Inbox { heard: Some(now - silence), acknowledged: Some(now), ..Inbox::default() };
        monitor.look(monitor.links[1].as_ref().unwrap(), &mut inbox, now);
        monitor.reason()
    }

    #[test]
    fn a_silent_rank_of_this_host_that_is_not_stopped_has_more_time() {
        let timeout = Duration::from_secs(1);
        let (monitor, _other) = with_silent_rank(&host_name(), timeout);
        assert_eq!(looked(&monitor, timeout * (STARVED - 1)), None);
        let reason = looked(&monitor, timeout * (STARVED + 1)).unwrap();
        assert!(reason.contains("rank 1 (process ") && reason.contains("has not answered for 31.0 s"), "{reason}");
        let (monitor, _other) = with_silent_rank("elsewhere", timeout);
        assert_eq!(looked(&monitor, timeout / 2), None);
        assert!(looked(&monitor, timeout).unwrap().contains("has not answered for 1.0 s"));
    }

    #[test]
    fn a_rank_that_closes_its_connection_is_lost_but_to_one_that_left_before() {
        for leaves in [false, true] {
            let (monitor, other) = with_silent_rank(&host_name(), Duration::from_secs(1));
            if leaves {
                monitor.leave();
                // What has come and is not read would make the system reset the connection.
                assert_eq!((&other).read(&mut [0; 8]).unwrap(), 1);
            }
            drop(other);
            let reason = looked(&monitor, Duration::ZERO).unwrap_or_default();
            assert_eq!(reason.contains("ended without a word"), !leaves, "{reason}");
        }
    }

    #[test]
    fn a_silent_rank_that_acknowledges_nothing_is_cut_off() {
        let timeout = Duration::from_secs(1);
        let (monitor, _other) = with_silent_rank(&host_name(), timeout);
        let link = monitor.links[1].as_ref().unwrap();
        // Until no more fits into the buffers of both ends.
        while lock(&link.stream).write(&[HEARTBEAT; 1 << 16]).is_ok() {}
        let now = Instant::now() + timeout;
        let mut inbox = Inbox { heard: Some(now - timeout), acknowledged: Some(now - timeout / 5), ..Inbox::default() };
        monitor.look(link, &mut inbox, now);
        assert!(monitor.reason().unwrap().contains("has not answered for 1.0 s"));
    }
}
