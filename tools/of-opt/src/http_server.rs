//! A small server of HTTP/1.1: each connection has one request, and a thread of its own.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most bytes of a request's head.
const MAX_HEAD: usize = 16 << 10;
/// How long a client may take for its request, and for each part of the response.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most connections at a time; browsers open a few before they need them.
const MAX_CONNECTIONS: usize = 32;

/// The status of a response with what was asked for.
pub const OK: &str = "200 OK";

/// A response.
pub struct Response {
    /// Number and name of the status.
    pub status: &'static str,
    /// The type of the body.
    pub content_type: &'static str,
    /// More lines of the header, each with its end.
    pub headers: &'static str,
    /// The body.
    pub body: String,
}

/// What answers the head of a request.
pub type Respond = dyn Fn(&str) -> Response + Send + Sync;

/// Answers requests until the program ends, in threads of this name.
///
/// # Errors
/// When the port takes no more connections.
pub fn serve(listener: &TcpListener, name: &str, respond: &Arc<Respond>) -> io::Result<()> {
    loop {
        let (stream, client) = match listener.accept() {
            Ok(accepted) => accepted,
            // The client has gone already.
            Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => continue,
            Err(e) => return Err(e),
        };
        // Each connection has one, next to that of the caller.
        if Arc::strong_count(respond) > MAX_CONNECTIONS {
            continue;
        }
        let respond = Arc::clone(respond);
        let answer = move || {
            if let Err(e) = answer(stream, &*respond) {
                tracing::debug!(%client, error = %e, "a connection failed");
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(answer)?;
    }
}

/// Method and target of a request; `None` where it is no request of HTTP/1.1.
pub fn request(head: &str) -> Option<(&str, &str)> {
    let mut words = head.split("\r\n").next()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    is_http.then(|| (method, target.split('?').next().unwrap_or_default()))
}

/// Answers one request.
fn answer(mut stream: TcpStream, respond: &Respond) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = head(&mut stream)?;
    let Response { status, content_type, headers, body } = respond(&head);
    let header = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{headers}X-Content-Type-Options: nosniff\r\n\
         Cache-Control: no-store\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(header.as_bytes())?;
    if !head.starts_with("HEAD ") {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// The head of a request: its lines up to the empty one.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > MAX_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the request is too long or too slow"));
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&part[..count]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
