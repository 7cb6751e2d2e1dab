//! A load generator for servers of the Open Inference Protocol over HTTP.
//!
//! It is open-loop: requests are due at times that do not depend on answers, and a request's latency counts from when it was due.
//! A server that stalls delays the requests behind it, and these delays are in the percentiles (no coordinated omission).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use of_plan::ElementType;
use serde_json::{Value, json};

use crate::datatype;
use crate::sync::lock;

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At random: the pauses are distributed exponentially, as for many independent clients.
    Poisson,
    /// At equal distances.
    Constant,
}

/// What load is made.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The server.
    pub address: SocketAddr,
    /// The model.
    pub model: String,
    /// Extents of inputs, by name, where the model leaves them open; 1 for those that are not named.
    pub shapes: Vec<(String, Vec<i64>)>,
    /// Requests in a second.
    pub rate: f64,
    /// For how long requests are due.
    pub duration: Duration,
    /// When they are due.
    pub arrivals: Arrivals,
    /// Connections, each with one request at a time.
    pub connections: usize,
    /// Seed of the times and the elements.
    pub seed: u64,
    /// A bearer token.
    pub token: Option<String>,
    /// The deadline that requests state.
    pub deadline: Option<Duration>,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Latencies of requests with status 200, ascending.
    pub latencies: Vec<Duration>,
    /// Requests with another status, by status.
    pub refused: Vec<(u16, usize)>,
    /// Requests without an answer.
    pub lost: usize,
    /// Requests that were never sent, since the server took no connection.
    pub not_sent: usize,
    /// Requests that were answered behind their deadline, or refused because of it.
    pub late: usize,
    /// From the first request to the last answer.
    pub elapsed: Duration,
}

impl LoadReport {
    /// The latency that a part of the requests, from 0 to 1, did not exceed.
    pub fn percentile(&self, part: f64) -> Option<Duration> {
        let rank = (self.latencies.len() as f64 * part).ceil() as usize;
        self.latencies.get(rank.clamp(1, self.latencies.len().max(1)) - 1).copied()
    }
}

/// More requests than a run should have.
const MAX_REQUESTS: f64 = 5e7;

/// Makes load, and measures.
///
/// # Errors
/// When the server does not describe the model, or an option is out of its range.
pub fn run(options: &LoadOptions) -> Result<LoadReport, String> {
    let count = options.rate * options.duration.as_secs_f64();
    if !(options.rate > 0.0 && count <= MAX_REQUESTS) {
        return Err(format!("{} requests a second for {:?} are none, or too many", options.rate, options.duration));
    }
    let mut rng = fastrand::Rng::with_seed(options.seed);
    let request = request(options, &mut rng)?;
    let due = due(options, &mut rng);
    let (next, measured) = (AtomicUsize::new(0), Mutex::new(LoadReport::default()));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..options.connections.max(1) {
            scope.spawn(|| {
                let own = work(options.address, &request, &due, &next, start);
                let mut all = lock(&measured);
                all.latencies.extend(own.latencies);
                all.lost += own.lost;
                all.not_sent += own.not_sent;
                for (status, count) in own.refused {
                    add(&mut all.refused, status, count);
                }
            });
        }
    });
    let mut report = measured.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.elapsed = start.elapsed();
    report.latencies.sort_unstable();
    report.refused.sort_unstable();
    if let Some(deadline) = options.deadline {
        let in_time = report.latencies.partition_point(|latency| *latency <= deadline);
        let refused = report.refused.iter().filter(|(status, _)| [429, 504].contains(status)).map(|(_, count)| count);
        report.late = report.latencies.len() - in_time + refused.sum::<usize>();
    }
    Ok(report)
}

fn add(list: &mut Vec<(u16, usize)>, status: u16, count: usize) {
    match list.iter_mut().find(|(s, _)| *s == status) {
        Some((_, sum)) => *sum += count,
        None => list.push((status, count)),
    }
}

/// When each request is due, after the start.
fn due(options: &LoadOptions, rng: &mut fastrand::Rng) -> Vec<Duration> {
    let mut due = Vec::new();
    let mut at = 0.0;
    while at < options.duration.as_secs_f64() {
        due.push(Duration::from_secs_f64(at));
        at = match options.arrivals {
            Arrivals::Constant => due.len() as f64 / options.rate,
            Arrivals::Poisson => at - (1.0 - rng.f64()).ln() / options.rate,
        };
    }
    due
}

/// One connection: it takes the next request that is due, until there is none.
fn work(address: SocketAddr, request: &[u8], due: &[Duration], next: &AtomicUsize, start: Instant) -> LoadReport {
    let mut report = LoadReport::default();
    let mut connection: Option<Connection> = None;
    while let Some(after) = due.get(next.fetch_add(1, Relaxed)) {
        let due = start + *after;
        wait_until(due);
        let mut open = match connection.take().map_or_else(|| Connection::open(address), Ok) {
            Ok(open) => open,
            Err(_) => {
                report.not_sent += 1;
                continue;
            }
        };
        match open.ask(request) {
            Ok((status, _, closes)) => {
                match status {
                    200 => report.latencies.push(due.elapsed()),
                    other => add(&mut report.refused, other, 1),
                }
                connection = Some(open).filter(|_| !closes);
            }
            Err(_) => report.lost += 1,
        }
    }
    report
}

/// Sleeps, and gives up the processor at the end, as the clock of sleeps is coarse.
fn wait_until(due: Instant) {
    const COARSE: Duration = Duration::from_micros(100);
    loop {
        match due.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left if left > COARSE => std::thread::sleep(left - COARSE),
            _ => std::thread::yield_now(),
        }
    }
}

