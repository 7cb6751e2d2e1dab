//! Objects of boxes, and the samples that the losses of Mask R-CNN are of, with fixed counts. As torchvision's `Matcher` and
//! `BalancedPositiveNegativeSampler`.

use of_diag::Diagnostic;
use of_ir::{DType, Tensor, ValueId};
use of_ops::elementwise::{And, Cast, Floor, Ge, Gt, Lt, Not, Or, Select, Sub};
use of_ops::movement::{Expand, GatherElements};
use of_ops::nn::Dropout;
use of_ops::reduction::{ArgMax, ReduceMax, ReduceSum, TopK};
use of_ops::sample::Rng;

use super::boxes::{Corners, overlaps, reduce_sum};
use super::net::{Net, ValueResult, made};

/// The objects of the images.
pub(super) struct Objects {
    /// `[N, G]` each, in pixels.
    pub corners: Corners,
    /// Their classes, `[N, G]`; 0 is none.
    pub labels: ValueId,
}

/// The object of each box, by the overlap.
pub(super) struct Matched {
    /// Its number, `[N, B]`.
    pub object: ValueId,
    /// The overlap, `[N, B]`; -1 where the image has no object.
    overlap: ValueId,
    /// All overlaps, `[N, G, B]`.
    all: ValueId,
    /// Which objects are, `[N, G, 1]`.
    is_object: ValueId,
}

fn any(n: &mut Net, x: ValueId, axis: i64) -> ValueResult {
    let x = n.op(Cast::to(DType::F32), &[x])?;
    let axis = n.ints(&[axis])?;
    let most = n.op(ReduceMax { keepdims: false }, &[x, axis])?;
    let zero = n.floats(&[], &[0.0])?;
    n.op(Gt {}, &[most, zero])
}

/// Matches boxes, `[N, B]` or `[B]` each, with objects.
pub(super) fn matched(n: &mut Net, objects: &Objects, boxes: &Corners) -> Result<Matched, Diagnostic> {
    let mut rows = objects.corners;
    for row in &mut rows {
        *row = n.unsqueeze(*row, &[2])?;
    }
    let mut columns = *boxes;
    for column in &mut columns {
        *column = n.unsqueeze(*column, &[-2])?;
    }
    let overlap = overlaps(n, &rows, &columns)?;
    let none = n.b.constant(Tensor::scalar(0i64))?;
    let is_object = n.op(Gt {}, &[objects.labels, none])?;
    let is_object = n.unsqueeze(is_object, &[2])?;
    let least = n.floats(&[], &[-1.0])?;
    let all = n.op(Select {}, &[is_object, overlap, least])?;
    let object = n.op(ArgMax { axis: 1, keepdims: false, select_last_index: false }, &[all])?;
    let axis = n.ints(&[1])?;
    let overlap = n.op(ReduceMax { keepdims: false }, &[all, axis])?;
    Ok(Matched { object, overlap, all, is_object })
}

impl Matched {
    /// Boxes that overlap an object by at least `limit`, and those that overlap objects by less than `low`: `[N, B]` of i1.
    pub(super) fn split(&self, n: &mut Net, [low, limit]: [f32; 2]) -> Result<[ValueId; 2], Diagnostic> {
        let (low, limit) = (n.floats(&[], &[low])?, n.floats(&[], &[limit])?);
        Ok([n.op(Ge {}, &[self.overlap, limit])?, n.op(Lt {}, &[self.overlap, low])?])
    }

    /// Boxes that overlap some object as much as any box does.
    pub(super) fn best(&self, n: &mut Net) -> ValueResult {
        let axis = n.ints(&[2])?;
        let most = n.op(ReduceMax { keepdims: true }, &[self.all, axis])?;
        // Equal but for rounding, which differs between kernels.
        let almost = n.math().scale(most, 1.0 - 1e-6)?;
        let is_best = n.op(Ge {}, &[self.all, almost])?;
        let zero = n.floats(&[], &[0.0])?;
        let overlaps = n.op(Gt {}, &[most, zero])?;
        let counts = n.op(And {}, &[overlaps, self.is_object])?;
        let is_best = n.op(And {}, &[is_best, counts])?;
        any(n, is_best, 1)
    }
}

