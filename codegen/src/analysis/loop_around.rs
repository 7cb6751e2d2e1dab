//! Loops that count: nothing but the number of iterations ends them.

use of_ir::{Dim, Graph, OpId, Tensor, ValueId};
use of_ops::OpSpec;
use of_ops::elementwise::{Add, Sub};

use crate::kernel::extent::Extent;

/// A loop whose number of iterations is known before it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct LoopAround {
    /// Number of iterations.
    pub trips: Extent,
    /// The number of the iteration, an argument of the region.
    pub number: ValueId,
}

impl LoopAround {
    /// The loop `op` (`of.loop`).
    ///
    /// # Errors
    /// The reason why its number of iterations is not known before it runs.
    pub fn of(g: &Graph, op: OpId) -> Result<LoopAround, String> {
        let data = g.op(op);
        let [limit, first, ..] = data.operands[..] else { return Err("it has no number of iterations".into()) };
        let args = g.region_args(data.regions[0]);
        let next = g.yields(data.regions[0]).first().copied();
        let holds = |v: ValueId| g.constant(v).and_then(|t: Tensor| t.to_i64s()).is_some_and(|v| v == [1]);
        let at_first = g.ty(first).as_tensor().is_none() || holds(first);
        let always = next.is_some_and(|v| args.get(1) == Some(&v) || holds(v));
        if !at_first || !always {
            return Err("a condition ends the loop".into());
        }
        let trips = g.dims_value(limit).and_then(|d| d.into_iter().next()).filter(|d| !d.is_unknown());
        let trips = trips.ok_or("its number of iterations is not known before it runs")?;
        let trips = trips.as_const().map_or(trips, |n| n.max(0).into());
        Ok(LoopAround { trips: trips.into(), number: args[0] })
    }

    /// The element of an axis of `count` elements that the index `v` selects: the one of the first iteration, and the step to that of
    /// the next. `None` where it may lie outside.
    pub fn position(&self, g: &Graph, v: ValueId, count: &Extent) -> Option<(Extent, i64)> {
        let (first, step) = self.affine(g, v)?;
        let last = &self.trips - 1usize;
        let is_natural = |e: Extent| e.number().is_some();
        let end = count - 1usize;
        let inside = match step {
            1 => is_natural(first.clone()) && is_natural(end - &first - last),
            -1 => is_natural(end - &first) && is_natural(&first - last),
            _ => false,
        };
        inside.then_some((first, step))
    }

    /// `v` as a number plus or minus that of the iteration.
    fn affine(&self, g: &Graph, v: ValueId) -> Option<(Extent, i64)> {
        if v == self.number {
            return Some((0usize.into(), 1));
        }
        let op = g.def_op(v)?;
        let data = g.op(op);
        let known = |v: ValueId| g.dims_value(v)?.first().filter(|d: &&Dim| !d.is_unknown()).map(Extent::from);
        match (data.name(), &data.operands[..]) {
            (Sub::NAME, [a, b]) => match (known(*a), known(*b)) {
                (Some(a), None) => self.affine(g, *b).map(|(first, step)| (a - first, -step)),
                (None, Some(b)) => self.affine(g, *a).map(|(first, step)| (first - b, step)),
                _ => None,
            },
            (Add::NAME, [a, b]) => match (known(*a), known(*b)) {
                (Some(n), None) => self.affine(g, *b).map(|(first, step)| (first + n, step)),
                (None, Some(n)) => self.affine(g, *a).map(|(first, step)| (first + n, step)),
                _ => None,
            },
            _ => None,
        }
    }
}
