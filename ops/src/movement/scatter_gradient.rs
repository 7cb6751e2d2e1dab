//! The gradient of both scatters.

use of_diag::Diagnostic;
use of_ir::{Graph, OpView, PartialKind, Rewriter, Sbp, SbpSignature, ValueId};

use super::{Expand, zeros_like};
use crate::OpSpec;
use crate::build::{Build, BuildResult};
use crate::elementwise::{Cast, Eq, Select};

/// The signatures of a scatter that adds updates up, where the updates are split as `part` says: each part adds its own, and the
/// sum of all parts is the result. Data of zeros adds nothing, so every part may have all of it.
pub(super) fn adds(cx: &OpView<'_>, part: Sbp) -> Vec<SbpSignature> {
    let sum = Sbp::Partial(PartialKind::Sum);
    let zeros = cx.operand(0).is_some_and(|v| is_zero(cx.graph, v));
    let data = std::iter::once(sum).chain(zeros.then_some(Sbp::Broadcast));
    data.map(|x| SbpSignature::new(&[x, part, part], &[sum])).collect()
}

/// Whether all elements of `v` are known to be 0.
fn is_zero(g: &Graph, v: ValueId) -> bool {
    let expanded = g.def_op(v).map(|op| g.op(op)).filter(|op| op.name() == Expand::NAME);
    let v = expanded.map_or(v, |op| op.operands[0]);
    g.constant(v).is_some_and(|t| t.bytes().is_some_and(|b| b.iter().all(|byte| *byte == 0)))
}

/// A scatter and its inverse gather.
pub(super) struct ScatterPair<'a> {
    /// Writes updates into data at the places; with the name of a reduction.
    pub scatter: &'a dyn Fn(&mut Rewriter<'_>, ValueId, ValueId, &str) -> BuildResult,
    /// Reads the places.
    pub gather: &'a dyn Fn(&mut Rewriter<'_>, ValueId) -> BuildResult,
}

impl ScatterPair<'_> {
    /// The derivatives by the data `x` and the `updates` that `reduction` combined to `y`, of that by `y`.
    pub(super) fn gradient(
        &self,
        rw: &mut Rewriter<'_>,
        reduction: &str,
        g: ValueId,
        [x, updates, y]: [ValueId; 3],
    ) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let b = &mut Build::new(rw);
        let both = match reduction {
            "none" => self.replaced(b, g, updates),
            "add" => (self.gather)(b.rw, g).map(|gu| (g, gu)),
            "max" | "min" => self.chosen(b, g, x, updates, y),
            "mul" => self.multiplied(b, g, x, updates),
            _ => return None,
        };
        Some(both.map(|(gx, gu)| vec![Some(gx), None, Some(gu)]))
    }

    fn replaced(&self, b: &mut Build<'_, '_>, g: ValueId, updates: ValueId) -> Result<(ValueId, ValueId), Diagnostic> {
        // Replaced elements get no gradient.
        let zeros = zeros_like(b.rw, updates)?;
        Ok(((self.scatter)(b.rw, g, zeros, "none")?, (self.gather)(b.rw, g)?))
    }

    /// Of the largest or smallest. Several of them share it.
    fn chosen(
        &self,
        b: &mut Build<'_, '_>,
        g: ValueId,
        x: ValueId,
        updates: ValueId,
        y: ValueId,
    ) -> Result<(ValueId, ValueId), Diagnostic> {
        let dtype = b.dtype(x);
        let own = b.op(Eq {}, &[x, y])?;
        let own = b.op(Cast::to(dtype), &[own])?;
        let at = (self.gather)(b.rw, y)?;
        let theirs = b.op(Eq {}, &[updates, at])?;
        let theirs = b.op(Cast::to(dtype), &[theirs])?;
        let count = (self.scatter)(b.rw, own, theirs, "add")?;
        // NaN equals none of the candidates.
        let count = b.nonzero(count)?;
        let each = b.div(g, count)?;
        let given = (self.gather)(b.rw, each)?;
        Ok((b.mul(each, own)?, b.mul(given, theirs)?))
    }

    /// Of a product: the product of the other factors, which is that of all but the zeros where only the factor itself is 0.
    fn multiplied(
        &self,
        b: &mut Build<'_, '_>,
        g: ValueId,
        x: ValueId,
        updates: ValueId,
    ) -> Result<(ValueId, ValueId), Diagnostic> {
        let zero = b.number(0.0, x)?;
        let (own, theirs) = (b.op(Eq {}, &[x, zero])?, b.op(Eq {}, &[updates, zero])?);
        let (factor, factors) = (b.nonzero(x)?, b.nonzero(updates)?);
        let product = (self.scatter)(b.rw, factor, factors, "mul")?;
        let (own_count, their_count) = (b.cast(own, b.dtype(x))?, b.cast(theirs, b.dtype(x))?);
        let zeros = (self.scatter)(b.rw, own_count, their_count, "add")?;
        let others = |b: &mut Build<'_, '_>, is_zero, factor, zeros, product, g| -> BuildResult {
            let (one, zero) = (b.number(1.0, product)?, b.number(0.0, product)?);
            let rest = b.div(product, factor)?;
            let (alone, none) = (b.op(Eq {}, &[zeros, one])?, b.op(Eq {}, &[zeros, zero])?);
            let of_zero = b.op(Select {}, &[alone, rest, zero])?;
            let of_others = b.op(Select {}, &[none, rest, zero])?;
            let others = b.op(Select {}, &[is_zero, of_zero, of_others])?;
            b.mul(g, others)
        };
        let gx = others(b, own, factor, zeros, product, g)?;
        let mut at = |v: ValueId| (self.gather)(b.rw, v);
        let (zeros, product, g) = (at(zeros)?, at(product)?, at(g)?);
        Ok((gx, others(b, theirs, factors, zeros, product, g)?))
    }
}
