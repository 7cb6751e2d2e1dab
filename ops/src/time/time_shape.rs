//! When each op of a region runs: once, or in each microbatch.

use of_diag::{Code, Diagnostic};
use of_ir::{Graph, IdMap, OpId, RegionId, ValueId};

use super::{Accumulate, Pack, Unpack};
use crate::OpSpec;
use crate::boxing::Transfer;
use crate::list::as_op;

/// When the ops of a region run, and how many microbatches there are.
///
/// A step is a list of parts. Even parts run once, odd parts in each microbatch: before the microbatches, in them, after them, and so on,
/// where microbatches need what others accumulated. An op runs as late as its readers allow, so that as few values as possible are
/// kept for all microbatches, and a forward pass is in the part of its backward pass.
#[derive(Clone, Debug)]
pub struct TimeShape {
    /// The number of microbatches.
    pub count: usize,
    parts: IdMap<OpId, usize>,
}

impl TimeShape {
    /// The time shape of a region; `None` where no op has one of its own.
    ///
    /// # Errors
    /// When numbers of microbatches differ, or the region returns a value of a microbatch.
    pub fn of(g: &Graph, region: RegionId) -> Result<Option<TimeShape>, Diagnostic> {
        let mut count = None;
        for op in g.region_ops(region) {
            let Some(own) = own_count(g, op) else { continue };
            if count.is_some_and(|n| n != own) {
                let what = format!("'{}' is of {own} microbatches, others of {}", g.op(op).name(), count.unwrap_or(0));
                return Err(Diagnostic::error(Code::SHAPE, g.op(op).loc.clone(), what));
            }
            count = Some(own);
        }
        let Some(count) = count else { return Ok(None) };
        let mut shape = TimeShape { count, parts: IdMap::default() };
        for op in g.region_ops(region) {
            shape.add(g, op)?;
        }
        shape.delay(g, region);
        Ok(Some(shape))
    }

    fn add(&mut self, g: &Graph, op: OpId) -> Result<(), Diagnostic> {
        let data = g.op(op);
        let captured = g.captured(op);
        let reads = || data.operands.iter().chain(&captured).map(|v| self.value(g, *v));
        let last = reads().max().unwrap_or(0);
        let varies = own_count(g, op).is_some() || reads().any(is_in_microbatches);
        if varies && data.def.traits().terminator {
            let d = Diagnostic::error(Code::SHAPE, data.loc.clone(), "it returns a value of a microbatch");
            return Err(d.hint("of.accumulate and of.pack end microbatches"));
        }
        let earliest = if varies && !is_in_microbatches(last) { last + 1 } else { last };
        self.parts.insert(op, earliest.max(stated_part(g, op)));
        Ok(())
    }

    /// Moves ops to the part of their first reader, or to the one before it where it reads what they make of all microbatches. Ranks agree on
    /// transfers, so these stay.
    fn delay(&mut self, g: &Graph, region: RegionId) {
        let ops: Vec<OpId> = g.region_ops(region).collect();
        for op in ops.into_iter().rev() {
            let users = readers(g, region, op).into_iter().map(|reader| self.op(reader));
            let Some(first) = users.min().filter(|_| transfer_of(g, op).is_none()) else { continue };
            let (own, collects) = (self.op(op), collects(g, op));
            let latest = first.saturating_sub(usize::from(collects));
            // The last part up to that which runs as often.
            let latest = if is_in_microbatches(latest) == is_in_microbatches(own) {
                Some(latest)
            } else {
                latest.checked_sub(1)
            };
            self.parts.insert(op, own.max(latest.unwrap_or(own)));
        }
    }

    /// The part in which an op runs.
    pub fn op(&self, op: OpId) -> usize {
        self.parts.get(&op).copied().unwrap_or(0)
    }

    /// The part in which a value is there.
    fn value(&self, g: &Graph, v: ValueId) -> usize {
        let Some(op) = g.def_op(v) else { return 0 };
        self.op(op) + usize::from(collects(g, op))
    }
}

/// Whether a part runs in each microbatch.
pub fn is_in_microbatches(part: usize) -> bool {
    part % 2 == 1
}

/// Whether the result of an op is of all microbatches.
fn collects(g: &Graph, op: OpId) -> bool {
    matches!(g.op(op).name(), Accumulate::NAME | Pack::NAME)
}

/// The ops of a region that read the results of another, or have one in their regions that does.
pub fn readers(g: &Graph, region: RegionId, op: OpId) -> Vec<OpId> {
    let enclosing = |mut reader: OpId| {
        while g.op(reader).parent != region
            && let Some(around) = g.region_parent(g.op(reader).parent)
        {
            reader = around;
        }
        reader
    };
    g.op(op).results.iter().flat_map(|v| g.uses(*v)).map(|u| enclosing(u.op)).collect()
}

/// The transfer that an op is, or the first one in its regions.
pub fn transfer_of(g: &Graph, op: OpId) -> Option<Transfer> {
    let inside = || g.op(op).regions.iter().flat_map(|r| g.region_ops(*r)).find_map(|inner| transfer_of(g, inner));
    as_op::<Transfer>(g, op).or_else(inside)
}

/// The part that a transfer states.
fn stated_part(g: &Graph, op: OpId) -> usize {
    let stated = transfer_of(g, op).and_then(|transfer| transfer.microbatches.get(1).copied());
    stated.and_then(|part| usize::try_from(part).ok()).unwrap_or(0)
}

/// The number of microbatches that an op states.
fn own_count(g: &Graph, op: OpId) -> Option<usize> {
    let data = g.op(op);
    let count = match data.name() {
        Unpack::NAME => g.ty(data.operands[0]).as_tensor()?.shape.as_ref()?.first()?.as_const(),
        Pack::NAME => as_op::<Pack>(g, op).map(|pack| pack.count),
        Accumulate::NAME => as_op::<Accumulate>(g, op).map(|accumulate| accumulate.count),
        _ => {
            let stated = transfer_of(g, op).map(|transfer| transfer.microbatches).unwrap_or_default();
            stated.first().copied().filter(|_| is_in_microbatches(stated_part(g, op)))
        }
    };
    count.and_then(|n| usize::try_from(n).ok())
}
