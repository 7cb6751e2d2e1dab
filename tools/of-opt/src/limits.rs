//! Limits on the time and memory of every command.
//!
//! A compilation checks them between passes and kernels, and then says which one exceeded them. A watchdog ends whatever else
//! goes on: reading, a long pass, a run.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::Args;
use of_cli::messages::MessageOptions;
use of_cli::quantity;
use of_diag::{Code, Diagnostics};
use of_driver::{Limits, error, process};

use crate::arguments::STARTED;
use crate::console::Console;
use crate::exit;

/// How long the watchdog leaves it to a compilation to say what exceeded a limit.
const GRACE: Duration = Duration::from_millis(500);
/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// The most that a command may take.
#[derive(Args, Debug, Clone, Default)]
pub struct LimitOptions {
    /// End a command that takes longer than this from the program's start: 90s, 2m. A compilation ends after the pass or
    /// kernel that exceeds it; anything else ends half a second later, and the C compiler is killed at once
    #[arg(long, global = true, value_name = "DURATION", help_heading = "Limits", value_parser = quantity::duration)]
    pub time_limit: Option<Duration>,
    /// This program's own memory: end a command for which it holds more than this in addition: 300MB, 4GiB. Mapped files and
    /// the C compiler do not count. --memory is for the plan
    #[arg(long, global = true, value_name = "SIZE", help_heading = "Limits", value_parser = quantity::size)]
    pub memory_limit: Option<u64>,
}

static GIVEN: OnceLock<LimitOptions> = OnceLock::new();

/// The limits as compilations check them.
pub fn of_compilations() -> Limits {
    let given = GIVEN.get().cloned().unwrap_or_default();
    Limits::new(*STARTED, given.time_limit, given.memory_limit)
}

/// Holds the program to these limits from now on.
///
/// # Errors
/// When the system does not say how much memory a process has, and that is limited.
pub fn install(given: &LimitOptions, messages: &MessageOptions) -> Result<(), Diagnostics> {
    let given = GIVEN.get_or_init(|| given.clone());
    if given.time_limit.is_none() && given.memory_limit.is_none() {
        return Ok(());
    }
    let before = process::anonymous_bytes();
    if given.memory_limit.is_some() && before.is_none() {
        return Err(exit::usage("--memory-limit: this system does not say how much memory a process has").into());
    }
    let mut watchdog = Watchdog { given, before: before.unwrap_or(0), exceeded: None };
    let messages = messages.clone();
    let watch = move || loop {
        if let Some(errors) = watchdog.look() {
            end(&errors, &messages);
        }
        std::thread::sleep(INTERVAL);
    };
    let started = std::thread::Builder::new().name("limits".into()).spawn(watch);
    started.map(drop).map_err(|e| error(Code::RUN, format!("cannot start a thread: {e}")).into())
}

struct Watchdog {
    given: &'static LimitOptions,
    /// Bytes at the start.
    before: u64,
    /// Since when the memory limit has been exceeded.
    exceeded: Option<Instant>,
}

impl Watchdog {
    /// What ends the program now.
    fn look(&mut self) -> Option<Diagnostics> {
        let elapsed = STARTED.elapsed();
        if let Some(limit) = self.given.time_limit.filter(|limit| elapsed >= limit.saturating_add(GRACE)) {
            let what = format!("the time limit of {limit:?} is over: the command was ended after {elapsed:.1?}");
            return Some(error(Code::LIMIT, what).hint("raise --time-limit").into());
        }
        let limit = self.given.memory_limit?;
        let grown = process::anonymous_bytes()?.saturating_sub(self.before);
        if grown <= limit {
            self.exceeded = None;
            return None;
        }
        let since = *self.exceeded.get_or_insert_with(Instant::now);
        if since.elapsed() < GRACE && grown <= limit.saturating_mul(2) {
            return None;
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let what = format!(
            "the memory limit of {:.1} MiB is exceeded: {:.1} MiB more than at the start",
            mib(limit),
            mib(grown)
        );
        Some(error(Code::LIMIT, what).hint("raise --memory-limit").into())
    }
}

/// Ends the program as a signal does, with an error.
fn end(errors: &Diagnostics, messages: &MessageOptions) -> ! {
    of_driver::stop_compilers();
    of_files::remove_unfinished();
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        // The line of progress.
        let _ = stderr.write_all(b"\r\x1b[K");
    }
    Console::new(messages).report(errors);
    // Other threads still run: no destructors and no exit handlers.
    signal_hook::low_level::exit(i32::from(exit::number_of(Code::LIMIT)))
}
