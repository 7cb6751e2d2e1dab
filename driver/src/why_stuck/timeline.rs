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

/// The acts of a recording, in the order of their ends. `is_transfer` says whether a task is a transfer: a rank that waits for others may
/// compute meanwhile.
pub fn slices(log: &FlightLog, is_transfer: &dyn Fn(u32) -> bool) -> Vec<Slice> {
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
                if let (Some(since), Some(slice)) = (waits_since.take(), waiting(&mut open, is_transfer)) {
                    slice.waited += at.saturating_sub(since.max(slice.start));
                }
            }
            _ => {}
        }
    }
    let end = log.records.last().map_or(0, |record| record.at);
    if let (Some(since), Some(slice)) = (waits_since, waiting(&mut open, is_transfer)) {
        slice.waited += end.saturating_sub(since.max(slice.start));
    }
    out.extend(open.into_iter().map(|slice| Slice { end, ..slice }));
    out
}

/// Of the acts that have not ended, the one that waits for other ranks: a rank is in one transfer at a time.
fn waiting<'a>(open: &'a mut [Slice], is_transfer: &dyn Fn(u32) -> bool) -> Option<&'a mut Slice> {
    let last = open.len().checked_sub(1)?;
    let transfer = open.iter().rposition(|slice| is_transfer(slice.task));
    open.get_mut(transfer.unwrap_or(last))
}
