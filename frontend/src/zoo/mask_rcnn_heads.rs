//! The heads of Mask R-CNN: features of regions, classes, boxes and masks, with their losses and detections. As torchvision's `RoIHeads`.

use of_diag::Diagnostic;
use of_ir::{DType, Tensor, ValueId};
use of_ops::elementwise::{Cast, Eq, Floor, Log, Max, Min, Mul, Select, Sigmoid, Softplus, Sqrt};
use of_ops::movement::{Expand, GatherElements, Slice};
use of_ops::nn::{RoiAlign, SoftmaxCrossEntropyLoss};
use of_ops::reduction::Softmax;

use super::attention::positions;
use super::boxes::{Corners, centres, differences, moved};
use super::mask_rcnn_proposals::{
    Images, Proposals, best, clipped, filled_up, flat, is_large, joined, kept, picked, scored,
};
use super::mask_rcnn_sampling::{Objects, Quota, coordinate_loss, count, matched, mean_of, sampled};
use super::net::{Net, ValueResult, Window, ZEROS, torch_bias, torch_weight};
use super::resnet::{FAN_OUT, relu};
use crate::nn::ConvTranspose;

/// What differences of centres and of logarithms of sides are multiplied by.
const SCALES: [f64; 2] = [10.0, 5.0];
/// The overlap from which a region is that of an object.
const OBJECT: f32 = 0.5;
/// Cells of a region along each axis, for its box and for its mask.
const BOX_CELLS: usize = 7;
const MASK_CELLS: usize = 14;
/// Height and width of a mask.
const MASK_SIDE: usize = 28;
/// The part of samples that may be positive.
const POSITIVE: f64 = 0.25;
/// A detection has a larger score.
const LEAST_SCORE: f32 = 0.05;
/// Detections that overlap a better one of their class by more are left out.
const OVERLAP: f32 = 0.5;
/// The least side of a detection, in pixels.
const LEAST_SIDE: f32 = 1e-2;
/// The side of a region whose features are those of the feature map of 1/16 of the image.
const CANONICAL: f64 = 224.0;
/// Where no image is.
const OUTSIDE: f32 = -1000.0;

/// Extents of the heads.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Features of a box.
    pub hidden: usize,
    /// Classes, of which 0 is none.
    pub classes: usize,
}

/// `[N, R]` numbers of images, as a list.
fn image_numbers(n: &mut Net, like: ValueId) -> ValueResult {
    let numbers = positions(n, like, 0)?;
    let numbers = n.reshape(numbers, &[-1, 1])?;
    let dims = n.op(of_ops::structural::ShapeOf { start: None, end: None }, &[like])?;
    n.op(Expand {}, &[numbers, dims])
}

/// Rows of `[N, R]` as `[N R, 4]`.
fn listed(n: &mut Net, rows: &Corners) -> ValueResult {
    let all = joined(n, rows)?;
    n.reshape(all, &[-1, 4])
}

fn align(cells: usize, scale: f64, samples: i64) -> RoiAlign {
    RoiAlign {
        mode: "avg".into(),
        output_height: cells as i64,
        output_width: cells as i64,
        sampling_ratio: samples,
        spatial_scale: scale,
        coordinate_transformation_mode: "output_half_pixel".into(),
        channels_last: false,
    }
}

