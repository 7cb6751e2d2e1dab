//! How long runs of a model take, learned from its runs.
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
/// The first runs are slower: memory is fresh.
const TRUSTED: u32 = 3;
/// The part that the last run has in an estimate.
const NEW: f64 = 0.25;
/// A larger batch must be faster by so much, as all its requests wait for the last one.
const GAIN: f64 = 1.05;
/// One of so many batches is the largest, as its time may have changed.
const TRIED_AGAIN: u32 = 200;

impl Estimate {
    fn row(self, rows: usize) -> f64 {
        self.seconds / rows.max(1) as f64
    }
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
            // The last of the first runs counts.
            true => seconds,
            false => estimate.seconds + NEW * (seconds - estimate.seconds),
        };
        estimate.runs = estimate.runs.saturating_add(1);
    }

    /// The time of a run with so many rows. `None` where no run of the kind is known.
    pub fn expected(&self, kind: Kind, rows: usize) -> Option<Duration> {
        let known = self.kinds.get(&kind)?;
        let below = known.range(..=rows).next_back();
        let (of, estimate) = below.or_else(|| known.range(rows..).next())?;
        let seconds = if of == &rows { estimate.seconds } else { estimate.row(*of) * rows as f64 };
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// The time that a row takes in a batch of the best size up to `limit`.
    pub fn expected_row(&self, kind: Kind, limit: usize) -> Option<Duration> {
        let known = self.kinds.get(&kind)?;
        let rows = known.range(..=limit.max(1)).map(|(rows, estimate)| estimate.row(*rows));
        Duration::try_from_secs_f64(rows.min_by(f64::total_cmp)?).ok()
    }

    /// Of the sizes that a batch may have now, ascending, the index of the one to run: the smallest that is about as fast for each row as the fastest. The
    /// largest, where that was not measured often enough, and now and then.
    pub fn best(&mut self, kind: Kind, sizes: &[usize]) -> usize {
        let last = sizes.len().saturating_sub(1);
        self.chosen = (self.chosen + 1) % TRIED_AGAIN;
        if self.chosen == 0 {
            return last;
        }
        let Some(known) = self.kinds.get(&kind) else { return last };
        let row = |rows: &usize| known.get(rows).filter(|e| e.runs >= TRUSTED).map(|estimate| estimate.row(*rows));
        if sizes.last().and_then(row).is_none() {
            return last;
        }
        let fastest = sizes.iter().filter_map(row).fold(f64::INFINITY, f64::min);
        sizes.iter().position(|rows| row(rows).is_some_and(|row| row <= fastest * GAIN)).unwrap_or(last)
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
        assert_eq!(times(&[(1, 10), (2, 20), (4, 40)]).best(KIND, &sizes), 0);
        assert_eq!(times(&[(1, 10), (2, 12), (4, 23)]).best(KIND, &sizes), 1);
        assert_eq!(times(&[(1, 10), (2, 18), (4, 20)]).best(KIND, &sizes), 3);
        // What was not measured is tried.
        assert_eq!(times(&[(1, 10), (2, 20)]).best(KIND, &sizes), 3);
        assert_eq!(RunTimes::default().best(KIND, &sizes), 3);
        assert_eq!(times(&[(1, 10)]).best((1, 64), &[1, 2]), 1);
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
        assert_eq!((expected(1), expected(2), expected(4), expected(8)), (10, 20, 20, 40));
        assert_eq!(times.expected_row(KIND, 8).unwrap().as_millis(), 5);
        assert_eq!(times.expected_row(KIND, 2).unwrap().as_millis(), 10);
        assert_eq!((times.expected((0, 65), 1), RunTimes::default().expected_row(KIND, 1)), (None, None));
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
