//! A server of one page over HTTP/1.1, for browsers of this machine.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most bytes of a request's head.
const MAX_HEAD: usize = 16 << 10;
/// How long a client may take for its request, and for each part of the response.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most connections at a time; browsers open a few before they need them.
const MAX_CONNECTIONS: usize = 32;
/// What the page may do: run its own script, and load nothing.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";

/// A page on a port of 127.0.0.1.
pub struct PageServer {
    listener: TcpListener,
    address: SocketAddr,
    page: Arc<str>,
}

impl PageServer {
    /// Binds the port; 0 takes a free one.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn new(port: u16, page: String) -> io::Result<PageServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let address = listener.local_addr()?;
        Ok(PageServer { listener, address, page: page.into() })
    }

    /// Where a browser finds the page.
    pub fn address(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Answers requests until the program ends.
    ///
    /// # Errors
    /// When the port takes no more connections.
    pub fn serve(&self) -> io::Result<()> {
        loop {
            let (stream, client) = match self.listener.accept() {
                Ok(accepted) => accepted,
                // The client has gone already.
                Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => continue,
                Err(e) => return Err(e),
            };
            // Each connection holds the page.
            if Arc::strong_count(&self.page) > MAX_CONNECTIONS {
                continue;
            }
            let (page, port) = (Arc::clone(&self.page), self.address.port());
            let answer = move || {
                if let Err(e) = answer(stream, &page, port) {
                    tracing::debug!(%client, error = %e, "a connection failed");
                }
            };
            std::thread::Builder::new().name("page".into()).spawn(answer)?;
        }
    }
}

/// Answers one request.
fn answer(mut stream: TcpStream, page: &str, port: u16) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = head(&mut stream)?;
    let (status, body) = response(&head, page, port);
    let kind = if status == OK { "text/html" } else { "text/plain" };
    let header = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nContent-Security-Policy: {POLICY}\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\nAllow: GET, HEAD\r\n\
         Connection: close\r\n\r\n",
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

const OK: &str = "200 OK";

/// The status and body for a request.
fn response<'p>(head: &str, page: &'p str, port: u16) -> (&'static str, &'p str) {
    let mut lines = head.split("\r\n");
    let mut request = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (request.next().unwrap_or_default(), request.next().unwrap_or_default());
    if !request.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
        return ("400 Bad Request", "this is no request of HTTP/1.1\n");
    }
    // A page of another site that a name server sends here (DNS rebinding) has its own name in the request.
    let host = lines.find_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("host")));
    let host = host.map(|(_, host)| host.trim()).unwrap_or_default();
    if !["127.0.0.1", "localhost"].iter().any(|own| host == format!("{own}:{port}")) {
        return ("403 Forbidden", "this page is for 127.0.0.1 alone\n");
    }
    match (method, target.split('?').next()) {
        ("GET" | "HEAD", Some("/" | "/index.html")) => (OK, page),
        ("GET" | "HEAD", _) => ("404 Not Found", "there is one page: /\n"),
        _ => ("405 Method Not Allowed", "the page can be read alone\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_responses() {
        let status = |line: &str, host: &str| {
            let head = format!("{line}\r\nAccept: */*\r\nhOsT: {host}\r\n\r\n");
            response(&head, "page", 80).0.split_once(' ').unwrap().0.parse::<u16>().unwrap()
        };
        for (line, host, expected) in [
            ("GET / HTTP/1.1", "127.0.0.1:80", 200),
            ("HEAD /?x=1 HTTP/1.1", "localhost:80", 200),
            ("GET /etc/passwd HTTP/1.1", "localhost:80", 404),
            ("GET /../x HTTP/1.1", "localhost:80", 404),
            ("POST / HTTP/1.1", "localhost:80", 405),
            ("GET / HTTP/1.1", "attacker.example:80", 403),
            ("GET / HTTP/1.1", "localhost:81", 403),
            ("GET /", "localhost:80", 400),
            ("", "localhost:80", 400),
        ] {
            assert_eq!(status(line, host), expected, "{line} {host}");
        }
        assert_eq!(response("GET / HTTP/1.1\r\n\r\n", "page", 80).0, "403 Forbidden");
    }
}
