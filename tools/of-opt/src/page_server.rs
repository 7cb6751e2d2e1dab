//! A server of one page, for browsers of this machine.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use crate::http_server::{self, OK, Respond, Response};

/// What the page may do: run its own script, and load nothing.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\r\n\
     Referrer-Policy: no-referrer\r\n";

/// A page on a port of 127.0.0.1.
pub struct PageServer {
    listener: TcpListener,
    address: SocketAddr,
    respond: Arc<Respond>,
}

impl PageServer {
    /// Binds the port; 0 takes a free one.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn new(port: u16, page: String) -> io::Result<PageServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let address = listener.local_addr()?;
        let respond = move |head: &str| {
            let (status, body) = response(head, &page, address.port());
            let content_type = if status == OK { "text/html; charset=utf-8" } else { "text/plain; charset=utf-8" };
            Response { status, content_type, headers: HEADERS, body: body.to_owned() }
        };
        Ok(PageServer { listener, address, respond: Arc::new(respond) })
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
        http_server::serve(&self.listener, "page", &self.respond)
    }
}

/// The status and body for a request.
fn response<'p>(head: &str, page: &'p str, port: u16) -> (&'static str, &'p str) {
    let Some((method, target)) = http_server::request(head) else {
        return ("400 Bad Request", "this is no request of HTTP/1.1\n");
    };
    // A page of another site that a name server sends here (DNS rebinding) has its own name in the request.
    let mut lines = head.split("\r\n").skip(1);
    let host = lines.find_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("host")));
    let host = host.map(|(_, host)| host.trim()).unwrap_or_default();
    if !["127.0.0.1", "localhost"].iter().any(|own| host == format!("{own}:{port}")) {
        return ("403 Forbidden", "this page is for 127.0.0.1 alone\n");
    }
    match (method, target) {
        ("GET" | "HEAD", "/" | "/index.html") => (OK, page),
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
