//! Rules of `canonicalize` for resizing (resampling) ops that only move data.

use of_diag::Diagnostic;
use of_ir::{OpId, Rewriter};
use of_ops::list::as_op;
use of_ops::nn::Resize;

use crate::builders::repeated;
use crate::matchers::dims;

/// resize_nearest(x) = repeat(x), where every axis grows by an integer factor
pub fn resize_whole(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(resize) = as_op::<Resize>(rw.graph(), op) else { return Ok(false) };
    let data = rw.graph().op(op);
    let (x, y) = (data.operands[0], data.results[0]);
    let (Some(from), Some(to)) = (dims(rw.graph(), x), dims(rw.graph(), y)) else { return Ok(false) };
    let whole = from.iter().zip(&to).all(|(d, e)| *d > 0 && *e > 0 && e % d == 0);
    if !resize.repeats_elements() || !whole {
        return Ok(false);
    }
    let factors: Vec<usize> = from.iter().zip(&to).map(|(d, e)| e / d).collect();
    if let Some(scales) = data.operands.get(2).filter(|v| rw.graph().ty(**v).as_tensor().is_some()) {
        // The given scale, not the ratio of the sizes, defines the position of an output.
        let Some(scales) = rw.graph().constant(*scales).and_then(|t| t.to_f64s()) else { return Ok(false) };
        let rank = from.len() as i64;
        let all: Vec<i64> = (0..rank).collect();
        let axes = resize.axes.as_ref().unwrap_or(&all);
        let agrees =
            |(a, s): (&i64, &f64)| factors.get(a.rem_euclid(rank.max(1)) as usize).is_some_and(|f| *f as f64 == *s);
        if axes.len() != scales.len() || !axes.iter().zip(&scales).all(agrees) {
            return Ok(false);
        }
    }
    rw.rewrite(op, &[]);
    let y = repeated(rw, x, &from, &factors)?;
    rw.replace(op, &[y]);
    Ok(true)
}
