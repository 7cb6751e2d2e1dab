//! Mask R-CNN with a ResNet-50 and a feature pyramid.

use of_diag::Diagnostic;
use of_ir::{DType, Tensor, ValueId};
use of_ops::movement::Slice;
use of_ops::nn::Resize;

use super::mask_rcnn_heads::{Heads, detections, losses};
use super::mask_rcnn_proposals::{Images, Most, flat, predicted};
use super::mask_rcnn_sampling::Objects;
use super::net::{Net, ValueResult, Window, ZEROS, made};
use super::resnet::{body, image};
use super::settings::{Settings, setting, wrong};
use super::synthetic::{Samples, rows};
use super::{Columns, Mode, Model, Outputs};
use crate::nn::{Fan, Initializer};

/// Mask R-CNN for square images of one size.
pub(super) const MASK_RCNN: Model = Model {
    name: "mask_rcnn",
    about: "Mask R-CNN (He et al., 2017) with ResNet-50 and FPN, as torchvision's maskrcnn_resnet50_fpn, with fixed counts of proposals and \
            samples; training has its five losses, inference gives boxes, labels, scores and masks",
    loss: "--loss output",
    settings: &[
        setting("layers", "3-4-6-3", "1-1-1-1", "blocks of each stage"),
        setting("width", "64", "4", "channels of the first convolution"),
        setting("channels", "256", "8", "channels of the feature pyramid"),
        setting("hidden", "1024", "32", "features of a box"),
        setting("classes", "91", "4", "classes, of which 0 is none"),
        setting("size", "800", "64", "height and width of an image, a multiple of 32"),
        setting("anchors", "32-64-128-256-512", "12-24-32-48-64", "sides of the anchors of each feature map"),
        setting("candidates", "2000", "32", "anchors of a feature map that become proposals in training"),
        setting("proposals", "2000", "24", "proposals of an image in training"),
        setting("test_candidates", "1000", "32", "anchors of a feature map that become proposals"),
        setting("test_proposals", "1000", "24", "proposals of an image"),
        setting("anchor_samples", "256", "64", "anchors of an image that the losses are of"),
        setting("box_samples", "512", "16", "proposals of an image that the losses are of"),
        setting("detections", "100", "8", "detections of an image"),
        setting("objects", "32", "2", "objects of an image in training, at most"),
    ],
    unused: &["*.num_batches_tracked"],
    frozen: &["backbone.body.*bn1.*", "backbone.body.*bn2.*", "backbone.body.*bn3.*", "backbone.body.*.downsample.1.*"],
    build,
    synthetic,
};

/// Maps of equal channels, from fine to coarse, and their extents. Source: Lin et al., "Feature Pyramid Networks" (2017).
fn pyramid(
    n: &mut Net,
    stages: [(ValueId, usize); 4],
    channels: usize,
    size: usize,
) -> Result<(Vec<ValueId>, Vec<usize>), Diagnostic> {
    let init = (Initializer::KaimingUniform { a: 1.0, fan: Fan::In }, Some(ZEROS));
    let layer = |n: &mut Net, name: &str, i: usize, x: ValueId, extents: [usize; 2], window: Window| {
        n.conv(&format!("backbone.fpn.{name}_blocks.{i}.0"), x, extents, window, init)
    };
    let (mut maps, mut above) = (Vec::new(), None);
    for (i, (stage, from)) in stages.into_iter().enumerate().rev() {
        let mut inner = layer(n, "inner", i, stage, [from, channels], Window(1, 1, 0))?;
        if let Some(above) = above {
            let up = doubled(n, above)?;
            inner = n.add(inner, up)?;
        }
        above = Some(inner);
        maps.push(layer(n, "layer", i, inner, [channels, channels], Window(3, 1, 1))?);
    }
    // The coarsest map has every other element of the one before.
    let (from, to, axes) = (n.ints(&[0, 0])?, n.ints(&[size as i64; 2])?, n.ints(&[2, 3])?);
    let step = n.ints(&[2, 2])?;
    let last = n.op(Slice {}, &[maps[0], from, to, axes, step])?;
    maps.reverse();
    maps.push(last);
    let mut extents: Vec<usize> = [4, 8, 16, 32].iter().map(|step| size / step).collect();
    extents.push((size / 32).div_ceil(2));
    Ok((maps, extents))
}

