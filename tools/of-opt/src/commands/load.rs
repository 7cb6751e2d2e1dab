//! `of-opt load`: measures a server under load.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use of_cli::quantity;
use of_diag::{Code, Diagnostics};
use of_driver::{error, io_error};
use of_serving::load::{self, Arrivals, LoadOptions, LoadReport};
use serde_json::json;

use crate::console::Console;
use crate::exit;

/// Flags.
#[derive(Args, Debug)]
pub struct Load {
    /// The model, as the server calls it
    #[arg(value_name = "NAME")]
    pub model: String,
    /// Address of the server
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Its port of HTTP
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub http_port: u16,
    /// Requests in a second
    #[arg(long, value_name = "N", default_value_t = 100.0)]
    pub rate: f64,
    /// For how long requests are due
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = quantity::duration)]
    pub duration: Duration,
    /// When requests are due: at random, as from many independent clients, or at equal distances
    #[arg(long, value_enum, value_name = "PROCESS", default_value = "poisson")]
    pub arrivals: ArrivalsArg,
    /// Connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub connections: usize,
    /// Shape of an input: image=8x1x8x8. Open dimensions of others are 1. Comma-separated or repeated
    #[arg(long, value_name = "NAME=DIMS", value_delimiter = ',')]
    pub shape: Vec<String>,
    /// Seed of the times and the elements
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A file with a bearer token
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// State a deadline, and fail where a request misses it. It counts from when the request was due
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    pub deadline: Option<Duration>,
    /// Print only the JSON line
    #[arg(long)]
    pub json: bool,
}

/// When requests are due.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalsArg {
    /// At random.
    Poisson,
    /// At equal distances.
    Constant,
}

/// Executes the subcommand.
///
/// # Errors
/// When the server does not describe the model, leaves requests without an answer, or answers behind the deadline.
pub fn load(c: &Load, console: &Console) -> Result<(), Diagnostics> {
    let options = LoadOptions {
        address: SocketAddr::new(c.host, c.http_port),
        model: c.model.clone(),
        shapes: c.shape.iter().map(|text| shape(text)).collect::<Result<_, _>>()?,
        rate: c.rate,
        duration: c.duration,
        arrivals: match c.arrivals {
            ArrivalsArg::Poisson => Arrivals::Poisson,
            ArrivalsArg::Constant => Arrivals::Constant,
        },
        connections: c.connections,
        seed: c.seed,
        token: c.token_file.as_deref().map(token).transpose()?,
        deadline: c.deadline,
    };
    let report = load::run(&options).map_err(|e| error(Code::RUN, e))?;
    console.print(&if c.json { as_json(&report) } else { as_text(&report) })?;
    match (report.lost, report.late) {
        (0, 0) => Ok(()),
        (0, late) => Err(error(Code::RUN, format!("{late} requests missed their deadline")).into()),
        (lost, _) => Err(error(Code::RUN, format!("{lost} requests got no answer")).into()),
    }
}

fn shape(text: &str) -> Result<(String, Vec<i64>), Diagnostics> {
    let parsed = text.rsplit_once('=').and_then(|(name, dims)| {
        let dims = dims.split('x').map(|dim| dim.parse().ok().filter(|n| *n >= 0)).collect::<Option<Vec<i64>>>()?;
        Some((name.to_owned(), dims))
    });
    parsed.ok_or_else(|| exit::usage(format!("'{text}' is no shape of an input, such as image=8x1x8x8")).into())
}

const PERCENTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

fn as_text(report: &LoadReport) -> String {
    let rate = report.latencies.len() as f64 / report.elapsed.as_secs_f64().max(1e-9);
    let mut text =
        format!("{} requests answered in {:.2} s: {rate:.1}/s\n", report.latencies.len(), report.elapsed.as_secs_f64());
    text += "latency from when the request was due:";
    for (name, part) in PERCENTILES {
        text += &report
            .percentile(part)
            .map_or(String::new(), |time| format!(" {name} {:.3} ms", time.as_secs_f64() * 1e3));
    }
    text.push('\n');
    for (status, count) in &report.refused {
        text += &format!("{count} requests answered with status {status}\n");
    }
    if report.late > 0 {
        text += &format!("{} requests missed their deadline\n", report.late);
    }
    if report.lost + report.not_sent > 0 {
        text += &format!("{} requests without an answer, {} not sent\n", report.lost, report.not_sent);
    }
    text
}

fn as_json(report: &LoadReport) -> String {
    let latency = |part| report.percentile(part).map(|time| time.as_secs_f64() * 1e3);
    let latencies: serde_json::Map<_, _> =
        PERCENTILES.map(|(name, part)| (name.into(), json!(latency(part)))).into_iter().collect();
    let refused: serde_json::Map<_, _> = report.refused.iter().map(|(s, n)| (s.to_string(), json!(n))).collect();
    let value = json!({
        "answered": report.latencies.len(), "seconds": report.elapsed.as_secs_f64(), "latency_ms": latencies, "refused": refused,
        "lost": report.lost, "not_sent": report.not_sent, "late": report.late,
    });
    format!("{value}\n")
}

/// The token in a file, without the line break at its end.
///
/// # Errors
/// When the file cannot be read, or holds none.
fn token(path: &Path) -> Result<String, Diagnostics> {
    let text = std::fs::read_to_string(path).map_err(|e| io_error(path, "read", &e))?;
    let token = text.trim_end().to_owned();
    match token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        true => Err(error(Code::INPUT, format!("'{}' holds no token of printable characters", path.display())).into()),
        false => Ok(token),
    }
}
