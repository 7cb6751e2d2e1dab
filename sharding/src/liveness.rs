//! Liveness analysis: the live ranges of values on a device, for one assignment or for all possible ones.

use of_ir::{Graph, OpId, ValueId};

use crate::assignment::Assignment;
use crate::model::{Model, is_alias};

/// A kind of device: which ops it runs and which values it holds. The default runs and holds everything.
pub trait Device {
    /// Whether it runs an op.
    fn runs(&self, _op: OpId) -> bool {
        true
    }

    /// Whether it holds an argument or a constant.
    fn holds_source(&self, _v: ValueId) -> bool {
        true
    }

    /// How it holds a value that is live from the first of these ops to the second. `_made` is whether the device
    /// makes the value or receives it at the first reader. A longer interval never holds less.
    fn live_range(&self, _v: ValueId, span: OpRange, _made: bool) -> LiveRange {
        LiveRange::of(1.0, span)
    }
}

/// An interval of op positions, both ends included.
pub type OpRange = (usize, usize);

/// Live range of a value on a device: shares of the value, each over an interval of ops.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LiveRange(pub [(f64, OpRange); 2]);

impl LiveRange {
    /// One share over one interval.
    pub fn of(share: f64, span: OpRange) -> LiveRange {
        LiveRange([(share, span), (0.0, span)])
    }

    /// The share of the value that is live at an op.
    pub(crate) fn at(&self, at: usize) -> f64 {
        self.0.iter().filter(|(_, (from, to))| (*from..=*to).contains(&at)).map(|(share, _)| share).sum()
    }
}

/// A device that runs the whole function.
pub struct WholeFunction;

impl Device for WholeFunction {}

/// Extends an interval to cover another.
fn extend_with(span: &mut Option<OpRange>, other: OpRange) {
    *span = Some(span.map_or(other, |(from, to)| (from.min(other.0), to.max(other.1))));
}

/// Extends an existing interval to an op.
fn extend_to(span: &mut Option<OpRange>, end: Option<usize>) {
    if let (Some((_, to)), Some(end)) = (span, end) {
        *to = end.max(*to);
    }
}

/// The earlier of two positions, where there are any.
fn earlier(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    a.into_iter().chain(b).min()
}

/// Live ranges on a device under an assignment, by position of the values in the arena.
pub(crate) struct Liveness {
    /// The number of ops.
    ops: usize,
    /// From the op that makes a value, or first reads it on this device, to its last reader there. None for sources
    /// that the device holds throughout.
    pub(crate) spans: Vec<Option<OpRange>>,
    /// From the first to the last reader of each value on this device.
    pub(crate) readers: Vec<Option<OpRange>>,
}

impl Liveness {
    pub(crate) fn of(model: &Model<'_>, assignment: &Assignment, device: &dyn Device) -> Liveness {
        let g = &model.func.graph;
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        // Whether values are read at all, their interval of uses on this device, and their first use on another.
        let mut read = vec![false; g.value_slots()];
        let mut here: Vec<Option<OpRange>> = vec![None; g.value_slots()];
        let mut remote: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut spans = vec![None; g.value_slots()];
        let mut readers: Vec<Option<OpRange>> = vec![None; g.value_slots()];
        for (at, op) in order.iter().enumerate().rev() {
            let data = g.op(*op);
            if model.may_be_left_out(*op) && data.results.iter().all(|v| !read[v.index()]) {
                continue;
            }
            if is_alias(data.name()) {
                let taken = data.operands[assignment.selected[op.index()]];
                let result = data.results[0].index();
                read[taken.index()] |= read[result];
                if let Some(span) = here[result] {
                    extend_with(&mut here[taken.index()], span);
                }
                remote[taken.index()] = earlier(remote[taken.index()], remote[result]);
                continue;
            }
            for v in data.operands.iter().copied().chain(g.captured(*op)) {
                read[v.index()] = true;
                // Results stay where they are made.
                if data.def.traits().terminator {
                    if is_resident(g, device, v) {
                        extend_with(&mut here[v.index()], (at, at));
                    }
                } else if device.runs(*op) {
                    extend_with(&mut here[v.index()], (at, at));
                    extend_with(&mut readers[v.index()], (at, at));
                } else {
                    remote[v.index()] = Some(at);
                }
            }
            if data.def.traits().constant {
                continue;
            }
            for v in &data.results {
                let own = here[v.index()];
                // A value that another device reads is held until it is sent, right before that read.
                let end = own.map(|(_, end)| end).max(remote[v.index()]);
                let made = device.runs(*op).then(|| (at, end.unwrap_or(at)));
                spans[v.index()] = made.or(own);
                if made.is_some() {
                    extend_to(&mut readers[v.index()], remote[v.index()]);
                }
            }
        }
        for v in g.args() {
            if device.holds_source(*v) {
                extend_to(&mut readers[v.index()], remote[v.index()]);
            } else {
                spans[v.index()] = here[v.index()];
            }
        }
        Liveness { ops: order.len(), spans, readers }
    }

