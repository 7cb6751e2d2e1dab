//! Metrics of ranks for Prometheus, and what their actors do: as text, and over HTTP while they run (`--metrics-port`).

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use of_diag::{Code, Diagnostics};
use of_driver::error;
use of_driver::why_stuck::{self, ProcessState};
use of_runtime::flight_recorder::{FlightLog, LiveSession, Phase, live_sessions};
use of_transport::host_name;

use super::{RankOptions, Role};
use crate::exit;
use crate::http_server::{self, OK, Respond, Response};

/// The time after which a port that took no more connections is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The recording of the rank that this process is.
static RECORDING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// From now on, the metrics of this process are those of this recording.
pub fn are_of(recording: PathBuf) {
    *RECORDING.lock().unwrap_or_else(PoisonError::into_inner) = Some(recording);
}

/// What every actor of every session of this process does.
pub fn actors() -> String {
    live_sessions().iter().map(LiveSession::describe).collect()
}

/// Serves the metrics of this process from now on, where `--metrics-port` says so and it runs ranks itself.
///
/// # Errors
/// When the port cannot be had.
pub fn serve(options: &RankOptions, role: &Role) -> Result<(), Diagnostics> {
    let Some(first) = options.metrics_port else { return Ok(()) };
    let local_rank = match role {
        // The ranks that it starts have this flag as well.
        Role::Launcher(_) => return Ok(()),
        Role::All => 0,
        Role::Rank(placement) => placement.local_rank,
    };
    let port = u16::try_from(u32::from(first).saturating_add(local_rank)).map_err(|_| {
        exit::usage(format!("--metrics-port {first} is too high: rank {local_rank} of this machine has no port"))
    })?;
    let address = SocketAddr::new(options.metrics_host.unwrap_or(Ipv4Addr::LOCALHOST.into()), port);
    let failed = |what: &str, e: std::io::Error| {
        let hint = "a rank listens at the port of --metrics-port plus its number among the ranks of its machine";
        Diagnostics::from(error(Code::IO, format!("{what} {address}: {e}")).hint(hint))
    };
    let listener = TcpListener::bind(address).map_err(|e| failed("metrics cannot be served at", e))?;
    let respond: Arc<Respond> = Arc::new(response);
    let serve = move || {
        loop {
            if let Err(error) = http_server::serve(&listener, "metrics", &respond) {
                tracing::warn!(%address, %error, "metrics are not served for a moment");
                std::thread::sleep(PAUSE);
            }
        }
    };
    let thread = std::thread::Builder::new().name("metrics".into()).spawn(serve);
    thread.map_err(|e| failed("no thread serves metrics at", e))?;
    tracing::info!(%address, "metrics are served");
    Ok(())
}

/// The answer to a request.
fn response(head: &str) -> Response {
    // The version of Prometheus' text format.
    let (metrics, text) = ("text/plain; version=0.0.4", "text/plain; charset=utf-8");
    let (status, content_type, body) = match http_server::request(head) {
        None => ("400 Bad Request", text, "this is no request of HTTP/1.1\n".into()),
        Some(("GET" | "HEAD", "/metrics")) => (OK, metrics, of_process()),
        Some(("GET" | "HEAD", "/debug/actors")) => (OK, text, actors()),
        Some(("GET" | "HEAD", _)) => ("404 Not Found", text, "there are /metrics and /debug/actors\n".into()),
        Some(_) => ("405 Method Not Allowed", text, "metrics can be read alone\n".into()),
    };
    Response { status, content_type, headers: "", body }
}

/// The metrics of the ranks of this process: those of its recording, or of its sessions where it has none.
fn of_process() -> String {
    let recording = RECORDING.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match recording.and_then(|path| FlightLog::read(&path).ok()) {
        Some(log) => metrics(&[log]),
        None => write(&of_sessions(&live_sessions())),
    }
}

/// The metrics of recordings, in the text format of Prometheus.
pub fn metrics(logs: &[FlightLog]) -> String {
    write(&logs.iter().map(Metrics::of).collect::<Vec<_>>())
}

/// What is measured of a rank.
#[derive(Debug, Default, PartialEq)]
struct Metrics {
    rank: u32,
    host: String,
    up: bool,
    steps: u64,
    acts: u64,
    /// Bytes and blocks.
    sent: (u64, u64),
    received: (u64, u64),
    waits: u64,
    /// Nanoseconds since 1970.
    last_event: u64,
}

