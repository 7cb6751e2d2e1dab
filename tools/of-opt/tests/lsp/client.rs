//! A headless editor: it speaks the protocol with the program over stdin and stdout.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A message that takes longer is lost.
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<(Instant, Value)>,
    /// What the server said that it can.
    pub capabilities: Value,
    /// Messages that were not waited for.
    pub others: Vec<Value>,
    last_id: i64,
    /// When the last message came that was waited for.
    pub arrived: Instant,
}

impl Client {
    /// Starts the program, without a handshake.
    pub fn start() -> Client {
        let mut child = Command::new(env!("CARGO_BIN_EXE_of-opt"))
            .args(["lsp", "--stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            while let Some(m) = read(&mut output) {
                if sender.send(m).is_err() {
                    return;
                }
            }
        });
        Client {
            child,
            input,
            messages,
            capabilities: Value::Null,
            others: Vec::new(),
            last_id: 0,
            arrived: Instant::now(),
        }
    }

    /// Starts the program and initializes it with the given client capabilities.
    pub fn with(capabilities: Value) -> Client {
        let mut c = Client::start();
        let answer = c.request("initialize", json!({"processId": null, "rootUri": null, "capabilities": capabilities}));
        assert_eq!(answer["serverInfo"]["name"], "of-opt");
        c.capabilities = answer["capabilities"].clone();
        c.notify("initialized", json!({}));
        c
    }

    /// Writes bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub fn send(&mut self, message: &Value) {
        let body = message.to_string();
        self.send_bytes(format!("Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request and returns its number.
    pub fn ask(&mut self, method: &str, params: Value) -> i64 {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
        self.last_id
    }

    /// The first message that fits.
    pub fn wait(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(i) = self.others.iter().position(&fits) {
            return self.others.remove(i);
        }
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (arrived, m) = self.messages.recv_timeout(left).expect("no such message came");
            if fits(&m) {
                self.arrived = arrived;
                return m;
            }
            self.others.push(m);
        }
    }

    /// The whole answer to a request.
    pub fn answer(&mut self, id: i64) -> Value {
        self.wait(|m| m["id"] == id && m["method"].is_null())
    }

    /// The result of a request that must succeed.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        let answer = self.answer(id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    pub fn open(&mut self, uri: &str, text: &str) {
        let document = json!({"uri": uri, "languageId": "of", "version": 1, "text": text});
        self.notify("textDocument/didOpen", json!({"textDocument": document}));
    }

    /// Replaces the whole text.
    pub fn set(&mut self, uri: &str, version: i64, text: &str) {
        let changes = json!([{"text": text}]);
        let document = json!({"uri": uri, "version": version});
        self.notify("textDocument/didChange", json!({"textDocument": document, "contentChanges": changes}));
    }

    /// The diagnostics of a version.
    pub fn diagnostics(&mut self, uri: &str, version: i64) -> Vec<Value> {
        let of = |m: &Value| {
            m["method"] == "textDocument/publishDiagnostics"
                && m["params"]["uri"] == uri
                && m["params"]["version"] == version
        };
        self.wait(of)["params"]["diagnostics"].as_array().unwrap().clone()
    }

    /// Ends the input and waits for the program.
    pub fn end(&mut self) -> (ExitStatus, String) {
        self.input = None;
        let status = self.child.wait().unwrap();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status, text)
    }

    /// Shuts the server down as an editor does.
    pub fn exit(mut self) {
        assert_eq!(self.request("shutdown", Value::Null), Value::Null);
        self.notify("exit", Value::Null);
        let (status, text) = self.end();
        assert!(status.success() && text.is_empty(), "{status}\n{text}");
    }
}

/// A message, and when all of it was there.
fn read(output: &mut impl BufRead) -> Option<(Instant, Value)> {
    let mut length = None;
    loop {
        let mut line = String::new();
        if output.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", n)) => length = n.parse().ok(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length?];
    output.read_exact(&mut body).ok()?;
    let arrived = Instant::now();
    Some((arrived, serde_json::from_slice(&body).expect("the server writes JSON")))
}
