//! Logs on stderr: levels from `-v` and `-q`, or by module from `RUST_LOG`.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::messages::{Color, MessageOptions};

/// Starts logging to what `stderr` makes.
pub fn start<W: Write + 'static>(options: &MessageOptions, stderr: fn() -> W) {
    let level = match (options.quiet, options.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::WARN,
        (_, 1) => LevelFilter::INFO,
        (_, 2) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let named = std::env::var_os("RUST_LOG").unwrap_or_default();
    let named = named.to_string_lossy();
    let (filter, invalid) = match named.parse::<Targets>() {
        // An empty text is one directive, which disables all logs.
        _ if named.trim().is_empty() => (Targets::new(), None),
        Ok(targets) => (targets, None),
        Err(e) => (Targets::new(), Some(e)),
    };
    // The flags give the level of modules that RUST_LOG does not name.
    let filter = if filter.default_level().is_some() { filter } else { filter.with_default(level) };
    let detailed = options.verbose > 1;
    let log = fmt::layer().with_writer(stderr).with_ansi(color(options.color)).with_target(detailed).compact();
    // Errors would go to stderr, which is what failed.
    let log = log.log_internal_errors(false);
    let registry = registry().with(filter);
    // A second start would be a bug of this program, and is no reason to stop.
    if detailed {
        let _ = registry.with(log.with_timer(fmt::time::uptime())).try_init();
    } else {
        let _ = registry.with(log.without_time()).try_init();
    }
    if let Some(e) = invalid {
        tracing::warn!("RUST_LOG='{named}' has no effect: {e}; write LEVEL or MODULE=LEVEL, separated by commas");
    }
}

/// Whether stderr gets colours.
pub fn color(choice: Color) -> bool {
    match choice {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
    }
}
