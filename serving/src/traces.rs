//! Traces of requests: which are traced, as Triton's trace extension says, and the spans of one.
//!
//! A request that is not traced costs the look at a flag, and at the header of its caller where requests are traced at all.
//!
//! Sources: the trace extension in the documentation of Triton; OpenTelemetry's semantic conventions for HTTP and RPC.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use of_runtime::TaskTiming;
use of_telemetry::{KeyValue, SpanKind, Status, Trace, TraceParent, Tracer};

use crate::error::{ErrorKind, ServeError};
use crate::infer::InferRequest;
use crate::model::InferResponse;
use crate::sync::lock;

/// The names of settings, in the order in which they are shown.
const NAMES: [&str; 6] = ["trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"];

/// Which requests are traced.
pub struct Traces {
    tracer: Option<Tracer>,
    /// Whether any request may be traced.
    any: AtomicBool,
    settings: RwLock<Settings>,
}

struct Settings {
    /// What the server was started with.
    first: Stated,
    global: Stated,
    /// Those of models that differ.
    models: HashMap<String, Stated>,
    global_counter: Arc<Counter>,
    counters: HashMap<String, Arc<Counter>>,
}

/// What was set; nothing is what the server or the start says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stated {
    on: Option<bool>,
    rate: Option<u64>,
    /// -1 is without limit.
    count: Option<i64>,
}

impl Stated {
    fn or(self, other: Stated) -> Stated {
        Stated { on: self.on.or(other.on), rate: self.rate.or(other.rate), count: self.count.or(other.count) }
    }
}

/// The requests that a setting has seen.
#[derive(Debug)]
struct Counter {
    on: bool,
    rate: u64,
    seen: AtomicU64,
    /// How many are still traced; negative is without limit.
    left: AtomicI64,
}

impl Counter {
    fn new(stated: Stated) -> Arc<Counter> {
        let (on, rate) = (stated.on.unwrap_or(false), stated.rate.unwrap_or(1).max(1));
        let left = AtomicI64::new(stated.count.unwrap_or(-1));
        Arc::new(Counter { on, rate, seen: AtomicU64::new(0), left })
    }

    /// Whether the next request without a caller's trace is one of those to trace.
    fn next(&self) -> bool {
        let number = self.seen.fetch_add(1, Relaxed) + 1;
        self.on && number.is_multiple_of(self.rate) && self.left.load(Relaxed) != 0
    }

    /// Takes one of those that are left.
    fn take(&self) -> bool {
        self.left
            .fetch_update(Relaxed, Relaxed, |left| (left != 0).then_some(if left > 0 { left - 1 } else { left }))
            .is_ok()
    }
}

/// The value of a setting in a request to change it; `None` takes it back.
pub type Change = (String, Option<Vec<String>>);

impl Traces {
    /// Traces of a server. Every request is one of `rate`.
    pub fn new(tracer: Option<Tracer>, rate: u64) -> Traces {
        let first = Stated { on: Some(tracer.is_some()), rate: Some(rate.max(1)), count: Some(-1) };
        let settings = Settings {
            first,
            global: first,
            models: HashMap::new(),
            global_counter: Counter::new(first),
            counters: HashMap::new(),
        };
        Traces { any: AtomicBool::new(tracer.is_some()), tracer, settings: RwLock::new(settings) }
    }

