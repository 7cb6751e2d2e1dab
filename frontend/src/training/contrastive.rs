//! Losses over embeddings: rows that belong together become similar.

use of_ir::{Tensor, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{And, Eq, Gt, Max, Not, Select};
use of_ops::movement::{Gather, Range, Reshape, Transpose, Unsqueeze};
use of_ops::reduction::{ReduceLogSumExp, ReduceSum};
use of_ops::structural::ShapeOf;

use super::arithmetic::{Arithmetic, ValueResult};

/// What stands for minus infinity: its exponential is 0, and its difference with itself is a number.
pub(super) const LOWEST: f64 = -1e30;

/// A constant of integers.
pub(super) fn ints(b: &mut Arithmetic<'_>, values: &[i64]) -> ValueResult {
    b.op(of_ops::structural::Constant { value: Tensor::from_i64s(values) }, &[])
}

/// `0, 1, …` along an axis of `v`.
pub(super) fn positions(b: &mut Arithmetic<'_>, v: ValueId, axis: i64) -> ValueResult {
    let length = b.op(ShapeOf { start: Some(axis), end: Some(axis + 1) }, &[v])?;
    let rank0 = ints(b, &[])?;
    let scalar = |b: &mut Arithmetic<'_>, v: ValueId| b.op(Reshape { allowzero: false }, &[v, rank0]);
    let (zero, one) = (ints(b, &[0])?, ints(b, &[1])?);
    let (zero, one, length) = (scalar(b, zero)?, scalar(b, one)?, scalar(b, length)?);
    b.op(Range {}, &[zero, length, one])
}

/// A vector as a column and as a row, compared element by element.
fn pairwise_equal(b: &mut Arithmetic<'_>, v: ValueId) -> ValueResult {
    let (first, second) = (ints(b, &[0])?, ints(b, &[1])?);
    let (row, column) = (b.op(Unsqueeze {}, &[v, first])?, b.op(Unsqueeze {}, &[v, second])?);
    b.op(Eq {}, &[column, row])
}

/// Contrastive loss of embeddings `[N, D]` with labels `[N]`: rows of one label are similar, all others are not. With two rows of
/// each label it is NT-Xent. Rows without another one of their label do not count.
///
/// Source: Khosla et al., "Supervised Contrastive Learning" (2020), equation 2; NT-Xent: Chen et al., "A Simple Framework for
/// Contrastive Learning" (2020). `mean over i of -1/|P(i)| sum over p in P(i) of log(exp(z_i z_p / t) / sum over a != i of
/// exp(z_i z_a / t))`, rows scaled to length 1.
pub(super) fn contrastive(b: &mut Arithmetic<'_>, rows: ValueId, labels: ValueId, temperature: f64) -> ValueResult {
    let square = b.square(rows)?;
    let last = ints(b, &[1])?;
    let sum = b.op(ReduceSum { keepdims: true }, &[square, last])?;
    // As torch.nn.functional.normalize: a length is at least 1e-12.
    let least = b.number(1e-24, sum)?;
    let sum = b.op(Max {}, &[sum, least])?;
    let length = b.sqrt(sum)?;
    let unit = b.div(rows, length)?;
    let columns = b.op(Transpose { perm: Some(vec![1, 0]) }, &[unit])?;
    let similar = b.op(MatMul {}, &[unit, columns])?;
    let similar = b.scale(similar, 1.0 / temperature)?;
    let position = positions(b, rows, 0)?;
    let (itself, alike) = (pairwise_equal(b, position)?, pairwise_equal(b, labels)?);
    let lowest = b.number(LOWEST, similar)?;
    let others = b.op(Select {}, &[itself, lowest, similar])?;
    let total = b.op(ReduceLogSumExp { keepdims: true }, &[others, last])?;
    let logarithm = b.sub(similar, total)?;
    let other = b.op(Not {}, &[itself])?;
    let positive = b.op(And {}, &[alike, other])?;
    let (zero, one) = (b.number(0.0, logarithm)?, b.number(1.0, logarithm)?);
    let kept = b.op(Select {}, &[positive, logarithm, zero])?;
    let counts = b.op(Select {}, &[positive, one, zero])?;
    let kept = b.op(ReduceSum { keepdims: false }, &[kept, last])?;
    let counts = b.op(ReduceSum { keepdims: false }, &[counts, last])?;
    let divisor = b.op(Max {}, &[counts, one])?;
    let each = b.div(kept, divisor)?;
    let has = b.op(Gt {}, &[counts, zero])?;
    let anchors = b.op(Select {}, &[has, one, zero])?;
    let (sum, anchors) = (b.sum(each)?, b.sum(anchors)?);
    let anchors = b.op(Max {}, &[anchors, one])?;
    let mean = b.div(sum, anchors)?;
    b.scale(mean, -1.0)
}

/// Cosine embedding loss of pairs `[N, 2, D]` with labels `[N]`, 1 for a pair that belongs together and -1 for one that does not.
///
/// Source: PyTorch's `CosineEmbeddingLoss`: `1 - cos` for 1, and `max(0, cos - margin)` for -1, with 1e-12 added to squared lengths.
pub(super) fn cosine_embedding(b: &mut Arithmetic<'_>, pairs: ValueId, labels: ValueId, margin: f64) -> ValueResult {
    let rank0 = ints(b, &[])?;
    let part = |b: &mut Arithmetic<'_>, i: i64| {
        let i = ints(b, &[i])?;
        let i = b.op(Reshape { allowzero: false }, &[i, rank0])?;
        b.op(Gather { axis: 1 }, &[pairs, i])
    };
    let (x, y) = (part(b, 0)?, part(b, 1)?);
    let last = ints(b, &[1])?;
    let dot = |b: &mut Arithmetic<'_>, x: ValueId, y: ValueId| {
        let product = b.mul(x, y)?;
        b.op(ReduceSum { keepdims: false }, &[product, last])
    };
    let (xy, xx, yy) = (dot(b, x, y)?, dot(b, x, x)?, dot(b, y, y)?);
    let (xx, yy) = (b.plus(xx, 1e-12)?, b.plus(yy, 1e-12)?);
    let lengths = b.mul(xx, yy)?;
    let lengths = b.sqrt(lengths)?;
    let cosine = b.div(xy, lengths)?;
    let negative = b.scale(cosine, -1.0)?;
    let together = b.plus(negative, 1.0)?;
    let zero = b.number(0.0, cosine)?;
    let apart = b.plus(cosine, -margin)?;
    let apart = b.op(Max {}, &[apart, zero])?;
    let none = b.number(0.0, labels)?;
    let belongs = b.op(Gt {}, &[labels, none])?;
    let each = b.op(Select {}, &[belongs, together, apart])?;
    b.mean(each)
}
