//! Signals: those that end the program, after compilers are killed and temporary files and folders removed, and the one that shows
//! what actors do.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// Handles signals from now on, except those that the parent ignores: `nohup` stays in effect. SIGUSR1 prints the state of every
/// actor. SIGINT, SIGTERM and SIGHUP end the program where it does not end by itself; the exit code is 128 and the signal's number.
pub fn install(ends: bool) {
    let ignored = ignored();
    let ends: &[i32] = if ends { &[SIGINT, SIGTERM, SIGHUP] } else { &[] };
    let handled: Vec<i32> = ends.iter().chain([&SIGUSR1]).copied().filter(|s| ignored >> (s - 1) & 1 == 0).collect();
    let started = Signals::new(handled).and_then(|mut signals| {
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGUSR1 => print_actors(),
                    signal if is_deferred(signal) => {}
                    signal => end(signal),
                }
            }
        })
    });
    if let Err(e) = started {
        // The signals then end the program by themselves, and the next one removes what this one leaves.
        tracing::debug!(error = %e, "signals are not handled");
    }
}

/// Whether the next SIGINT or SIGTERM is left to the work that is under way.
static DEFERS: AtomicBool = AtomicBool::new(false);
/// The signal that was left to it; 0 is none.
static DEFERRED: AtomicI32 = AtomicI32::new(0);

/// While it is there, the first SIGINT or SIGTERM does not end the program: the work under way looks for it, saves what it has and ends.
pub struct Deferral(());

/// Leaves the first of these signals to the caller.
pub fn defer() -> Deferral {
    DEFERS.store(true, Ordering::SeqCst);
    Deferral(())
}

impl Deferral {
    /// The signal that came.
    pub fn signal(&self) -> Option<i32> {
        Some(DEFERRED.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        DEFERS.store(false, Ordering::SeqCst);
    }
}

/// Whether a signal is the first one that is left to the work under way.
fn is_deferred(signal: i32) -> bool {
    let is_first = matches!(signal, SIGINT | SIGTERM)
        && DEFERS.load(Ordering::SeqCst)
        && DEFERRED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    if is_first {
        crate::progress::suspend(|| {
            // Where stderr is closed, there is no one to tell.
            let _ = std::io::stderr()
                .write_all(b"interrupted: a snapshot is written after this step; a second signal ends at once\n");
        });
    }
    is_first
}

/// Prints every actor, register and credit of this process, or lets the ranks do so that it started.
fn print_actors() {
    let text = crate::ranks::actors();
    crate::progress::suspend(|| {
        // Where stderr is closed, there is no one to tell.
        let _ = std::io::stderr().write_all(of_diag::escaped_lines(&text).as_bytes());
    });
    crate::ranks::pass_on(rustix::process::Signal::USR1);
}

/// Kills compilers and removes temporary files and folders.
pub fn clean_up() {
    of_driver::stop_compilers();
    of_files::remove_unfinished();
    crate::ranks::remove_plans();
}

/// Ends the program as a signal does; the exit code is 128 and its number.
pub fn end(signal: i32) -> ! {
    if let Some(grace) = crate::ranks::grace() {
        // Where the process ends meanwhile, it does so with its own error.
        std::thread::sleep(grace);
    }
    clean_up();
    crate::telemetry::interrupted(signal);
    // Ranks end with this process. One that is stopped would only do so once it goes on.
    crate::ranks::pass_on(rustix::process::Signal::CONT);
    crate::ranks::name_recordings();
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        // The line of progress.
        let _ = stderr.write_all(b"\r\x1b[K");
    }
    // Other threads still run: no destructors and no exit handlers.
    signal_hook::low_level::exit(128 + signal)
}

/// The signals that are ignored, one bit each. Source: proc(5), `SigIgn` of `/proc/[pid]/status`.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0)
}