    /// Begins the trace of a request, if it is to be traced. Its headers may name a caller's span.
    pub fn begin<'h>(
        &self,
        model: &str,
        arrival: Instant,
        header: impl Fn(&'static str) -> Option<&'h [u8]>,
    ) -> Option<Arc<RequestTrace>> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let tracer = self.tracer.as_ref()?;
        let parent = header(TraceParent::HEADER).and_then(TraceParent::read);
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        let counter = settings.counters.get(model).unwrap_or(&settings.global_counter);
        // The caller of a request with a trace has decided.
        let is_next = if parent.is_some() { counter.on } else { counter.next() };
        if !is_next {
            return None;
        }
        let parent = parent.map(|parent| match parent.is_sampled() {
            true => parent.with_state(header(TraceParent::STATE)),
            false => parent,
        });
        let trace = tracer.begin(parent.as_ref())?;
        if parent.is_none() && !counter.take() {
            return None;
        }
        Some(Arc::new(RequestTrace { trace, arrival, end: Mutex::default() }))
    }

    /// The settings of a model, or of all, in the form of the extension: a name and its values.
    pub fn settings(&self, model: Option<&str>) -> Vec<(&'static str, Vec<String>)> {
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        let counter = model.and_then(|model| settings.counters.get(model)).unwrap_or(&settings.global_counter);
        let level = if counter.on { "TIMESTAMPS" } else { "OFF" };
        let left = counter.left.load(Relaxed);
        let value = |name: &str| match name {
            "trace_level" => level.to_owned(),
            "trace_rate" => counter.rate.to_string(),
            "trace_count" => left.to_string(),
            "log_frequency" => "0".to_owned(),
            "trace_mode" => "opentelemetry".to_owned(),
            _ => String::new(),
        };
        NAMES.iter().map(|name| (*name, vec![value(name)])).collect()
    }

    /// Changes the settings of a model, or of all.
    ///
    /// # Errors
    /// When a setting is unknown or not supported. Nothing is changed then.
    pub fn change(&self, model: Option<&str>, changes: &[Change]) -> Result<(), ServeError> {
        let mut settings = self.settings.write().unwrap_or_else(PoisonError::into_inner);
        let before = match model {
            Some(model) => settings.models.get(model).copied().unwrap_or_default(),
            None => settings.global,
        };
        let mut after = before;
        for (name, values) in changes {
            set(&mut after, name, values.as_deref())?;
        }
        if after.on == Some(true) && self.tracer.is_none() {
            let what = "there is no collector for traces: start the server with --trace-endpoint, or with \
                        OTEL_EXPORTER_OTLP_ENDPOINT in its environment";
            return Err(ServeError::unsupported(what));
        }
        match model {
            Some(model) if after == Stated::default() => drop(settings.models.remove(model)),
            Some(model) => drop(settings.models.insert(model.to_owned(), after)),
            None => settings.global = after.or(settings.first),
        }
        let Settings { global, models, counters, global_counter, .. } = &mut *settings;
        if model.is_none() {
            *global_counter = Counter::new(*global);
        }
        *counters = models
            .iter()
            .map(|(name, stated)| {
                let new = Counter::new(stated.or(*global));
                // What others of its settings count goes on.
                let kept =
                    counters.remove(name).filter(|old| model.is_some_and(|model| model != name) && old.on == new.on);
                (name.clone(), kept.unwrap_or(new))
            })
            .collect();
        let any = global_counter.on || counters.values().any(|counter| counter.on);
        self.any.store(any, Relaxed);
        Ok(())
    }

    /// Sends what is left.
    pub fn finish(&self) {
        self.tracer.iter().for_each(|tracer| tracer.finish(of_telemetry::LAST));
    }
}

fn set(stated: &mut Stated, name: &str, values: Option<&[String]>) -> Result<(), ServeError> {
    let one = || match values {
        None => Ok(None),
        Some([value]) => Ok(Some(value.trim())),
        Some(_) => Err(ServeError::invalid(format!("'{name}' has one value"))),
    };
    let wrong = |value: &str, what: &str| {
        ServeError::invalid(format!("'{}' is no value of '{name}': {what}", value.escape_debug()))
    };
    match name {
        "trace_level" => {
            let mut on = values.map(|_| false);
            for level in values.unwrap_or_default() {
                match level.trim() {
                    "OFF" => {}
                    "TIMESTAMPS" | "MIN" | "MAX" => on = Some(true),
                    "TENSORS" => {
                        let what = "traces hold no tensors: the levels are OFF and TIMESTAMPS";
                        return Err(ServeError::unsupported(what));
                    }
                    other => return Err(wrong(other, "the levels are OFF and TIMESTAMPS")),
                }
            }
            stated.on = on;
        }
        "trace_rate" => {
            let rate = |text: &str| text.parse().ok().filter(|rate| *rate > 0);
            let read = |text: &str| rate(text).ok_or_else(|| wrong(text, "it is one request of how many is traced"));
            stated.rate = one()?.map(read).transpose()?;
        }
        "trace_count" => {
            let count = |text: &str| text.parse().ok().filter(|count| *count >= -1);
            let read = |text: &str| count(text).ok_or_else(|| wrong(text, "it is a number of traces, or -1"));
            stated.count = one()?.map(read).transpose()?;
        }
        "log_frequency" | "trace_file" => {
            let is_first =
                matches!((name, one()?), (_, None) | ("log_frequency", Some("0")) | ("trace_file", Some("")));
            if !is_first {
                let what = format!("'{name}' is not supported: spans go to a collector by OTLP, and to no file");
                return Err(ServeError::unsupported(what));
            }
        }
        "trace_mode" => {
            if one()?.is_some_and(|mode| mode != "opentelemetry") {
                return Err(ServeError::unsupported("the mode of traces is opentelemetry, and cannot be changed"));
            }
        }
        _ => {
            let known = NAMES.join(", ");
            let what = format!("there is no trace setting '{}'; the settings are {known}", name.escape_debug());
            return Err(ServeError::invalid(what));
        }
    }
    Ok(())
}

