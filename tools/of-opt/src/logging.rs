//! Logs on stderr: levels from `-v` and `-q`, or by module from `RUST_LOG`.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::cli::{Color, MessageOptions};

/// Starts logging.
pub fn start(options: &MessageOptions) {
    let level = match (options.quiet, options.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::WARN,
        (_, 1) => LevelFilter::INFO,
        (_, 2) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // With -v the flag wins over RUST_LOG for what RUST_LOG does not name.
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    let detailed = options.verbose > 1;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Stderr)
        .with_ansi(color(options.color))
        .with_target(detailed)
        .compact();
    // A second start would be a bug, but no reason to stop.
    if detailed {
        let _ = log.with_timer(tracing_subscriber::fmt::time::uptime()).try_init();
    } else {
        let _ = log.without_time().try_init();
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

/// Stderr; the line of progress is cleared before a log line.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        crate::progress::clear_line();
        io::stderr().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
