//! Signals that are left to the work under way: it saves what it has, and ends. Ranks hear of one that their launcher gets.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::process::{Pid, getppid};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Handle;

/// The signals that are handled.
static HANDLE: OnceLock<Handle> = OnceLock::new();

/// The process that started this one as a rank.
static LAUNCHER: OnceLock<Option<Pid>> = OnceLock::new();

/// Whether the launcher was interrupted, which it says with SIGUSR2. That is another signal than those which end a process, because a terminal
/// sends these to the launcher and to its ranks: a rank could not tell the one that is passed on from a second one, which ends it at once.
static LAUNCHER_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Signals are handled from now on.
pub fn installed(handle: Handle) {
    // Once.
    let _ = HANDLE.set(handle);
}

/// From now on, the process that started this one as a rank says with SIGUSR2 that it was interrupted.
pub fn follow_launcher() {
    // A process follows one launcher.
    let _ = LAUNCHER.set(getppid());
    if let Some(Err(e)) = HANDLE.get().map(|handle| handle.add_signal(SIGUSR2)) {
        tracing::debug!(error = %e, "an interruption of the launcher ends this process at once");
    }
}

/// Whether the process that started this one as a rank has ended: SIGTERM then says so.
fn is_orphan() -> bool {
    LAUNCHER.get().is_some_and(|launcher| getppid() != *launcher)
}

/// Whether a process of this program started this one as a rank.
pub fn has_launcher() -> bool {
    LAUNCHER.get().is_some()
}

/// What a SIGINT or SIGTERM is left to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// None: it ends the program.
    None,
    /// The work of this process.
    Own,
    /// The work of this process as a rank, which agrees with the others.
    Rank,
    /// That of the ranks which this process started, and which hear of it.
    Ranks,
}

/// The work that the next of these signals is left to.
static DEFERS: Mutex<Work> = Mutex::new(Work::None);
/// The signal that was left to it; 0 is none.
static DEFERRED: AtomicI32 = AtomicI32::new(0);

fn defers() -> MutexGuard<'static, Work> {
    DEFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it is there, the first SIGINT or SIGTERM does not end the program: the work under way looks for it, saves what it has and ends.
pub struct Deferral(());

/// Leaves the first of these signals to the work of the caller, or of its ranks.
pub fn defer(work: Work) -> Deferral {
    *defers() = work;
    Deferral(())
}

/// The signal that was left to the work under way, of this process or of its launcher.
pub fn deferred() -> Option<i32> {
    match DEFERRED.load(Ordering::SeqCst) {
        0 => LAUNCHER_INTERRUPTED.load(Ordering::SeqCst).then_some(SIGTERM),
        signal => Some(signal),
    }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        *defers() = Work::None;
    }
}

/// Leaves a signal to the work under way, where it is the first one.
pub fn take(signal: i32) -> Option<Work> {
    let work = *defers();
    let is_first = matches!(signal, SIGINT | SIGTERM)
        && work != Work::None
        && !is_orphan()
        && DEFERRED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    is_first.then_some(work)
}

/// The launcher of this rank was interrupted. Returns whether that is left to the work under way.
pub fn launcher_is_interrupted() -> bool {
    LAUNCHER_INTERRUPTED.store(true, Ordering::SeqCst);
    *defers() != Work::None
}