/// The trace of a request. Its span ends when nothing of the request is left, so also where the client leaves or the time limit passes.
#[derive(Debug)]
pub struct RequestTrace {
    trace: Trace,
    arrival: Instant,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    name: String,
    attributes: Vec<KeyValue>,
    answered: Option<Status>,
}

/// What a run tells of itself, for the requests that it served.
#[derive(Debug, Default)]
pub struct RunTrace {
    /// When the inputs of a batch were joined; `None` for a request alone.
    pub join: Option<(Instant, Instant)>,
    /// When its results were split.
    pub split: Option<(Instant, Instant)>,
    /// When it ran.
    pub run: Option<(Instant, Instant)>,
    /// Its tasks.
    pub tasks: Vec<TaskTiming>,
    /// Requests and rows that ran together.
    pub requests: usize,
    /// As `requests`.
    pub rows: usize,
}

impl RequestTrace {
    /// What the request is by its protocol.
    pub fn is(&self, name: &str, attributes: impl IntoIterator<Item = KeyValue>) {
        let mut end = lock(&self.end);
        end.name = name.to_owned();
        end.attributes.extend(attributes);
    }

    /// More of what is known of it.
    pub fn add(&self, attribute: KeyValue) {
        lock(&self.end).attributes.push(attribute);
    }

    /// A part that ends now.
    pub fn part(&self, name: &'static str, start: Instant) {
        self.trace.span(self.trace.root(), name, (start, Instant::now()), Vec::new());
    }

    /// More of what is known of it once it is read.
    pub fn known(&self, request: &InferRequest) {
        if !request.id.is_empty() {
            self.add(KeyValue::new("of.request.id", request.id.clone()));
        }
    }

    /// The version that answered. Gives the time, from when the answer is encoded.
    pub fn ran_as(&self, answer: &InferResponse) -> Instant {
        self.add(KeyValue::new("of.model.version", answer.model.version.to_string()));
        Instant::now()
    }

    /// The request waited in the queue since `queued`, and ran then.
    pub fn ran(&self, queued: Instant, run: &RunTrace) {
        let root = self.trace.root();
        let Some((began, ended)) = run.run else { return };
        let first = run.join.map_or(began, |(start, _)| start);
        self.trace.span(root, "queue", (queued, first.max(queued)), Vec::new());
        if let Some(times) = run.join {
            self.trace.span(root, "batch", times, Vec::new());
        }
        let span = self.trace.open();
        let origin = of_runtime::clock_origin();
        for task in run.tasks.iter().filter(|task| task.calls > 0) {
            let start = origin + task.start;
            let attributes = vec![KeyValue::new("of.task", task.task as i64)];
            self.trace.span(span, task.name.clone(), (start, start + task.last), attributes);
        }
        let count = |name: &'static str, n: usize| KeyValue::new(name, i64::try_from(n).unwrap_or(i64::MAX));
        let attributes = vec![count("of.batch.requests", run.requests), count("of.batch.rows", run.rows)];
        self.trace.end(span, root, "run", (began, ended), attributes);
        if let Some(times) = run.split {
            self.trace.span(root, "split", times, Vec::new());
        }
    }

