//! Traces of this process: the spans of runs and steps with their tasks.

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use of_cli::traces::TraceFlags;
use of_diag::Diagnostics;
use of_runtime::TaskTiming;
use of_telemetry::{KeyValue, Span, SpanKind, Status, Trace, TraceParent, Tracer};

/// The trace of a command that runs or trains: a span for the process, and one for each run or step in it.
pub struct JobTrace {
    traced: Option<Arc<Traced>>,
    rate: u64,
}

struct Traced {
    tracer: Tracer,
    trace: Trace,
    name: &'static str,
    start: Instant,
}

/// A process that a signal ends waits so long for a collector.
const INTERRUPTED: Duration = Duration::from_secs(1);

/// The span that processes of ranks continue.
static PARENT: OnceLock<TraceParent> = OnceLock::new();
/// The trace of the command that runs, for a signal that ends it.
static RUNNING: Mutex<Option<Arc<Traced>>> = Mutex::new(None);

/// A number of a task, run or rank.
fn number(name: &'static str, number: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX))
}

impl JobTrace {
    /// Begins the trace of this process, or its part of the trace that `TRACEPARENT` names.
    ///
    /// # Errors
    /// When a flag or variable has no meaning.
    pub fn begin(flags: &TraceFlags, name: &'static str) -> Result<JobTrace, Diagnostics> {
        let start = Instant::now();
        let Some(tracer) = flags.tracer()? else { return Ok(JobTrace { traced: None, rate: 1 }) };
        let trace = tracer.begin(TraceParent::of_environment().as_ref());
        let traced = trace.map(|trace| {
            PARENT.get_or_init(|| trace.parent());
            Arc::new(Traced { tracer, trace, name, start })
        });
        *running() = traced.clone();
        Ok(JobTrace { traced, rate: flags.trace_rate })
    }

    /// No trace, for a reason, which is said if the environment asks for one.
    pub fn none(why: &str) -> JobTrace {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        if let Some(name) = names.into_iter().find(|name| std::env::var_os(name).is_some()) {
            tracing::warn!("{name} has no effect: {why}");
        }
        JobTrace { traced: None, rate: 1 }
    }

    /// Whether a run or step has a span, by its number from 0.
    pub fn takes(&self, step: usize) -> bool {
        self.traced.is_some() && (step as u64).is_multiple_of(self.rate)
    }

    /// A run or step that began at `start` has ended. The tasks are those of each rank in this process.
    pub fn step(&self, name: &'static str, step: usize, start: Instant, ranks: &[(Option<usize>, Vec<TaskTiming>)]) {
        let Some(traced) = &self.traced else { return };
        let trace = &traced.trace;
        let end = Instant::now();
        let whole = trace.span(trace.root(), name, (start, end), vec![number("of.step", step)]);
        for (rank, tasks) in ranks {
            let called = || tasks.iter().filter(|task| task.calls > 0);
            let origin = of_runtime::clock_origin();
            let times = |task: &TaskTiming| (origin + task.start, origin + task.start + task.last);
            let parent = match rank {
                Some(rank) => {
                    let first = called().map(|task| times(task).0).min().unwrap_or(start);
                    let last = called().map(|task| times(task).1).max().unwrap_or(end);
                    trace.span(whole, format!("rank {rank}"), (first, last), vec![number("of.rank", *rank)])
                }
                None => whole,
            };
            called().for_each(|task| task_span(trace, parent, task, times(task)));
        }
    }

    /// The command has ended: sends what is left.
    ///
    /// # Errors
    /// Those of the command.
    pub fn end(self, result: Result<(), Diagnostics>) -> Result<(), Diagnostics> {
        let status = match &result {
            Ok(()) => Status::Unset,
            Err(errors) => Status::error(errors.to_string()),
        };
        end_running(status, of_telemetry::LAST);
        result
    }
}

/// A signal ends the process: sends what is left.
pub fn interrupted(signal: i32) {
    end_running(Status::error(format!("ended by signal {signal}")), INTERRUPTED);
}

fn running() -> MutexGuard<'static, Option<Arc<Traced>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the span of the process, once.
fn end_running(status: Status, within: Duration) {
    let mut running = running();
    let Some(traced) = running.take() else { return };
    let Traced { tracer, trace, name, start } = &*traced;
    let rank = std::env::var("OF_RANK").ok().and_then(|rank| rank.parse().ok());
    let attributes = rank.map(|rank| number("of.rank", rank)).into_iter().collect();
    trace.end_root(*name, (SpanKind::Internal, status), (*start, Instant::now()), attributes);
    // Whoever comes second waits, and the process does not end before the spans are sent.
    tracer.finish(within);
}

fn task_span(trace: &Trace, parent: Span, task: &TaskTiming, times: (Instant, Instant)) {
    let mut attributes = vec![number("of.task", task.task)];
    if task.calls > 1 {
        // The span is that of the last one.
        attributes.push(KeyValue::new("of.task.calls", i64::try_from(task.calls).unwrap_or(i64::MAX)));
    }
    trace.span(parent, task.name.clone(), times, attributes);
}

/// Tells a process of a rank which span it is part of.
pub fn pass_on(command: &mut Command) {
    let Some(parent) = PARENT.get() else { return };
    command.env("TRACEPARENT", parent.to_string());
    if let Some(state) = parent.state_header() {
        command.env("TRACESTATE", state);
    }
}
