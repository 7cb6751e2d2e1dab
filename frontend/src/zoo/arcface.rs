//! Face recognition with an additive angular margin.

use of_ir::{DType, Dim, Type, ValueId};
use of_ops::elementwise::{Clip, Eq, Gt, Max, PRelu, Select};
use of_ops::movement::{Flatten, Range, Unsqueeze};
use of_ops::reduction::ReduceSum;

use super::net::{Net, ValueResult, Window, normal, torch_bias, torch_weight};
use super::resnet::{image, synthetic};
use super::settings::{Settings, setting, wrong};
use super::{Mode, Model, Outputs};
use crate::nn::Initializer;
use crate::training::Loss;

/// ArcFace with a ResNet-50 of improved blocks.
pub(super) const ARCFACE: Model = Model {
    name: "arcface_resnet50",
    about: "ArcFace (Deng et al., 2018), as insightface's iresnet50; training has its margin softmax over identities, with the weight head.weight",
    loss: "--loss output",
    settings: &[
        setting("layers", "3-4-14-3", "1-1-1-1", "blocks of each stage"),
        setting("width", "64", "8", "channels of the first convolution"),
        setting("features", "512", "16", "features of a face"),
        setting("classes", "85742", "10", "identities"),
        setting("size", "112", "32", "height and width of an image"),
        setting("scale", "64", "16", "what cosines are multiplied by"),
        setting("margin", "0.5", "0.5", "the angle that is added to that of the label"),
    ],
    unused: &["*.num_batches_tracked"],
    frozen: &[],
    build,
    synthetic,
};

fn conv(n: &mut Net, name: &str, x: ValueId, channels: [usize; 2], window: Window) -> ValueResult {
    n.conv(name, x, channels, window, (normal(0.1), None))
}

fn prelu(n: &mut Net, name: &str, x: ValueId, channels: usize) -> ValueResult {
    let slope = n.parameter(&format!("{name}.weight"), Initializer::Constant(0.25), &[channels])?;
    let slope = n.reshape(slope, &[channels as i64, 1, 1])?;
    n.op(PRelu {}, &[x, slope])
}

fn block(n: &mut Net, name: &str, x: ValueId, [from, to]: [usize; 2], stride: i64) -> ValueResult {
    let y = n.batch_norm(&format!("{name}.bn1"), x, from)?;
    let y = conv(n, &format!("{name}.conv1"), y, [from, to], Window(3, 1, 1))?;
    let y = n.batch_norm(&format!("{name}.bn2"), y, to)?;
    let y = prelu(n, &format!("{name}.prelu"), y, to)?;
    let y = conv(n, &format!("{name}.conv2"), y, [to, to], Window(3, stride, 1))?;
    let y = n.batch_norm(&format!("{name}.bn3"), y, to)?;
    let mut identity = x;
    if stride != 1 || from != to {
        identity = conv(n, &format!("{name}.downsample.0"), x, [from, to], Window(1, stride, 0))?;
        identity = n.batch_norm(&format!("{name}.downsample.1"), identity, to)?;
    }
    n.add(y, identity)
}

/// Rows of length 1, as `torch.nn.functional.normalize`.
fn normalized(n: &mut Net, x: ValueId) -> ValueResult {
    let square = n.math().square(x)?;
    let axis = n.ints(&[-1])?;
    let sum = n.op(ReduceSum { keepdims: true }, &[square, axis])?;
    let length = n.math().sqrt(sum)?;
    let least = n.math().number(1e-12, length)?;
    let length = n.op(Max {}, &[length, least])?;
    n.math().div(x, length)
}

/// Softmax cross entropy of cosines, of which that of the label is of an angle enlarged by the margin. Where the angle would exceed
/// half a circle, the cosine becomes smaller by a constant instead.
fn margin_loss(n: &mut Net, features: ValueId, labels: ValueId, s: &Settings) -> ValueResult {
    let (classes, margin) = (s.number("classes")?, s.positive("margin")?);
    let size = s.number("features")?;
    let weight = n.parameter("head.weight", normal(0.01), &[classes, size])?;
    let (rows, columns) = (normalized(n, features)?, normalized(n, weight)?);
    let columns = n.transpose(columns, &[1, 0])?;
    let cosines = n.op(of_ops::contraction::MatMul {}, &[rows, columns])?;
    let (low, high) = (n.math().number(-1.0, cosines)?, n.math().number(1.0, cosines)?);
    let cosines = n.op(Clip {}, &[cosines, low, high])?;
    // One cosine of each row is that of its label.
    let (zero, one) = (n.b.constant(of_ir::Tensor::scalar(0i64))?, n.b.constant(of_ir::Tensor::scalar(1i64))?);
    let end = n.b.constant(of_ir::Tensor::scalar(classes as i64))?;
    let numbers = n.op(Range {}, &[zero, end, one])?;
    let axis = n.ints(&[1])?;
    let own = n.op(Unsqueeze {}, &[labels, axis])?;
    let is_own = n.op(Eq {}, &[own, numbers])?;
    let none = n.math().number(0.0, cosines)?;
    let picked = n.op(Select {}, &[is_own, cosines, none])?;
    let target = n.op(ReduceSum { keepdims: true }, &[picked, axis])?;
    let m = &mut n.math();
    let square = m.square(target)?;
    let rest = m.scale(square, -1.0)?;
    let rest = m.plus(rest, 1.0)?;
    let sine = m.sqrt(rest)?;
    let (left, right) = (m.scale(target, margin.cos())?, m.scale(sine, margin.sin())?);
    let moved = m.sub(left, right)?;
    let limit = m.number((std::f64::consts::PI - margin).cos(), target)?;
    let fits = m.op(Gt {}, &[target, limit])?;
    let shift = (std::f64::consts::PI - margin).sin() * margin;
    let lowered = m.plus(target, -shift)?;
    let moved = m.op(Select {}, &[fits, moved, lowered])?;
    let scores = m.op(Select {}, &[is_own, moved, cosines])?;
    let scores = m.scale(scores, s.positive("scale")?)?;
    Loss::CrossEntropy { smoothing: 0.0, ignore: -1, axis: 1 }.build(&mut n.b, scores, Some(labels))
}

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (layers, width, size) = (s.array::<4>("layers")?, s.number("width")?, s.number("size")?);
    if !size.is_multiple_of(16) {
        return Err(wrong(format!("images of {size} x {size} pixels: a multiple of 16 is needed")));
    }
    let features = s.number("features")?;
    let x = image(n, size);
    let x = conv(n, "conv1", x, [3, width], Window(3, 1, 1))?;
    let x = n.batch_norm("bn1", x, width)?;
    let mut x = prelu(n, "prelu", x, width)?;
    let mut from = width;
    for (stage, blocks) in layers.into_iter().enumerate() {
        let to = width << stage;
        for i in 0..blocks {
            let stride = if i == 0 { 2 } else { 1 };
            x = block(n, &format!("layer{}.{i}", stage + 1), x, [from, to], stride)?;
            from = to;
        }
    }
    let x = n.batch_norm("bn2", x, from)?;
    let x = n.op(Flatten { axis: 1 }, &[x])?;
    let inputs = from * (size / 16) * (size / 16);
    let x = n.linear("fc", x, [inputs, features], (torch_weight(), torch_bias(inputs)))?;
    let x = n.batch_norm("features", x, features)?;
    if n.mode == Mode::Inference {
        return Ok(vec![("features", x)]);
    }
    let labels = n.b.input("labels", Type::tensor(DType::I64, vec![Dim::symbol("N")]));
    Ok(vec![("loss", margin_loss(n, x, labels, s)?)])
}