impl Metrics {
    fn of(log: &FlightLog) -> Metrics {
        Metrics {
            rank: log.of.rank,
            host: log.of.host.clone(),
            up: log.phase == Phase::Runs && why_stuck::process_state(log) == ProcessState::Runs,
            steps: log.steps.1,
            acts: log.of_others.1 + log.tasks.iter().map(|task| task.acts).sum::<u64>(),
            sent: log.sent,
            received: log.received,
            waits: log.waits,
            last_event: log.records.last().map_or(0, |record| record.at),
        }
    }

    /// Counts another session of the same rank, too.
    fn add(&mut self, other: &Metrics) {
        self.steps += other.steps;
        self.acts += other.acts;
        self.last_event = self.last_event.max(other.last_event);
    }
}

/// The sessions of ranks that are threads, which have a table of tasks each and no other counts. A rank may have several sessions.
fn of_sessions(sessions: &[LiveSession]) -> Vec<Metrics> {
    let mut all: Vec<Metrics> = Vec::new();
    for session in sessions {
        let own =
            Metrics { rank: session.rank.unwrap_or(0), host: host_name(), up: true, ..Metrics::of(session.log()) };
        match all.iter_mut().find(|metrics| metrics.rank == own.rank) {
            Some(metrics) => metrics.add(&own),
            None => all.push(own),
        }
    }
    all.sort_by_key(|metrics| metrics.rank);
    all
}

/// The text format of Prometheus.
fn write(ranks: &[Metrics]) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Metrics) -> f64| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for metrics in ranks {
            let host = metrics.host.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(out, "{name}{{rank=\"{}\",host=\"{host}\"}} {}", metrics.rank, value(metrics));
        }
    };
    family("of_rank_up", "gauge", "Whether the rank runs.", &|rank| f64::from(u8::from(rank.up)));
    family("of_rank_steps_total", "counter", "Steps that ended.", &|rank| rank.steps as f64);
    family("of_rank_acts_total", "counter", "Acts of all tasks.", &|rank| rank.acts as f64);
    family("of_rank_sent_bytes_total", "counter", "Bytes sent to other ranks.", &|rank| rank.sent.0 as f64);
    family("of_rank_received_bytes_total", "counter", "Bytes received.", &|rank| rank.received.0 as f64);
    family("of_rank_sent_blocks_total", "counter", "Blocks sent to other ranks.", &|rank| rank.sent.1 as f64);
    family("of_rank_received_blocks_total", "counter", "Blocks received.", &|rank| rank.received.1 as f64);
    family("of_rank_waits_total", "counter", "Waits for other ranks.", &|rank| rank.waits as f64);
    let last = |rank: &Metrics| rank.last_event as f64 * 1e-9;
    family("of_rank_last_event_timestamp_seconds", "gauge", "Time of the last event.", &last);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_responses() {
        for (line, status) in [
            ("GET /metrics HTTP/1.1", 200),
            ("HEAD /metrics?x=1 HTTP/1.1", 200),
            ("GET /debug/actors HTTP/1.0", 200),
            ("GET / HTTP/1.1", 404),
            ("POST /metrics HTTP/1.1", 405),
            ("GET /metrics", 400),
            ("", 400),
        ] {
            let got = response(&format!("{line}\r\nHost: here\r\n\r\n"));
            assert!(got.status.starts_with(&status.to_string()), "{line}: {}", got.status);
        }
        assert_eq!(response("GET /metrics HTTP/1.1\r\n\r\n").content_type, "text/plain; version=0.0.4");
    }

    /// A name must not occur twice with the same labels, so sessions of one rank are added.
    #[test]
    fn sessions_of_a_rank_are_added() {
        let mut one = Metrics { rank: 1, host: "a\"b".into(), up: true, steps: 3, acts: 9, ..Metrics::default() };
        one.add(&Metrics { rank: 1, steps: 2, acts: 4, last_event: 5, ..Metrics::default() });
        let text = write(&[one]);
        assert!(text.contains("of_rank_steps_total{rank=\"1\",host=\"a\\\"b\"} 5\n"), "{text}");
        assert!(text.contains("# TYPE of_rank_up gauge\nof_rank_up{rank=\"1\",host=\"a\\\"b\"} 1\n"), "{text}");
    }
}
