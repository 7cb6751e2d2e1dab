//! The timeline of a recording: what its records cover.

use of_runtime::flight_recorder::{Event, FlightLog};

/// An act of a task, as far as the recording covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The task.
    pub task: u32,
    /// The number of the act.
    pub act: u64,
    /// When it began, in nanoseconds since 1970.
    pub start: u64,
    /// When it ended; for one that has not, the last record.
    pub end: u64,
    /// How much of that the rank waited for others.
    pub waited: u64,
    /// Whether it has ended.
    pub ended: bool,
}

/// The acts of a recording, in the order of their ends.
pub fn slices(log: &FlightLog) -> Vec<Slice> {
    let (mut open, mut out): (Vec<Slice>, Vec<Slice>) = (Vec::new(), Vec::new());
    let mut waits_since: Option<u64> = None;
    for record in &log.records {
        let at = record.at;
        match record.event {
            Event::ActBegins { task, act } => {
                open.push(Slice { task, act, start: at, end: at, waited: 0, ended: false });
            }
            Event::ActEnds { task, act } => {
                if let Some(index) = open.iter().position(|slice| (slice.task, slice.act) == (task, act)) {
                    out.push(Slice { end: at, ended: true, ..open.remove(index) });
                }
            }
            Event::WaitsForBlock { .. } | Event::WaitsUntilTaken { .. } => waits_since = waits_since.or(Some(at)),
            Event::Received { .. } | Event::Sent { .. } | Event::TransferEnds { .. } => {
                if let (Some(since), Some(slice)) = (waits_since.take(), open.last_mut()) {
                    slice.waited += at.saturating_sub(since);
                }
            }
            _ => {}
        }
    }
    let end = log.records.last().map_or(0, |record| record.at);
    out.extend(open.into_iter().map(|slice| {
        let waited = slice.waited + waits_since.map_or(0, |since| end.saturating_sub(since));
        Slice { end, waited, ..slice }
    }));
    out
}
