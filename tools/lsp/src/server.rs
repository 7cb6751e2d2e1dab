//! The state of the server, and what it does with each message.

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use of_ir::text::Span;
use serde_json::{Value, json};

use crate::analysis::{self, Analysis, Found, Job, Work};
use crate::completion::completion;
use crate::diagnostics::diagnostics;
use crate::hover::hover;
use crate::navigation;
use crate::params;
use crate::queue::Queue;
use crate::run_pass::{self, Arguments, RUN_PASS, Target};
use crate::semantic_tokens::{self, semantic_tokens};
use crate::text::{Encoding, Text};
use crate::transport::{self, Answer, ErrorCode, Failure, Message, Output, answer};

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The client shut the server down before it ended.
    Properly,
    /// The client ended without saying so.
    Abruptly,
}

/// What wakes the server.
enum Event {
    Message(Message),
    /// A message that is no JSON.
    Unreadable(String),
    /// The input ended, with an error or without.
    Closed(io::Result<()>),
    Found(Found),
}

/// Serves one client until it exits.
///
/// # Errors
/// When the input cannot be read, is no stream of messages, or no thread can be started.
pub fn serve(input: impl Read + Send + 'static, output: impl Write + Send + 'static) -> io::Result<Ended> {
    let events = Queue::new();
    let found = events.clone();
    let jobs = analysis::start(move |f| {
        found.push(Event::Found(f));
    })?;
    let reader = events.clone();
    std::thread::Builder::new().name("input".into()).spawn(move || read_all(input, &reader))?;
    let ended = Server::new(Output::new(output), jobs.clone()).run(&events);
    events.close();
    jobs.close();
    ended
}

fn read_all(input: impl Read, events: &Queue<Event>) {
    let mut input = BufReader::with_capacity(1 << 16, input);
    loop {
        let (event, last) = match transport::read(&mut input) {
            Ok(Some(Ok(m))) => (Event::Message(m), false),
            Ok(Some(Err(why))) => (Event::Unreadable(why), false),
            Ok(None) => (Event::Closed(Ok(())), true),
            Err(e) => (Event::Closed(Err(e)), true),
        };
        if !events.push(event) || last {
            return;
        }
    }
}

/// Where the client is in its life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Running,
    ShutDown,
}

/// An open document.
struct Document {
    version: i64,
    /// Counts changes; versions of a client may repeat.
    revision: u64,
    text: Arc<Text>,
    /// The newest analysis that is done, perhaps of an earlier text.
    analysis: Option<Arc<Analysis>>,
    /// Requests for the analysis of this text.
    waiting: Vec<Message>,
}

impl Document {
    fn current(&self) -> Option<&Arc<Analysis>> {
        self.analysis.as_ref().filter(|a| a.revision == self.revision)
    }
}

/// Where messages name their document.
const URI: &str = "/textDocument/uri";

struct Server {
    output: Output,
    jobs: Queue<Work>,
    state: State,
    encoding: Encoding,
    /// Whether the client knows edits of versions.
    versioned: bool,
    /// Whether it applies edits on request.
    applies: bool,
    documents: HashMap<String, Document>,
    revisions: u64,
}

impl Server {
    fn new(output: Output, jobs: Queue<Work>) -> Server {
        let (state, encoding) = (State::New, Encoding::Utf16);
        Server {
            output,
            jobs,
            state,
            encoding,
            versioned: false,
            applies: false,
            documents: HashMap::new(),
            revisions: 0,
        }
    }

    /// Handles events until the client exits.
    fn run(mut self, events: &Queue<Event>) -> io::Result<Ended> {
        while let Some(event) = events.pop() {
            match event {
                Event::Message(m) if m.method == "exit" => {
                    return Ok(if self.state == State::ShutDown { Ended::Properly } else { Ended::Abruptly });
                }
                // Answers to requests to apply an edit: the client has shown its user.
                Event::Message(m) if m.method.is_empty() => {}
                Event::Message(m) if m.id.is_null() => self.notification(m),
                Event::Message(m) => self.request(m),
                Event::Unreadable(why) => self.output.refuse(&Failure { code: ErrorCode::Parse, message: why }),
                Event::Closed(Ok(())) => break,
                Event::Closed(Err(e)) => return Err(e),
                Event::Found(Found::Parsed(uri, analysis)) => self.parsed(&uri, analysis),
                Event::Found(Found::Verified(uri, analysis, found)) => self.publish(&uri, &analysis, &found.0),
            }
        }
        Ok(Ended::Abruptly)
    }