/// How many samples an image has.
#[derive(Clone, Copy)]
pub(super) struct Quota {
    /// All.
    pub samples: usize,
    /// The part that may be positive.
    pub positive: f64,
    /// Boxes to choose from.
    pub boxes: usize,
}

impl Quota {
    /// The most positives.
    pub(super) fn positives(&self) -> usize {
        ((self.samples as f64 * self.positive) as usize).clamp(1, self.boxes)
    }
}

/// Samples of each image: positives first. Lists of too few are filled up.
pub(super) struct Sampled {
    /// Numbers of boxes, `[N, S]`.
    pub boxes: ValueId,
    /// Which are samples, `[N, S]` of i1.
    pub is_valid: ValueId,
    /// Which of these are positive, `[N, S]` of i1.
    pub is_positive: ValueId,
}

/// Bits of a random number.
const BITS: usize = 24;

/// Numbers from 0 to below 1 in a random order, `[N, count]`: fixed ones, moved by a number that is random for each image and step, and
/// fixed in evaluations.
fn priorities(n: &mut Net, images: ValueId, count: usize) -> ValueResult {
    let mut random = Rng::new(0x0da2);
    let fixed: Vec<f32> = (0..count).map(|_| random.float(0.0, 1.0) as f32).collect();
    let fixed = n.floats(&[count], &fixed)?;
    let (batch, bits) = (n.extent(images, 0)?, n.ints(&[BITS as i64])?);
    let dims = n.concat(0, &[batch, bits])?;
    let one = n.floats(&[], &[1.0])?;
    let ones = n.op(Expand {}, &[one, dims])?;
    // The coins of a dropout are the random bits of a training step.
    let half = n.floats(&[], &[0.5])?;
    let coins = n.b.op_all(Dropout { return_mask: true, seed: 0 }, &[ones, half])?[1];
    let coins = n.op(Cast::to(DType::F32), &[coins])?;
    let values: Vec<f32> = (0..BITS).map(|i| 0.5f32.powi(i as i32 + 1)).collect();
    let values = n.floats(&[BITS], &values)?;
    let weighted = n.math().mul(coins, values)?;
    let axis = n.ints(&[1])?;
    let away = n.op(ReduceSum { keepdims: true }, &[weighted, axis])?;
    let sum = n.math().add(fixed, away)?;
    let whole = n.op(Floor {}, &[sum])?;
    n.math().sub(sum, whole)
}

/// The `count` candidates of the largest priorities: their numbers, and which of them are candidates.
fn chosen(n: &mut Net, is_candidate: ValueId, priority: ValueId, count: usize) -> Result<[ValueId; 2], Diagnostic> {
    let least = n.floats(&[], &[-1.0])?;
    let key = n.op(Select {}, &[is_candidate, priority, least])?;
    let k = n.ints(&[count as i64])?;
    let found = n.b.op_all(TopK { axis: 1, largest: true, sorted: true }, &[key, k])?;
    let zero = n.floats(&[], &[0.0])?;
    Ok([found[1], n.op(Ge {}, &[found[0], zero])?])
}

