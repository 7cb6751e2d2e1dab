//! A server from its start to its end.

use std::net::SocketAddr;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_serving::{Opener, Server};

use crate::ServeFlags;

/// Starts a server, has its addresses printed, and serves until a signal. Sessions have so many workers; 0 takes as many as the plan
/// was tuned for.
///
/// # Errors
/// When the server cannot start, or requests were not answered in time at its end.
pub fn run(
    flags: &ServeFlags,
    threads: usize,
    opener: Opener,
    print: impl FnOnce(&str) -> Result<(), Diagnostics>,
) -> Result<(), Diagnostics> {
    let error = |code, what: String| Diagnostic::error(code, Location::Unknown, what);
    let server = Server::start(flags.options(threads)?, opener).map_err(|e| error(Code::IO, e.to_string()))?;
    let at = server.addresses();
    let scheme = if flags.tls_cert.is_some() { "https" } else { "http" };
    let line = |name: &str, address: Option<SocketAddr>| address.map_or(String::new(), |a| format!("{name}{a}\n"));
    let metrics = line("http://", at.metrics).replace('\n', "/metrics\n");
    print(&[line(&format!("{scheme}://"), at.http), line("grpc://", at.grpc), metrics].concat())?;
    let signal = server.wait_for_signal().map_err(|e| error(Code::IO, e.to_string()))?;
    tracing::info!(signal, "the server ends");
    if server.drain() {
        return Ok(());
    }
    let what = format!("requests were still running {} s after the signal to end", flags.exit_timeout_secs);
    Err(error(Code::RUN, what).hint("--exit-timeout-secs gives them more time").into())
}
