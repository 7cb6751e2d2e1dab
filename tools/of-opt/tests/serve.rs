//! `of-opt serve` and `of-opt load`: signals, signatures, and the page in a browser.

#![cfg(feature = "serve")]

mod store;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use of_test_support::browser;
use of_test_support::component::{BROWSER, require};
use store::Store;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn digits() -> String {
    root().join("examples/digits/digits.onnx").display().to_string()
}

fn of_opt(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    command.args(args).current_dir(dir).env("OF_CACHE_DIR", dir.join("cache"));
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    command
}

/// A server on free ports, which ends with the test.
struct Server {
    process: Child,
    port: u16,
    metrics_port: u16,
}

impl Server {
    fn start(dir: &Path, args: &[&str]) -> Server {
        let ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--threads", "1"];
        let mut command = of_opt(dir, &[&["serve"], args, &ports].concat());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().take(3);
        let port = |line: &String| line.trim_end_matches("/metrics").rsplit(':').next()?.parse().ok();
        let lines: Vec<String> = lines.map(Result::unwrap).collect();
        let [Some(port), Some(_), Some(metrics_port)] = lines.iter().map(port).collect::<Vec<Option<u16>>>()[..] else {
            panic!("no three ports in {lines:?}")
        };
        let server = Server { process, port, metrics_port };
        let start = Instant::now();
        while !server.ask("GET", "/v2/health/ready").starts_with("HTTP/1.1 200") {
            assert!(start.elapsed() < Duration::from_secs(120), "the server is not ready");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn ask(&self, method: &str, path: &str) -> String {
        Server::ask_at(self.port, method, path)
    }

    fn ask_at(port: u16, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends SIGTERM, and waits for the exit code.
    fn terminate(mut self) -> Option<i32> {
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.process.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn no_request_is_lost_when_the_server_ends_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[&digits()]);
    let port = server.port.to_string();
    let load =
        ["load", "digits", "--http-port", &port, "--rate", "500", "--duration", "3s", "--connections", "8", "--json"];
    let load = of_opt(dir.path(), &load).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(server.terminate(), Some(0));
    let out = load.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("\"lost\":0"), "{said}");
    let number = |field: &str| -> usize {
        let rest = said.split(&format!("\"{field}\":")).nth(1).unwrap();
        rest.split([',', '}']).next().unwrap().parse().unwrap()
    };
    assert!(number("answered") > 100 && number("not_sent") > 100, "{said}");
}

#[test]
fn requests_behind_their_deadline_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    // Each request waits so long for others that could be in its batch.
    let server = Server::start(dir.path(), &[&digits(), "--max-queue-delay-microseconds", "200000"]);
    let port = server.port.to_string();
    let load = |deadline: &str| {
        let args = ["--rate", "5", "--duration", "1s", "--connections", "1", "--json", "--deadline", deadline];
        let args = [&["load", "digits", "--http-port", &port][..], &args].concat();
        let out = of_opt(dir.path(), &args).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    };
    let (code, said) = load("60s");
    assert!(code == Some(0) && said.contains("\"late\":0"), "{said}");
    let (code, said) = load("20ms");
    assert!(code == Some(1) && !said.contains("\"late\":0"), "{said}");
    assert!(said.contains("requests missed their deadline"), "{said}");
}

#[test]
fn plans_are_served_only_with_the_signature_that_is_required() {
    let dir = tempfile::tempdir().unwrap();
    let key = |name: &str| root().join("signature/tests/data").join(name).display().to_string();
    for name in ["signed.plan", "unsigned.plan"] {
        assert!(of_opt(dir.path(), &["compile", &digits(), "-o", name]).output().unwrap().status.success());
    }
    let sign = of_opt(dir.path(), &["sign", "signed.plan", "--key", &key("ed25519.pem")]).output().unwrap();
    assert!(sign.status.success());
    let public = key("ed25519.pub.pem");
    let server =
        Server::start(dir.path(), &["signed.plan", "unsigned.plan", &digits(), "--require-signature", &public]);
    let status = |model: &str| server.ask("GET", &format!("/v2/models/{model}/ready"))[9..12].to_owned();
    assert_eq!([status("signed"), status("unsigned"), status("digits")], ["200", "503", "503"]);
    let index = server.ask("POST", "/v2/repository/index");
    assert!(index.contains("unsigned.plan.sig") && index.contains("serves signed plans only"), "{index}");
}

#[test]
fn a_repository_in_a_store_is_served_and_followed() {
    let Some(mut store) = Store::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    store.command(&format!("put some/digits/1/model.onnx {}", digits()));
    store.command(&format!("put other/more/1/model.onnx {}", digits()));
    let url = format!("s3://{}/models/some", store.endpoint);
    let server = Server::start(dir.path(), &[&url, "--model-control-mode", "poll", "--repository-poll-secs", "1"]);
    let has = |text: &str| server.ask("GET", "/v2/models/digits").contains(text);
    let wait = |text: &str| {
        let start = Instant::now();
        while !has(text) {
            assert!(start.elapsed() < Duration::from_secs(60), "{}", server.ask("GET", "/v2/models/digits"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert!(has("\"versions\":[\"1\"]") && !server.ask("POST", "/v2/repository/index").contains("more"));
    store.command(&format!("put some/digits/2/model.onnx {}", digits()));
    wait("\"versions\":[\"2\"]");
    store.command("delete some/digits/2/model.onnx");
    wait("\"versions\":[\"1\"]");
    drop(store);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(has("\"versions\":[\"1\"]"), "a store that is gone takes no model away");
}

#[test]
fn mistakes_on_the_command_line_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    for (args, code, what) in [
        (&["serve", "none"][..], 2, "'none' cannot be read"),
        (&["serve", "empty"], 2, "'empty' has no model"),
        (&["serve", "s3://"], 2, "names no bucket"),
        (&["serve", &digits(), "--model-control-mode", "explicit", "--load-model", "x"], 2, "no model 'x' to load"),
        (&["serve", &digits(), "--token-file", "none"], 2, "none"),
        (&["load", "m", "--http-port", "1", "--duration", "1s"], 1, "does not answer"),
        (&["load", "m", "--shape", "x"], 2, "'x' is no shape of an input"),
    ] {
        let ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"];
        let args = if args[0] == "serve" { [args, &ports].concat() } else { args.to_vec() };
        let out = of_opt(dir.path(), &args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(code) && said.contains(what), "{args:?}: {:?} {said}", out.status.code());
    }
}

#[test]
fn a_digit_is_drawn_and_recognised_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[&digits()]);
    let Some(browser) = require(&BROWSER, browser::installed()) else { return };
    let shown = |page: &str, expected: &[&str]| {
        browser::shown(browser, &format!("http://127.0.0.1:{}{page}", server.port), expected).unwrap()
    };
    shown("/#7", &["<div id=\"answer\">7</div>"]);
    shown("/status", &["digits, version 1", "requests by latency"]);
}

#[test]
fn the_actors_of_a_served_model_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[&digits()]);
    let actors = || Server::ask_at(server.metrics_port, "GET", "/debug/actors");
    let before = actors();
    // A row of zeros ran before the model was ready.
    assert!(before.starts_with("HTTP/1.1 200") && before.contains("is idle: 1 steps began, 1 ended"), "{before}");
    let port = server.port.to_string();
    let args = [
        "load",
        "digits",
        "--http-port",
        &port,
        "--rate",
        "100",
        "--duration",
        "200ms",
        "--connections",
        "1",
        "--json",
    ];
    let out = of_opt(dir.path(), &args).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let answered = said
        .split("\"answered\":")
        .nth(1)
        .and_then(|rest| rest.split([',', '}']).next())
        .unwrap_or_else(|| panic!("{said}"));
    let runs = 1 + answered.parse::<u64>().unwrap();
    let after = actors();
    // One session runs all requests, and each of its actors acts once in a run.
    assert!(after.contains(&format!("is idle: {runs} steps began, {runs} ended")), "{runs}: {after}");
    let acts = after.lines().filter(|line| line.contains("has acted"));
    assert!(
        acts.clone().count() > 2 && acts.clone().all(|line| line.contains(&format!("has acted {runs} times"))),
        "{after}"
    );
    assert!(after.contains("registers") && after.contains("credits"), "{after}");
}
