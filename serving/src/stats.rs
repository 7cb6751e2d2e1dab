//! Counters of one version of a model: what the metrics, the statistics of both protocols and the status page read.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use of_runtime::RunError;

use crate::error::{ErrorKind, FailureReason};
use crate::sync::lock;

/// How often something happened, and how long it took together.
#[derive(Debug, Default)]
pub struct Total {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Total {
    fn add(&self, time: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos(time), Relaxed);
    }

    /// How often.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Nanoseconds together.
    pub fn nanos(&self) -> u64 {
        self.nanos.load(Relaxed)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Upper bounds of the latency histogram, in microseconds.
pub const BUCKETS: [u64; 16] = [
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 204_800, 409_600, 1_000_000,
    5_000_000,
];

/// How long the parts of a request took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    /// In the queue.
    pub queue: Duration,
    /// Joining the inputs of a batch.
    pub input: Duration,
    /// In the run.
    pub run: Duration,
    /// Splitting the outputs of a batch.
    pub output: Duration,
}

/// Runs of one batch size.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchStats {
    /// How many.
    pub count: u64,
    /// Time of all: joining the inputs, the run, splitting the outputs.
    pub nanos: [u64; 3],
}

/// Counters of a version of a model. They outlive a reload.
#[derive(Debug, Default)]
pub struct Stats {
    /// Requests that succeeded, from arrival to answer.
    pub success: Total,
    /// Requests that failed.
    pub failure: Total,
    /// Parts of the requests that succeeded.
    pub queue: Total,
    /// As [`Timing::input`].
    pub input: Total,
    /// As [`Timing::run`].
    pub run: Total,
    /// As [`Timing::output`].
    pub output: Total,
    failures: [AtomicU64; FailureReason::ALL.len()],
    /// Rows that were inferred.
    pub rows: AtomicU64,
    /// Runs.
    pub runs: AtomicU64,
    /// Requests in the queue.
    pub pending: AtomicU64,
    /// Sequences in progress.
    pub sequences: AtomicU64,
    /// Sequences that have begun.
    pub sequences_started: AtomicU64,
    /// Sequences that ended because they were idle.
    pub sequences_timed_out: AtomicU64,
    /// Milliseconds since 1970 of the last request.
    pub last: AtomicU64,
    batches: Mutex<BTreeMap<usize, BatchStats>>,
    /// Successful requests by latency: one more than the bounds.
    latency: [AtomicU64; BUCKETS.len() + 1],
}

impl Stats {
    /// Counts a request that succeeded.
    pub fn succeeded(&self, rows: u64, whole: Duration, timing: &Timing) {
        self.success.add(whole);
        self.queue.add(timing.queue);
        self.input.add(timing.input);
        self.run.add(timing.run);
        self.output.add(timing.output);
        self.rows.fetch_add(rows, Relaxed);
        let micros = nanos(whole) / 1000;
        let bucket = BUCKETS.partition_point(|bound| *bound < micros);
        self.latency[bucket].fetch_add(1, Relaxed);
        self.touch();
    }

    /// Counts a request that failed.
    pub fn failed(&self, kind: ErrorKind, whole: Duration) {
        self.failure.add(whole);
        self.failures[kind.reason() as usize].fetch_add(1, Relaxed);
        self.touch();
    }

    /// Counts a run of a batch with so many rows.
    pub fn ran(&self, rows: usize, timing: &Timing) {
        self.runs.fetch_add(1, Relaxed);
        let mut batches = lock(&self.batches);
        let batch = batches.entry(rows).or_default();
        batch.count += 1;
        for (sum, time) in batch.nanos.iter_mut().zip([timing.input, timing.run, timing.output]) {
            *sum = sum.saturating_add(nanos(time));
        }
    }

    fn touch(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Failures by their reason.
    pub fn failures(&self) -> impl Iterator<Item = (FailureReason, u64)> + '_ {
        FailureReason::ALL.into_iter().zip(self.failures.iter().map(|n| n.load(Relaxed)))
    }

    /// Runs by the rows of their batch.
    pub fn batches(&self) -> Vec<(usize, BatchStats)> {
        lock(&self.batches).iter().map(|(size, stats)| (*size, *stats)).collect()
    }

    /// Successful requests by latency: how many took at most each bound of [`BUCKETS`] and more than the one before, and how many
    /// took more than all.
    pub fn latency(&self) -> Vec<u64> {
        self.latency.iter().map(|n| n.load(Relaxed)).collect()
    }
}

/// The kind of a failed run.
pub fn kind_of(e: &RunError) -> ErrorKind {
    use of_runtime::ExecError;
    match e {
        RunError::InputCount { .. } | RunError::Input { .. } | RunError::Task { source: ExecError::Input(_), .. } => {
            ErrorKind::Invalid
        }
        RunError::Task { source: ExecError::Unsupported(_), .. } => ErrorKind::Unsupported,
        RunError::Task { source: ExecError::Memory(_), .. } => ErrorKind::Exhausted,
        RunError::Cancelled => ErrorKind::Cancelled,
        _ => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_latency_and_reason() {
        let stats = Stats::default();
        for micros in [10, 50, 51, 10_000_000] {
            stats.succeeded(2, Duration::from_micros(micros), &Timing::default());
        }
        stats.failed(ErrorKind::Exhausted, Duration::ZERO);
        let latency = stats.latency();
        assert_eq!((latency[0], latency[1], latency[BUCKETS.len()]), (2, 1, 1));
        assert_eq!((stats.success.count(), stats.rows.load(Relaxed)), (4, 8));
        let rejected = stats.failures().find(|(reason, _)| *reason == FailureReason::Rejected);
        assert_eq!(rejected, Some((FailureReason::Rejected, 1)));
    }
}
