//! How long runs of a model take: measured in a trial run before the model is ready, and in each run from then on.
//!
//! The scheduler asks for two things: the batch size that the plan is fast at, and when a request would begin to run, so that one which cannot
//! keep its deadline is refused before it waits.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// What distinguishes runs whose time depends on their rows alone: the program, and bytes of a row.
pub type Kind = (usize, usize);

/// The times of a model's runs.
#[derive(Debug, Default)]
pub struct RunTimes {
    /// By kind and rows.
    kinds: HashMap<Kind, BTreeMap<usize, Estimate>>,
    /// Batches whose size was chosen.
    chosen: u32,
}

/// The time of runs with the same number of rows.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    seconds: f64,
    runs: u32,
}

/// Kinds that are kept. Runs of others are as if never measured.
const MAX_KINDS: usize = 256;
/// Numbers of rows that are kept for a kind. Clients choose them.
const MAX_SIZES: usize = 256;
/// An estimate of fewer runs is not relied on.
const TRUSTED: u32 = 3;
/// The part that the last run has in an estimate.
const NEW: f64 = 0.25;
/// A larger batch must be faster by so much, as all its requests wait for the last one.
const GAIN: f64 = 1.1;
/// One of so many batches is the largest that may be tried, as its time may have changed.
const TRIED_AGAIN: u32 = 200;
/// Sizes that are tried are at most so many times the best one that is known, so that a model whose batch of two gains nothing may still gain by four.
const MAX_STEP: usize = 4;

impl Estimate {
    fn row(self, rows: usize) -> f64 {
        self.seconds / rows.max(1) as f64
    }
}

/// The seconds of a run with so many rows, from the runs that were made often enough: in proportion between two sizes and beyond them.
fn seconds(known: &BTreeMap<usize, Estimate>, rows: usize, min_runs: u32) -> Option<f64> {
    let mut below = known.range(..=rows).rev().filter(|(_, estimate)| estimate.runs >= min_runs);
    let mut above = known.range(rows..).filter(|(_, estimate)| estimate.runs >= min_runs);
    Some(match (below.next(), above.next()) {
        (Some((low, estimate)), Some((high, larger))) if low < high => {
            let part = (rows - low) as f64 / (high - low) as f64;
            estimate.seconds + part * (larger.seconds - estimate.seconds)
        }
        (Some((same, estimate)), Some(_)) if *same == rows => estimate.seconds,
        (Some((of, estimate)), _) | (None, Some((of, estimate))) => estimate.row(*of) * rows as f64,
        (None, None) => return None,
    })
}

/// The sizes whose time is known.
fn trusted(known: &BTreeMap<usize, Estimate>) -> impl Iterator<Item = usize> {
    known.iter().filter(|(_, estimate)| estimate.runs >= TRUSTED).map(|(rows, _)| *rows)
}

/// Of ascending sizes, or their indices, with the time of a row, the smallest that is about as fast as the fastest, and the last one.
fn smallest_of_the_fast(sizes: impl Iterator<Item = (usize, Option<f64>)>) -> Option<(usize, usize)> {
    let sizes: Vec<(usize, f64)> = sizes.filter_map(|(size, row)| Some((size, row?))).collect();
    let fastest = sizes.iter().map(|(_, row)| *row).fold(f64::INFINITY, f64::min);
    let best = sizes.iter().find(|(_, row)| *row <= fastest * GAIN)?;
    Some((best.0, sizes.last()?.0))
}

impl RunTimes {
    /// A run of so many rows took some time.
    pub fn measured(&mut self, kind: Kind, rows: usize, time: Duration) {
        if self.kinds.len() >= MAX_KINDS && !self.kinds.contains_key(&kind) {
            return;
        }
        let sizes = self.kinds.entry(kind).or_default();
        if sizes.len() >= MAX_SIZES && !sizes.contains_key(&rows) {
            return;
        }
        let estimate = sizes.entry(rows).or_default();
        let seconds = time.as_secs_f64();
        estimate.seconds = match estimate.runs < TRUSTED {
            // The fastest of the first runs counts: they are disturbed often, and the first one needs fresh memory.
            true if estimate.runs == 0 => seconds,
            true => estimate.seconds.min(seconds),
            false => estimate.seconds + NEW * (seconds - estimate.seconds),
        };
        estimate.runs = estimate.runs.saturating_add(1);
    }

    /// A run of so many rows of zeros took some time: the guess until one of a request was measured.
    pub fn guessed(&mut self, kind: Kind, rows: usize, time: Duration) {
        let guess = Estimate { seconds: time.as_secs_f64(), runs: 0 };
        self.kinds.entry(kind).or_default().entry(rows).or_insert(guess);
    }