/// Each element four times.
fn doubled(n: &mut Net, x: ValueId) -> ValueResult {
    let (none, scales) = (n.op(of_ops::structural::NoneValue {}, &[])?, n.floats(&[4], &[1.0, 1.0, 2.0, 2.0])?);
    let resize = Resize {
        coordinate_transformation_mode: "asymmetric".into(),
        nearest_mode: "floor".into(),
        ..Resize::default()
    };
    n.op(resize, &[x, none, scales])
}

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (size, channels) = (s.number("size")?, s.number("channels")?);
    if size % 32 != 0 {
        return Err(wrong(format!("setting 'size' is '{size}'; it takes a multiple of 32")));
    }
    let heads = Heads { hidden: s.number("hidden")?, classes: at_least_two(s)? };
    n.has_frozen_norms = true;
    let x = image(n, size);
    let stages = body(n, "backbone.body.", x, s.array::<4>("layers")?, s.number("width")?)?;
    let (maps, extents) = pyramid(n, stages, channels, size)?;
    let images = Images { maps, extents, channels, size };
    let predicted = predicted(n, &images, s.array::<5>("anchors")?)?;
    if n.mode == Mode::Inference {
        let most = Most { candidates: s.number("test_candidates")?, proposals: s.number("test_proposals")? };
        let proposals = predicted.proposals(n, most)?;
        let [boxes, labels, scores, masks] = detections(n, &images, &proposals, s.number("detections")?, heads)?;
        return Ok(vec![("boxes", boxes), ("labels", labels), ("scores", scores), ("masks", masks)]);
    }
    let slots = s.number("objects")?;
    let boxes = n.input("boxes", DType::F32, &[Some(slots), Some(4)], "");
    let labels = n.input("labels", DType::I64, &[Some(slots)], "");
    let masks = n.input("masks", DType::U8, &[Some(slots), Some(size), Some(size)], "");
    let objects = Objects { corners: flat(n, boxes)?, labels };
    let [objectness, anchor_moves] = predicted.losses(n, &objects, s.number("anchor_samples")?)?;
    let most = Most { candidates: s.number("candidates")?, proposals: s.number("proposals")? };
    let proposals = predicted.proposals(n, most)?;
    let samples = s.number("box_samples")?;
    let [class, box_moves, mask] = losses(n, &images, &proposals, (&objects, masks, slots), samples, heads)?;
    let mut loss = objectness;
    for part in [anchor_moves, class, box_moves, mask] {
        loss = n.add(loss, part)?;
    }
    Ok(vec![("loss", loss)])
}

fn at_least_two(s: &Settings) -> Result<usize, Diagnostic> {
    let classes = s.number("classes")?;
    if classes < 2 {
        return Err(wrong("there are no objects without a second class".into()));
    }
    Ok(classes)
}

/// Rectangles, and ellipses for even classes, of one colour for each class, on noise. Lists of objects are filled up with class 0.
fn synthetic(s: &Settings, samples: &mut Samples) -> Result<Columns, Diagnostic> {
    let (classes, most, size) = (at_least_two(s)?, s.number("objects")?, s.number("size")?);
    let (mut pixels, mut boxes, mut labels, mut masks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..samples.count {
        let mut own: Vec<f32> = (0..3 * size * size).map(|_| samples.random.float(-0.2, 0.2) as f32).collect();
        let count = samples.random.int(1, most as i64) as usize;
        let mut list = vec![0; most];
        for (slot, label) in list.iter_mut().enumerate() {
            let mut mask = vec![0u8; size * size];
            if slot >= count {
                boxes.extend([0.0f32, 0.0, 1.0, 1.0]);
                masks.extend(mask);
                continue;
            }
            let class = samples.random.int(1, classes as i64 - 1);
            let mut span = || {
                let length = samples.random.int((size / 4) as i64, (size / 2) as i64) as usize;
                let from = samples.random.int(0, (size - length) as i64) as usize;
                (from, length)
            };
            let ((left, width), (top, height)) = (span(), span());
            for y in 0..height {
                for x in 0..width {
                    let away = |at: usize, length: usize| (2.0 * at as f64 + 1.0) / length as f64 - 1.0;
                    if class % 2 == 0 && away(x, width).hypot(away(y, height)) > 1.0 {
                        continue;
                    }
                    let at = (top + y) * size + left + x;
                    mask[at] = 1;
                    for channel in 0..3 {
                        own[channel * size * size + at] = Samples::hidden(channel, class) as f32;
                    }
                }
            }
            masks.extend(mask);
            boxes.extend([left, top, left + width, top + height].map(|at| at as f32));
            *label = class;
        }
        labels.push(list);
        pixels.extend(own);
    }
    let count = samples.count;
    Ok(vec![
        ("image", made(Tensor::from_slice(&[count, 3, size, size], &pixels))?),
        ("boxes", made(Tensor::from_slice(&[count, most, 4], &boxes))?),
        ("labels", rows(&labels)?),
        ("masks", made(Tensor::from_slice(&[count, most, size, size], &masks))?),
    ])
}
