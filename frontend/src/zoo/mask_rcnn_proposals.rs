//! The region proposal network of Mask R-CNN: anchors, its head, proposals and losses. As torchvision's `RegionProposalNetwork`.

use of_diag::Diagnostic;
use of_ir::{DType, Tensor, ValueId};
use of_ops::elementwise::{And, BitCast, Eq, Ge, Gt, Max, Min, Select, Sigmoid, Softplus};
use of_ops::movement::{Expand, Gather, GatherElements, ScatterNd};
use of_ops::nn::NonMaxSuppression;
use of_ops::reduction::TopK;
use of_ops::structural::ShapeOf;

use super::Mode;
use super::boxes::{Corners, centres, differences, moved, parts};
use super::mask_rcnn_sampling::{Objects, Quota, coordinate_loss, count, matched, mean_of, or, rows, sampled, without};
use super::net::{Net, ValueResult, Window, ZEROS, normal};
use super::resnet::relu;

/// Quotients of height and width.
const RATIOS: [f64; 3] = [0.5, 1.0, 2.0];
/// Proposals that overlap a better one of their feature map by more are left out.
const OVERLAP: f32 = 0.7;
/// Overlaps below and from which an anchor is negative and positive.
const LIMITS: [f32; 2] = [0.3, 0.7];
/// The least side of a proposal, in pixels.
const LEAST_SIDE: f32 = 1e-3;

/// The anchors of one feature map: left, top, right, bottom, in pixels. The order is by row, column and quotient.
fn anchors(extent: usize, image: usize, side: usize) -> Vec<[f32; 4]> {
    let sizes = RATIOS.map(|ratio| {
        let half = |length: f64| (length / 2.0).round_ties_even() as f32;
        (half(side as f64 / ratio.sqrt()), half(side as f64 * ratio.sqrt()))
    });
    let step = image / extent;
    let mut out = Vec::with_capacity(extent * extent * RATIOS.len());
    for y in 0..extent {
        for x in 0..extent {
            let (x, y) = ((x * step) as f32, (y * step) as f32);
            out.extend(sizes.map(|(w, h)| [x - w, y - h, x + w, y + h]));
        }
    }
    out
}

/// The feature maps and what is known of the images.
pub(super) struct Images {
    /// `[N, C, H, W]` each, from fine to coarse.
    pub maps: Vec<ValueId>,
    /// Their heights and widths.
    pub extents: Vec<usize>,
    /// Channels.
    pub channels: usize,
    /// Height and width of an image, in pixels.
    pub size: usize,
}

/// What the head predicts, and for which anchors.
pub(super) struct Predicted {
    /// For each feature map, whether anchors show objects, before the sigmoid: `[N, B]`.
    logits: Vec<ValueId>,
    /// For each feature map, differences of boxes from anchors: `[N, B]` each.
    moves: Vec<[ValueId; 4]>,
    /// The anchors of each feature map.
    anchors: Vec<Vec<[f32; 4]>>,
    size: usize,
}

/// How many proposals there are at most.
#[derive(Clone, Copy)]
pub(super) struct Most {
    /// Anchors of a feature map.
    pub candidates: usize,
    /// Proposals of an image.
    pub proposals: usize,
}

/// Boxes of fixed number; lists of too few are filled up.
pub(super) struct Proposals {
    /// `[N, P]` each, in pixels.
    pub corners: Corners,
    /// Which are proposals, `[N, P]` of i1.
    pub is_valid: ValueId,
    /// P.
    pub count: usize,
}

/// The same values, without gradients: integers have none.
fn fixed(n: &mut Net, x: ValueId) -> ValueResult {
    if n.mode == Mode::Inference {
        return Ok(x);
    }
    let bits = n.op(BitCast { to: DType::I32 }, &[x])?;
    n.op(BitCast { to: DType::F32 }, &[bits])
}