    // ---- notifications ----

    fn notification(&mut self, mut n: Message) {
        if self.state != State::Running {
            return;
        }
        let done = match n.method.as_str() {
            "textDocument/didOpen" => self.open(&mut n.params),
            "textDocument/didChange" => self.change(&mut n.params),
            // The text is that of the last change; data files next to it may be new.
            "textDocument/didSave" => params::text(&n.params, URI).map(|uri| self.analyse(uri)),
            "textDocument/didClose" => params::text(&n.params, URI).map(|uri| self.close(uri)),
            "$/cancelRequest" => {
                self.cancel(&n.params["id"]);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(e) = done {
            tracing::warn!("{}: {}", n.method, e.message);
        }
    }

    fn open(&mut self, params: &mut Value) -> Result<(), Failure> {
        let text = params::take_text(params, "/textDocument/text")?;
        let text = Arc::new(Text::new(text, self.encoding));
        let uri = params::text(params, URI)?;
        let version = version(params);
        let document = Document { version, revision: 0, text, analysis: None, waiting: Vec::new() };
        self.documents.insert(uri.to_owned(), document);
        self.analyse(uri);
        Ok(())
    }

    fn change(&mut self, params: &mut Value) -> Result<(), Failure> {
        let (uri, version) = (params::text(params, URI)?.to_owned(), version(params));
        let encoding = self.encoding;
        let d = self.document(&uri)?;
        d.version = version;
        for change in params["contentChanges"].as_array_mut().into_iter().flatten() {
            let text = params::take_text(change, "/text")?;
            match params::as_range(&change["range"]) {
                Some(range) => Arc::make_mut(&mut d.text).replace(range, &text),
                None => d.text = Arc::new(Text::new(text, encoding)),
            }
        }
        self.analyse(&uri);
        Ok(())
    }

    fn close(&mut self, uri: &str) {
        if let Some(d) = self.documents.remove(uri) {
            let closed = Failure { code: ErrorCode::ContentModified, message: "the document was closed".into() };
            let closed = Err(closed);
            d.waiting.iter().for_each(|r| self.output.respond(&r.id, &closed));
            self.output.notify("textDocument/publishDiagnostics", &json!({"uri": uri, "diagnostics": []}));
        }
    }

    fn cancel(&mut self, id: &Value) {
        for d in self.documents.values_mut() {
            if let Some(i) = d.waiting.iter().position(|r| r.id == *id) {
                let request = d.waiting.remove(i);
                let cancelled = Failure { code: ErrorCode::RequestCanceled, message: "cancelled".into() };
                self.output.respond(&request.id, &Err(cancelled));
            }
        }
    }

    // ---- analyses ----

    fn analyse(&mut self, uri: &str) {
        let Some(d) = self.documents.get_mut(uri) else { return };
        self.revisions += 1;
        d.revision = self.revisions;
        let (text, path) = (Arc::clone(&d.text), path_of(uri));
        self.jobs.push(Work::Analyse(Job { uri: uri.to_owned(), path, text, revision: d.revision }));
    }

    fn parsed(&mut self, uri: &str, analysis: Arc<Analysis>) {
        let Some(d) = self.documents.get_mut(uri) else { return };
        let current = analysis.revision == d.revision;
        if let Some(former) = d.analysis.replace(analysis) {
            self.jobs.push(Work::Free(former));
        }
        if current {
            for request in std::mem::take(&mut d.waiting) {
                self.request(request);
            }
        }
    }

    fn publish(&self, uri: &str, analysis: &Analysis, found: &[of_diag::Diagnostic]) {
        let Some(d) = self.documents.get(uri).filter(|d| d.revision == analysis.revision) else { return };
        let all = diagnostics(analysis, found);
        let params = json!({"uri": uri, "version": d.version, "diagnostics": all});
        self.output.notify("textDocument/publishDiagnostics", &params);
    }

    // ---- requests ----

    fn request(&mut self, request: Message) {
        let refused = match (self.state, request.method.as_str()) {
            (State::New, "initialize") => {
                let answer = self.initialize(&request.params);
                return self.output.respond(&request.id, &answer);
            }
            (State::New, _) => Some((ErrorCode::ServerNotInitialized, "'initialize' comes first")),
            (_, "initialize") => Some((ErrorCode::InvalidRequest, "the server is initialized already")),
            (State::ShutDown, _) => Some((ErrorCode::InvalidRequest, "the server is shut down")),
            (State::Running, "shutdown") => {
                self.state = State::ShutDown;
                return self.output.respond(&request.id, &Ok(b"null".to_vec()));
            }
            (State::Running, _) => None,
        };
        if let Some((code, message)) = refused {
            return self.output.respond(&request.id, &Err(Failure { code, message: message.into() }));
        }
        let id = request.id.clone();
        let done = catch_unwind(AssertUnwindSafe(|| self.serve_request(request)));
        let answer = done.unwrap_or_else(|_| {
            let message = "the request panicked; this is a bug of of-opt".into();
            Some(Err(Failure { code: ErrorCode::Internal, message }))
        });
        if let Some(answer) = answer {
            self.output.respond(&id, &answer);
        }
    }

    fn initialize(&mut self, params: &Value) -> Answer {
        let capabilities = &params["capabilities"];
        let encodings = capabilities["general"]["positionEncodings"].as_array();
        if encodings.is_some_and(|all| all.iter().any(|e| e == "utf-8")) {
            self.encoding = Encoding::Utf8;
        }
        self.versioned = capabilities["workspace"]["workspaceEdit"]["documentChanges"] == true;
        self.applies = capabilities["workspace"]["applyEdit"] == true;
        self.state = State::Running;
        answer(&json!({
            "serverInfo": {"name": "of-opt", "version": env!("CARGO_PKG_VERSION")},
            "capabilities": {
                "positionEncoding": self.encoding.kind(),
                // 2: changes are ranges.
                "textDocumentSync": {"openClose": true, "change": 2, "save": true},
                "hoverProvider": true,
                "definitionProvider": true,
                "referencesProvider": true,
                "documentHighlightProvider": true,
                "documentSymbolProvider": true,
                "codeActionProvider": {"codeActionKinds": ["refactor.rewrite"]},
                "completionProvider": {"triggerCharacters": [".", "%", "@", "{", ","]},
                "executeCommandProvider": {"commands": [RUN_PASS]},
                "semanticTokensProvider": {
                    "legend": {"tokenTypes": semantic_tokens::TYPES, "tokenModifiers": semantic_tokens::MODIFIERS},
                    "full": true,
                    "range": true,
                },
            },
        }))
    }

    /// The answer, or `None` for one that comes later.
    fn serve_request(&mut self, request: Message) -> Option<Answer> {
        let result = match request.method.as_str() {
            "textDocument/hover"
            | "textDocument/definition"
            | "textDocument/references"
            | "textDocument/documentHighlight"
            | "textDocument/documentSymbol"
            | "textDocument/codeAction"
            | "textDocument/semanticTokens/full"
            | "textDocument/semanticTokens/range"
            | "textDocument/completion" => self.in_document(request),
            "workspace/executeCommand" => self.command(request),
            method => {
                let message = format!("there is no method '{method}'");
                Err(Failure { code: ErrorCode::MethodNotFound, message })
            }
        };
        result.map_or_else(|e| Some(Err(e)), |later| later.map(Ok))
    }

    fn document(&mut self, uri: &str) -> Result<&mut Document, Failure> {
        let unknown = || Failure::parameters(format!("the document {uri} is not open"));
        self.documents.get_mut(uri).ok_or_else(unknown)
    }

    fn in_document(&mut self, request: Message) -> Result<Option<Vec<u8>>, Failure> {
        let applies = self.applies;
        let p = &request.params;
        let uri = params::text(p, URI)?.to_owned();
        let d = self.document(&uri)?;
        if request.method == "textDocument/completion" {
            let at = d.text.offset(params::position(p, "/position")?);
            return answer(&completion(&d.text, d.analysis.as_deref(), at)).map(Some);
        }
        let Some(a) = d.current().cloned() else {
            d.waiting.push(request);
            return Ok(None);
        };
        if request.method == "textDocument/documentSymbol" {
            return answer(&navigation::symbols_of(&a)).map(Some);
        }
        if request.method.starts_with("textDocument/semanticTokens/") {
            let whole = Span { start: 0, end: a.text.as_str().len() };
            let part = params::as_range(&p["range"]);
            let part = part.map_or(whole, |r| Span { start: a.text.offset(r.start), end: a.text.offset(r.end) });
            return answer(&semantic_tokens(&a, part)).map(Some);
        }
        let place = if request.method == "textDocument/codeAction" { "/range/start" } else { "/position" };
        let at = a.text.offset(params::position(p, place)?);
        let (uri, declared) = (uri.as_str(), p["context"]["includeDeclaration"] != false);
        match request.method.as_str() {
            "textDocument/hover" => answer(&hover(&a, at)),
            "textDocument/definition" => answer(&navigation::definition(&a, uri, at)),
            "textDocument/references" => answer(&navigation::references(&a, uri, at, declared)),
            "textDocument/documentHighlight" => answer(&navigation::highlight(&a, at)),
            _ if !applies => answer(&[(); 0]),
            _ => answer(&run_pass::actions(&a, uri, at)),
        }
        .map(Some)
    }

    fn command(&mut self, request: Message) -> Result<Option<Vec<u8>>, Failure> {
        let name = params::text(&request.params, "/command")?;
        if name != RUN_PASS {
            return Err(Failure::parameters(format!("there is no command '{name}'")));
        }
        let arguments = Arguments::of(&request.params)?;
        if arguments.apply && !self.applies {
            return Err(Failure::failed(
                "this editor applies no edits of a server; its result without 'apply' is an edit",
            ));
        }
        let versioned = self.versioned;
        let output = self.output.clone();
        let d = self.document(&arguments.uri)?;
        let Some(analysis) = d.current().cloned() else {
            d.waiting.push(request);
            return Ok(None);
        };
        let target = Target { version: d.version, versioned };
        let work = move || {
            let run = || run_pass::run(&analysis, &arguments, &target);
            let ran = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
                let message = "the pass panicked; this is a bug of of-opt".into();
                Err(Failure { code: ErrorCode::Internal, message })
            });
            let label = format!("of-opt: {}", arguments.passes);
            match &ran {
                Ok(ran) if arguments.apply => match (&ran.edit, &ran.note) {
                    (Some(edit), _) => {
                        let id = format!("apply {}", request.id);
                        output.request(&id, "workspace/applyEdit", &json!({"label": label, "edit": edit}));
                    }
                    (None, note) => {
                        let text = note.clone().unwrap_or_else(|| format!("{label} changes nothing"));
                        output.notify("window/showMessage", &json!({"type": 3, "message": text}));
                    }
                },
                _ => {}
            }
            output.respond(&request.id, &ran.and_then(|ran| answer(&ran.as_json())));
        };
        // The server answers other requests in the meantime.
        std::thread::Builder::new()
            .name("passes".into())
            .stack_size(analysis::STACK)
            .spawn(work)
            .map_err(|e| Failure { code: ErrorCode::Internal, message: e.to_string() })?;
        Ok(None)
    }
}

/// The version of the document that a message is about.
fn version(params: &Value) -> i64 {
    params["textDocument"]["version"].as_i64().unwrap_or_default()
}

/// The path of a `file:` URI.
fn path_of(uri: &str) -> Option<PathBuf> {
    let path = uri.strip_prefix("file://")?;
    // A host may stand before the path; only this machine's files are opened.
    let path = &path[path.find('/')?..];
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(b) = rest.next() {
        let byte = match b {
            b'%' => {
                let hex = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
                u8::try_from(hex(rest.next())? * 16 + hex(rest.next())?).ok()?
            }
            other => other,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_paths() {
        assert_eq!(path_of("file:///a%20b/%C3%A9.of"), Some(PathBuf::from("/a b/é.of")));
        for wrong in ["untitled:Untitled-1", "file:///a%2", "file:///%zz", "file://host", "file:///%ff"] {
            assert_eq!(path_of(wrong), None, "{wrong}");
        }
    }
}