/// A request with random elements for all inputs of the model.
fn request(options: &LoadOptions, rng: &mut fastrand::Rng) -> Result<Vec<u8>, String> {
    let failed = |e: io::Error| format!("{} does not answer: {e}", options.address);
    let mut connection = Connection::open(options.address).map_err(failed)?;
    let head = |method: &str, path: &str, more: &str| {
        let token = options.token.as_ref().map_or(String::new(), |t| format!("authorization: Bearer {t}\r\n"));
        format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n{token}{more}\r\n", options.address).into_bytes()
    };
    let path = format!("/v2/models/{}", options.model);
    let (status, body, _) = connection.ask(&head("GET", &path, "")).map_err(failed)?;
    let metadata: Value = serde_json::from_slice(&body).unwrap_or_default();
    if status != 200 {
        return Err(format!("the server answers {status}: {}", metadata["error"].as_str().unwrap_or("no reason")));
    }
    let mut inputs = Vec::new();
    let mut tensors = Vec::new();
    for input in metadata["inputs"].as_array().into_iter().flatten() {
        let name = input["name"].as_str().unwrap_or_default();
        let dtype = datatype::parse(input["datatype"].as_str().unwrap_or_default()).map_err(|e| e.message)?;
        let declared: Vec<i64> = input["shape"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
        let given = options.shapes.iter().find(|(n, _)| n == name).map(|(_, shape)| shape.clone());
        let shape = given.unwrap_or_else(|| declared.iter().map(|dim| if *dim < 0 { 1 } else { *dim }).collect());
        let bytes = elements(dtype, &shape, rng).ok_or_else(|| format!("input '{name}' has no random elements"))?;
        inputs.push(json!({"name": name, "datatype": input["datatype"], "shape": shape,
            "parameters": {"binary_data_size": bytes.len()}}));
        tensors.extend(bytes);
    }
    let mut parameters = json!({"binary_data_output": true});
    if let Some(deadline) = options.deadline {
        // Microseconds, of which none would be no deadline.
        parameters["timeout"] = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX).max(1).into();
    }
    let header = json!({"inputs": inputs, "parameters": parameters}).to_string();
    let lengths = (header.len(), header.len() + tensors.len());
    let more = format!("inference-header-content-length: {}\r\ncontent-length: {}\r\n", lengths.0, lengths.1);
    Ok([head("POST", &format!("{path}/infer"), &more), header.into_bytes(), tensors].concat())
}

/// Floats from 0 to 1, and integers of 0 and 1, which are indices almost everywhere. `None` where there are too many.
pub(crate) fn elements(dtype: ElementType, shape: &[i64], rng: &mut fastrand::Rng) -> Option<Vec<u8>> {
    const LARGEST: u64 = 1 << 31;
    let count = ElementType::Ui8.byte_len(shape).filter(|n| *n <= LARGEST)?;
    let mut bytes = Vec::new();
    for _ in 0..count {
        match dtype {
            ElementType::F32 => bytes.extend(rng.f32().to_le_bytes()),
            ElementType::F64 => bytes.extend(rng.f64().to_le_bytes()),
            ElementType::String => bytes.extend([1, 0, 0, 0, b'a']),
            // 1 and 0.5.
            ElementType::F16 => bytes.extend([0, *rng.choice(&[0x3c, 0x38])?]),
            ElementType::Bf16 => bytes.extend([*rng.choice(&[0x80, 0])?, 0x3f]),
            _ => {
                bytes.push(rng.u8(..2));
                bytes.resize(bytes.len() + usize::try_from(dtype.bits() / 8).ok()?.checked_sub(1)?, 0);
            }
        }
    }
    Some(bytes)
}

/// A connection of HTTP/1.1.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> io::Result<Connection> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection { stream, buffer: Vec::new() })
    }

    /// Sends a request, and returns the status, the body, and whether the server closes the connection.
    fn ask(&mut self, request: &[u8]) -> io::Result<(u16, Vec<u8>, bool)> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        self.stream.write_all(request)?;
        let end = loop {
            match self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.fill()?,
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(damaged)?;
        let len: usize = field("content-length:").map_or(Ok(0), str::parse).map_err(|_| damaged())?;
        let closes = field("connection:") == Some("close");
        while self.buffer.len() < end + len {
            self.fill()?;
        }
        let rest = self.buffer.split_off(end + len);
        let body = self.buffer.split_off(end);
        self.buffer = rest;
        Ok((status, body, closes))
    }

    fn fill(&mut self) -> io::Result<()> {
        let len = self.buffer.len();
        self.buffer.resize(len + (1 << 16), 0);
        let read = self.stream.read(&mut self.buffer[len..])?;
        self.buffer.truncate(len + read);
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_and_percentiles_are_ranks() {
        let mut options = LoadOptions {
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            model: "m".into(),
            shapes: Vec::new(),
            rate: 1000.0,
            duration: Duration::from_secs(10),
            arrivals: Arrivals::Constant,
            connections: 1,
            seed: 1,
            token: None,
            deadline: None,
        };
        assert_eq!(due(&options, &mut fastrand::Rng::with_seed(1)).len(), 10_000);
        options.arrivals = Arrivals::Poisson;
        let random = due(&options, &mut fastrand::Rng::with_seed(1)).len();
        // Five standard deviations.
        assert!((9_500..=10_500).contains(&random), "{random}");
        let report = LoadReport { latencies: (1..=100).map(Duration::from_millis).collect(), ..LoadReport::default() };
        let of = |part| report.percentile(part).unwrap().as_millis();
        assert_eq!((of(0.0), of(0.5), of(0.99), of(1.0)), (1, 50, 99, 100));
        assert_eq!(LoadReport::default().percentile(0.5), None);
        assert!(run(&LoadOptions { rate: f64::NAN, ..options }).is_err());
    }
}
