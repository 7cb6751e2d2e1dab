//! Damaged requests over both protocols: the server answers or closes the connection, panics nowhere, and works afterwards.
//!
//! `OF_FUZZ_FRAMES=N` sends N frames of each protocol: requests of HTTP, and frames of HTTP/2. `cargo xtask fuzz-server` sets it.

use std::panic;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{Client, binary_request, options, repository, start};
use fastrand::Rng;
use of_serving::Server;
use of_serving::proto::model_infer_request::InferInputTensor;
use of_serving::proto::{InferTensorContents, ModelInferRequest};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::time::timeout;

/// Frames of each protocol.
fn frames() -> u64 {
    std::env::var("OF_FUZZ_FRAMES").map_or(20_000, |n| n.parse().expect("OF_FUZZ_FRAMES is a number"))
}

/// Panics of any thread, of which those in tasks of the server would stay unseen.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Relaxed);
        before(info);
    }));
}

/// Changes, removes, repeats and inserts bytes.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.usize(1..6) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.usize(..bytes.len());
        match rng.u8(..6) {
            0 => bytes[at] = rng.u8(..),
            1 => bytes[at] ^= 1 << rng.u8(..8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..(at + rng.usize(1..9)).min(bytes.len()))),
            4 => {
                let token: &[u8] = rng
                    .choice(&[&b"-1"[..], b"18446744073709551616", b"null", b"[", b"\xff", b"1e999", b"\"\""])
                    .unwrap();
                bytes.splice(at..at, token.iter().copied());
            }
            _ => {
                let part = bytes[at..(at + rng.usize(1..33)).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
}

/// Sends bytes over a connection in memory, and returns what comes back until the server closes. The client ends the connection when it has
/// sent all, or when there was nothing to read for so long.
async fn exchange(stream: DuplexStream, bytes: &[u8], patience: Option<Duration>) -> Vec<u8> {
    let (mut from, mut to) = split(stream);
    let send = async {
        // The server may have closed already.
        let _ = to.write_all(bytes).await;
        if patience.is_none() {
            let _ = to.shutdown().await;
        }
        to
    };
    let receive = async {
        let mut all = Vec::new();
        let read = timeout(patience.unwrap_or(CLOSES), from.read_to_end(&mut all)).await;
        (all, read.is_ok(), from)
    };
    let (mut to, (mut all, is_closed, mut from)) = tokio::join!(send, receive);
    if !is_closed {
        let _ = to.shutdown().await;
        let closed = timeout(CLOSES, from.read_to_end(&mut all)).await;
        assert!(closed.is_ok(), "the server does not close the connection after {:?}", String::from_utf8_lossy(bytes));
    }
    all
}

/// How long the server may take to close a connection that the client has ended.
const CLOSES: Duration = Duration::from_secs(60);

/// Runs connections on some threads until all frames are sent. `connection` gets a seed, and returns how many it sent.
fn fuzz(protocol: &str, server: &Server, connection: impl AsyncFn(&Server, u64) -> u64 + Sync) {
    let (seed, sent, wanted) = (AtomicU64::new(0), AtomicU64::new(0), frames());
    let before = of_serving::metrics::resident_memory().unwrap();
    let connection = &connection;
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                while sent.load(Relaxed) < wanted {
                    let seed = seed.fetch_add(1, Relaxed);
                    sent.fetch_add(runtime.block_on(connection(server, seed)), Relaxed);
                    assert_eq!(PANICS.load(Relaxed), 0, "seed {seed}");
                }
            });
        }
    });
    let after = of_serving::metrics::resident_memory().unwrap();
    println!(
        "{protocol}: {} frames in {} connections, no panic; resident memory {} MiB before, {} MiB after",
        sent.load(Relaxed),
        seed.load(Relaxed),
        before >> 20,
        after >> 20
    );
    // Other tests share the process unless this one was asked for. The allocator has caches for each thread, and none for requests.
    if std::env::var_os("OF_FUZZ_FRAMES").is_some() {
        assert!(after < before + (64 << 20), "{before} bytes became {after}");
    }
}

/// The statuses of answers over HTTP/1.1.
fn statuses(mut answers: &[u8]) -> Vec<u16> {
    let mut statuses = Vec::new();
    while let Some(end) = answers.windows(4).position(|w| w == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&answers[..end]).to_lowercase();
        statuses.push(head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0));
        let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        answers = &answers[(end + 4 + len.unwrap_or(0)).min(answers.len())..];
    }
    statuses
}

/// Requests of a connection.
const PIPELINED: u64 = 16;