/// `[N, per position times k, H, W]` to `[N, B, k]`.
fn by_anchor(n: &mut Net, x: ValueId, k: usize, extent: usize) -> ValueResult {
    let (per, k, extent) = (RATIOS.len() as i64, k as i64, extent as i64);
    let x = n.reshape(x, &[0, per, k, extent, extent])?;
    let x = n.transpose(x, &[0, 3, 4, 1, 2])?;
    n.reshape(x, &[0, -1, k])
}

/// The head, the same one for all feature maps; `sides` are those of the anchors, in pixels.
pub(super) fn predicted(n: &mut Net, images: &Images, sides: [usize; 5]) -> Result<Predicted, Diagnostic> {
    let channels = images.channels;
    let init = |n: &mut Net, name: &str, outputs: usize, kernel: usize| {
        let name = format!("rpn.head.{name}");
        let weight = n.parameter(&format!("{name}.weight"), normal(0.01), &[outputs, channels, kernel, kernel])?;
        Ok::<_, Diagnostic>((weight, n.parameter(&format!("{name}.bias"), ZEROS, &[outputs])?))
    };
    let both = init(n, "conv.0.0", channels, 3)?;
    let logit = init(n, "cls_logits", RATIOS.len(), 1)?;
    let moves = init(n, "bbox_pred", 4 * RATIOS.len(), 1)?;
    let mut out = Predicted { logits: Vec::new(), moves: Vec::new(), anchors: Vec::new(), size: images.size };
    for ((map, extent), side) in images.maps.iter().zip(&images.extents).zip(sides) {
        let x = n.shared_conv(*map, both, Window(3, 1, 1))?;
        let x = relu(n, x)?;
        let logits = n.shared_conv(x, logit, Window(1, 1, 0))?;
        let logits = by_anchor(n, logits, 1, *extent)?;
        out.logits.push(n.reshape(logits, &[0, -1])?);
        let own = n.shared_conv(x, moves, Window(1, 1, 0))?;
        let own = by_anchor(n, own, 4, *extent)?;
        out.moves.push(flat(n, own)?);
        out.anchors.push(anchors(*extent, images.size, side));
    }
    Ok(out)
}

/// The four numbers of `[N, B, 4]`, `[N, B]` each.
pub(super) fn flat(n: &mut Net, boxes: ValueId) -> Result<[ValueId; 4], Diagnostic> {
    let mut out = parts(n, boxes, 2)?;
    for part in &mut out {
        *part = n.reshape(*part, &[0, -1])?;
    }
    Ok(out)
}

/// Four rows of `[N, B]` as `[N, B, 4]`.
pub(super) fn joined(n: &mut Net, rows: &[ValueId; 4]) -> ValueResult {
    let mut columns = *rows;
    for column in &mut columns {
        *column = n.unsqueeze(*column, &[2])?;
    }
    n.concat(2, &columns)
}

/// The elements of four rows of `[N, B]` at these places, `[N, S]`.
pub(super) fn picked(n: &mut Net, rows: &[ValueId; 4], places: ValueId) -> Result<[ValueId; 4], Diagnostic> {
    let mut out = *rows;
    for row in &mut out {
        *row = n.op(GatherElements { axis: 1 }, &[*row, places])?;
    }
    Ok(out)
}

/// Boxes within the image.
pub(super) fn clipped(n: &mut Net, boxes: &Corners, size: usize) -> Result<Corners, Diagnostic> {
    let (zero, end) = (n.floats(&[], &[0.0])?, n.floats(&[], &[size as f32])?);
    let mut out = *boxes;
    for row in &mut out {
        let low = n.op(Max {}, &[*row, zero])?;
        *row = n.op(Min {}, &[low, end])?;
    }
    Ok(out)
}

/// Which boxes have sides of at least `least`.
pub(super) fn is_large(n: &mut Net, boxes: &Corners, least: f32) -> ValueResult {
    let own = centres(n, boxes)?;
    let least = n.floats(&[], &[least])?;
    let (wide, high) = (n.op(Ge {}, &[own[2], least])?, n.op(Ge {}, &[own[3], least])?);
    n.op(And {}, &[wide, high])
}

