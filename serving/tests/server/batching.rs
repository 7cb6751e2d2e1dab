//! Batches: their results are those of requests alone, and models whose rows depend on one another are not batched.

use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use crate::common::{Client, binary_request, options, put, repository, start, text_plan};
use of_serving::{Server, ServerOptions};

const LENGTH: &str = "inference-header-content-length";

/// A server that waits for batches of up to eight rows.
fn batching(dir: &Path) -> ServerOptions {
    let mut options = options(&[dir]);
    options.repository.defaults.max_queue_delay = Duration::from_millis(300);
    options
}

/// What each of so many clients gets that ask at the same time; the client decides the pixels.
fn ask(server: &Server, model: &str, clients: usize, rows: impl Fn(usize) -> usize + Sync) -> Vec<Vec<u8>> {
    let barrier = Barrier::new(clients);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|client| {
                let (barrier, rows) = (&barrier, &rows);
                scope.spawn(move || {
                    let (body, len) = binary_request(rows(client), |i| ((i * 31 + client * 7) % 23) as f32 * 0.71);
                    let mut connection = Client::new(server);
                    barrier.wait();
                    let path = format!("/v2/models/{model}/infer");
                    let answer = connection.send("POST", &path, &[(LENGTH, &len.to_string())], &body).unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    answer.body
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn largest_batch(server: &Server, model: &str) -> u64 {
    let stats = Client::new(server).get(&format!("/v2/models/{model}/stats")).json();
    let batches = stats["model_stats"][0]["batch_stats"].as_array().unwrap().clone();
    batches.iter().map(|b| b["batch_size"].as_u64().unwrap()).max().unwrap()
}

#[test]
fn batched_results_have_the_bits_of_results_alone() {
    let dir = repository();
    let mut alone = options(&[dir.path()]);
    alone.repository.no_batching = true;
    let alone = start(alone);
    let batched = start(batching(dir.path()));
    let rows = |client: usize| 1 + client % 2;
    let expected: Vec<_> = (0..5)
        .map(|client| {
            let (body, len) = binary_request(rows(client), |i| ((i * 31 + client * 7) % 23) as f32 * 0.71);
            Client::new(&alone)
                .send("POST", "/v2/models/digits/infer", &[(LENGTH, &len.to_string())], &body)
                .unwrap()
                .body
        })
        .collect();
    // The first round of a batch size compares it with runs alone, the later ones take the results of the batch.
    for _ in 0..4 {
        assert_eq!(ask(&batched, "digits", 5, rows), expected);
    }
    assert!(largest_batch(&batched, "digits") > 2, "requests were batched");
    let data = Client::new(&batched).get("/status/data").json();
    assert_eq!(data["models"][0]["batching"], "on");
}

#[test]
fn rows_that_depend_on_one_another_end_batching() {
    let dir = tempfile::tempdir().unwrap();
    // The mean of all rows is subtracted from each.
    let text = "func @main(%image: tensor<?(N)x1x8x8xf32>) -> (tensor<?(N)x1x8x8xf32>) {
        %axes = of.constant {value = dense<[0]> : tensor<1xi64>} : () -> tensor<1xi64>
        %mean = of.reduce_mean %image, %axes {keepdims = true} : (tensor<?(N)x1x8x8xf32>, tensor<1xi64>) -> tensor<1x1x8x8xf32>
        %y = of.sub %image, %mean : (tensor<?(N)x1x8x8xf32>, tensor<1x1x8x8xf32>) -> tensor<?(N)x1x8x8xf32>
        of.return %y : (tensor<?(N)x1x8x8xf32>) -> ()
    }";
    put(dir.path(), "mean.plan", &text_plan(text));
    let server = start(batching(dir.path()));
    let first = ask(&server, "mean", 4, |_| 1);
    // A row less its own mean is zero.
    for body in &first {
        assert!(body.ends_with(&[0; 256]), "each client got the result of its request alone");
    }
    let data = Client::new(&server).get("/status/data").json();
    let why = data["models"][0]["batching"].as_str().unwrap();
    assert!(why.contains("differs when they run in a batch"), "{why}");
    assert_eq!(ask(&server, "mean", 4, |_| 1), first);
}

#[test]
fn full_queues_refuse_requests_and_deadlines_end_them() {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.repository.defaults.max_queue_size = 2;
    options.repository.defaults.max_queue_delay = Duration::from_secs(2);
    let server = start(options);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|client| {
                let server = &server;
                scope.spawn(move || {
                    // The two that are in the queue wait for a third, or for their deadline.
                    std::thread::sleep(Duration::from_millis(50 * client));
                    let request =
                        "{\"inputs\":[{\"name\":\"image\",\"shape\":[1,1,8,8],\"datatype\":\"FP32\",\"data\":[0";
                    let request = format!("{request}{}]}}],\"parameters\":{{\"timeout\":400000}}}}", ",0".repeat(63));
                    Client::new(server).post("/v2/models/digits/infer", request.as_bytes()).status
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!((&statuses[..2], &statuses[2..]), (&[504, 504][..], &[429; 4][..]));
}

/// As long as its first input says.
const LONG: &str = r#"
func @main(%n: tensor<i64> {of.name = "n"}, %x: tensor<1024xf32> {of.name = "x"}) -> (tensor<1024xf32> {of.name = "y"}) {
  %none = of.none
  %y = of.loop %n, %none, %x : (tensor<i64>, none, tensor<1024xf32>) -> tensor<1024xf32> {
  ^(%i: tensor<i64>, %c: tensor<i1>, %s: tensor<1024xf32>):
    %m = of.sin %s : (tensor<1024xf32>) -> tensor<1024xf32>
    of.yield %c, %m : (tensor<i1>, tensor<1024xf32>) -> ()
  }
  of.return %y : (tensor<1024xf32>) -> ()
}"#;

#[test]
fn requests_that_would_begin_too_late_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "long/1/model.plan", &text_plan(LONG));
    let server = &start(options(&[dir.path()]));
    let run = |n: u32, parameters: &str| {
        let x = vec!["0"; 1024].join(",");
        let body = format!(
            r#"{{"inputs":[{{"name":"n","shape":[],"datatype":"INT64","data":[{n}]}},{{"name":"x","shape":[1024],"datatype":"FP32","data":[{x}]}}],"parameters":{{{parameters}}}}}"#
        );
        Client::new(server).post("/v2/models/long/infer", body.as_bytes())
    };
    // Without a run before, nothing is known, and the request is accepted.
    assert_eq!(run(1_000_000, r#""timeout":60000000"#).status, 200);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| run(1_000_000, "").status)).collect();
        let mut metrics = Client::to(server.addresses().metrics.unwrap());
        let pending = "nv_inference_pending_request_count{model=\"long\",version=\"1\"} 2";
        crate::common::wait_for("a queue", || metrics.get("/metrics").text().contains(pending));
        let refused = run(1, r#""timeout":1000"#);
        assert!(refused.status == 429 && refused.text().contains("behind its deadline"), "{}", refused.text());
        // One that can wait gets its answer.
        assert_eq!(run(1, r#""timeout":60000000"#).status, 200);
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 200));
    });
}

/// A model that repeats a step, so many times as said or for ever.
fn loop_of(trip_count: &str, condition: &str) -> String {
    format!(
        r#"
func @main(%x: tensor<1024xf32> {{of.name = "x"}}) -> (tensor<1024xf32> {{of.name = "y"}}) {{
  %n = {trip_count}
  %go = {condition}
  %y = of.loop %n, %go, %x {{
  ^(%i: tensor<i64>, %c: tensor<i1>, %s: tensor<1024xf32>):
    %m = of.sin %s
    of.yield %c, %m
  }}
  of.return %y
}}"#
    )
}

#[test]
fn a_trial_run_tells_how_long_the_first_requests_take() {
    let dir = tempfile::tempdir().unwrap();
    let long = loop_of("of.constant {value = dense<100000> : tensor<i64>}", "of.none");
    put(dir.path(), "long/1/model.plan", &text_plan(&long));
    // Never ends, so that its trial is ended.
    let endless = loop_of("of.none", "of.constant {value = dense<true> : tensor<i1>}");
    put(dir.path(), "endless/1/model.plan", &text_plan(&endless));
    let server = &start(options(&[dir.path()]));
    let run = |model: &str, parameters: &str| {
        let x = vec!["0"; 1024].join(",");
        let body = format!(
            r#"{{"inputs":[{{"name":"x","shape":[1024],"datatype":"FP32","data":[{x}]}}],"parameters":{{{parameters}}}}}"#
        );
        Client::new(server).post(&format!("/v2/models/{model}/infer"), body.as_bytes())
    };
    std::thread::scope(|scope| {
        // None of them has run before.
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| run("long", "").status)).collect();
        let mut metrics = Client::to(server.addresses().metrics.unwrap());
        let pending = "nv_inference_pending_request_count{model=\"long\",version=\"1\"} 2";
        crate::common::wait_for("a queue", || metrics.get("/metrics").text().contains(pending));
        let refused = run("long", r#""timeout":1000"#);
        assert!(refused.status == 429 && refused.text().contains("behind its deadline"), "{}", refused.text());
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 200));
    });
    let text = Client::new(server).get("/v2/models/endless/ready");
    assert_eq!(text.status, 200);
}

#[test]
fn requests_of_clients_that_leave_are_dropped() {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.repository.defaults.max_queue_delay = Duration::from_secs(1);
    let server = start(options);
    let (body, len) = binary_request(1, |_| 0.0);
    let mut client = Client::new(&server);
    let head = format!(
        "POST /v2/models/digits/infer HTTP/1.1\r\nhost: x\r\n{LENGTH}: {len}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write(head.as_bytes()).unwrap();
    client.write(&body).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(client);
    let mut metrics = Client::to(server.addresses().metrics.unwrap());
    crate::common::wait_for("the cancellation", || metrics.get("/metrics").text().contains("reason=\"CANCELED\"} 1"));
    std::thread::sleep(Duration::from_millis(1200));
    assert!(metrics.get("/metrics").text().contains("nv_inference_exec_count{model=\"digits\",version=\"1\"} 0"));
}
