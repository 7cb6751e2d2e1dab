//! Damaged requests over both protocols: the server answers or closes the connection, panics nowhere, and works afterwards.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{Client, binary_request, options, repository, start};
use fastrand::Rng;
use of_serving::proto::model_infer_request::InferInputTensor;
use of_serving::proto::{InferTensorContents, ModelInferRequest};
use prost::Message;

/// Requests of each protocol.
const ROUNDS: u64 = 1500;

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

/// Sends bytes and reads what comes back until the server closes, or pauses.
fn send(address: SocketAddr, bytes: &[u8]) {
    let Ok(mut stream) = TcpStream::connect(address) else { panic!("the server is gone") };
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    // The server may have closed already.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut sink = [0; 4096];
    while matches!(stream.read(&mut sink), Ok(n) if n > 0) {}
}

#[test]
fn damaged_requests_over_http() {
    count_panics();
    let dir = repository();
    let mut limited = options(&[dir.path()]);
    limited.limits.time = Duration::from_secs(2);
    let server = start(limited);
    let address = server.addresses().http.unwrap();
    let mut client = Client::new(&server);
    let json = br#"{"id":"1","parameters":{"priority":1,"timeout":1000000,"sequence_id":0},"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":[0,1.5,-2,3e2]}],"outputs":[{"name":"probability","parameters":{"classification":3,"binary_data":true}}]}"#;
    for seed in 0..ROUNDS {
        let mut rng = Rng::with_seed(seed);
        let (mut body, mut len) =
            if rng.bool() { binary_request(1, |i| i as f32) } else { (json.to_vec(), json.len()) };
        if rng.u8(..4) == 0 {
            // Damage below HTTP.
            let head =
                format!("POST /v2/models/digits/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
            let mut bytes = [head.as_bytes(), &body].concat();
            mutate(&mut bytes, &mut rng);
            send(address, &bytes);
            continue;
        }
        mutate(&mut body, &mut rng);
        if rng.u8(..4) == 0 {
            len = rng.usize(..300);
        }
        let header = ("inference-header-content-length", &*len.to_string());
        let encoding = ("content-encoding", *rng.choice(&["identity", "gzip", "deflate", "br"]).unwrap());
        let headers = if rng.u8(..8) == 0 { [header, encoding] } else { [header, ("accept", "*/*")] };
        match client.send("POST", "/v2/models/digits/infer", &headers, &body) {
            Ok(answer) => {
                assert!([200, 400, 404, 413, 501, 504].contains(&answer.status), "seed {seed}: {}", answer.text())
            }
            Err(_) => client = Client::new(&server),
        }
    }
    let (body, len) = binary_request(1, |i| i as f32);
    let header = ("inference-header-content-length", &*len.to_string());
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

#[test]
fn damaged_requests_over_grpc() {
    count_panics();
    let dir = repository();
    let mut limited = options(&[dir.path()]);
    limited.limits.time = Duration::from_secs(2);
    let server = start(limited);
    let address = server.addresses().grpc.unwrap();
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
    for seed in 0..ROUNDS / 5 {
        let mut rng = Rng::with_seed(seed);
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
        match rng.u8(..4) {
            0 => mutate(&mut headers, &mut rng),
            1 => mutate(&mut data, &mut rng),
            _ => {}
        }
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        bytes.extend(frame(1, 4, 1, &headers));
        bytes.extend(frame(0, 1, 1, &data));
        if rng.u8(..4) == 0 {
            mutate(&mut bytes, &mut rng);
        } else {
            // A farewell, so that the server closes when it has answered.
            bytes.extend(frame(7, 0, 0, &[0; 8]));
        }
        send(address, &bytes);
    }
    let mut metrics = Client::to(server.addresses().metrics.unwrap());
    let text = metrics.get("/metrics").text();
    let answered = text.lines().find(|l| l.starts_with("nv_inference_request_success{")).unwrap();
    assert!(!answered.ends_with(" 0"), "some requests were whole: {answered}");
    assert_eq!(PANICS.load(Relaxed), 0);
}
