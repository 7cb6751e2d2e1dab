//! Versions that replace one another, models that clients load, and the end of a server, all under load.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{Client, binary_request, digits_plan, example, options, put, repository, start, wait_for};
use of_driver::{Compiler, Model};
use of_serving::ControlMode;
use of_serving::load::{Arrivals, LoadOptions};
use serde_json::json;

const LENGTH: &str = "inference-header-content-length";
const INFER: &str = "/v2/models/digits/infer";

/// A plan with another output for the same input.
fn other_plan() -> Vec<u8> {
    let model = Model::open(example("untrained.onnx")).unwrap();
    Compiler::new().threads(1).compile(model).unwrap().to_bytes().unwrap()
}

/// Clients that ask again and again over one connection each until `stop`; a closed connection is opened again between requests.
/// Returns how many requests were answered, and what went wrong.
fn load(address: SocketAddr, clients: usize, stop: &AtomicBool, answered: &AtomicUsize) -> Vec<String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|client| {
                scope.spawn(move || {
                    let (body, len) = binary_request(1, |i| ((i + client) % 17) as f32);
                    let len = len.to_string();
                    let mut connection = None;
                    while !stop.load(Relaxed) {
                        let kept = connection.take();
                        let is_new = kept.is_none();
                        let mut open = match kept {
                            Some(open) => open,
                            // A server that has ended takes no connection, and so no request is lost.
                            None => match Client::try_to(address) {
                                Ok(open) => open,
                                Err(_) => return None,
                            },
                        };
                        match open.send("POST", INFER, &[(LENGTH, &len)], &body) {
                            Ok(answer) if answer.status == 200 => {
                                answered.fetch_add(1, Relaxed);
                                if answer.header("connection") != Some("close") {
                                    connection = Some(open);
                                }
                            }
                            Ok(answer) => return Some(format!("status {}: {}", answer.status, answer.text())),
                            // The system took the connection as the listener closed: the server has not accepted it.
                            Err(e)
                                if is_new
                                    && e.kind() == std::io::ErrorKind::ConnectionReset
                                    && Client::try_to(address).is_err() =>
                            {
                                return None;
                            }
                            Err(e) => return Some(format!("no answer: {e}")),
                        }
                    }
                    None
                })
            })
            .collect();
        threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn versions_replace_one_another_without_a_lost_request() {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.repository.control = ControlMode::Poll;
    options.repository.poll = Duration::from_millis(20);
    let server = start(options);
    let address = server.addresses().http.unwrap();
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (second, first) = (other_plan(), digits_plan());
    let failures = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(address, 4, &stop, &answered));
        let version = || Client::new(&server).get("/v2/models/digits").json()["versions"].clone();
        wait_for("the first answers", || answered.load(Relaxed) > 100);
        for round in 0..3 {
            put(dir.path(), "digits/2/model.plan", &second);
            wait_for("version 2", || version() == json!(["2"]));
            // A damaged file does not replace what works.
            put(dir.path(), "digits/2/model.plan", &second[..5000 + round]);
            std::thread::sleep(Duration::from_millis(60));
            assert_eq!(version(), json!(["2"]));
            // Back to the first one.
            std::fs::remove_dir_all(dir.path().join("digits/2")).unwrap();
            wait_for("version 1", || version() == json!(["1"]));
            // The same version with another file.
            put(dir.path(), "digits/1/model.plan", if round % 2 == 0 { &second } else { first });
            let output = if round % 2 == 0 { "scores" } else { "probability" };
            let name = || Client::new(&server).get("/v2/models/digits").json()["outputs"][0]["name"].clone();
            wait_for("the other file", || name() == json!(output));
        }
        stop.store(true, Relaxed);
        load.join().unwrap()
    });
    assert_eq!(failures, Vec::<String>::new());
    assert!(answered.load(Relaxed) > 500, "{answered:?}");
    assert!(server.drain());
}

