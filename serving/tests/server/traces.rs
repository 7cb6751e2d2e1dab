//! Spans of requests, as a collector receives them.

use std::time::Duration;

use crate::common::{Client, binary_request, options, repository, start, wait_for};
use crate::grpc::client_with;
use of_serving::proto::ModelInferRequest;
use of_serving::proto::model_infer_request::InferInputTensor;
use of_serving::{Server, ServerOptions, Traces};
use of_telemetry::{Tracer, TracerOptions};
use of_test_support::collector::{Collector, Received};
use serde_json::{Value, json};

const INFER: &str = "/v2/models/digits/infer";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Sends spans to a collector.
pub fn tracer(collector: &Collector) -> Tracer {
    let endpoint = Some(format!("{}/v1/traces", collector.endpoint()));
    Tracer::start(&TracerOptions { endpoint }).unwrap().unwrap()
}

/// A server whose spans go to a collector.
fn traced(collector: &Collector, change: impl FnOnce(&mut ServerOptions)) -> (tempfile::TempDir, Server) {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.tracer = Some(tracer(collector));
    change(&mut options);
    (dir, start(options))
}

fn infer(client: &mut Client, headers: &[(&str, &str)]) {
    let (body, len) = binary_request(1, |i| i as f32);
    let length = len.to_string();
    let headers: Vec<_> = headers.iter().copied().chain([("inference-header-content-length", &length[..])]).collect();
    let answer = client.send("POST", INFER, &headers, &body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn wholes(spans: &[Received]) -> Vec<Received> {
    spans.iter().filter(|span| span.span.kind == 2).cloned().collect()
}

/// The parts of a span, by their start.
fn parts<'s>(spans: &'s [Received], whole: &Received) -> Vec<&'s Received> {
    let mut parts: Vec<&Received> = spans.iter().filter(|span| span.is_part_of(whole)).collect();
    parts.sort_by_key(|part| part.span.start_time_unix_nano);
    parts
}

fn names(parts: &[&Received]) -> Vec<String> {
    parts.iter().map(|part| part.name().to_owned()).collect()
}

/// The tasks that a profile of the model names.
fn tasks() -> Vec<String> {
    let plan = of_plan::PlanFile::from_bytes(crate::common::digits_plan()).unwrap();
    plan.plan().programs[0].tasks.iter().map(|task| task.name.clone()).collect()
}

#[test]
fn a_request_over_http_has_its_parts_and_tasks() {
    let collector = Collector::start();
    let (_dir, server) = traced(&collector, |_| {});
    let mut client = Client::new(&server);
    infer(&mut client, &[("user-agent", "tests/1")]);
    infer(&mut client, &[("traceparent", PARENT), ("tracestate", "rojo=1")]);
    infer(&mut client, &[("traceparent", &PARENT.replace("-01", "-00"))]);
    infer(&mut client, &[("traceparent", "no parent")]);
    let wrong = client.post(INFER, b"{\"inputs\": []}");
    assert_eq!(wrong.status, 400);
    assert!(server.drain());
    let spans = collector.spans();
    let wholes = wholes(&spans);
    assert_eq!(wholes.len(), 4, "the caller of one did not sample it");
    let first = &wholes[0];
    assert_eq!((first.name(), first.parent()), ("POST /v2/models/{model}/infer", String::new()));
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/v2/models/{model}/infer"),
        ("url.path", INFER),
        ("url.scheme", "http"),
        ("http.response.status_code", "200"),
        ("user_agent.original", "tests/1"),
        ("of.model.name", "digits"),
        ("of.model.version", "1"),
    ] {
        assert_eq!(first.attribute(name).as_deref(), Some(value), "{name}");
    }
    for whole in &wholes[..3] {
        let own = parts(&spans, whole);
        assert_eq!(names(&own), ["receive", "decode", "queue", "run", "encode"]);
        let run = own[3];
        assert_eq!(run.attribute("of.batch.requests").as_deref(), Some("1"));
        assert_eq!(
            names(&parts(&spans, run)).iter().collect::<std::collections::BTreeSet<_>>(),
            tasks().iter().collect()
        );
    }
    let second = &wholes[1];
    assert_eq!((second.trace(), second.parent()), (PARENT[3..35].into(), PARENT[36..52].into()));
    assert_eq!(second.span.trace_state, "rojo=1");
    let failed = &wholes[3];
    assert_eq!(failed.attribute("http.response.status_code").as_deref(), Some("400"));
    assert!(
        failed.attribute("of.refusal").unwrap().contains("'image'") && failed.span.status.as_ref().unwrap().code == 0
    );
}

