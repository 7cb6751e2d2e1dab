//! Boxes in graphs: overlaps, differences between boxes, and the loss of a coordinate.

use of_diag::Diagnostic;
use of_ir::ValueId;
use of_ops::elementwise::{Abs, Exp, Log, Max, Min};
use of_ops::movement::Slice;
use of_ops::reduction::ReduceSum;

use super::net::{Net, ValueResult};

/// Left, top, right and bottom of boxes: a value each.
pub(super) type Corners = [ValueId; 4];
/// Centres along both axes, widths and heights of boxes: a value each.
pub(super) type Centres = [ValueId; 4];

pub(super) fn reduce_sum(n: &mut Net, x: ValueId, axis: i64) -> ValueResult {
    let axis = n.ints(&[axis])?;
    n.op(ReduceSum { keepdims: false }, &[x, axis])
}

/// The four numbers of `[…, 4]`, `[…, 1]` each. `last` is the number of the last axis.
pub(super) fn parts(n: &mut Net, boxes: ValueId, last: i64) -> Result<[ValueId; 4], Diagnostic> {
    let axis = n.ints(&[last])?;
    let mut out = [boxes; 4];
    for (i, part) in out.iter_mut().enumerate() {
        let (from, to) = (n.ints(&[i as i64])?, n.ints(&[i as i64 + 1])?);
        *part = n.op(Slice {}, &[boxes, from, to, axis])?;
    }
    Ok(out)
}

/// The overlap of each box of one list with each of another, whose extents broadcast: intersection by union.
pub(super) fn overlaps(n: &mut Net, first: &Corners, second: &Corners) -> ValueResult {
    let zero = n.floats(&[], &[0.0])?;
    let mut side = |low: usize, high: usize| {
        let from = n.op(Max {}, &[first[low], second[low]])?;
        let to = n.op(Min {}, &[first[high], second[high]])?;
        let length = n.math().sub(to, from)?;
        n.op(Max {}, &[length, zero])
    };
    let (width, height) = (side(0, 2)?, side(1, 3)?);
    let m = &mut n.math();
    let common = m.mul(width, height)?;
    let mut area = |[left, top, right, bottom]: &Corners| {
        let (w, h) = (m.sub(*right, *left)?, m.sub(*bottom, *top)?);
        m.mul(w, h)
    };
    let (own, other) = (area(first)?, area(second)?);
    let both = m.add(own, other)?;
    let union = m.sub(both, common)?;
    m.div(common, union)
}

/// Centres and sides of boxes.
pub(super) fn centres(n: &mut Net, boxes: &Corners) -> Result<Centres, Diagnostic> {
    let m = &mut n.math();
    let mut out = *boxes;
    for i in 0..2 {
        let sum = m.add(boxes[i], boxes[i + 2])?;
        out[i] = m.scale(sum, 0.5)?;
        out[i + 2] = m.sub(boxes[i + 2], boxes[i])?;
    }
    Ok(out)
}

/// The differences between boxes and reference boxes: of centres by sides, times the first scale, and logarithms of quotients of sides,
/// times the second. Source: Girshick et al., "Rich feature hierarchies" (2014).
pub(super) fn differences(
    n: &mut Net,
    boxes: &Corners,
    reference: &Centres,
    scales: [f64; 2],
) -> Result<[ValueId; 4], Diagnostic> {
    let own = centres(n, boxes)?;
    let m = &mut n.math();
    let mut out = own;
    for i in 0..2 {
        let side = reference[i + 2];
        let difference = m.sub(own[i], reference[i])?;
        let part = m.div(difference, side)?;
        out[i] = m.scale(part, scales[0])?;
        let part = m.div(own[i + 2], side)?;
        let logarithm = m.op(Log {}, &[part])?;
        out[i + 2] = m.scale(logarithm, scales[1])?;
    }
    Ok(out)
}

/// A predicted side is at most this many times that of its reference box, as a logarithm: 1000 / 16.
const LARGEST: f64 = 4.135_166_556_742_356;

/// The boxes that differ so from reference boxes.
pub(super) fn moved(
    n: &mut Net,
    differences: &[ValueId; 4],
    reference: &Centres,
    scales: [f64; 2],
) -> Result<Corners, Diagnostic> {
    let largest = n.floats(&[], &[LARGEST as f32])?;
    let m = &mut n.math();
    let mut out = *differences;
    for i in 0..2 {
        let side = reference[i + 2];
        let part = m.scale(differences[i], 1.0 / scales[0])?;
        let away = m.mul(part, side)?;
        let centre = m.add(reference[i], away)?;
        let logarithm = m.scale(differences[i + 2], 1.0 / scales[1])?;
        let logarithm = m.op(Min {}, &[logarithm, largest])?;
        let factor = m.op(Exp {}, &[logarithm])?;
        let length = m.mul(factor, side)?;
        let half = m.scale(length, 0.5)?;
        out[i] = m.sub(centre, half)?;
        out[i + 2] = m.add(centre, half)?;
    }
    Ok(out)
}

/// The loss of one coordinate: half the square by `limit` up to there, and linear beyond.
pub(super) fn smooth_l1(n: &mut Net, x: ValueId, y: ValueId, limit: f64) -> ValueResult {
    let difference = n.math().sub(x, y)?;
    let size = n.op(Abs {}, &[difference])?;
    let end = n.floats(&[], &[limit as f32])?;
    let near = n.op(Min {}, &[size, end])?;
    let m = &mut n.math();
    let square = m.square(near)?;
    let (half, far) = (m.scale(square, 0.5 / limit)?, m.sub(size, near)?);
    m.add(half, far)
}