    /// The op position of peak memory and the bytes there, for values of these sizes and live ranges.
    pub(crate) fn peak(&self, held: impl Iterator<Item = (f64, LiveRange)>) -> (usize, f64) {
        let mut change = vec![0.0; self.ops + 1];
        for (bytes, LiveRange(shares)) in held {
            for (share, (from, to)) in shares {
                change[from] += bytes * share;
                change[to + 1] -= bytes * share;
            }
        }
        let (mut sum, mut best) = (0.0, (0, 0.0));
        for (i, c) in change.iter().enumerate() {
            sum += c;
            if sum > best.1 {
                best = (i, sum);
            }
        }
        best
    }
}

/// Whether a device makes a value, or holds it as a source.
pub(crate) fn is_resident(g: &Graph, device: &dyn Device, v: ValueId) -> bool {
    g.def_op(v).map_or_else(|| device.holds_source(v), |op| device.runs(op))
}

/// Live ranges on a device that hold under every assignment, by position of the values in the arena.
pub(crate) struct CertainLiveness {
    /// From the op that makes a value, or certainly reads it first on this device, to its last certain reader there.
    /// Where all readers are optional and on this device, the interval ends at the first: one of them runs if the value
    /// is made at all.
    pub(crate) spans: Vec<Option<OpRange>>,
    /// From the first to the last certain reader.
    pub(crate) readers: Vec<Option<OpRange>>,
}

impl CertainLiveness {
    /// The live ranges that are certain.
    pub(crate) fn of(model: &Model<'_>, device: &dyn Device) -> CertainLiveness {
        let g = &model.func.graph;
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        // Uses of each value on this device: the certain ones, and the first.
        let mut certain_uses: Vec<Option<OpRange>> = vec![None; g.value_slots()];
        let mut first: Vec<Option<usize>> = vec![None; g.value_slots()];
        // Whether another device reads the value, and its first certain use there.
        let mut elsewhere = vec![false; g.value_slots()];
        let mut remote: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut out = CertainLiveness { spans: vec![None; g.value_slots()], readers: vec![None; g.value_slots()] };
        for (at, op) in order.iter().enumerate().rev() {
            let data = g.op(*op);
            let (optional, runs) = (model.may_be_left_out(*op), device.runs(*op));
            for v in &data.results {
                let own = certain_uses[v.index()];
                let one = first[v.index()].filter(|_| optional && !elsewhere[v.index()]);
                let end = own.map(|(_, end)| end).max(remote[v.index()]);
                let made = runs.then(|| (at, end.or(one).unwrap_or(at)));
                out.spans[v.index()] = made.or(own);
                if runs {
                    extend_to(&mut out.readers[v.index()], remote[v.index()]);
                }
            }
            let (alias, terminator) = (is_alias(data.name()), data.def.traits().terminator);
            for v in data.operands.iter().copied().chain(g.captured(*op)) {
                let here = if terminator { is_resident(g, device, v) } else { runs };
                if !here {
                    elsewhere[v.index()] = true;
                    remote[v.index()] = if alias || optional || terminator { remote[v.index()] } else { Some(at) };
                    continue;
                }
                if !alias && !optional {
                    extend_with(&mut certain_uses[v.index()], (at, at));
                    if !terminator {
                        extend_with(&mut out.readers[v.index()], (at, at));
                    }
                }
                let result = if alias { out.spans[data.results[0].index()] } else { None };
                let end = result.map_or(at, |(_, end)| end);
                first[v.index()] = Some(first[v.index()].map_or(end, |f: usize| f.min(end)));
            }
        }
        for v in g.args() {
            out.spans[v.index()] = certain_uses[v.index()];
            if device.holds_source(*v) {
                extend_to(&mut out.readers[v.index()], remote[v.index()]);
            }
        }
        out
    }
}