#[test]
fn requests_of_a_batch_share_the_run_and_have_traces_of_their_own() {
    let collector = Collector::start();
    let (_dir, server) = traced(&collector, |options| {
        options.repository.defaults.max_queue_delay = Duration::from_secs(5);
        options.repository.defaults.preferred_batch_sizes = vec![2];
    });
    // The first batch of a size is compared with runs alone.
    for _ in 0..2 {
        std::thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(|| infer(&mut Client::new(&server), &[]))));
        });
    }
    assert!(server.drain());
    let spans = collector.spans();
    let wholes = wholes(&spans);
    assert_eq!(wholes.len(), 4);
    let batched: Vec<_> = wholes.iter().map(|whole| parts(&spans, whole)).filter(|own| own.len() == 7).collect();
    assert_eq!(batched.len(), 2, "{:?}", wholes.iter().map(|whole| names(&parts(&spans, whole))).collect::<Vec<_>>());
    for own in &batched {
        assert_eq!(names(own), ["receive", "decode", "queue", "batch", "run", "split", "encode"]);
        assert_eq!(own[4].attribute("of.batch.requests").as_deref(), Some("2"));
        assert_eq!(parts(&spans, own[4]).len(), tasks().len());
    }
    assert_ne!(batched[0][4].trace(), batched[1][4].trace());
    let [first, second] = [0, 1].map(|at: usize| batched[at][4].span.start_time_unix_nano);
    assert!(first.abs_diff(second) < 1000, "{first} and {second}");
}

