//! The panic hook: a panic is a bug; it prints a few lines that say so, and how to report it.

use std::io::{IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;

/// The program that reports panics.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Replaces the message of a panic of this program. The exit code stays Rust's 101, which nothing else uses.
pub fn install(program: &'static str) {
    PROGRAM.get_or_init(|| program);
    std::panic::set_hook(Box::new(report));
}

fn report(info: &PanicHookInfo<'_>) {
    let place = info.location().map(|l| format!(" ({}:{})", l.file(), l.line())).unwrap_or_default();
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    let what = what.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown".into());
    let args: Vec<String> = std::env::args().collect();
    let program = PROGRAM.get().copied().unwrap_or("of-opt");
    let text = format!(
        "{program} {}: internal error: {what}{place}\n  this is a bug of {program}, sorry; please report it with the model and this command:\n  {}\n",
        env!("CARGO_PKG_VERSION"),
        args.join(" ")
    );
    // A line of progress gives way. Its lock may be held by the thread that panicked.
    if std::io::stderr().is_terminal() {
        let _ = std::io::stderr().write_all(b"\r\x1b[K");
    }
    // When stderr is closed, the error cannot be reported anywhere.
    let _ = std::io::stderr().write_all(text.as_bytes());
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|v| v != "0") {
        let _ = writeln!(std::io::stderr(), "{}", std::backtrace::Backtrace::force_capture());
    }
}
