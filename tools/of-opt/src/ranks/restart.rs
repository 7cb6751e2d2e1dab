//! Ranks that are started again after a signal ended them, while the others wait for them.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use of_diag::Diagnostics;
use of_transport::{Attempts, Launcher};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::launch::{Rank, ended_by_interruption, signal_of};
use super::{RankOptions, Role, TransportChoice};
use crate::{deferral, exit, progress};

/// The variable with the time at which the job started, in milliseconds since 1970.
pub const STARTED: &str = "OF_JOB_STARTED";

/// The shortest time within which a rank that was not lost comes back, after which it counts as stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time between two looks for ranks that are stopped.
const LOOKS: Duration = Duration::from_millis(100);

/// As many times the time after which a silent rank is lost.
const TIMEOUTS: u32 = 4;

/// Rejects restarts that are not this program's to do.
///
/// # Errors
/// When the ranks are threads, another launcher started them, or they exchange data by MPI.
pub fn check(options: &RankOptions, role: &Role) -> Result<(), Diagnostics> {
    let refused = |what: String| Err(exit::usage(what).into());
    let by_launcher = |launcher: &dyn std::fmt::Display| {
        let what = format!("--max-restarts starts ranks again that this program started, and {launcher} started these");
        refused(format!("{what}: after a loss the job goes on from a snapshot, with --resume"))
    };
    match role {
        _ if options.transport == TransportChoice::Mpi => {
            let what = "--max-restarts is for --transport auto, tcp and shared-memory: MPI ends all ranks with the one that is lost";
            refused(format!("{what}, and the job goes on from a snapshot, with --resume"))
        }
        Role::All => refused("--max-restarts is for ranks that are processes: give --ranks or --hosts".into()),
        Role::Launcher(job) if job.supervises => by_launcher(&"mpirun"),
        Role::Rank(placement) if placement.launcher != Launcher::OfOpt => by_launcher(&placement.launcher),
        Role::Launcher(_) | Role::Rank(_) => Ok(()),
    }
}

/// The time, as [`STARTED`] has it.
pub fn now() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string()
}

/// When the job started of which this process is a rank.
pub fn started() -> Option<SystemTime> {
    let since: u64 = std::env::var(STARTED).ok()?.parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_millis(since))
}

/// The restarts of a job.
pub struct Restarts<'s> {
    /// None where no rank is started again.
    attempts: Option<Arc<Attempts>>,
    all: u32,
    left: u32,
    patience: Duration,
    /// The last look for ranks that are stopped.
    looked: Instant,
    start: &'s mut dyn FnMut(u32) -> io::Result<Child>,
}

impl<'s> Restarts<'s> {
    /// `left` restarts of ranks that `start` starts, by their numbers.
    pub fn new(
        attempts: Option<Arc<Attempts>>,
        left: u32,
        peer_timeout: Duration,
        start: &'s mut dyn FnMut(u32) -> io::Result<Child>,
    ) -> Restarts<'s> {
        Restarts {
            attempts,
            all: left,
            left,
            patience: PATIENCE.max(peer_timeout * TIMEOUTS),
            looked: Instant::now(),
            start,
        }
    }

    /// Whether ranks are started again.
    pub fn are_allowed(&self) -> bool {
        self.attempts.is_some()
    }

    /// A rank ended in order, so all have done their work.
    pub fn done(&self) {
        self.attempts.iter().for_each(|attempts| attempts.over());
    }

    /// Starts a rank again that a signal ended. Returns whether it was: one that ended by itself would do so again.
    pub fn restart(&mut self, rank: &mut Rank, status: ExitStatus) -> io::Result<bool> {
        let Some(attempts) = &self.attempts else { return Ok(false) };
        let number = rank.number;
        let Some(signal) = signal_of(status) else {
            attempts.refuse(&format!("rank {number} failed"));
            return Ok(false);
        };
        if deferral::deferred().is_some() && ended_by_interruption(status) {
            attempts.refuse(&format!("rank {number} was interrupted"));
            return Ok(false);
        }
        if self.left == 0 {
            attempts.refuse(&format!("rank {number} was ended by signal {signal}, and all restarts are used"));
            return Ok(false);
        }
        self.left -= 1;
        let nth = self.all - self.left;
        note(&format!("rank {number} was ended by signal {signal}: restart {nth} of {}", self.all));
        rank.child = (self.start)(number)?;
        (rank.since, rank.ended, rank.ended_at) = (Instant::now(), None, None);
        (rank.killed, rank.stopped) = (false, None);
        Ok(true)
    }

    /// Kills ranks that are stopped for so long that the others count them as lost: they would never end.
    pub fn kill_stopped(&mut self, ranks: &mut [Rank]) -> io::Result<()> {
        if self.looked.elapsed() < LOOKS {
            return Ok(());
        }
        self.looked = Instant::now();
        for rank in ranks.iter_mut().filter(|rank| rank.ended.is_none() && !rank.killed) {
            rank.stopped = is_stopped(&rank.child).then(|| rank.stopped.unwrap_or_else(Instant::now));
            let Some(since) = rank.stopped.filter(|since| since.elapsed() > self.patience) else { continue };
            let seconds = since.elapsed().as_secs_f64();
            note(&format!("rank {} is stopped since {seconds:.0} s, and is killed", rank.number));
            rank.child.kill()?;
            rank.killed = true;
        }
        Ok(())
    }

    /// Kills ranks that the others have waited for too long: they were stopped, and cannot come back with what the others know.
    pub fn kill_missing(&self, ranks: &mut [Rank]) -> io::Result<()> {
        let Some(waits) = self.attempts.as_ref().and_then(|attempts| attempts.waits()) else { return Ok(()) };
        if !waits.again || waits.since.elapsed() < self.patience {
            return Ok(());
        }
        let is_missing = |rank: &&mut Rank| {
            waits.missing.contains(&rank.number) && rank.ended.is_none() && !rank.killed && rank.since < waits.since
        };
        for rank in ranks.iter_mut().filter(is_missing) {
            let seconds = waits.since.elapsed().as_secs_f64();
            note(&format!("rank {} did not come back within {seconds:.0} s, and is killed", rank.number));
            rank.child.kill()?;
            rank.killed = true;
        }
        Ok(())
    }
}

/// Whether a process is stopped by a signal. One that a debugger holds does not count.
fn is_stopped(child: &Child) -> bool {
    let Some(pid) = Pid::from_raw(child.id() as i32) else { return false };
    // It stays as it is, for who reaps it.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(pid), options), Ok(Some(status)) if status.stopped())
}

/// Prints a line about the ranks.
pub(super) fn note(text: &str) {
    progress::suspend(|| {
        // Where stderr is closed, there is no one to tell.
        let _ = io::Write::write_all(&mut io::stderr(), format!("{text}\n").as_bytes());
    });
}