/// Draws samples of positive and negative boxes, `[N, B]` of i1. `images` gives the number of images.
pub(super) fn sampled(
    n: &mut Net,
    images: ValueId,
    [positive, negative]: [ValueId; 2],
    quota: Quota,
) -> Result<Sampled, Diagnostic> {
    let slots = quota.samples.min(quota.boxes);
    let priority = priorities(n, images, quota.boxes)?;
    let [first, is_first] = chosen(n, positive, priority, quota.positives())?;
    let [second, is_second] = chosen(n, negative, priority, slots)?;
    // Negatives take what positives leave.
    let counted = n.op(Cast::to(DType::I64), &[is_first])?;
    let axis = n.ints(&[1])?;
    let taken = n.op(ReduceSum { keepdims: true }, &[counted, axis])?;
    let all = n.b.constant(Tensor::scalar(quota.samples as i64))?;
    let left = n.op(Sub {}, &[all, taken])?;
    let numbers = n.ints(&(0..slots as i64).collect::<Vec<_>>())?;
    let fits = n.op(Lt {}, &[numbers, left])?;
    let is_second = n.op(And {}, &[is_second, fits])?;
    // Positives, negatives, and what is neither.
    let rank = |n: &mut Net, is: ValueId, value: f32| {
        let (value, none) = (n.floats(&[], &[value])?, n.floats(&[], &[0.0])?);
        n.op(Select {}, &[is, value, none])
    };
    let ranks = [rank(n, is_first, 2.0)?, rank(n, is_second, 1.0)?];
    let (ranks, numbers) = (n.concat(1, &ranks)?, n.concat(1, &[first, second])?);
    let k = n.ints(&[slots as i64])?;
    let found = n.b.op_all(TopK { axis: 1, largest: true, sorted: true }, &[ranks, k])?;
    let boxes = n.op(GatherElements { axis: 1 }, &[numbers, found[1]])?;
    let above = |n: &mut Net, limit: f32| {
        let limit = n.floats(&[], &[limit])?;
        n.op(Gt {}, &[found[0], limit])
    };
    Ok(Sampled { boxes, is_valid: above(n, 0.5)?, is_positive: above(n, 1.5)? })
}

/// Adds what is true elsewhere.
pub(super) fn or(n: &mut Net, x: ValueId, y: ValueId) -> ValueResult {
    n.op(Or {}, &[x, y])
}

/// What holds of `x` and not of `y`.
pub(super) fn without(n: &mut Net, x: ValueId, y: ValueId) -> ValueResult {
    let not = n.op(Not {}, &[y])?;
    n.op(And {}, &[x, not])
}

/// Number of true elements, at least 1, f32.
pub(super) fn count(n: &mut Net, x: ValueId) -> ValueResult {
    let x = n.op(Cast::to(DType::F32), &[x])?;
    let sum = n.math().sum(x)?;
    let one = n.floats(&[], &[1.0])?;
    n.op(of_ops::elementwise::Max {}, &[sum, one])
}

/// The sum of `x` where `counts`, `[N, S]` each, by `divisor`.
pub(super) fn mean_of(n: &mut Net, x: ValueId, counts: ValueId, divisor: ValueId) -> ValueResult {
    let zero = n.floats(&[], &[0.0])?;
    let kept = n.op(Select {}, &[counts, x, zero])?;
    let sum = n.math().sum(kept)?;
    n.math().div(sum, divisor)
}

/// The losses of four coordinates, summed: `[N, S]`.
pub(super) fn coordinate_loss(n: &mut Net, predicted: &[ValueId; 4], wanted: &[ValueId; 4]) -> ValueResult {
    /// Where the loss becomes linear, as torchvision has it.
    const LIMIT: f64 = 1.0 / 9.0;
    let mut rows = Vec::with_capacity(4);
    for (p, w) in predicted.iter().zip(wanted) {
        let row = super::boxes::smooth_l1(n, *p, *w, LIMIT)?;
        rows.push(n.unsqueeze(row, &[0])?);
    }
    let all = n.concat(0, &rows)?;
    reduce_sum(n, all, 0)
}

/// Constants that training does not change: a row of numbers for each coordinate.
pub(super) fn rows(n: &mut Net, boxes: &[[f32; 4]]) -> Result<Corners, Diagnostic> {
    let row = |n: &mut Net, i: usize| {
        let values: Vec<f32> = boxes.iter().map(|b| b[i]).collect();
        let value = made(Tensor::from_slice(&[values.len()], &values))?;
        n.b.constant(value)
    };
    Ok([row(n, 0)?, row(n, 1)?, row(n, 2)?, row(n, 3)?])
}
