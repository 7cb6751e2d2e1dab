//! Messages on streams: a header with the length, then JSON.
//!
//! Results are written as they are serialized. The crate lsp-server makes a tree of values first, which for the symbols of
//! a large module takes longer than everything else.

use std::io::{self, BufRead, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

/// A longer message is a wrong header.
const MAX_MESSAGE: usize = 1 << 30;

/// A longer line is no header.
const MAX_HEADER: u64 = 4096;

/// A message of the client.
#[derive(Debug)]
pub struct Message {
    /// The number of a request; null for a notification.
    pub id: Value,
    /// What it is about; empty in an answer.
    pub method: String,
    /// Its parameters; null where it has none.
    pub params: Value,
}

/// Reads a message; `None` at the end of the stream. A message that is no JSON is `Err` inside, and reading may go on.
///
/// # Errors
/// When the stream cannot be read, or a header is wrong, after which nothing can be read.
pub fn read(input: &mut impl BufRead) -> io::Result<Option<Result<Message, String>>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut length: Option<usize> = None;
    loop {
        let mut line = String::new();
        if input.take(MAX_HEADER).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if !line.ends_with('\n') {
            return Err(invalid("a header of the protocol is cut off or too long"));
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok();
        }
    }
    let length =
        length.filter(|n| *n <= MAX_MESSAGE).ok_or_else(|| invalid("a message has no valid Content-Length"))?;
    // A wrong length does not allocate: the buffer takes what there is.
    let mut body = Vec::new();
    input.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(invalid("the last message is cut off"));
    }
    Ok(Some(match serde_json::from_slice::<Value>(&body) {
        Ok(mut all) => Ok(Message {
            id: all.get("id").cloned().unwrap_or_default(),
            method: all["method"].as_str().unwrap_or_default().to_owned(),
            params: all.get_mut("params").map(Value::take).unwrap_or_default(),
        }),
        Err(e) => Err(e.to_string()),
    }))
}

/// The kind of a failure, as its number in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorCode {
    /// No JSON.
    Parse = -32700,
    /// A message at the wrong time.
    InvalidRequest = -32600,
    /// An unknown method.
    MethodNotFound = -32601,
    /// Wrong parameters.
    InvalidParams = -32602,
    /// A bug.
    Internal = -32603,
    /// A request before `initialize`.
    ServerNotInitialized = -32002,
    /// The client cancelled the request.
    RequestCanceled = -32800,
    /// The document is not what it was.
    ContentModified = -32801,
    /// The request is right and cannot be served.
    RequestFailed = -32803,
}

/// Why a request fails.
#[derive(Debug)]
pub struct Failure {
    /// The kind.
    pub code: ErrorCode,
    /// One sentence.
    pub message: String,
}

impl Failure {
    /// The parameters of a request are wrong.
    pub fn parameters(message: impl Into<String>) -> Failure {
        Failure { code: ErrorCode::InvalidParams, message: message.into() }
    }

    /// The request is right and cannot be served.
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure { code: ErrorCode::RequestFailed, message: message.into() }
    }
}

/// A result as JSON, or why there is none.
pub type Answer = Result<Vec<u8>, Failure>;

/// The result of a request.
pub fn answer(result: &impl Serialize) -> Answer {
    serde_json::to_vec(result).map_err(|e| Failure { code: ErrorCode::Internal, message: e.to_string() })
}

/// Writes messages to the client, from any thread.
#[derive(Clone)]
pub struct Output(Arc<Mutex<Box<dyn Write + Send>>>);

impl Output {
    /// Writes to a stream.
    pub fn new(out: impl Write + Send + 'static) -> Output {
        Output(Arc::new(Mutex::new(Box::new(out))))
    }

    /// Answers a request.
    pub fn respond(&self, id: &Value, answer: &Answer) {
        let id = id.to_string();
        match answer {
            Ok(result) => self.send(&[br#"{"jsonrpc":"2.0","id":"#, id.as_bytes(), br#","result":"#, result, b"}"]),
            Err(e) => self.fail(&id, e),
        }
    }

    /// Answers a message without a readable number.
    pub fn refuse(&self, e: &Failure) {
        self.fail("null", e);
    }

    fn fail(&self, id: &str, e: &Failure) {
        let error = json!({"code": e.code as i64, "message": e.message}).to_string();
        self.send(&[br#"{"jsonrpc":"2.0","id":"#, id.as_bytes(), br#","error":"#, error.as_bytes(), b"}"]);
    }

    /// Sends a notification.
    pub fn notify(&self, method: &str, params: &Value) {
        self.send(&[json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string().as_bytes()]);
    }

    /// Sends a request, whose answer is not used.
    pub fn request(&self, id: &str, method: &str, params: &Value) {
        self.send(&[json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string().as_bytes()]);
    }

    fn send(&self, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|p| p.len()).sum();
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = write!(out, "Content-Length: {length}\r\n\r\n")
            .and_then(|()| parts.iter().try_for_each(|p| out.write_all(p)))
            .and_then(|()| out.flush());
        if let Err(e) = written {
            // The client is gone; its end of the input says so.
            tracing::debug!(error = %e, "a message was not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_frames_are_errors_and_allocate_nothing() {
        let all = |bytes: &[u8]| {
            let mut input = bytes;
            std::iter::from_fn(|| match read(&mut input) {
                Ok(None) => None,
                Ok(Some(Ok(_))) => Some("message".to_string()),
                Ok(Some(Err(_))) => Some("no message".to_string()),
                Err(e) => {
                    input = &[];
                    Some(e.to_string())
                }
            })
            .collect::<Vec<_>>()
        };
        let body = r#"{"jsonrpc":"2.0","method":"exit"}"#;
        let good = format!("content-length: {}\r\nContent-Type: x\r\n\r\n{body}", body.len());
        assert_eq!(all(format!("{good}{good}").as_bytes()), ["message", "message"]);
        assert_eq!(all(format!("Content-Length: 2\r\n\r\n{{]{good}").as_bytes()), ["no message", "message"]);
        for wrong in ["Content-Length: 99999999999999999999\r\n\r\n", "\r\n", "Content-Length: -1\r\n\r\n"] {
            assert_eq!(all(wrong.as_bytes()), ["a message has no valid Content-Length"]);
        }
        assert_eq!(all(&good.as_bytes()[..good.len() - 1]), ["the last message is cut off"]);
        assert_eq!(all(&[b'x'; 5000]), ["a header of the protocol is cut off or too long"]);
        for end in 0..good.len() {
            all(&good.as_bytes()[..end]);
        }
    }
}
