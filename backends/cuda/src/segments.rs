//! Segments of a program: overlap of computation and exchanges between ranks.
//!
//! A device computes in one stream and exchanges in another, each in program order. An exchange starts when all compute work
//! enqueued before it has completed. Later compute work continues until a step reads what the exchange writes, or writes
//! what it reads or writes; there the compute stream waits for the exchange stream. The plan allocates memory so that this
//! is rarely earlier than the first reader (`of_codegen::physical`).

use std::ops::Range;

use crate::program::{DeviceProgram, Step, overlap};

/// A unit of work that is enqueued at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Compute steps.
    Compute(Range<usize>),
    /// An exchange step, by its number among these, concurrent with the compute steps that follow.
    Exchange(usize),
    /// Later compute steps wait for the exchange with this number, and so for those before it.
    Await(usize),
}

/// Ranges of device memory: offset and bytes.
#[derive(Clone, Debug, Default)]
struct Touched {
    reads: Vec<(u64, u64)>,
    writes: Vec<(u64, u64)>,
}

impl Touched {
    fn by(step: &Step) -> Touched {
        let mut out = Touched::default();
        match step {
            Step::Upload { to, bytes, .. } | Step::CopyIn { to, bytes, .. } => out.writes.push((*to, *bytes)),
            Step::Download { from, bytes, .. } | Step::CopyOut { from, bytes, .. } => out.reads.push((*from, *bytes)),
            Step::Copy { from, to, bytes } => {
                out.reads.push((*from, *bytes));
                out.writes.push((*to, *bytes));
            }
            Step::Launch { args, .. } | Step::Call { args, .. } => {
                for arg in args {
                    if arg.written { &mut out.writes } else { &mut out.reads }.push(arg.value);
                }
            }
            Step::Exchange(together) => {
                out.reads.extend(together.iter().map(|e| e.from));
                out.writes.extend(together.iter().map(|e| e.to));
            }
        }
        out
    }

    /// Whether the two accesses conflict.
    fn conflicts_with(&self, other: &Touched) -> bool {
        let any = |a: &[(u64, u64)], b: &[(u64, u64)]| a.iter().any(|a| b.iter().any(|b| overlap(*a, *b)));
        any(&self.writes, &other.reads) || any(&self.writes, &other.writes) || any(&self.reads, &other.writes)
    }
}

impl DeviceProgram<'_> {
    /// Its segments, in the order of enqueuing. The last ones await all exchanges.
    pub fn segments(&self) -> Vec<Segment> {
        let (mut out, mut from, mut number) = (Vec::new(), 0, 0);
        // Exchanges that were not awaited yet.
        let mut pending: Vec<(usize, Touched)> = Vec::new();
        let compute = |out: &mut Vec<Segment>, steps: Range<usize>| {
            if !steps.is_empty() {
                out.push(Segment::Compute(steps));
            }
        };
        for (i, step) in self.steps.iter().enumerate() {
            let own = Touched::by(step);
            if matches!(step, Step::Exchange(_)) {
                compute(&mut out, from..i);
                out.push(Segment::Exchange(number));
                pending.push((number, own));
                (from, number) = (i + 1, number + 1);
            } else if let Some(last) = pending.iter().rposition(|(_, exchange)| exchange.conflicts_with(&own)) {
                compute(&mut out, from..i);
                out.push(Segment::Await(pending[last].0));
                pending.drain(..=last);
                from = i;
            }
        }
        compute(&mut out, from..self.steps.len());
        out.extend(pending.last().map(|(number, _)| Segment::Await(*number)));
        out
    }
}