    /// The runs of a kind. Where none was made, those of the program whose rows are the closest in bytes, and what their time is
    /// multiplied by.
    fn like(&self, kind: Kind) -> Option<(&BTreeMap<usize, Estimate>, f64)> {
        if let Some(own) = self.kinds.get(&kind) {
            return Some((own, 1.0));
        }
        let scale = |(_, bytes): &Kind| kind.1.max(1) as f64 / (*bytes).max(1) as f64;
        let same = self.kinds.iter().filter(|((program, _), _)| *program == kind.0);
        let distance = |other: &Kind| scale(other).ln().abs();
        let (closest, known) = same.min_by(|(a, _), (b, _)| distance(a).total_cmp(&distance(b)))?;
        Some((known, scale(closest)))
    }

    /// The time of a run with so many rows. `None` where no run of the program is known.
    pub fn expected(&self, kind: Kind, rows: usize) -> Option<Duration> {
        let (known, scale) = self.like(kind)?;
        Duration::try_from_secs_f64(seconds(known, rows, 0)? * scale).ok()
    }

    /// The time that a row takes in a batch of the best size up to `limit`.
    pub fn expected_row(&self, kind: Kind, limit: usize) -> Option<Duration> {
        let (known, scale) = self.like(kind)?;
        let rows = known.range(..=limit.max(1)).map(|(rows, estimate)| estimate.row(*rows));
        Duration::try_from_secs_f64(rows.min_by(f64::total_cmp)? * scale).ok()
    }

    /// Of the sizes that a batch may have now, ascending, the index of the one to run: the smallest that is about as fast for each row as the fastest. Larger
    /// ones are tried step by step, and now and then again, but never much larger ones than that: a batch that gains nothing makes its requests wait, and
    /// more come in the meantime. `None` where too few runs of the kind are known.
    pub fn best(&mut self, kind: Kind, sizes: &[usize]) -> Option<usize> {
        self.chosen = (self.chosen + 1) % TRIED_AGAIN;
        let known = self.kinds.get(&kind)?;
        let row = |rows: usize| Some(seconds(known, rows, TRUSTED)? / rows.max(1) as f64);
        let (best, top) = smallest_of_the_fast(trusted(known).map(|rows| (rows, row(rows))))?;
        let limit = (2 * top).min(MAX_STEP * best);
        let largest = sizes.iter().rposition(|rows| *rows <= limit);
        if let Some(at) = largest
            && (sizes[at] > top || self.chosen == 0)
        {
            return Some(at);
        }
        let within = sizes.iter().enumerate().filter(|(_, rows)| **rows <= top);
        Some(smallest_of_the_fast(within.map(|(at, rows)| (at, row(*rows)))).map_or(0, |(best, _)| best))
    }

