//! Signals: those that end the program, after compilers are killed and temporary files and folders removed, and the one that shows
//! what actors do.

use std::io::{IsTerminal, Write};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::deferral::{self, Work};

/// Handles signals from now on, except those that the parent ignores: `nohup` stays in effect. SIGUSR1 prints the state of every
/// actor. SIGINT, SIGTERM and SIGHUP end the program where it does not end by itself; the exit code is 128 and the signal's number.
pub fn install(ends: bool) {
    let ignored = ignored();
    let ends: &[i32] = if ends { &[SIGINT, SIGTERM, SIGHUP] } else { &[] };
    let handled: Vec<i32> = ends.iter().chain([&SIGUSR1]).copied().filter(|s| ignored >> (s - 1) & 1 == 0).collect();
    let started = Signals::new(handled).and_then(|mut signals| {
        deferral::installed(signals.handle());
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGUSR1 => print_actors(),
                    SIGUSR2 if deferral::launcher_is_interrupted() => {}
                    SIGUSR2 => end(SIGTERM),
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

/// Whether a signal is the first one that is left to the work under way.
fn is_deferred(signal: i32) -> bool {
    let Some(work) = deferral::take(signal) else { return false };
    let when = if work == Work::Own { "this step" } else { "a step on which the ranks agree" };
    // Of a launcher and its ranks, which a terminal interrupts together, the launcher says it.
    if !deferral::has_launcher() {
        say(&format!("interrupted: a snapshot is written after {when}; a second signal ends at once\n"));
    }
    if work == Work::Ranks {
        crate::ranks::pass_on(Signal::USR2);
    }
    true
}

fn say(text: &str) {
    crate::progress::suspend(|| {
        // Where stderr is closed, there is no one to tell.
        let _ = std::io::stderr().write_all(text.as_bytes());
    });
}

/// Prints every actor, register and credit of this process, or lets the ranks do so that it started.
fn print_actors() {
    say(&of_diag::escaped_lines(&crate::ranks::actors()));
    crate::ranks::pass_on(Signal::USR1);
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
    crate::ranks::pass_on(Signal::CONT);
    crate::ranks::name_recordings();
    exit(signal)
}

/// Ends the program after work that was interrupted by a signal, and has saved what it had; the exit code is that of [`end`].
pub fn end_in_order(signal: i32) -> ! {
    clean_up();
    crate::telemetry::interrupted(signal);
    exit(signal)
}

fn exit(signal: i32) -> ! {
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
