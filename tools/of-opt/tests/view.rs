//! `of-opt view` serves a page to this machine, and ends with a signal.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server that ends with its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `of-opt view` and returns it with its address, `127.0.0.1:PORT`.
fn start(file: &Path) -> (Server, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    let mut server = Server(command.arg("view").arg(file).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    (server, address.unwrap_or_else(|| panic!("{line}")).to_owned())
}

/// The head and body of a response.
fn request(address: &str, text: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn a_page_is_served_until_a_signal() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    assert!(inspect.arg("inspect").arg(&model).arg("--html").arg(&page).status().unwrap().success());

    let (mut server, address) = start(&model);
    // A connection that says nothing delays no other.
    let silent = TcpStream::connect(&address).unwrap();
    let (head, body) = request(&address, &format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("default-src 'none'"), "{head}");
    assert_eq!(body, std::fs::read_to_string(&page).unwrap());
    let (head, body) = request(&address, "GET / HTTP/1.1\r\nHost: attacker.example\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 403 ") && !body.contains("<html"), "{head}");
    let (head, body) = request(&address, &format!("HEAD / HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}");
    drop(silent);

    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.0.wait().unwrap().code(), Some(143));
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
    let (_server, address) = start(&model);
    let port = address.rsplit_once(':').unwrap().1;
    let mut second = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    let out = second.arg("view").arg(&model).args(["--port", port]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot be used") && said.contains("without --port"), "{said}");
}