    /// The answer is ready. Only an error of the server makes the span one.
    pub fn answered<T>(&self, result: &Result<T, ServeError>) {
        let status = match result {
            Ok(_) => Status::Unset,
            Err(e) => match e.kind {
                ErrorKind::Internal | ErrorKind::Unsupported | ErrorKind::Unavailable | ErrorKind::Deadline => {
                    self.add(KeyValue::new("error.type", format!("{:?}", e.kind.grpc_code())));
                    Status::error(e.message.clone())
                }
                _ => {
                    self.add(KeyValue::new("of.refusal", e.message.clone()));
                    Status::Unset
                }
            },
        };
        lock(&self.end).answered = Some(status);
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let End { name, attributes, answered } = std::mem::take(&mut *lock(&self.end));
        let status = answered.unwrap_or_else(|| Status::error("the client left, or the time limit passed"));
        self.trace.end_root(name, (SpanKind::Server, status), (self.arrival, Instant::now()), attributes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(list: &[(&str, Option<&str>)]) -> Vec<Change> {
        list.iter().map(|(name, value)| ((*name).to_owned(), value.map(|value| vec![value.to_owned()]))).collect()
    }

    #[test]
    fn counters_take_one_of_a_rate_and_no_more_than_a_count() {
        let counter = Counter::new(Stated { on: Some(true), rate: Some(3), count: Some(2) });
        let traced: Vec<usize> = (1..=12).filter(|_| counter.next() && counter.take()).collect();
        assert_eq!((traced, counter.left.load(Relaxed)), (vec![3, 6], 0));
        let off = Counter::new(Stated { on: Some(false), ..Stated::default() });
        assert!(!off.next());
    }

    #[test]
    fn settings_without_a_collector_are_off() {
        let traces = Traces::new(None, 1);
        assert!(traces.begin("m", Instant::now(), |_| panic!("no header is read")).is_none());
        assert_eq!(traces.settings(None)[0], ("trace_level", vec!["OFF".to_owned()]));
        let refused = traces.change(None, &changes(&[("trace_level", Some("TIMESTAMPS"))])).unwrap_err();
        assert!(refused.message.contains("--trace-endpoint"), "{refused}");
        for (name, value, what) in [
            ("trace_level", "TENSORS", "no tensors"),
            ("trace_level", "ALL", "the levels are OFF and TIMESTAMPS"),
            ("trace_rate", "0", "one request of how many"),
            ("trace_count", "-2", "a number of traces, or -1"),
            ("trace_file", "trace.json", "to no file"),
            ("log_frequency", "10", "to no file"),
            ("trace_mode", "triton", "cannot be changed"),
            ("x", "1", "there is no trace setting 'x'; the settings are trace_level"),
        ] {
            let refused = traces.change(None, &changes(&[("trace_rate", Some("7")), (name, Some(value))])).unwrap_err();
            assert!(refused.message.contains(what), "{refused}");
        }
        assert_eq!(traces.settings(None)[1].1, ["1"], "nothing is changed by a request that is refused");
    }

    #[test]
    fn models_have_settings_of_their_own() {
        let traces = Traces::new(None, 5);
        let of = |model| -> Vec<String> {
            traces.settings(model).into_iter().map(|(_, values)| values[0].clone()).collect()
        };
        assert_eq!(of(None), ["OFF", "5", "-1", "0", "", "opentelemetry"]);
        traces.change(Some("m"), &changes(&[("trace_rate", Some("2")), ("trace_count", Some("9"))])).unwrap();
        assert_eq!(
            (&of(Some("m"))[1..3], &of(Some("n"))[1..3]),
            (&["2".into(), "9".into()][..], &["5".into(), "-1".into()][..])
        );
        traces.change(None, &changes(&[("trace_rate", Some("4")), ("trace_file", Some(""))])).unwrap();
        assert_eq!((of(Some("m"))[1].as_str(), of(Some("n"))[1].as_str()), ("2", "4"));
        traces.change(Some("m"), &changes(&[("trace_rate", None), ("trace_count", None)])).unwrap();
        traces.change(None, &changes(&[("trace_rate", None)])).unwrap();
        assert_eq!((of(Some("m"))[1].as_str(), of(None)[1].as_str()), ("5", "5"), "those of the start");
    }
}
