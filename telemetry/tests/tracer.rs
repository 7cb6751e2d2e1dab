//! A tracer and a collector. The environment says how, so what a case does is a process: this program again.

use std::process::Command;
use std::time::{Duration, Instant};

use of_telemetry::{KeyValue, SpanKind, Status, TraceParent, Tracer, TracerOptions};
use of_test_support::collector::{Collector, Received};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The variable by which a child knows that it is one, and its endpoint.
const ENDPOINT: &str = "OF_TEST_ENDPOINT";

/// What the child does: three traces of a whole and a part, of which the second continues one and the third is part of one that is not
/// sampled.
fn traces(options: &TracerOptions) {
    let tracer = match Tracer::start(options) {
        Ok(Some(tracer)) => tracer,
        Ok(None) => return println!("no tracer"),
        Err(e) => return println!("error: {e}"),
    };
    println!("endpoint: {}", tracer.endpoint());
    let parent = TraceParent::read(PARENT.as_bytes()).unwrap().with_state(Some(b"rojo=1"));
    let not_sampled = TraceParent::read(PARENT.replace("-01", "-00").as_bytes()).unwrap();
    for parent in [None, Some(&parent), Some(&not_sampled)] {
        let start = Instant::now();
        let Some(trace) = tracer.begin(parent) else { continue };
        let part = trace.open();
        trace.span(part, "task", (start, start + Duration::from_micros(5)), vec![KeyValue::new("of.task", 7)]);
        trace.end(part, trace.root(), "run", (start, start + Duration::from_micros(10)), Vec::new());
        let end = (SpanKind::Server, Status::error("no"));
        trace.end_root("whole", end, (start, start + Duration::from_micros(20)), Vec::new());
        assert!(parent.is_none() || trace.parent().to_string().starts_with(&PARENT[..36]));
    }
    tracer.finish(of_telemetry::LAST);
}

/// The output of this program in an environment.
fn output_of(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env_clear().env(ENDPOINT, arguments.first().copied().unwrap_or_default());
    let output = command.envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The cases, or in a child what it does.
fn main() {
    if let Ok(endpoint) = std::env::var(ENDPOINT) {
        tracing_subscriber::fmt().with_writer(std::io::stdout).with_ansi(false).without_time().init();
        return traces(&TracerOptions { endpoint: Some(endpoint).filter(|text| !text.is_empty()) });
    }
    spans_arrive_over_http_and_grpc();
    endpoints_are_those_of_the_options_and_of_traces_first();
    samplers_and_switches_are_honoured();
    a_collector_that_is_not_there_is_reported_once();
    println!("all cases passed");
}

fn named<'s>(spans: &'s [Received], name: &str) -> Vec<&'s Received> {
    spans.iter().filter(|span| span.name() == name).collect()
}

fn check(spans: &[Received]) {
    assert_eq!(spans.len(), 6);
    let (wholes, runs, tasks) = (named(spans, "whole"), named(spans, "run"), named(spans, "task"));
    for ((whole, run), task) in wholes.iter().zip(&runs).zip(&tasks) {
        assert!(run.is_part_of(whole) && task.is_part_of(run), "{whole:?} {run:?} {task:?}");
        assert_eq!((task.attribute("of.task").as_deref(), whole.span.kind), (Some("7"), SpanKind::Server as i32 + 1));
        assert_eq!(whole.span.status.as_ref().map(|status| status.message.as_str()), Some("no"));
    }
    assert_eq!((wholes[0].parent(), wholes[0].span.trace_state.as_str()), (String::new(), ""));
    assert_ne!(wholes[0].trace(), wholes[1].trace());
    assert_eq!((wholes[1].trace(), wholes[1].parent()), (PARENT[3..35].into(), PARENT[36..52].into()));
    assert_eq!(wholes[1].span.trace_state, "rojo=1");
}

fn spans_arrive_over_http_and_grpc() {
    for protocol in ["http/protobuf", "grpc"] {
        let collector = Collector::start();
        let endpoint = collector.endpoint();
        let output = output_of(
            &[],
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret"),
                ("OTEL_SERVICE_NAME", "tests"),
                ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab"),
            ],
        );
        assert!(output.contains(&format!("endpoint: {endpoint}")), "{output}");
        let spans = collector.spans();
        check(&spans);
        assert_eq!(spans[0].of_process("service.name").as_deref(), Some("tests"), "{protocol}");
        assert_eq!(spans[0].of_process("deployment.environment").as_deref(), Some("lab"));
        assert_eq!(spans[0].authorization.as_deref(), Some("secret"));
    }
}

fn endpoints_are_those_of_the_options_and_of_traces_first() {
    let collector = Collector::start();
    let whole = format!("{}/v1/traces", collector.endpoint());
    output_of(&[&whole], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")]);
    check(&collector.spans());
    assert_eq!(collector.spans()[0].of_process("service.name").as_deref(), Some("of-opt"));
    let collector = Collector::start();
    let whole = format!("{}/v1/traces", collector.endpoint());
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &whole[..]);
    output_of(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), traces]);
    check(&collector.spans());
}

fn samplers_and_switches_are_honoured() {
    let collector = Collector::start();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()[..]);
    for (variable, expected) in [
        (("OTEL_SDK_DISABLED", "true"), "no tracer"),
        (("OTEL_TRACES_EXPORTER", "none"), "no tracer"),
        (("OTEL_TRACES_EXPORTER", "zipkin"), "by otlp only"),
        (("OTEL_TRACES_SAMPLER", "always_off"), "endpoint"),
        (("OTEL_TRACES_SAMPLER", "xray"), "the samplers are always_on"),
        (("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"), "http/protobuf and grpc"),
    ] {
        let output = output_of(&[], &[endpoint, variable]);
        assert!(output.contains(expected), "{variable:?}: {output}");
    }
    assert_eq!(collector.spans().len(), 0);
    assert!(output_of(&[], &[]).contains("no tracer"));
    assert!(output_of(&["no url"], &[]).contains("error: traces for 'no url'"));
    output_of(&[], &[endpoint, ("OTEL_TRACES_SAMPLER", "parentbased_always_off")]);
    assert_eq!(collector.spans().len(), 3, "what a caller sampled");
}

fn a_collector_that_is_not_there_is_reported_once() {
    let batches = [("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000")];
    for protocol in ["http/protobuf", "grpc"] {
        let environment = [batches[0], batches[1], ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)];
        let output = output_of(&["http://127.0.0.1:1/v1/traces"], &environment);
        assert_eq!(output.matches("takes no spans, which are lost meanwhile").count(), 1, "{output}");
        assert!(output.contains("6 spans did not reach the collector"), "{output}");
    }
}