#[test]
fn a_server_that_ends_answers_what_it_has_accepted() {
    let dir = repository();
    let server = start(options(&[dir.path()]));
    let address = server.addresses().http.unwrap();
    let _idle = Client::new(&server);
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let failures = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(address, 4, &stop, &answered));
        wait_for("the first answers", || answered.load(Relaxed) > 200);
        let began = Instant::now();
        assert!(server.drain(), "all was answered");
        assert!(began.elapsed() < Duration::from_secs(5), "an idle connection does not keep it");
        stop.store(true, Relaxed);
        load.join().unwrap()
    });
    assert_eq!(failures, Vec::<String>::new());
    assert!(Client::try_to(address).is_err(), "it takes no connection any more");
}

#[test]
fn clients_load_and_unload_models_where_they_may() {
    let dir = repository();
    let mut explicit = options(&[dir.path()]);
    explicit.repository.control = ControlMode::Explicit;
    let server = start(explicit);
    let mut client = Client::new(&server);
    assert_eq!(client.get("/v2/models/digits/ready").status, 404);
    assert_eq!(client.post("/v2/repository/index", b"{}").json(), json!([{"name": "digits"}]));
    assert_eq!(client.post("/v2/repository/models/digits/load", b"{}").status, 200);
    assert_eq!(client.get("/v2/models/digits/ready").status, 200);
    assert_eq!(client.post("/v2/repository/models/none/load", b"").status, 404);
    let parameters = client.post("/v2/repository/models/digits/load", b"{\"parameters\":{\"config\":\"{}\"}}");
    assert_eq!(parameters.status, 501);
    assert_eq!(client.post("/v2/repository/models/digits/unload", b"").status, 200);
    assert_eq!(client.post("/v2/repository/models/digits/unload", b"").status, 404);
    assert_eq!(client.get("/v2/models/digits/ready").status, 404);
    let server = start(options(&[dir.path()]));
    let refused = Client::new(&server).post("/v2/repository/models/digits/unload", b"");
    assert!(refused.status == 501 && refused.text().contains("--model-control-mode explicit"), "{}", refused.text());
}

#[test]
fn the_load_generator_counts_what_was_answered_and_refused() {
    let dir = repository();
    let server = start(options(&[dir.path()]));
    let mut load = LoadOptions {
        address: server.addresses().http.unwrap(),
        model: "digits".into(),
        shapes: vec![("image".into(), vec![2, 1, 8, 8])],
        rate: 400.0,
        duration: Duration::from_secs(1),
        arrivals: Arrivals::Constant,
        connections: 4,
        seed: 1,
        token: None,
        deadline: None,
    };
    let report = of_serving::load::run(&load).unwrap();
    assert_eq!((report.latencies.len(), report.lost, report.not_sent, report.refused), (400, 0, 0, vec![]));
    load.shapes[0].1[2] = 9;
    load.rate = 50.0;
    assert_eq!(of_serving::load::run(&load).unwrap().refused, [(400, 50)]);
    load.model = "none".into();
    assert!(of_serving::load::run(&load).unwrap_err().contains("there is no model 'none'"));
}

#[test]
fn models_that_exceed_the_memory_budget_are_not_loaded() {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.repository.control = ControlMode::Explicit;
    put(dir.path(), "other/1/model.plan", digits_plan());
    options.repository.load = vec!["digits".into(), "other".into()];
    let server = start(options.clone());
    let memory = |name: &str| server.repository().get(name, "").unwrap().memory;
    // Equal weights count once.
    let (one, other) = (memory("digits"), memory("other"));
    assert!(other > 1000 && other < one, "{one} {other}");
    drop(server);
    options.repository.load = vec!["digits".into()];
    options.repository.memory = Some(one + other - 1);
    let server = start(options);
    let mut client = Client::new(&server);
    let refused = client.post("/v2/repository/models/other/load", b"");
    let limit = one + other - 1;
    let what = format!("needs {other} bytes, and {one} of the {limit} bytes of the memory budget are in use");
    assert!(refused.status == 400 && refused.text().contains(&what), "{}", refused.text());
    assert_eq!(client.get("/v2/models/digits/ready").status, 200);
    assert_eq!(client.get("/v2/models/other/ready").status, 503);
    // What is unloaded makes room.
    assert_eq!(client.post("/v2/repository/models/digits/unload", b"").status, 200);
    assert_eq!(client.post("/v2/repository/models/other/load", b"").status, 200);
    assert_eq!(client.get("/v2/models/other/ready").status, 200);
}
