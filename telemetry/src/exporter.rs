//! What sends spans: OpenTelemetry's queue, and OTLP over HTTP or gRPC.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::TraceError;

/// As many spans wait for the collector where the environment does not say it. A run of a model has a span for each task, so they are
/// more than the 2048 that suffice for requests.
const QUEUE: usize = 1 << 16;

/// What became of spans.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    fails: AtomicBool,
}

impl Counts {
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

/// Starts the queue and its thread. `given` is the endpoint of the command line.
///
/// # Errors
/// When the endpoint or a variable has no meaning.
pub fn start(
    given: Option<&str>,
    endpoint: &str,
    variable: &dyn Fn(&str) -> Option<String>,
    counts: &Arc<Counts>,
) -> Result<(BatchSpanProcessor, Runtime), TraceError> {
    let failed = |what: &str, e: &dyn std::fmt::Display| TraceError(format!("traces for '{endpoint}': {what}: {e}"));
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("of-traces").enable_all().build();
    let runtime = runtime.map_err(|e| failed("no thread", &e))?;
    let protocol = variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").or_else(|| variable("OTEL_EXPORTER_OTLP_PROTOCOL"));
    let exporter = {
        // The channel of gRPC belongs to the runtime that is entered.
        let _entered = runtime.enter();
        match protocol.as_deref().map(str::trim) {
            None | Some("http/protobuf") => {
                // Another crypto provider that was installed first serves as well.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client = reqwest::Client::builder().build().map_err(|e| failed("no client of HTTP", &e))?;
                let builder = Otlp::builder().with_http().with_http_client(client);
                match given {
                    Some(url) => builder.with_endpoint(url).build(),
                    None => builder.build(),
                }
            }
            Some("grpc") => {
                let _ = rustls::crypto::ring::default_provider().install_default();
                let builder = Otlp::builder().with_tonic();
                match given {
                    Some(url) => builder.with_endpoint(url).build(),
                    None => builder.build(),
                }
            }
            Some(other) => {
                let known = "http/protobuf and grpc";
                let what = format!("OTEL_EXPORTER_OTLP_PROTOCOL is '{other}', and the protocols are {known}");
                return Err(TraceError(what));
            }
        }
    };
    let exporter = exporter.map_err(|e| failed("it cannot be used", &e))?;
    let sends = Reported {
        exporter: Arc::new(exporter),
        counts: Arc::clone(counts),
        endpoint: endpoint.to_owned(),
        runtime: runtime.handle().clone(),
    };
    let mut queue = BatchConfigBuilder::default();
    if variable("OTEL_BSP_MAX_QUEUE_SIZE").is_none() {
        queue = queue.with_max_queue_size(QUEUE);
    }
    let mut processor = BatchSpanProcessor::builder(sends).with_batch_config(queue.build()).build();
    processor.set_resource(&resource(variable));
    Ok((processor, runtime))
}

/// What this process is.
fn resource(variable: &dyn Fn(&str) -> Option<String>) -> Resource {
    let named = variable("OTEL_SERVICE_NAME").is_some()
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|list| list.contains("service.name="));
    let builder = Resource::builder();
    let builder = if named { builder } else { builder.with_service_name("of-opt") };
    let process = i64::from(std::process::id());
    builder.with_attribute(opentelemetry::KeyValue::new("process.pid", process)).build()
}

/// Sends spans, and reports a collector that takes none, once until it takes some again.
#[derive(Debug)]
struct Reported {
    exporter: Arc<Otlp>,
    counts: Arc<Counts>,
    endpoint: String,
    runtime: Handle,
}

impl SpanExporter for Reported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let exporter = Arc::clone(&self.exporter);
        // The clients need a runtime around them, which the thread of the queue has not.
        let sent = self.runtime.spawn(async move { exporter.export(batch).await }).await;
        let sent = sent.unwrap_or_else(|e| Err(OTelSdkError::InternalFailure(e.to_string())));
        match &sent {
            Ok(()) => {
                self.counts.sent.fetch_add(count, Relaxed);
                if self.counts.fails.swap(false, Relaxed) {
                    tracing::info!(endpoint = self.endpoint, "the collector takes spans again");
                }
            }
            Err(e) if !self.counts.fails.swap(true, Relaxed) => {
                tracing::warn!(endpoint = self.endpoint, "the collector takes no spans, which are lost meanwhile: {e}");
            }
            Err(e) => tracing::debug!(endpoint = self.endpoint, "the collector takes no spans: {e}"),
        }
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        // The exporter is shared with requests only after this.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}
