//! The rendezvous of a job whose lost ranks are started again: ranks join again after each loss.
//!
//! The server gives each attempt a number, which is in the handshakes of the connections that are made after it, so no message of an
//! earlier one is taken. It keeps its connection to each rank until all have connected to one another. When one of them closes
//! before that, it closes all, and the ranks register again.

use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::JoinError;
use crate::monitor::lock;
use crate::peer::PeerInfo;
use crate::rendezvous::{Registered, RendezvousServer, accept_until, over, refusal, table};
use crate::stream::Stream;

/// The longest wait for a connection, after which the server looks at what the launcher says.
const TICK: Duration = Duration::from_millis(20);

/// The time between two looks at the connections of ranks that connect to one another.
const PAUSE: Duration = Duration::from_millis(2);

/// What a rank writes once it is connected to all others.
const CONNECTED: [u8; 1] = [1];

/// An attempt of the ranks of a job to join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// How many came before it.
    pub number: u32,
    /// Whether all ranks were connected in one of those, so that the job may have done steps.
    pub has_begun: bool,
}

/// What a launcher and the server of its job's rendezvous tell each other.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    end: Option<End>,
    waits: Option<Waits>,
}

#[derive(Clone, Debug)]
enum End {
    Over,
    Refused(String),
}

/// The ranks that the server waits for.
#[derive(Clone, Debug)]
pub struct Waits {
    /// Since when: the first rank came then.
    pub since: Instant,
    /// The ranks that have not come.
    pub missing: Vec<u32>,
    /// Whether the ranks have joined before.
    pub again: bool,
}

impl Attempts {
    /// The job ended in order: ranks that still come end as well.
    pub fn over(&self) {
        lock(&self.0).end.get_or_insert(End::Over);
    }

    /// No rank is started again: ranks that come end with this reason.
    pub fn refuse(&self, why: &str) {
        lock(&self.0).end.get_or_insert_with(|| End::Refused(why.to_owned()));
    }

    /// The ranks that are waited for, while some have come.
    pub fn waits(&self) -> Option<Waits> {
        lock(&self.0).waits.clone()
    }

    fn end(&self) -> Option<End> {
        lock(&self.0).end.clone()
    }
}

