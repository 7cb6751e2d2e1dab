//! Metrics as Prometheus reads them, under Triton's names.
//!
//! Sources: the text format of Prometheus, version 0.0.4; the chapter on metrics in the documentation of Triton.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use crate::core::Core;
use crate::model::ModelVersion;
use crate::stats::{BUCKETS, Stats};

/// A counter or gauge of each model: name, type, help, value.
type Family = (&'static str, &'static str, &'static str, fn(&Stats) -> u64);

const FAMILIES: [Family; 12] = [
    ("nv_inference_request_success", "counter", "Requests that succeeded", |s| s.success.count()),
    ("nv_inference_count", "counter", "Rows that were inferred", |s| s.rows.load(Relaxed)),
    ("nv_inference_exec_count", "counter", "Runs, each of one batch", |s| s.runs.load(Relaxed)),
    ("nv_inference_request_duration_us", "counter", "Microseconds of requests", |s| s.success.nanos() / 1000),
    ("nv_inference_queue_duration_us", "counter", "Microseconds in the queue", |s| s.queue.nanos() / 1000),
    ("nv_inference_compute_input_duration_us", "counter", "Microseconds of joining batches", |s| {
        s.input.nanos() / 1000
    }),
    ("nv_inference_compute_infer_duration_us", "counter", "Microseconds of runs", |s| s.run.nanos() / 1000),
    ("nv_inference_compute_output_duration_us", "counter", "Microseconds of splitting batches", |s| {
        s.output.nanos() / 1000
    }),
    ("nv_inference_pending_request_count", "gauge", "Requests in the queue", |s| s.pending.load(Relaxed)),
    ("of_sequences", "gauge", "Sequences of requests in progress", |s| s.sequences.load(Relaxed)),
    ("of_sequences_started_total", "counter", "Sequences that have begun", |s| s.sequences_started.load(Relaxed)),
    ("of_sequences_timed_out_total", "counter", "Sequences that ended because they were idle", |s| {
        s.sequences_timed_out.load(Relaxed)
    }),
];

/// The text of all metrics.
pub fn text(core: &Core) -> String {
    let models = core.repository.ready();
    let mut out = String::with_capacity(4096);
    // Writing to a string cannot fail.
    let _ = write(&models, core, &mut out);
    out
}

fn write(models: &[std::sync::Arc<ModelVersion>], core: &Core, out: &mut String) -> std::fmt::Result {
    let label = |model: &ModelVersion| format!("model=\"{}\",version=\"{}\"", escaped(&model.name), model.version);
    for (name, kind, help, value) in FAMILIES {
        header(name, kind, help, out)?;
        for model in models {
            writeln!(out, "{name}{{{}}} {}", label(model), value(&model.stats))?;
        }
    }
    let name = "nv_inference_request_failure";
    header(name, "counter", "Requests that failed, by reason", out)?;
    for model in models {
        for (reason, count) in model.stats.failures() {
            writeln!(out, "{name}{{{},reason=\"{}\"}} {count}", label(model), reason.name())?;
        }
    }
    let name = "nv_inference_first_response_histogram_ms";
    header(name, "histogram", "Milliseconds from arrival to answer", out)?;
    for model in models {
        let (label, mut sum) = (label(model), 0);
        for (index, count) in model.stats.latency().iter().enumerate() {
            sum += count;
            let bound = BUCKETS.get(index).map_or("+Inf".into(), |micros| (*micros as f64 / 1000.0).to_string());
            writeln!(out, "{name}_bucket{{{label},le=\"{bound}\"}} {sum}")?;
        }
        writeln!(out, "{name}_sum{{{label}}} {}", model.stats.success.nanos() as f64 / 1e6)?;
        writeln!(out, "{name}_count{{{label}}} {sum}")?;
    }
    header("nv_cpu_memory_used_bytes", "gauge", "Resident memory of the server", out)?;
    writeln!(out, "nv_cpu_memory_used_bytes {}", resident_memory().unwrap_or(0))?;
    let name = "of_client_refusals_total";
    header(name, "counter", "Requests beyond the limits of their client", out)?;
    for (reason, count) in core.clients.refused() {
        writeln!(out, "{name}{{limit=\"{reason}\"}} {count}")?;
    }
    header("of_connections", "gauge", "Open connections", out)?;
    writeln!(out, "of_connections {}", core.connections.load(Relaxed))
}

fn header(name: &str, kind: &str, help: &str, out: &mut String) -> std::fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Bytes of this process in memory. Source: proc(5), `VmRSS` of `/proc/[pid]/status`.
pub fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