/// The features of regions, `[N R, C, cells, cells]`, each from the feature map that fits its size. Source: Lin et al., "Feature
/// Pyramid Networks" (2017), equation 1.
fn pooled(n: &mut Net, images: &Images, boxes: &Corners, cells: usize) -> ValueResult {
    let own = centres(n, boxes)?;
    let m = &mut n.math();
    let area = m.mul(own[2], own[3])?;
    let side = m.op(Sqrt {}, &[area])?;
    let part = m.scale(side, 1.0 / CANONICAL)?;
    let power = m.op(Log {}, &[part])?;
    let power = m.scale(power, std::f64::consts::LOG2_E)?;
    let level = m.plus(power, 4.0 + 1e-6)?;
    let level = n.op(Floor {}, &[level])?;
    let (least, most) = (n.floats(&[], &[2.0])?, n.floats(&[], &[5.0])?);
    let level = n.op(Max {}, &[level, least])?;
    let level = n.op(Min {}, &[level, most])?;
    let numbers = image_numbers(n, level)?;
    let numbers = n.reshape(numbers, &[-1])?;
    let mut sum = None;
    for (map, number) in images.maps[..4].iter().zip(2u32..) {
        let wanted = n.floats(&[], &[number as f32])?;
        let is_own = n.op(Eq {}, &[level, wanted])?;
        // A region of another feature map is outside of the image, where all is 0.
        let mut rows = *boxes;
        for (i, row) in rows.iter_mut().enumerate() {
            let outside = n.floats(&[], &[OUTSIDE + if i < 2 { 0.0 } else { 1.0 }])?;
            *row = n.op(Select {}, &[is_own, *row, outside])?;
        }
        let regions = listed(n, &rows)?;
        let scale = 0.5f64.powi(number as i32);
        let part = n.op(align(cells, scale, 2), &[*map, regions, numbers])?;
        sum = Some(match sum {
            Some(sum) => n.add(sum, part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| super::settings::wrong("there are no feature maps".into()))
}

/// Scores of classes `[N R, classes]` and differences of boxes `[N R, classes, 4]`.
fn boxes_of(n: &mut Net, images: &Images, boxes: &Corners, heads: Heads) -> Result<[ValueId; 2], Diagnostic> {
    let x = pooled(n, images, boxes, BOX_CELLS)?;
    let inputs = images.channels * BOX_CELLS * BOX_CELLS;
    let x = n.reshape(x, &[-1, inputs as i64])?;
    let layer = |n: &mut Net, name: &str, x: ValueId, extents: [usize; 2]| {
        n.linear(&format!("roi_heads.{name}"), x, extents, (torch_weight(), torch_bias(extents[0])))
    };
    let x = layer(n, "box_head.fc6", x, [inputs, heads.hidden])?;
    let x = relu(n, x)?;
    let x = layer(n, "box_head.fc7", x, [heads.hidden, heads.hidden])?;
    let x = relu(n, x)?;
    let scores = layer(n, "box_predictor.cls_score", x, [heads.hidden, heads.classes])?;
    let moves = layer(n, "box_predictor.bbox_pred", x, [heads.hidden, 4 * heads.classes])?;
    Ok([scores, n.reshape(moves, &[-1, heads.classes as i64, 4])?])
}

/// Logits of masks, `[N R, side, side]`, of the classes `[N, R]` of regions.
fn masks_of(n: &mut Net, images: &Images, boxes: &Corners, labels: ValueId, heads: Heads) -> ValueResult {
    let channels = images.channels;
    let mut x = pooled(n, images, boxes, MASK_CELLS)?;
    for i in 0..4 {
        let init = (FAN_OUT, Some(ZEROS));
        x = n.conv(&format!("roi_heads.mask_head.{i}.0"), x, [channels, channels], Window(3, 1, 1), init)?;
        x = relu(n, x)?;
    }
    let weight = n.tensor(FAN_OUT, &[channels, channels, 2, 2])?;
    let bias = Some(n.tensor(ZEROS, &[channels])?);
    let up = ConvTranspose { weight, bias, stride: 2, padding: 0, output_padding: 0, dilation: 1, groups: 1 };
    x = n.layer("roi_heads.mask_predictor.conv5_mask", &up, x)?;
    x = relu(n, x)?;
    let init = (FAN_OUT, Some(ZEROS));
    let name = "roi_heads.mask_predictor.mask_fcn_logits";
    x = n.conv(name, x, [channels, heads.classes], Window(1, 1, 0), init)?;
    of_class(n, x, labels, &[MASK_SIDE as i64, MASK_SIDE as i64])
}

/// What `[R, classes, …]` has for the class of each row, `[R, …]`.
fn of_class(n: &mut Net, x: ValueId, labels: ValueId, rest: &[i64]) -> ValueResult {
    let ones = vec![1; rest.len() + 1];
    let column = n.reshape(labels, &[&[-1], &ones[..]].concat())?;
    let dims = n.ints(&[&[1, 1], rest].concat())?;
    let places = n.op(Expand {}, &[column, dims])?;
    let own = n.op(GatherElements { axis: 1 }, &[x, places])?;
    n.reshape(own, &[&[-1], rest].concat())
}

/// The masks of objects as regions see them, `[N R, side, side]`: `masks` are `[N, G, H, W]`, `object` are their numbers, `[N, R]`.
fn seen(n: &mut Net, masks: ValueId, boxes: &Corners, object: ValueId, size: usize) -> ValueResult {
    let objects = n.extent(masks, 1)?;
    let images = image_numbers(n, object)?;
    let before = n.op(Mul {}, &[images, objects])?;
    let numbers = n.add(before, object)?;
    let numbers = n.reshape(numbers, &[-1])?;
    let masks = n.op(Cast::to(DType::F32), &[masks])?;
    let masks = n.reshape(masks, &[-1, 1, size as i64, size as i64])?;
    let regions = listed(n, boxes)?;
    let own = n.op(align(MASK_SIDE, 1.0, 0), &[masks, regions, numbers])?;
    n.reshape(own, &[-1, MASK_SIDE as i64, MASK_SIDE as i64])
}

/// The losses of classes, boxes and masks. Objects are proposals, too; `samples` of an image are drawn.
pub(super) fn losses(
    n: &mut Net,
    images: &Images,
    proposals: &Proposals,
    (objects, masks, slots): (&Objects, ValueId, usize),
    samples: usize,
    heads: Heads,
) -> Result<[ValueId; 3], Diagnostic> {
    let mut candidates = proposals.corners;
    for (row, own) in candidates.iter_mut().zip(objects.corners) {
        *row = n.concat(1, &[*row, own])?;
    }
    let zero = n.b.constant(Tensor::scalar(0i64))?;
    let is_object = n.op(of_ops::elementwise::Gt {}, &[objects.labels, zero])?;
    let is_valid = n.concat(1, &[proposals.is_valid, is_object])?;
    let found = matched(n, objects, &candidates)?;
    let [positive, negative] = found.split(n, [OBJECT, OBJECT])?;
    let mut both = [positive, negative];
    for own in &mut both {
        *own = n.op(of_ops::elementwise::And {}, &[*own, is_valid])?;
    }
    let quota = Quota { samples, positive: POSITIVE, boxes: proposals.count + slots };
    let drawn = sampled(n, objects.labels, both, quota)?;
    let boxes = picked(n, &candidates, drawn.boxes)?;
    let boxes = filled_up(n, &boxes, drawn.is_valid)?;
    let object = n.op(GatherElements { axis: 1 }, &[found.object, drawn.boxes])?;
    let labels = n.op(GatherElements { axis: 1 }, &[objects.labels, object])?;
    let labels = n.op(Select {}, &[drawn.is_positive, labels, zero])?;
    let total = count(n, drawn.is_valid)?;

    let [scores, moves] = boxes_of(n, images, &boxes, heads)?;
    let list = n.reshape(labels, &[-1])?;
    let entropy = SoftmaxCrossEntropyLoss { ignore_index: None, reduction: "none".into(), return_log_prob: false };
    let each = n.b.op_all(entropy, &[scores, list])?[0];
    let is_valid = n.reshape(drawn.is_valid, &[-1])?;
    let class_loss = mean_of(n, each, is_valid, total)?;

    let own = of_class(n, moves, labels, &[4])?;
    let slots = quota.samples.min(quota.boxes) as i64;
    let own = n.reshape(own, &[-1, slots, 4])?;
    let own = flat(n, own)?;
    let wanted = picked(n, &objects.corners, object)?;
    let reference = centres(n, &boxes)?;
    let wanted = differences(n, &wanted, &reference, SCALES)?;
    let each = coordinate_loss(n, &own, &wanted)?;
    let box_loss = mean_of(n, each, drawn.is_positive, total)?;

    // Positives come first, so that masks are of the first samples alone.
    let first = |n: &mut Net, x: ValueId| {
        let (from, to, axis) = (n.ints(&[0])?, n.ints(&[quota.positives() as i64])?, n.ints(&[1])?);
        n.op(Slice {}, &[x, from, to, axis])
    };
    let mut regions = boxes;
    for row in &mut regions {
        *row = first(n, *row)?;
    }
    let (object, labels, is_positive) = (first(n, object)?, first(n, labels)?, first(n, drawn.is_positive)?);
    let logits = masks_of(n, images, &regions, labels, heads)?;
    let targets = seen(n, masks, &regions, object, images.size)?;
    let part = n.math().mul(logits, targets)?;
    let soft = n.op(Softplus {}, &[logits])?;
    let each = n.math().sub(soft, part)?;
    let pixels = count(n, is_positive)?;
    let pixels = n.math().scale(pixels, (MASK_SIDE * MASK_SIDE) as f64)?;
    let is_positive = n.reshape(is_positive, &[-1, 1, 1])?;
    let mask_loss = mean_of(n, each, is_positive, pixels)?;
    Ok([class_loss, box_loss, mask_loss])
}

/// At most `most` detections of an image: boxes `[N, D, 4]` in pixels, classes, scores, and masks `[N, D, 28, 28]` of the boxes. Those that
/// are none have class and score 0.
pub(super) fn detections(
    n: &mut Net,
    images: &Images,
    proposals: &Proposals,
    most: usize,
    heads: Heads,
) -> Result<[ValueId; 4], Diagnostic> {
    let [scores, moves] = boxes_of(n, images, &proposals.corners, heads)?;
    let (all, classes, regions) = (heads.classes as i64, heads.classes as i64 - 1, proposals.count as i64);
    let scores = n.op(Softmax { axis: 1 }, &[scores])?;
    // Of class 0 there are no detections: [N, classes, regions].
    let own = |n: &mut Net, x: ValueId| {
        let x = n.reshape(x, &[-1, regions, all])?;
        let x = n.transpose(x, &[0, 2, 1])?;
        let (from, to, axis) = (n.ints(&[1])?, n.ints(&[all])?, n.ints(&[1])?);
        n.op(Slice {}, &[x, from, to, axis])
    };
    let mut scores = own(n, scores)?;
    let mut rows = super::boxes::parts(n, moves, 2)?;
    for row in &mut rows {
        *row = own(n, *row)?;
    }
    let mut reference = centres(n, &proposals.corners)?;
    for row in &mut reference {
        *row = n.unsqueeze(*row, &[1])?;
    }
    let boxes = moved(n, &rows, &reference, SCALES)?;
    let boxes = clipped(n, &boxes, images.size)?;
    let large = is_large(n, &boxes, LEAST_SIDE)?;
    scores = scored(n, large, scores)?;
    let valid = n.unsqueeze(proposals.is_valid, &[1])?;
    scores = scored(n, valid, scores)?;
    // Boxes leave out those of their class alone: a class is an image of its own.
    let mut lists = boxes;
    for row in &mut lists {
        *row = n.reshape(*row, &[-1, regions])?;
    }
    let corners = joined(n, &lists)?;
    let by_class = n.reshape(scores, &[-1, 1, regions])?;
    let stays = kept(n, corners, by_class, proposals.count, [OVERLAP, LEAST_SCORE])?;
    let flat_scores = n.reshape(scores, &[-1, regions])?;
    let flat_scores = scored(n, stays, flat_scores)?;
    let flat_scores = n.reshape(flat_scores, &[-1, classes * regions])?;
    let most = most.min((classes * regions) as usize);
    let [scores, places, is_valid] = best(n, flat_scores, most)?;
    for (row, boxes) in rows.iter_mut().zip(boxes) {
        *row = n.reshape(boxes, &[-1, classes * regions])?;
    }
    let boxes = picked(n, &rows, places)?;
    let boxes = filled_up(n, &boxes, is_valid)?;
    let (each, one, none) = (
        n.b.constant(Tensor::scalar(regions))?,
        n.b.constant(Tensor::scalar(1i64))?,
        n.b.constant(Tensor::scalar(0i64))?,
    );
    let class = n.op(of_ops::elementwise::Div {}, &[places, each])?;
    let class = n.add(class, one)?;
    let labels = n.op(Select {}, &[is_valid, class, none])?;
    let zero = n.floats(&[], &[0.0])?;
    let scores = n.op(Select {}, &[is_valid, scores, zero])?;
    let masks = masks_of(n, images, &boxes, labels, heads)?;
    let masks = n.op(Sigmoid {}, &[masks])?;
    let masks = n.reshape(masks, &[-1, most as i64, MASK_SIDE as i64, MASK_SIDE as i64])?;
    Ok([joined(n, &boxes)?, labels, scores, masks])
}