#[test]
fn requests_over_grpc_continue_the_trace_of_their_metadata() {
    let collector = Collector::start();
    let dir = repository();
    let (mut client, core) = client_with(dir.path(), Traces::new(Some(tracer(&collector)), 1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let request = || ModelInferRequest {
        model_name: "digits".into(),
        id: "7".into(),
        inputs: vec![InferInputTensor {
            name: "image".into(),
            datatype: "FP32".into(),
            shape: vec![1, 1, 8, 8],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![0; 256].into()],
        ..Default::default()
    };
    let with_parent = |mut request: tonic::Request<ModelInferRequest>| {
        request.metadata_mut().insert("traceparent", PARENT.parse().unwrap());
        request
    };
    runtime.block_on(async {
        client.model_infer(with_parent(tonic::Request::new(request()))).await.unwrap();
        let mut stream = tonic::Request::new(tokio_stream::iter(vec![request(), ModelInferRequest::default()]));
        stream.metadata_mut().insert("traceparent", PARENT.parse().unwrap());
        let mut answers = client.model_stream_infer(stream).await.unwrap().into_inner();
        while let Some(_answer) = answers.message().await.unwrap() {}
    });
    core.traces.finish();
    let spans = collector.spans();
    let wholes = wholes(&spans);
    let of =
        |method: &str| -> Vec<&Received> { wholes.iter().filter(|whole| whole.name().ends_with(method)).collect() };
    let (alone, stream) = (of("/ModelInfer"), of("/ModelStreamInfer"));
    assert_eq!((alone.len(), stream.len()), (1, 2));
    assert_eq!(alone[0].name(), "inference.GRPCInferenceService/ModelInfer");
    for (name, value) in [
        ("rpc.system", "grpc"),
        ("rpc.service", "inference.GRPCInferenceService"),
        ("rpc.method", "ModelInfer"),
        ("rpc.grpc.status_code", "0"),
        ("of.request.id", "7"),
    ] {
        assert_eq!(alone[0].attribute(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(names(&parts(&spans, alone[0])), ["decode", "queue", "run", "encode"]);
    assert!(wholes.iter().all(|whole| whole.trace() == PARENT[3..35] && whole.parent() == PARENT[36..52]));
    assert!(stream.iter().any(|whole| whole.attribute("rpc.grpc.status_code").as_deref() == Some("5")));
}

#[test]
fn settings_say_which_requests_are_traced() {
    let collector = Collector::start();
    let (_dir, server) = traced(&collector, |options| options.trace_rate = 1000);
    let mut client = Client::new(&server);
    let shown = client.get("/v2/trace/setting").json();
    let all = json!({"trace_level": ["TIMESTAMPS"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0",
        "trace_file": "", "trace_mode": "opentelemetry"});
    assert_eq!(shown, all);
    let mut set = |path: &str, settings: Value| client.post(path, settings.to_string().as_bytes());
    let of_model = "/v2/models/digits/trace/setting";
    let changed = set(of_model, json!({"trace_rate": "2", "trace_count": "2"}));
    assert_eq!(
        (changed.status, &changed.json()["trace_rate"], &changed.json()["trace_count"]),
        (200, &json!("2"), &json!("2"))
    );
    assert_eq!(set("/v2/models/none/trace/setting", json!({})).status, 404);
    for (settings, status, what) in [
        (json!({"trace_level": ["TENSORS"]}), 501, "no tensors"),
        (json!({"trace_file": "x"}), 501, "to no file"),
        (json!({"trace_rate": 2}), 400, "neither null nor a string"),
        (json!({"trace_level": [1]}), 400, "a list of strings"),
        (json!({"x": "1"}), 400, "no trace setting 'x'"),
    ] {
        let refused = set("/v2/trace/setting", settings);
        assert!(refused.status == status && refused.text().contains(what), "{}", refused.text());
    }
    // Every second one, and two of them.
    (0..7).for_each(|_| infer(&mut client, &[]));
    // A caller's trace goes on whatever the rate is.
    infer(&mut client, &[("traceparent", PARENT)]);
    assert_eq!(client.get(of_model).json()["trace_count"], "0");
    let off = client.post("/v2/trace/setting", br#"{"trace_level": ["OFF"]}"#);
    assert_eq!(off.json()["trace_level"], json!(["OFF"]));
    infer(&mut client, &[("traceparent", PARENT)]);
    let cleared = client.post(of_model, br#"{"trace_rate": null, "trace_count": null}"#).json();
    assert_eq!((&cleared["trace_level"], &cleared["trace_rate"]), (&json!(["OFF"]), &json!("1000")));
    assert!(server.drain());
    assert_eq!(wholes(&collector.spans()).len(), 3);
}

#[test]
fn a_client_that_leaves_ends_its_span_as_an_error() {
    let collector = Collector::start();
    let (_dir, server) = traced(&collector, |options| {
        options.repository.defaults.max_queue_delay = Duration::from_secs(60);
    });
    let mut client = Client::new(&server);
    let (body, len) = binary_request(1, |_| 0.0);
    let head = format!(
        "POST {INFER} HTTP/1.1\r\nhost: x\r\ninference-header-content-length: {len}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write(head.as_bytes()).unwrap();
    client.write(&body).unwrap();
    let stats = |server: &Server| Client::new(server).get("/v2/models/digits/stats").json()["model_stats"][0].clone();
    wait_for("the request", || {
        Client::to(server.addresses().metrics.unwrap())
            .get("/metrics")
            .text()
            .contains("nv_inference_pending_request_count{model=\"digits\",version=\"1\"} 1")
    });
    drop(client);
    wait_for("its end", || stats(&server)["inference_stats"]["fail"]["count"] == 1);
    assert!(server.drain());
    let wholes = wholes(&collector.spans());
    assert_eq!(wholes.len(), 1);
    assert!(wholes[0].span.status.as_ref().unwrap().message.contains("the client left"));
}

#[test]
fn requests_do_not_wait_for_a_collector_that_does_not_answer() {
    // It accepts connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Some(format!("http://{}/v1/traces", silent.local_addr().unwrap()));
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.tracer = Tracer::start(&TracerOptions { endpoint }).unwrap();
    let server = start(options);
    let mut client = Client::new(&server);
    // Each has about ten spans, so these are several times as many as the queue holds.
    (0..2000).for_each(|_| infer(&mut client, &[]));
    let success =
        client.get("/v2/models/digits/stats").json()["model_stats"][0]["inference_stats"]["success"]["count"].clone();
    assert_eq!(success, 2000);
}
