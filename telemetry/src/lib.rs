//! Traces by OpenTelemetry: spans of requests, runs, steps and tasks, which a thread sends to a collector by OTLP.
//!
//! [`Tracer::start`] reads the variables of OpenTelemetry. [`Tracer::begin`] decides whether a request or run is sampled, before anything is
//! allocated for it. A [`Trace`] takes spans that have ended: their times are measured anyway, and a span is made of them afterwards.
//!
//! Sources: the specification of OpenTelemetry 1.50, with its environment variables; Trace Context of the W3C.

#![forbid(unsafe_code)]

mod exporter;
mod parent;
mod sampler;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{SpanContext, TraceFlags};
use opentelemetry::{InstrumentationScope, SpanId, TraceId};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor};
use tokio::runtime::Runtime;

pub use opentelemetry::KeyValue;
pub use opentelemetry::trace::{SpanKind, Status};
pub use parent::TraceParent;

use exporter::Counts;
use sampler::Sampling;

/// How long the spans that are left may take to be sent at the end.
pub const LAST: Duration = Duration::from_secs(5);

/// What the command line says of traces. Variables of the environment say the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracerOptions {
    /// Where the collector takes spans; `None` is what the variables say.
    pub endpoint: Option<String>,
}

/// Why there are no traces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TraceError(String);

/// Sends the spans of this process. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Tracer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    processor: BatchSpanProcessor,
    sampling: Sampling,
    scope: InstrumentationScope,
    counts: Arc<Counts>,
    given: AtomicU64,
    endpoint: String,
    /// Sends batches. `None` only when this ends.
    runtime: Option<Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The last owner may be a task of another runtime, which must not wait.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// A span that others name as their parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(SpanId);

/// A sampled request or run.
#[derive(Clone, Debug)]
pub struct Trace {
    inner: Arc<Inner>,
    id: TraceId,
    /// The state of the W3C, which is passed on.
    state: opentelemetry::trace::TraceState,
    /// What the caller's span is.
    remote: Option<SpanId>,
    root: SpanId,
    /// The same moment on both clocks.
    clock: (Instant, SystemTime),
}

impl Tracer {
    /// Starts what sends spans. `None` where neither the options nor the environment name a collector, or the environment
    /// switches traces off.
    ///
    /// # Errors
    /// When a variable or the endpoint has no meaning.
    pub fn start(options: &TracerOptions) -> Result<Option<Tracer>, TraceError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let is_off = |name: &str, off: &str| variable(name).is_some_and(|value| value.trim().eq_ignore_ascii_case(off));
        if is_off("OTEL_SDK_DISABLED", "true") || is_off("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let named = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"));
        let Some(endpoint) = options.endpoint.clone().or(named) else { return Ok(None) };
        if let Some(other) = variable("OTEL_TRACES_EXPORTER").filter(|name| name.trim() != "otlp") {
            return Err(TraceError(format!("OTEL_TRACES_EXPORTER is '{other}', and traces are sent by otlp only")));
        }
        let sampling = Sampling::of_environment(&variable)?;
        let counts = Arc::<Counts>::default();
        let (processor, runtime) = exporter::start(options.endpoint.as_deref(), &endpoint, &variable, &counts)?;
        let scope = InstrumentationScope::builder("of-opt").with_version(env!("CARGO_PKG_VERSION")).build();
        let given = AtomicU64::new(0);
        let inner = Inner { processor, sampling, scope, counts, given, endpoint, runtime: Some(runtime) };
        Ok(Some(Tracer { inner: Arc::new(inner) }))
    }

    /// Where spans go.
    pub fn endpoint(&self) -> &str {
        &self.inner.endpoint
    }

    /// Begins a trace, or a part of the caller's, if it is sampled. Allocates nothing if it is not.
    pub fn begin(&self, parent: Option<&TraceParent>) -> Option<Trace> {
        let id = self.inner.sampling.decide(parent)?;
        let now = (Instant::now(), SystemTime::now());
        Some(Trace {
            inner: Arc::clone(&self.inner),
            id,
            state: parent.map(TraceParent::state).unwrap_or_default(),
            remote: parent.map(|parent| parent.span),
            root: new_span(),
            clock: now,
        })
    }

    /// Sends what is left within some time. Spans that come later are lost.
    pub fn finish(&self, within: Duration) {
        // A collector that cannot be reached has been reported.
        let _ = self.inner.processor.shutdown_with_timeout(within);
        let lost = self.inner.given.load(Relaxed).saturating_sub(self.inner.counts.sent());
        if lost > 0 {
            let hint = "OTEL_BSP_MAX_QUEUE_SIZE is how many may wait, and OTEL_TRACES_SAMPLER takes fewer";
            tracing::warn!(endpoint = self.inner.endpoint, "{lost} spans did not reach the collector; {hint}");
        }
    }
}

fn new_span() -> SpanId {
    SpanId::from(fastrand::u64(1..))
}

impl Trace {
    /// The span of the whole.
    pub fn root(&self) -> Span {
        Span(self.root)
    }

    /// A span that gets its times later, with [`Trace::end`].
    pub fn open(&self) -> Span {
        Span(new_span())
    }

    /// A part that has ended.
    pub fn span(
        &self,
        parent: Span,
        name: impl Into<Cow<'static, str>>,
        times: (Instant, Instant),
        attributes: Vec<KeyValue>,
    ) -> Span {
        let span = self.open();
        self.end(span, parent, name, times, attributes);
        span
    }

    /// The part that was opened has ended.
    pub fn end(
        &self,
        span: Span,
        parent: Span,
        name: impl Into<Cow<'static, str>>,
        times: (Instant, Instant),
        attributes: Vec<KeyValue>,
    ) {
        self.send(span.0, (parent.0, false), name.into(), (SpanKind::Internal, Status::Unset), times, attributes);
    }

    /// The whole has ended. Parts may still follow.
    pub fn end_root(
        &self,
        name: impl Into<Cow<'static, str>>,
        (kind, status): (SpanKind, Status),
        times: (Instant, Instant),
        attributes: Vec<KeyValue>,
    ) {
        let parent = (self.remote.unwrap_or(SpanId::INVALID), self.remote.is_some());
        self.send(self.root, parent, name.into(), (kind, status), times, attributes);
    }

    /// How another process continues this trace.
    pub fn parent(&self) -> TraceParent {
        TraceParent::new(self.id, self.root, self.state.clone())
    }

    fn send(
        &self,
        span: SpanId,
        (parent_span_id, parent_span_is_remote): (SpanId, bool),
        name: Cow<'static, str>,
        (span_kind, status): (SpanKind, Status),
        (start, end): (Instant, Instant),
        attributes: Vec<KeyValue>,
    ) {
        self.inner.given.fetch_add(1, Relaxed);
        self.inner.processor.on_end(SpanData {
            span_context: SpanContext::new(self.id, span, TraceFlags::SAMPLED, false, self.state.clone()),
            parent_span_id,
            parent_span_is_remote,
            span_kind,
            name,
            start_time: self.moment(start),
            end_time: self.moment(end),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: self.inner.scope.clone(),
        });
    }

    fn moment(&self, at: Instant) -> SystemTime {
        let (instant, time) = self.clock;
        match at.checked_duration_since(instant) {
            Some(later) => time + later,
            None => time - instant.duration_since(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_another_runtime_may_own_the_last_tracer() {
        let options = TracerOptions { endpoint: Some("http://127.0.0.1:1/v1/traces".into()) };
        let tracer = Tracer::start(&options).unwrap().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.block_on(runtime.spawn(async move { drop(tracer) })).unwrap();
    }
}