/// The score of what does not count.
const NO_SCORE: f32 = -1.0;

/// `x` where `counts`, and otherwise no score.
pub(super) fn scored(n: &mut Net, counts: ValueId, x: ValueId) -> ValueResult {
    let none = n.floats(&[], &[NO_SCORE])?;
    n.op(Select {}, &[counts, x, none])
}

/// Which boxes `[M, B, 4]` stay where boxes of a class, `[M, C, B]` of scores, leave out those that overlap them by more than `limit`:
/// `[M, B]` of i1. Scores are above `least`.
pub(super) fn kept(n: &mut Net, boxes: ValueId, scores: ValueId, most: usize, [limit, least]: [f32; 2]) -> ValueResult {
    let most = n.b.constant(Tensor::scalar(most as i64))?;
    let (limit, least) = (n.floats(&[], &[limit])?, n.floats(&[], &[least])?);
    let selected = n.op(NonMaxSuppression { center_point_box: false }, &[boxes, scores, most, limit, least])?;
    let columns = n.ints(&[0, 2])?;
    let places = n.op(Gather { axis: 1 }, &[selected, columns])?;
    let dims = n.op(ShapeOf { start: Some(0), end: Some(1) }, &[selected])?;
    let (zero, one) = (n.floats(&[], &[0.0])?, n.floats(&[], &[1.0])?);
    let ones = n.op(Expand {}, &[one, dims])?;
    let dims = n.op(ShapeOf { start: Some(0), end: Some(2) }, &[boxes])?;
    let zeros = n.op(Expand {}, &[zero, dims])?;
    let marks = n.op(ScatterNd { reduction: "none".into() }, &[zeros, places, ones])?;
    n.op(Gt {}, &[marks, zero])
}

/// The `count` best of `scores`, `[N, B]`: their places, and which of them have a score.
pub(super) fn best(n: &mut Net, scores: ValueId, count: usize) -> Result<[ValueId; 3], Diagnostic> {
    let k = n.ints(&[count as i64])?;
    let found = n.b.op_all(TopK { axis: 1, largest: true, sorted: true }, &[scores, k])?;
    let limit = n.floats(&[], &[0.5 * NO_SCORE])?;
    Ok([found[0], found[1], n.op(Gt {}, &[found[0], limit])?])
}

/// Boxes where `is_valid`, and boxes of one pixel elsewhere.
pub(super) fn filled_up(n: &mut Net, boxes: &Corners, is_valid: ValueId) -> Result<Corners, Diagnostic> {
    let mut out = *boxes;
    for (i, row) in out.iter_mut().enumerate() {
        let other = n.floats(&[], &[if i < 2 { 0.0 } else { 1.0 }])?;
        *row = n.op(Select {}, &[is_valid, *row, other])?;
    }
    Ok(out)
}

impl Predicted {
    fn anchor_count(&self) -> usize {
        self.anchors.iter().map(Vec::len).sum()
    }