    /// Whether a batch of more rows, up to `limit`, could be faster for each row than one of `rows`.
    pub fn more_may_help(&self, kind: Kind, rows: usize, limit: usize) -> bool {
        let Some(known) = self.kinds.get(&kind) else { return true };
        let trusted = |(rows, estimate): (&usize, &Estimate)| (estimate.runs >= TRUSTED).then(|| estimate.row(*rows));
        let Some(own) = known.get(&rows).and_then(|estimate| trusted((&rows, estimate))) else { return true };
        let larger: Vec<f64> = known.range(rows + 1..=limit.max(rows + 1)).filter_map(trusted).collect();
        larger.is_empty() || larger.into_iter().any(|row| row * GAIN < own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = (0, 64);

    fn times(list: &[(usize, u64)]) -> RunTimes {
        let mut times = RunTimes::default();
        for (rows, ms) in list {
            (0..TRUSTED).for_each(|_| times.measured(KIND, *rows, Duration::from_millis(*ms)));
        }
        times
    }

    #[test]
    fn the_smallest_of_the_fast_sizes_runs() {
        // A batch that takes as long as its requests alone gains nothing.
        let sizes = [1, 2, 3, 4];
        assert_eq!(times(&[(1, 10), (2, 20), (4, 40)]).best(KIND, &sizes), Some(0));
        assert_eq!(times(&[(1, 10), (2, 12), (4, 23)]).best(KIND, &sizes), Some(1));
        assert_eq!(times(&[(1, 10), (2, 18), (4, 20)]).best(KIND, &sizes), Some(3));
        // Three rows take the time between two and four.
        assert_eq!(times(&[(1, 10), (2, 11), (4, 13)]).best(KIND, &[1, 2, 3]), Some(2));
    }

    #[test]
    fn larger_sizes_are_tried_step_by_step() {
        let sizes: Vec<usize> = (1..=32).collect();
        assert_eq!(RunTimes::default().best(KIND, &sizes), None);
        assert_eq!(times(&[(1, 10)]).best(KIND, &sizes), Some(1));
        assert_eq!(times(&[(1, 10), (2, 11)]).best(KIND, &sizes), Some(3));
        assert_eq!(times(&[(1, 10), (2, 20)]).best(KIND, &sizes), Some(3));
        assert_eq!(times(&[(1, 10), (2, 20), (4, 40)]).best(KIND, &sizes), Some(0));
        // Of requests with many rows each, one runs.
        assert_eq!(times(&[(1, 10)]).best(KIND, &[64, 128]), Some(0));
        assert_eq!(times(&[(1, 10)]).best((1, 64), &[1, 2]), None);
    }

    /// The sizes of batches while as many requests wait as the list says, where a run takes a fixed time and one for each row.
    fn batches(fixed: f64, each: f64, waiting: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut times = RunTimes::default();
        let mut run = |waiting: usize| {
            let rows = times.best(KIND, &(1..=waiting).collect::<Vec<_>>()).unwrap_or(0) + 1;
            times.measured(KIND, rows, Duration::from_secs_f64(fixed + each * rows as f64));
            rows
        };
        waiting.map(&mut run).collect()
    }

    #[test]
    fn a_model_that_gains_nothing_by_batches_runs_few_of_them() {
        let rows = batches(0.0, 0.01, (0..2000).map(|i| 1 + i * 7 % 32));
        assert!(rows.iter().all(|rows| *rows <= 4), "{rows:?}");
        assert!(rows.iter().filter(|rows| **rows > 1).count() <= 9 + 2000 / TRIED_AGAIN as usize);
        // One whose runs take a time of their own soon runs all that wait.
        let rows = batches(0.01, 0.0001, std::iter::repeat_n(32, 60));
        assert!(rows[30..].iter().all(|rows| *rows >= 16), "{rows:?}");
    }

    #[test]
    fn it_is_known_whether_waiting_for_more_helps() {
        let slow = times(&[(1, 10), (2, 20), (4, 40)]);
        assert!(!slow.more_may_help(KIND, 1, 4) && slow.more_may_help(KIND, 3, 4));
        let fast = times(&[(1, 10), (2, 11)]);
        assert!(fast.more_may_help(KIND, 1, 4) && fast.more_may_help(KIND, 2, 4));
        assert!(RunTimes::default().more_may_help(KIND, 1, 4));
    }

    #[test]
    fn times_of_other_sizes_follow_from_those_that_are_known() {
        let times = times(&[(1, 10), (4, 20)]);
        let expected = |rows| times.expected(KIND, rows).unwrap().as_millis();
        assert_eq!((expected(1), expected(2), expected(4), expected(8)), (10, 13, 20, 40));
        assert_eq!(times.expected_row(KIND, 8).unwrap().as_millis(), 5);
        assert_eq!(times.expected_row(KIND, 2).unwrap().as_millis(), 10);
        assert_eq!((times.expected((1, 64), 1), RunTimes::default().expected_row(KIND, 1)), (None, None));
        // Rows of other sizes take a time in proportion, until they have run.
        let (larger, smaller) = (times.expected((0, 128), 1).unwrap(), times.expected_row((0, 16), 2).unwrap());
        assert_eq!((larger.as_millis(), smaller.as_micros()), (20, 2500));
        assert_eq!(times.like((0, 100)).unwrap().1, 100.0 / 64.0);
    }

    #[test]
    fn a_guess_holds_until_the_first_measured_run() {
        let mut times = RunTimes::default();
        times.guessed(KIND, 1, Duration::from_millis(5));
        let expected = |times: &RunTimes| (times.expected(KIND, 2), times.expected_row(KIND, 8));
        assert_eq!(expected(&times), (Some(Duration::from_millis(10)), Some(Duration::from_millis(5))));
        assert_eq!(times.best(KIND, &[1, 2]), None, "nothing is known of batches");
        // The time may depend on values.
        times.measured(KIND, 1, Duration::from_millis(50));
        assert_eq!(expected(&times).0, Some(Duration::from_millis(100)));
    }

    #[test]
    fn estimates_follow_a_change_and_forget_the_first_runs() {
        let mut times = times(&[(1, 100)]);
        (0..40).for_each(|_| times.measured(KIND, 1, Duration::from_millis(10)));
        assert_eq!(times.expected(KIND, 1).unwrap().as_millis(), 10);
        for bytes in 0..2 * MAX_KINDS {
            times.measured((1, bytes), 1, Duration::from_millis(1));
        }
        assert_eq!(times.kinds.len(), MAX_KINDS);
        (0..2 * MAX_SIZES).for_each(|rows| times.measured(KIND, rows, Duration::from_millis(1)));
        assert_eq!(times.kinds[&KIND].len(), MAX_SIZES);
    }
}
