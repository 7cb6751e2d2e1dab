//! The monitor: a thread that tells the other ranks that this one lives, notices those that do not, and passes on why a rank
//! failed.
//!
//! It has a connection to each rank. A rank sends a heartbeat every tenth of the time within which a lost rank is noticed. A process
//! that ends closes its connections, which is noticed at once; one that is stopped or cut off is silent.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

/// What the threads of a transport know of the job's end.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// For each rank its connection; none for the own rank.
    links: Vec<Option<Link>>,
    stopped: AtomicBool,
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
            Ok(Some(Link { peer, stream: Mutex::new(stream), tcp, gone: AtomicBool::new(false) }))
        };
        let links = links.into_iter().map(link).collect::<io::Result<_>>()?;
        let (stopped, leaving) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Monitor { links, stopped, reason: Mutex::default(), leaving, wake, woken, timeout })
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
            if now - last_beat >= beat {
                self.send(&[HEARTBEAT]);
                last_beat = now;
            }
            for (link, inbox) in self.links.iter().zip(&mut inboxes) {
                if let Some(link) = link.as_ref().filter(|link| !link.gone.load(Ordering::Acquire)) {
                    self.look(link, inbox, now);
                }
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
        if now - heard > self.timeout * SILENCE / 100 {
            let what = format!("has not answered for {:.1} s: it was stopped, or cut off", (now - heard).as_secs_f64());
            return self.lost(link, &what);
        }
        // Where the system does not say it, the other rank's silence does.
        if unacknowledged(&link.tcp).unwrap_or(0) == 0 {
            inbox.acknowledged = Some(now);
        }
        let acknowledged = *inbox.acknowledged.get_or_insert(now);
        if now - acknowledged > self.timeout * UNACKNOWLEDGED / 100 {
            let seconds = (now - acknowledged).as_secs_f64();
            self.lost(link, &format!("has not acknowledged what was sent to it for {seconds:.1} s: it is cut off"));
        }
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

    fn lost(&self, link: &Link, how: &str) {
        link.gone.store(true, Ordering::Release);
        self.stop(format!("{} {how}", link.peer));
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
