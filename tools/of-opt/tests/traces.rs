//! Traces of runs, trainings and requests, as a collector receives them.

#![cfg(feature = "serve")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use of_test_support::collector::{Collector, Received};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn digits(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").canonicalize().unwrap().join(name)
}

/// `of-opt` without the variables of launchers and of OpenTelemetry, which the tests may have.
fn of_opt(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    let launchers =
        ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];
    let telemetry =
        ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED", "TRACEPARENT"];
    for name in launchers.iter().chain(&telemetry) {
        command.env_remove(name);
    }
    command.args(args);
    command
}

fn finished(command: &mut Command) -> String {
    let out = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}");
    text
}

fn named<'s>(spans: &'s [Received], name: &str) -> Vec<&'s Received> {
    spans.iter().filter(|span| span.name() == name).collect()
}

fn parts<'s>(spans: &'s [Received], whole: &Received) -> Vec<&'s Received> {
    spans.iter().filter(|span| span.is_part_of(whole)).collect()
}

/// The names of the tasks in the timeline of a profile.
fn tasks_of_profile(dir: &Path) -> BTreeSet<String> {
    let file = dir.join("trace.json");
    finished(of_opt(&["profile", "--shape", "N=4", "--trace"]).arg(&file).arg(digits("digits.onnx")));
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    events.map(|event| event["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn runs_have_spans_with_the_tasks_of_the_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let model = digits("digits.onnx");
    let run = || of_opt(&["run", model.to_str().unwrap(), "--shape", "N=4", "--iterations", "4", "--trace-rate", "2"]);
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint());
    let plain = finished(&mut run());
    let traced = finished(run().env(endpoint.0, &endpoint.1).env("TRACEPARENT", PARENT));
    assert_eq!(plain, traced, "traces change no output");
    let spans = collector.spans();
    let wholes = named(&spans, "of-opt run");
    assert_eq!(wholes.len(), 1);
    assert_eq!((wholes[0].trace(), wholes[0].parent()), (PARENT[3..35].into(), PARENT[36..52].into()));
    let runs = parts(&spans, wholes[0]);
    let steps: Vec<_> = runs.iter().map(|run| (run.name(), run.attribute("of.step").unwrap())).collect();
    assert_eq!(steps, [("run", "0".into()), ("run", "2".into())], "every second run");
    let tasks = tasks_of_profile(dir.path());
    for run in runs {
        let names: BTreeSet<String> = parts(&spans, run).iter().map(|task| task.name().to_owned()).collect();
        assert_eq!(names, tasks);
    }
    let not_sampled = PARENT.replace("-01", "-00");
    finished(run().env(endpoint.0, &endpoint.1).env("TRACEPARENT", not_sampled));
    finished(run().env(endpoint.0, &endpoint.1).env("OTEL_SDK_DISABLED", "true"));
    assert_eq!(collector.spans().len(), spans.len());
    // A run that fails is an error of its span.
    let failed = of_opt(&["run", "none.onnx", "--trace-endpoint"]).arg(format!("{}/v1/traces", endpoint.1)).output();
    assert!(!failed.unwrap().status.success());
    let failed = collector.spans().pop().unwrap();
    assert!(failed.span.status.as_ref().unwrap().message.contains("none.onnx"), "{failed:?}");
}

#[test]
fn ranks_and_their_launcher_have_one_trace() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("ranks.plan");
    finished(
        of_opt(&["compile", "--shape", "N=8", "--mesh", "cpu[2]", "-q", "-o"]).arg(&plan).arg(digits("digits.onnx")),
    );
    let image = format!("image={}", digits("images.npy").display());
    let collector = Collector::start();
    let run = |ranks: &[&str]| {
        let mut command = of_opt(&["run", plan.to_str().unwrap(), "--inputs", &image, "--peer-timeout", "30s"]);
        command.args(ranks).env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint());
        finished(&mut command)
    };
    run(&["--ranks", "2"]);
    let spans = collector.spans();
    let wholes = named(&spans, "of-opt run");
    let launcher = wholes.iter().find(|whole| whole.attribute("of.rank").is_none()).unwrap();
    assert_eq!((wholes.len(), launcher.parent()), (3, String::new()));
    assert!(spans.iter().all(|span| span.trace() == launcher.trace()));
    for rank in ["0", "1"] {
        let whole = wholes.iter().find(|whole| whole.attribute("of.rank").as_deref() == Some(rank)).unwrap();
        assert!(whole.is_part_of(launcher), "{whole:?} {launcher:?}");
        let run = parts(&spans, whole);
        let of_rank = parts(&spans, run[0]);
        assert_eq!((run.len(), run[0].name(), of_rank[0].name()), (1, "run", &format!("rank {rank}")[..]));
        assert!(parts(&spans, of_rank[0]).len() > 3);
    }
    // Ranks that are threads.
    let before = collector.spans().len();
    run(&[]);
    let spans = &collector.spans()[before..];
    let run = named(spans, "run")[0];
    let ranks: Vec<_> = parts(spans, run).iter().map(|rank| rank.name().to_owned()).collect();
    assert_eq!(ranks, ["rank 0", "rank 1"]);
}