    /// Proposals, in the order of their scores.
    pub(super) fn proposals(&self, n: &mut Net, most: Most) -> Result<Proposals, Diagnostic> {
        let (mut columns, mut scores, mut level) = ([const { Vec::new() }; 4], Vec::new(), Vec::new());
        for (map, anchors) in self.anchors.iter().enumerate() {
            let count = most.candidates.min(anchors.len());
            let logits = fixed(n, self.logits[map])?;
            let k = n.ints(&[count as i64])?;
            let found = n.b.op_all(TopK { axis: 1, largest: true, sorted: true }, &[logits, k])?;
            scores.push(n.op(Sigmoid {}, &[found[0]])?);
            level.extend(vec![map as i64; count]);
            let mut moves = picked(n, &self.moves[map], found[1])?;
            for row in &mut moves {
                *row = fixed(n, *row)?;
            }
            let mut own = rows(n, anchors)?;
            for row in &mut own {
                *row = n.op(Gather { axis: 0 }, &[*row, found[1]])?;
            }
            let reference = centres(n, &own)?;
            let boxes = moved(n, &moves, &reference, [1.0, 1.0])?;
            let boxes = clipped(n, &boxes, self.size)?;
            columns.iter_mut().zip(boxes).for_each(|(column, row)| column.push(row));
        }
        let mut corners = [scores[0]; 4];
        for (corner, list) in corners.iter_mut().zip(&columns) {
            *corner = n.concat(1, list)?;
        }
        let scores = n.concat(1, &scores)?;
        let large = is_large(n, &corners, LEAST_SIDE)?;
        let scores = scored(n, large, scores)?;
        // A feature map is a class: its boxes leave out its own alone.
        let numbers = n.ints(&(0..self.anchors.len() as i64).collect::<Vec<_>>())?;
        let (numbers, level) = (n.reshape(numbers, &[-1, 1])?, n.ints(&level)?);
        let is_own = n.op(Eq {}, &[numbers, level])?;
        let wide = n.unsqueeze(scores, &[1])?;
        let by_map = scored(n, is_own, wide)?;
        let boxes = joined(n, &corners)?;
        let stays = kept(n, boxes, by_map, most.proposals, [OVERLAP, 0.5 * NO_SCORE])?;
        let scores = scored(n, stays, scores)?;
        let total: usize = self.anchors.iter().map(|own| own.len().min(most.candidates)).sum();
        let count = most.proposals.min(total);
        let [_, places, is_valid] = best(n, scores, count)?;
        let corners = picked(n, &corners, places)?;
        Ok(Proposals { corners: filled_up(n, &corners, is_valid)?, is_valid, count })
    }

    /// The losses of the logits and of the differences.
    pub(super) fn losses(&self, n: &mut Net, objects: &Objects, samples: usize) -> Result<[ValueId; 2], Diagnostic> {
        let all: Vec<[f32; 4]> = self.anchors.concat();
        let anchors = rows(n, &all)?;
        let found = matched(n, objects, &anchors)?;
        let [positive, negative] = found.split(n, LIMITS)?;
        let best = found.best(n)?;
        let (positive, negative) = (or(n, positive, best)?, without(n, negative, best)?);
        let quota = Quota { samples, positive: 0.5, boxes: self.anchor_count() };
        let drawn = sampled(n, objects.labels, [positive, negative], quota)?;
        let logits = n.concat(1, &self.logits)?;
        let logits = n.op(GatherElements { axis: 1 }, &[logits, drawn.boxes])?;
        let mut moves = [logits; 4];
        for (i, row) in moves.iter_mut().enumerate() {
            let list: Vec<ValueId> = self.moves.iter().map(|own| own[i]).collect();
            let whole = n.concat(1, &list)?;
            *row = n.op(GatherElements { axis: 1 }, &[whole, drawn.boxes])?;
        }
        let object = n.op(GatherElements { axis: 1 }, &[found.object, drawn.boxes])?;
        let wanted = picked(n, &objects.corners, object)?;
        let mut own = anchors;
        for row in &mut own {
            *row = n.op(Gather { axis: 0 }, &[*row, drawn.boxes])?;
        }
        let reference = centres(n, &own)?;
        let wanted = differences(n, &wanted, &reference, [1.0, 1.0])?;
        let total = count(n, drawn.is_valid)?;
        let each = coordinate_loss(n, &moves, &wanted)?;
        let move_loss = mean_of(n, each, drawn.is_positive, total)?;
        let each = binary(n, logits, drawn.is_positive)?;
        Ok([mean_of(n, each, drawn.is_valid, total)?, move_loss])
    }
}

/// The cross-entropy of a logit and whether it is true.
fn binary(n: &mut Net, logits: ValueId, is_true: ValueId) -> ValueResult {
    let zero = n.floats(&[], &[0.0])?;
    let part = n.op(Select {}, &[is_true, logits, zero])?;
    let soft = n.op(Softplus {}, &[logits])?;
    n.math().sub(soft, part)
}
