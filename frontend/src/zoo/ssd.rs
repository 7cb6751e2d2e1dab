//! SSD with a ResNet-34.

use of_diag::Diagnostic;
use of_ir::{DType, Tensor};

use super::default_boxes::PER_POSITION;
use super::net::{Net, Window, made, torch_bias};
use super::resnet::{basic_block, conv, image, max_pool, relu};
use super::settings::{Settings, setting, wrong};
use super::synthetic::{Samples, rows};
use super::{Columns, Mode, Model, Outputs, multibox};
use crate::nn::Initializer;

/// SSD for images of 300 x 300 pixels.
pub(super) const SSD: Model = Model {
    name: "ssd_resnet34",
    about: "SSD300 (Liu et al., 2016) with ResNet-34, as MLPerf's SSD benchmark; training matches boxes and has the multibox loss",
    loss: "--loss output",
    settings: &[
        setting("layers", "3-4-6", "1-1-1", "blocks of each stage"),
        setting("width", "64", "4", "channels of the first convolution"),
        setting("classes", "81", "4", "classes, of which 0 is none"),
        setting("objects", "8", "2", "objects of a synthetic image at most"),
    ],
    unused: &["*.num_batches_tracked"],
    frozen: &[],
    build,
    synthetic,
};

/// Pixels of a side.
const SIDE: usize = 300;
const XAVIER: Initializer = Initializer::XavierUniform { gain: 1.0 };

/// The convolutions behind the backbone: features of the first and second, by the width; whether the second has a step of 2.
const MORE: [(usize, usize, bool); 5] = [(4, 8, true), (4, 8, true), (2, 4, true), (2, 4, false), (2, 4, false)];

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (layers, width, classes) = (s.array::<3>("layers")?, s.number("width")?, s.number("classes")?);
    let x = image(n, SIDE);
    let x = conv(n, "model.layer1.0", x, [3, width], Window(7, 2, 3))?;
    let x = n.batch_norm("model.layer1.1", x, width)?;
    let x = relu(n, x)?;
    let mut x = max_pool(n, x)?;
    let mut from = width;
    // The third stage keeps the extents, so that the first feature map has 38 x 38 positions.
    for (stage, (name, stride)) in
        [("model.layer1.4", 1), ("model.layer1.5", 2), ("model.layer2.0", 1)].iter().enumerate()
    {
        let to = width << stage;
        for i in 0..layers[stage] {
            x = basic_block(n, &format!("{name}.{i}"), x, [from, to], if i == 0 { *stride } else { 1 })?;
            from = to;
        }
    }
    let mut maps = vec![(x, from)];
    for (i, (inner, outer, is_strided)) in MORE.into_iter().enumerate() {
        let (inner, outer) = (inner * width, outer * width);
        let name = format!("additional_blocks.{i}");
        x = n.conv(&format!("{name}.0"), x, [from, inner], Window(1, 1, 0), (XAVIER, Some(torch_bias(from))))?;
        x = relu(n, x)?;
        let window = if is_strided { Window(3, 2, 1) } else { Window(3, 1, 0) };
        x = n.conv(&format!("{name}.2"), x, [inner, outer], window, (XAVIER, Some(torch_bias(9 * inner))))?;
        x = relu(n, x)?;
        from = outer;
        maps.push((x, from));
    }
    let (mut places, mut scores) = (Vec::new(), Vec::new());
    for (i, ((map, from), per)) in maps.into_iter().zip(PER_POSITION).enumerate() {
        let init = (XAVIER, Some(torch_bias(9 * from)));
        let place = n.conv(&format!("loc.{i}"), map, [from, 4 * per], Window(3, 1, 1), init)?;
        let score = n.conv(&format!("conf.{i}"), map, [from, classes * per], Window(3, 1, 1), init)?;
        places.push(n.reshape(place, &[0, 4, -1])?);
        scores.push(n.reshape(score, &[0, classes as i64, -1])?);
    }
    let (places, scores) = (n.concat(2, &places)?, n.concat(2, &scores)?);
    if n.mode == Mode::Inference {
        return Ok(vec![("locs", places), ("confs", scores)]);
    }
    let boxes = n.input("boxes", DType::F32, &[None, Some(4)], "G");
    let labels = n.input("labels", DType::I64, &[None], "G");
    Ok(vec![("loss", multibox::loss(n, [places, scores], [boxes, labels])?)])
}

/// Rectangles of one colour for each class, on noise. Lists of objects are filled up with class 0.
fn synthetic(s: &Settings, samples: &mut Samples) -> Result<Columns, Diagnostic> {
    let (classes, most) = (s.number("classes")?, s.number("objects")?);
    if classes < 2 {
        return Err(wrong("there are no objects without a second class".into()));
    }
    let (mut pixels, mut boxes, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..samples.count {
        let mut own: Vec<f32> = (0..3 * SIDE * SIDE).map(|_| samples.random.float(-0.2, 0.2) as f32).collect();
        let count = samples.random.int(1, most as i64) as usize;
        let mut list = vec![0; most];
        for (slot, label) in list.iter_mut().enumerate() {
            if slot >= count {
                boxes.extend([0.0f32, 0.0, 1.0, 1.0]);
                continue;
            }
            let class = samples.random.int(1, classes as i64 - 1);
            let mut span = || {
                let length = samples.random.int(60, 180) as usize;
                let from = samples.random.int(0, (SIDE - length) as i64) as usize;
                (from, from + length)
            };
            let ((left, right), (top, bottom)) = (span(), span());
            for channel in 0..3 {
                let colour = Samples::hidden(channel, class) as f32;
                for y in top..bottom {
                    own[(channel * SIDE + y) * SIDE + left..(channel * SIDE + y) * SIDE + right].fill(colour);
                }
            }
            boxes.extend([left, top, right, bottom].map(|at| at as f32 / SIDE as f32));
            *label = class;
        }
        labels.push(list);
        pixels.extend(own);
    }
    Ok(vec![
        ("image", made(Tensor::from_slice(&[samples.count, 3, SIDE, SIDE], &pixels))?),
        ("boxes", made(Tensor::from_slice(&[samples.count, most, 4], &boxes))?),
        ("labels", rows(&labels)?),
    ])
}