#[test]
fn steps_of_a_training_have_spans() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let mut train = of_opt(&["train"]);
    train.arg(digits("untrained.onnx")).arg("--data").arg(digits("train.npz")).current_dir(dir.path());
    train.args(["--threads", "1", "--batch", "96", "--epochs", "1", "--trace-rate", "4", "-o", "m.safetensors"]);
    train.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()).env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    finished(&mut train);
    let spans = collector.spans();
    let whole = named(&spans, "of-opt train")[0];
    let steps = named(&spans, "step");
    let numbers: Vec<_> = steps.iter().map(|step| step.attribute("of.step").unwrap()).collect();
    assert_eq!(numbers, ["0", "4", "8", "12"]);
    for step in steps {
        assert!(step.is_part_of(whole) && parts(&spans, step).len() > 10, "{step:?}");
    }
}

#[test]
fn a_signal_loses_no_spans() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let mut train = of_opt(&["train"]);
    train.arg(digits("untrained.onnx")).arg("--data").arg(digits("train.npz")).current_dir(dir.path());
    train.args(["--threads", "1", "--epochs", "100000", "-q", "-o", "m.safetensors"]).stdout(Stdio::null());
    train.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let mut train = train.spawn().unwrap();
    while named(&collector.spans(), "step").is_empty() {
        assert!(train.try_wait().unwrap().is_none(), "the training has ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&train), rustix::process::Signal::TERM).unwrap();
    assert_eq!(train.wait().unwrap().code(), Some(128 + 15));
    let spans = collector.spans();
    let whole = named(&spans, "of-opt train")[0];
    assert_eq!(whole.span.status.as_ref().unwrap().message, "ended by signal 15");
    // The step that the signal interrupts may end after it.
    for step in named(&spans, "step") {
        assert_eq!(step.span.parent_span_id, whole.span.span_id, "{step:?} of {whole:?}");
    }
}

#[test]
fn requests_of_a_server_have_spans() {
    let collector = Collector::start();
    let endpoint = format!("{}/v1/traces", collector.endpoint());
    let model = digits("digits.onnx");
    let flags =
        ["--http-port", "0", "--allow-grpc", "false", "--allow-metrics", "false", "--trace-endpoint", &endpoint];
    let mut serve = of_opt(&["serve", model.to_str().unwrap()]);
    let mut server = serve.args(flags).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap().to_owned();
    let ask = |head: &str, body: &str| -> String {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(
            stream,
            "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    while !ask("GET /v2/health/ready", "").contains(" 200 ") {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let zeros = vec!["0"; 64].join(",");
    let body =
        format!(r#"{{"inputs": [{{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [{zeros}]}}]}}"#);
    let answer = ask("POST /v2/models/digits/infer", &body);
    assert!(answer.contains(" 200 "), "{answer}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    let spans = collector.spans();
    let whole = named(&spans, "POST /v2/models/{model}/infer")[0];
    let names: BTreeSet<_> = parts(&spans, whole).iter().map(|part| part.name().to_owned()).collect();
    assert_eq!(names, ["receive", "decode", "queue", "run", "encode"].map(String::from).into());
}

#[test]
fn traces_that_cannot_be_are_errors() {
    for (args, what) in [
        (&["--trace-endpoint", "no url"][..], "traces for 'no url'"),
        (&["--trace-endpoint", "http://127.0.0.1:4318/v1/traces", "--sandbox"], "traces go over the network"),
        (&["--trace-rate", "0"], "'0' for '--trace-rate <N>'"),
    ] {
        let out = of_opt(&["run", "x.onnx"]).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && text.contains(what), "{text}");
    }
    let mut command = of_opt(&["run", digits("digits.onnx").to_str().unwrap(), "--shape", "N=1", "--sandbox"]);
    let text = finished(command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"));
    assert!(text.contains("has no effect: the sandbox has no network"), "{text}");
}