impl RendezvousServer {
    /// Serves all attempts of a job, until the process ends. Ranks that have come wait `timeout` for the others.
    ///
    /// # Errors
    /// When the system gives no more connections.
    pub fn serve_attempts(&self, timeout: Duration, attempts: &Attempts) -> Result<(), JoinError> {
        let mut has_begun = false;
        for attempt in 0.. {
            let mut came: Vec<Option<Registered>> = (0..self.ranks()).map(|_| None).collect();
            let collected = self.collect_attempt(&mut came, attempt, timeout, attempts);
            lock(&attempts.0).waits = None;
            let answer = match (&collected, attempts.end()) {
                (Ok(true), _) => {
                    let peers: Vec<&PeerInfo> = came.iter().flatten().map(|registered| &registered.peer).collect();
                    table(&peers, Some(Attempt { number: attempt, has_begun }))
                }
                (_, Some(End::Over)) => over(),
                (_, Some(End::Refused(why))) => refusal(&why),
                (Ok(false), None) => continue,
                (Err(error), None) => crate::rendezvous::answer_of(error),
            };
            let mut streams: Vec<Stream> = came.into_iter().flatten().map(|registered| registered.stream).collect();
            for stream in &mut streams {
                // A rank that is gone is noticed below, or comes again.
                let _ = stream.write_all(&answer).and_then(|()| stream.flush());
            }
            match collected {
                Ok(true) => {
                    let connected = await_connected(&streams, timeout);
                    tracing::debug!(attempt, connected, "the ranks joined");
                    has_begun |= connected;
                }
                Err(error @ JoinError::Io { .. }) => return Err(error),
                Ok(false) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Waits for all ranks. Returns whether they came before the launcher ended the job.
    fn collect_attempt(
        &self,
        came: &mut [Option<Registered>],
        attempt: u32,
        timeout: Duration,
        attempts: &Attempts,
    ) -> Result<bool, JoinError> {
        // Ranks may compile a plan before the first attempt, and run until one is lost before a later one.
        let mut since = None;
        while came.iter().any(Option::is_none) {
            for rank in came.iter_mut() {
                // A rank that was lost again is replaced by another process.
                if rank.as_ref().is_some_and(|registered| said(&registered.stream) == Said::End) {
                    *rank = None;
                }
            }
            let missing: Vec<u32> = came.iter().zip(0..).filter(|(rank, _)| rank.is_none()).map(|(_, n)| n).collect();
            if missing.len() == came.len() {
                since = None;
            }
            let waits = since.map(|since| Waits { since, missing: missing.clone(), again: attempt > 0 });
            let mut state = lock(&attempts.0);
            state.waits = waits;
            let ends = state.end.is_some();
            drop(state);
            if ends && missing.len() < came.len() {
                return Ok(false);
            }
            if since.is_some_and(|since| since.elapsed() > timeout) {
                return Err(JoinError::Missing { missing, seconds: timeout.as_secs_f64(), ranks: self.ranks() });
            }
            let Some(stream) = self.next_connection()? else { continue };
            match self.registered(stream) {
                Ok(mut registered) => {
                    if let Some(error) = crate::rendezvous::other_plan(came, &registered) {
                        // It is not among those that came, and has to know as well.
                        let _ = registered.stream.write_all(&refusal(&error.to_string()));
                        return Err(error);
                    }
                    since.get_or_insert_with(Instant::now);
                    let at = registered.peer.rank as usize;
                    came[at] = Some(registered);
                }
                Err(error @ JoinError::Ranks { .. }) => return Err(error),
                // Whoever it was, the ranks may still come.
                Err(error) => tracing::warn!(%error, "a connection to the rendezvous failed"),
            }
        }
        Ok(true)
    }

    /// A connection, where one comes within a tick.
    fn next_connection(&self) -> Result<Option<std::net::TcpStream>, JoinError> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as _ };
        let mut fds = [PollFd::new(self.listener(), PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).is_err() {
            std::thread::sleep(PAUSE);
        }
        accept_until(self.listener(), Instant::now())
    }
}

/// What the other end of a connection said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Something,
    /// It closed the connection.
    End,
}

/// What the other end of a connection said, without waiting for it.
fn said(stream: &Stream) -> Said {
    let Some(tcp) = stream.tcp() else { return Said::End };
    let mut byte = [0];
    let peeked = tcp.set_nonblocking(true).and_then(|()| tcp.peek(&mut byte));
    let blocking = tcp.set_nonblocking(false);
    match (peeked, blocking) {
        (Ok(n), Ok(())) if n > 0 => Said::Something,
        (Err(e), Ok(())) if e.kind() == io::ErrorKind::WouldBlock => Said::Nothing,
        _ => Said::End,
    }
}

/// Waits until all ranks have connected. `false` where one is lost before.
fn await_connected(streams: &[Stream], timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    let mut waiting: Vec<&Stream> = streams.iter().collect();
    while !waiting.is_empty() && Instant::now() < deadline {
        let mut ended = false;
        waiting.retain(|stream| {
            let said = said(stream);
            ended |= said == Said::End;
            said == Said::Nothing
        });
        if ended {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    waiting.is_empty()
}

/// The connection of a rank to the server, while it connects to the others.
#[derive(Debug)]
pub(crate) struct Watch(pub Stream);

impl Watch {
    /// Whether the server closed it: another rank was lost.
    pub fn is_interrupted(&self) -> bool {
        said(&self.0) != Said::Nothing
    }

    /// Says that this rank is connected to all others.
    pub fn connected(mut self) {
        // Without the server the ranks are still connected.
        let _ = self.0.write_all(&CONNECTED).and_then(|()| self.0.flush());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use super::*;
    use crate::handshake::Identity;
    use crate::process::{JoinOptions, LinkChoice, ProcessTransport};
    use crate::rendezvous::register;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn identity(rank: u32) -> Identity {
        Identity::new(rank, 3, [7; 32], "token")
    }

    fn join(rendezvous: &str, rank: u32) -> Result<ProcessTransport, JoinError> {
        let options = JoinOptions {
            rendezvous: rendezvous.to_owned(),
            serve: false,
            token: Some("token".into()),
            join_timeout: TIMEOUT,
            peer_timeout: Duration::from_secs(10),
            link: LinkChoice::Auto,
            mpi: None,
            ports: None,
            recorder: None,
        };
        ProcessTransport::join(&identity(rank), &options)
    }

    /// A rank that is lost when it knows where the others are, and one that is lost before that.
    #[test]
    fn a_loss_while_ranks_connect_interrupts_them() {
        let server = RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), 3, "token").unwrap();
        let at = server.address().unwrap();
        let attempts = Arc::<Attempts>::default();
        let shared = Arc::clone(&attempts);
        // It ends with the process of the test.
        std::thread::spawn(move || server.serve_attempts(TIMEOUT, &shared));
        let address = &at.to_string();
        std::thread::scope(|scope| {
            let waits = |missing: &[u32]| {
                while attempts.waits().is_none_or(|waits| waits.missing != missing) {
                    std::thread::sleep(PAUSE);
                }
            };
            // A rank that is lost while it waits for the others.
            let listener = std::net::TcpStream::connect(at).unwrap();
            let (stream, _) =
                crate::handshake::connect(listener, &identity(1), crate::handshake::Purpose::Rendezvous, None).unwrap();
            drop(stream);
            let others: Vec<_> = (0..2)
                .map(|rank| {
                    scope.spawn(move || {
                        let error = join(address, rank).unwrap_err();
                        assert!(matches!(error, JoinError::Interrupted) && error.may_pass(), "{error}");
                        join(address, rank).unwrap()
                    })
                })
                .collect();
            waits(&[2]);
            let registration = register(at, &identity(2), 1, TIMEOUT).unwrap();
            assert_eq!((registration.attempt, registration.peers.len()), (Attempt::default(), 3));
            drop(registration);
            // No rank has done anything yet.
            let second = |rank: &ProcessTransport| (rank.attempt(), rank.has_begun()) == (1, false);
            let last = join(address, 2).unwrap();
            let others: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
            assert!(second(&last) && others.iter().all(second));
            drop((last, others));
            let third: Vec<_> = (0..3).map(|rank| scope.spawn(move || join(address, rank).unwrap())).collect();
            assert!(third.into_iter().all(|rank| rank.join().unwrap().has_begun()));
        });
    }
}
