//! The report of a pipeline run: times, op counts and counters.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use of_diag::Diagnostics;

/// One pass of a run.
#[derive(Clone, Debug, Default)]
pub struct PassRun {
    /// Its name with options.
    pub name: String,
    /// Its run time.
    pub time: Duration,
    /// Whether it was not run, since it had nothing to do in this module before.
    pub skipped: bool,
    /// Ops before it.
    pub ops_before: usize,
    /// Ops after it.
    pub ops_after: usize,
    /// Its counters.
    pub counters: BTreeMap<&'static str, u64>,
}

/// A run of a pipeline.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every pass that was run, in order.
    pub passes: Vec<PassRun>,
    /// Time between the passes: verification, printing, copies for reproducers.
    pub overhead: Duration,
    /// The warnings of all passes.
    pub warnings: Diagnostics,
}

impl Report {
    /// Total time of the run.
    pub fn total(&self) -> Duration {
        self.passes.iter().map(|p| p.time).sum::<Duration>() + self.overhead
    }

    /// A table of times, ops and counters.
    pub fn table(&self) -> Table<'_> {
        Table(self)
    }
}

/// See [`Report::table`].
pub struct Table<'a>(&'a Report);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.total();
        let share = |t: Duration| if total.is_zero() { 0.0 } else { 100.0 * t.as_secs_f64() / total.as_secs_f64() };
        writeln!(f, "===- Pass execution timing -===\n  total {:.6} s\n", total.as_secs_f64())?;
        writeln!(f, "   ---seconds---   --%--   ------ops------   ---pass---")?;
        for p in &self.0.passes {
            let ops = format!("{} -> {}", p.ops_before, p.ops_after);
            write!(f, "  {:14.6}  {:5.1}%   {ops:>15}   {}", p.time.as_secs_f64(), share(p.time), p.name)?;
            for (what, n) in &p.counters {
                write!(f, "  {what}: {n}")?;
            }
            writeln!(f, "{}", if p.skipped { "  (skipped: nothing changed)" } else { "" })?;
        }
        let rest = self.0.overhead;
        writeln!(f, "  {:14.6}  {:5.1}%   {:>15}   between passes", rest.as_secs_f64(), share(rest), "")
    }
}
