//! Pages for people: one to draw a digit, and the state of the server.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use http::header;
use serde_json::{Value, json};

use crate::core::Core;
use crate::metrics::resident_memory;
use crate::model::ModelVersion;
use crate::stats::BUCKETS;

/// A page that sends drawings to a model of small images.
pub async fn digits() -> Response {
    page(include_str!("draw.html"))
}

/// The live page.
pub async fn status() -> Response {
    page(include_str!("status.html"))
}

/// Pages run only what is in them, and talk only to this server.
fn page(text: &'static str) -> Response {
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(text)).into_response()
}

/// What the live page shows.
pub async fn status_data(State(core): State<Arc<Core>>) -> Response {
    let models: Vec<Value> = core.repository.ready().iter().map(|model| of_model(model)).collect();
    let data = json!({
        "ready": core.is_ready(),
        "connections": core.connections.load(Relaxed),
        "memory": resident_memory(),
        "buckets": BUCKETS,
        "models": models,
    });
    super::ok(data)
}

fn of_model(model: &ModelVersion) -> Value {
    let stats = &model.stats;
    let micros = |nanos: u64, count: u64| nanos as f64 / 1000.0 / count.max(1) as f64;
    let batches: Vec<Value> = stats.batches().iter().map(|(size, batch)| json!([size, batch.count])).collect();
    json!({
        "name": model.name,
        "version": model.version,
        "queue": stats.pending.load(Relaxed),
        "queue_size": model.config.max_queue_size,
        "success": stats.success.count(),
        "failure": stats.failure.count(),
        "queue_us": micros(stats.queue.nanos(), stats.queue.count()),
        "run_us": micros(stats.run.nanos(), stats.run.count()),
        "batching": if model.batches { model.batching_is_off().unwrap_or_else(|| "on".into()) } else { "off".into() },
        "batches": batches,
        "latency": stats.latency(),
        "memory": model.memory,
    })
}
