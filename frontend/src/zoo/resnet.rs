//! ResNet-50, and the parts that other models take from ResNets.

use of_diag::Diagnostic;
use of_ir::{DType, ValueId};
use of_ops::elementwise::Relu;
use of_ops::movement::Flatten;
use of_ops::nn::GlobalAveragePool;

use super::net::{Net, ValueResult, Window, torch_bias, torch_weight};
use super::settings::{Settings, setting};
use super::synthetic::{Samples, vector};
use super::{Columns, Model, Outputs};
use crate::nn::{Fan, Initializer, Layer, MaxPool};

/// ResNet-50 v1.5: the step is in the 3 x 3 convolution of a block.
pub(super) const RESNET50: Model = Model {
    name: "resnet50",
    about: "ResNet-50 v1.5 (He et al., 2015), as torchvision's resnet50",
    loss: "--loss cross-entropy",
    settings: &[
        setting("layers", "3-4-6-3", "1-1-1-1", "blocks of each stage"),
        setting("width", "64", "8", "channels of the first convolution"),
        setting("classes", "1000", "10", "classes"),
        setting("size", "224", "32", "height and width of an image"),
    ],
    unused: &["*.num_batches_tracked"],
    frozen: &[],
    build,
    synthetic,
};

/// As torchvision initialises ResNets.
pub(super) const FAN_OUT: Initializer = Initializer::KaimingNormal { a: 0.0, fan: Fan::Out };

/// A convolution without a bias.
pub(super) fn conv(n: &mut Net, name: &str, x: ValueId, channels: [usize; 2], window: Window) -> ValueResult {
    n.conv(name, x, channels, window, (FAN_OUT, None))
}

pub(super) fn relu(n: &mut Net, x: ValueId) -> ValueResult {
    n.op(Relu {}, &[x])
}

pub(super) fn max_pool(n: &mut Net, x: ValueId) -> ValueResult {
    MaxPool { kernel: vec![3, 3], stride: vec![2, 2], padding: 1 }.apply(&mut n.b, x)
}

/// What the input of a block is added as: itself, or a convolution of 1 x 1 where extents differ.
fn shortcut(n: &mut Net, name: &str, x: ValueId, channels: [usize; 2], stride: i64) -> ValueResult {
    if stride == 1 && channels[0] == channels[1] {
        return Ok(x);
    }
    let y = conv(n, &format!("{name}.downsample.0"), x, channels, Window(1, stride, 0))?;
    n.batch_norm(&format!("{name}.downsample.1"), y, channels[1])
}

/// Two convolutions of 3 x 3.
pub(super) fn basic_block(n: &mut Net, name: &str, x: ValueId, [from, to]: [usize; 2], stride: i64) -> ValueResult {
    let y = conv(n, &format!("{name}.conv1"), x, [from, to], Window(3, stride, 1))?;
    let y = n.batch_norm(&format!("{name}.bn1"), y, to)?;
    let y = relu(n, y)?;
    let y = conv(n, &format!("{name}.conv2"), y, [to, to], Window(3, 1, 1))?;
    let y = n.batch_norm(&format!("{name}.bn2"), y, to)?;
    let identity = shortcut(n, name, x, [from, to], stride)?;
    let y = n.add(y, identity)?;
    relu(n, y)
}

/// Convolutions of 1 x 1, 3 x 3 and 1 x 1, the last with four times the channels.
fn bottleneck(n: &mut Net, name: &str, x: ValueId, [from, width]: [usize; 2], stride: i64) -> ValueResult {
    let to = 4 * width;
    let y = conv(n, &format!("{name}.conv1"), x, [from, width], Window(1, 1, 0))?;
    let y = n.batch_norm(&format!("{name}.bn1"), y, width)?;
    let y = relu(n, y)?;
    let y = conv(n, &format!("{name}.conv2"), y, [width, width], Window(3, stride, 1))?;
    let y = n.batch_norm(&format!("{name}.bn2"), y, width)?;
    let y = relu(n, y)?;
    let y = conv(n, &format!("{name}.conv3"), y, [width, to], Window(1, 1, 0))?;
    let y = n.batch_norm(&format!("{name}.bn3"), y, to)?;
    let identity = shortcut(n, name, x, [from, to], stride)?;
    let y = n.add(y, identity)?;
    relu(n, y)
}

/// The image of the settings: `[N, 3, size, size]`.
pub(super) fn image(n: &mut Net, size: usize) -> ValueId {
    n.input("image", DType::F32, &[Some(3), Some(size), Some(size)], "")
}

/// The layers before the classes: the result of each stage, with its channels. Names begin with `prefix`.
pub(super) fn body(
    n: &mut Net,
    prefix: &str,
    x: ValueId,
    layers: [usize; 4],
    width: usize,
) -> Result<[(ValueId, usize); 4], Diagnostic> {
    let x = conv(n, &format!("{prefix}conv1"), x, [3, width], Window(7, 2, 3))?;
    let x = n.batch_norm(&format!("{prefix}bn1"), x, width)?;
    let x = relu(n, x)?;
    let mut x = max_pool(n, x)?;
    let (mut from, mut out) = (width, [(x, width); 4]);
    for (stage, blocks) in layers.into_iter().enumerate() {
        let own = width << stage;
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            x = bottleneck(n, &format!("{prefix}layer{}.{block}", stage + 1), x, [from, own], stride)?;
            from = 4 * own;
        }
        out[stage] = (x, from);
    }
    Ok(out)
}

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (layers, width, classes) = (s.array::<4>("layers")?, s.number("width")?, s.number("classes")?);
    let x = image(n, s.number("size")?);
    let (x, from) = body(n, "", x, layers, width)?[3];
    let x = n.op(GlobalAveragePool { channels_last: false }, &[x])?;
    let x = n.op(Flatten { axis: 1 }, &[x])?;
    let scores = n.linear("fc", x, [from, classes], (torch_weight(), torch_bias(from)))?;
    Ok(vec![("scores", scores)])
}

/// Images of a pattern for each class.
pub(super) fn synthetic(s: &Settings, made: &mut Samples) -> Result<Columns, Diagnostic> {
    let labels = made.below(s.number("classes")?, made.count);
    Ok(vec![("image", made.images(&labels, s.number("size")?)?), ("labels", vector(&labels)?)])
}