#[test]
fn damaged_requests_over_http() {
    count_panics();
    let dir = repository();
    let mut limited = options(&[dir.path()]);
    limited.limits.time = Duration::from_secs(2);
    let server = start(limited);
    let json = br#"{"id":"1","parameters":{"priority":1,"timeout":1000000,"sequence_id":0},"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":[0,1.5,-2,3e2]}],"outputs":[{"name":"probability","parameters":{"classification":3,"binary_data":true}}]}"#;
    fuzz("HTTP", &server, async |server, seed| {
        let mut rng = Rng::with_seed(seed);
        let mut bytes = Vec::new();
        for number in 1..=PIPELINED {
            let (mut body, mut len) =
                if rng.bool() { binary_request(1, |i| i as f32) } else { (json.to_vec(), json.len()) };
            mutate(&mut body, &mut rng);
            if rng.u8(..4) == 0 {
                len = rng.usize(..300);
            }
            let path = *rng
                .choice(&[
                    "models/digits/infer",
                    "models/digits/infer",
                    "models/digits/infer",
                    "repository/index",
                    "systemsharedmemory/region/r/register",
                ])
                .unwrap();
            let mut head = format!("POST /v2/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
            head += &format!("inference-header-content-length: {len}\r\n");
            if rng.u8(..8) == 0 {
                head +=
                    &format!("content-encoding: {}\r\n", rng.choice(["identity", "gzip", "deflate", "br"]).unwrap());
            }
            if number == PIPELINED {
                head += "connection: close\r\n";
            }
            bytes.extend([head.as_bytes(), b"\r\n", &body].concat());
        }
        // Damage below HTTP.
        let is_framed = rng.u8(..8) > 0;
        if !is_framed {
            mutate(&mut bytes, &mut rng);
        }
        let (client, end) = duplex(1 << 16);
        server.serve_http(end);
        let answers = statuses(&exchange(client, &bytes, is_framed.then_some(CLOSES)).await);
        let known = |status: &u16| [200, 400, 404, 405, 413, 414, 431, 501, 504, 505].contains(status);
        assert!(answers.iter().all(known), "seed {seed}: {answers:?}");
        assert!(!is_framed || answers.len() as u64 == PIPELINED, "seed {seed}: {answers:?}");
        PIPELINED
    });
    let (body, len) = binary_request(1, |i| i as f32);
    let header = ("inference-header-content-length", &*len.to_string());
    let mut client = Client::new(&server);
    assert_eq!(client.send("POST", "/v2/models/digits/infer", &[header], &body).unwrap().status, 200);
    assert_eq!(PANICS.load(Relaxed), 0);
}

/// A frame of HTTP/2. Source: RFC 9113, section 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u32;
    [&len.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header of HPACK as a literal without indexing. Source: RFC 7541, section 6.2.2.
fn header(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// Streams of a connection.
const STREAMS: u32 = 8;

#[test]
fn damaged_requests_over_grpc() {
    count_panics();
    let dir = repository();
    let mut limited = options(&[dir.path()]);
    limited.limits.time = Duration::from_secs(2);
    let server = start(limited);
    let contents = InferTensorContents { fp32_contents: vec![1.0; 64], ..Default::default() };
    let input = InferInputTensor {
        name: "image".into(),
        datatype: "FP32".into(),
        shape: vec![1, 1, 8, 8],
        ..Default::default()
    };
    let typed = ModelInferRequest {
        model_name: "digits".into(),
        inputs: vec![InferInputTensor { contents: Some(contents), ..input.clone() }],
        ..Default::default()
    };
    let raw = ModelInferRequest { inputs: vec![input], raw_input_contents: vec![vec![0; 256].into()], ..typed.clone() };
    let methods =
        ["ModelInfer", "ModelStreamInfer", "ModelMetadata", "RepositoryIndex", "SystemSharedMemoryRegister", "None"];
    fuzz("gRPC", &server, async |server, seed| {
        let mut rng = Rng::with_seed(seed);
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        let (mut frames, mut is_framed) = (1, rng.u8(..4) > 0);
        for stream in 0..STREAMS {
            let mut message = if rng.bool() { typed.encode_to_vec() } else { raw.encode_to_vec() };
            if rng.u8(..4) > 0 {
                mutate(&mut message, &mut rng);
            }
            let mut data = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
            let path = format!("/inference.GRPCInferenceService/{}", rng.choice(methods).unwrap());
            let headers = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", &*path),
                (":authority", "x"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("grpc-timeout", "100m"),
            ];
            let mut headers = headers.map(|(n, v)| header(n, v)).concat();
            match rng.u8(..16) {
                // A connection ends with damaged headers, so they are rare.
                0 => mutate(&mut headers, &mut rng),
                1..=5 => mutate(&mut data, &mut rng),
                _ => {}
            }
            bytes.extend(frame(1, 4, 2 * stream + 1, &headers));
            bytes.extend(frame(0, 1, 2 * stream + 1, &data));
            frames += 2;
            if rng.u8(..8) == 0 {
                let mut other =
                    frame(rng.u8(..12), rng.u8(..), rng.u32(..2 * STREAMS), &vec![rng.u8(..); rng.usize(..40)]);
                if rng.u8(..4) == 0 {
                    mutate(&mut other, &mut rng);
                    is_framed = false;
                }
                bytes.extend(other);
                frames += 1;
            }
        }
        if is_framed {
            // A farewell, so that the server closes when it has answered.
            bytes.extend(frame(7, 0, 0, &[0; 8]));
            frames += 1;
        } else {
            mutate(&mut bytes, &mut rng);
        }
        let (client, end) = duplex(1 << 16);
        server.serve_grpc(end);
        exchange(client, &bytes, is_framed.then_some(Duration::from_millis(20))).await;
        frames
    });
    let mut metrics = Client::to(server.addresses().metrics.unwrap());
    let text = metrics.get("/metrics").text();
    let answered = text.lines().find(|l| l.starts_with("nv_inference_request_success{")).unwrap();
    assert!(!answered.ends_with(" 0"), "some requests were whole: {answered}");
    assert_eq!(PANICS.load(Relaxed), 0);
}
