//! Signals that end the program: compilers are killed, and temporary files and folders removed first.

use std::io::{IsTerminal, Write};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Handles SIGINT, SIGTERM and SIGHUP from now on, except those that the parent ignores: `nohup` stays in effect. The exit code is 128
/// and the signal's number.
pub fn install() {
    let ignored = ignored();
    let handled: Vec<i32> = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|s| ignored >> (s - 1) & 1 == 0).collect();
    let started = Signals::new(handled).and_then(|mut signals| {
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(signal);
            }
        })
    });
    if let Err(e) = started {
        // The signals then end the program by themselves, and the next one removes what this one leaves.
        tracing::debug!(error = %e, "signals are not handled");
    }
}

/// Kills compilers and removes temporary files and folders.
pub fn clean_up() {
    of_driver::stop_compilers();
    of_files::remove_unfinished();
}

fn end(signal: i32) -> ! {
    clean_up();
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
