//! Shape operands computed from the shape of a tensor, as constants wherever the dimensions are known.

use of_diag::Diagnostic;
use of_ir::{Dim, Rewriter, ValueId};

use super::{Concat, Reshape, ints};
use crate::elementwise::{Div, Mul};
use crate::structural::ShapeOf;

/// One dimension of a shape to be: the product of some axes of a tensor, times a number, divided by a number.
pub(crate) struct Part {
    axes: Vec<usize>,
    times: i64,
    over: i64,
}

impl Part {
    /// A fixed dimension.
    pub(crate) fn number(n: i64) -> Part {
        Part { axes: Vec::new(), times: n, over: 1 }
    }

    /// An axis of the tensor.
    pub(crate) fn axis(axis: usize) -> Part {
        Part::product(vec![axis])
    }

    /// Several axes, merged.
    pub(crate) fn product(axes: Vec<usize>) -> Part {
        Part { axes, times: 1, over: 1 }
    }

    /// The `n`-th part of it.
    pub(crate) fn over(self, n: i64) -> Part {
        Part { over: n, ..self }
    }
}

/// An integer tensor of the dimensions that `parts` describe, taken from `x`, whose rank is known.
///
/// # Errors
/// When `x` is not a tensor of known rank.
pub(crate) fn spec(rw: &mut Rewriter<'_>, x: ValueId, parts: &[Part]) -> Result<ValueId, Diagnostic> {
    let shape = rw.graph().ty(x).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
    let fixed = |p: &Part| {
        let n = p.axes.iter().try_fold(1i64, |n, a| n.checked_mul(shape.get(*a).and_then(Dim::as_const)?))?;
        n.checked_mul(p.times)?.checked_div(p.over)
    };
    if let Some(list) = parts.iter().map(fixed).collect::<Option<Vec<_>>>() {
        return ints(rw, &list);
    }
    let mut pieces = Vec::new();
    for p in parts {
        pieces.push(match fixed(p) {
            Some(n) => ints(rw, &[n])?,
            None => one(rw, x, p)?,
        });
    }
    rw.create_one(Concat { axis: 0 }, &pieces)
}

/// One dimension, computed at run time.
fn one(rw: &mut Rewriter<'_>, x: ValueId, p: &Part) -> Result<ValueId, Diagnostic> {
    let mut product = None;
    for a in &p.axes {
        let d = rw.create_one(ShapeOf { start: Some(*a as i64), end: Some(*a as i64 + 1) }, &[x])?;
        product = Some(match product {
            Some(n) => rw.create_one(Mul {}, &[n, d])?,
            None => d,
        });
    }
    let mut v = match product {
        Some(v) => v,
        None => ints(rw, &[1])?,
    };
    if p.times != 1 {
        let n = ints(rw, &[p.times])?;
        v = rw.create_one(Mul {}, &[v, n])?;
    }
    if p.over != 1 {
        let n = ints(rw, &[p.over])?;
        v = rw.create_one(Div {}, &[v, n])?;
    }
    Ok(v)
}

/// `x` reshaped to the dimensions that `parts` describe.
///
/// # Errors
/// When `x` cannot have them.
pub(crate) fn reshape(rw: &mut Rewriter<'_>, x: ValueId, parts: &[Part]) -> Result<ValueId, Diagnostic> {
    let dims = spec(rw, x, parts)?;
    rw.create_one(Reshape { allowzero: true }, &[x, dims])
}
