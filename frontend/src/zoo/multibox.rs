//! The loss of SSD: boxes of objects are matched to default boxes, and hard negatives are mined. Sources: Liu et al., "SSD" (2016), and
//! MLPerf's benchmark of SSD, whose classes `Encoder` and `Loss` compute the same.

use of_diag::Diagnostic;
use of_ir::{DType, Tensor, ValueId};
use of_ops::elementwise::{And, Cast, Eq, Gt, Lt, Max, Select};
use of_ops::movement::{Concat, GatherElements, Range, Unsqueeze};
use of_ops::nn::SoftmaxCrossEntropyLoss;
use of_ops::reduction::{ArgMax, ReduceMax, ReduceSum, TopK};

use super::attention::positions;
use super::boxes::{self, overlaps, reduce_sum, smooth_l1};
use super::default_boxes::{self, COUNT};
use super::net::{Net, ValueResult};

/// The overlap from which a default box is that of an object.
const OVERLAP: f32 = 0.5;
/// What differences of centres and of logarithms of sides are multiplied by.
const SCALES: [f64; 2] = [10.0, 5.0];

/// The default boxes, `[1, D]` each: left, top, right, bottom, then centre, width and height.
struct Defaults {
    corners: [ValueId; 4],
    centres: [ValueId; 4],
}

impl Defaults {
    fn new(n: &mut Net) -> Result<Defaults, Diagnostic> {
        let all = default_boxes::boxes();
        let mut row = |value: &dyn Fn(&[f32; 4]) -> f32| {
            let values: Vec<f32> = all.iter().map(value).collect();
            n.floats(&[1, COUNT], &values)
        };
        let corners = [
            row(&|b| b[0] - 0.5 * b[2])?,
            row(&|b| b[1] - 0.5 * b[3])?,
            row(&|b| b[0] + 0.5 * b[2])?,
            row(&|b| b[1] + 0.5 * b[3])?,
        ];
        Ok(Defaults { corners, centres: [row(&|b| b[0])?, row(&|b| b[1])?, row(&|b| b[2])?, row(&|b| b[3])?] })
    }
}

/// The objects of the images.
struct Objects {
    /// Left, top, right, bottom: `[N, G, 1]` each.
    corners: [ValueId; 4],
    /// Their classes, `[N, G]`; 0 is none.
    labels: ValueId,
}

/// For each default box the number of its object, `[N, D]`, and whether it has one. An object also has the default box of its largest
/// overlap; of several objects that have one so, the last counts.
fn matched(n: &mut Net, objects: &Objects, defaults: &Defaults) -> Result<(ValueId, ValueId), Diagnostic> {
    let overlap = overlaps(n, &objects.corners, &defaults.corners)?;
    // What fills a list up overlaps nothing.
    let none = n.b.constant(Tensor::scalar(0i64))?;
    let is_object = n.op(Gt {}, &[objects.labels, none])?;
    let last = n.ints(&[2])?;
    let is_object = n.op(Unsqueeze {}, &[is_object, last])?;
    let least = n.floats(&[], &[-1.0])?;
    let overlap = n.op(Select {}, &[is_object, overlap, least])?;
    let best = n.op(ArgMax { axis: 2, keepdims: true, select_last_index: false }, &[overlap])?;
    let (zero, one) = (n.b.constant(Tensor::scalar(0i64))?, n.b.constant(Tensor::scalar(1i64))?);
    let end = n.b.constant(Tensor::scalar(COUNT as i64))?;
    let numbers = n.op(Range {}, &[zero, end, one])?;
    let is_best = n.op(Eq {}, &[best, numbers])?;
    let is_best = n.op(And {}, &[is_best, is_object])?;
    // Later objects have a larger score, and any of these more than an overlap.
    let order = positions(n, objects.labels, 1)?;
    let order = n.op(Cast::to(DType::F32), &[order])?;
    let order = n.reshape(order, &[-1, 1])?;
    let forced = n.math().plus(order, 2.0)?;
    let score = n.op(Select {}, &[is_best, forced, overlap])?;
    let object = n.op(ArgMax { axis: 1, keepdims: false, select_last_index: false }, &[score])?;
    let axis = n.ints(&[1])?;
    let score = n.op(ReduceMax { keepdims: false }, &[score, axis])?;
    let limit = n.floats(&[], &[OVERLAP])?;
    Ok((object, n.op(Gt {}, &[score, limit])?))
}

/// The differences between the objects' boxes and the default boxes, `[N, 4, D]`; 0 where a default box has no object.
fn differences(n: &mut Net, objects: &Objects, found: (ValueId, ValueId), defaults: &Defaults) -> ValueResult {
    let (object, is_found) = found;
    let mut own = objects.corners;
    for corner in &mut own {
        let flat = n.reshape(*corner, &[0, -1])?;
        *corner = n.op(GatherElements { axis: 1 }, &[flat, object])?;
    }
    let mut rows = boxes::differences(n, &own, &defaults.centres, SCALES)?;
    let zero = n.floats(&[], &[0.0])?;
    let axis = n.ints(&[1])?;
    for row in &mut rows {
        let kept = n.op(Select {}, &[is_found, *row, zero])?;
        *row = n.op(Unsqueeze {}, &[kept, axis])?;
    }
    n.op(Concat { axis: 1 }, &rows)
}

/// The places of `[N, D]` in descending order of their values, as numbers from 0.
fn ranks(n: &mut Net, values: ValueId) -> ValueResult {
    let count = n.ints(&[COUNT as i64])?;
    let order = n.b.op_all(TopK { axis: 1, largest: true, sorted: true }, &[values, count])?[1];
    Ok(n.b.op_all(TopK { axis: 1, largest: false, sorted: true }, &[order, count])?[1])
}

/// The loss of predicted differences `[N, 4, D]` and scores `[N, classes, D]`, the mean over the images. Objects are `[N, G, 4]`, left, top,
/// right and bottom as parts of the image, with labels `[N, G]`, 0 for none.
pub(super) fn loss(n: &mut Net, [places, scores]: [ValueId; 2], [corners, labels]: [ValueId; 2]) -> ValueResult {
    let defaults = Defaults::new(n)?;
    let objects = Objects { corners: boxes::parts(n, corners, 2)?, labels };
    let (object, is_found) = matched(n, &objects, &defaults)?;
    let wanted = differences(n, &objects, (object, is_found), &defaults)?;
    let classes = n.op(GatherElements { axis: 1 }, &[labels, object])?;
    let background = n.b.constant(Tensor::scalar(0i64))?;
    let classes = n.op(Select {}, &[is_found, classes, background])?;
    let zero = n.floats(&[], &[0.0])?;
    // Places count where there is an object.
    let each = smooth_l1(n, places, wanted, 1.0)?;
    let each = reduce_sum(n, each, 1)?;
    let each = n.op(Select {}, &[is_found, each, zero])?;
    let place_loss = reduce_sum(n, each, 1)?;
    // Scores count there, and for three times as many negatives, those of the largest loss.
    let entropy = SoftmaxCrossEntropyLoss { ignore_index: None, reduction: "none".into(), return_log_prob: false };
    let entropies = n.b.op_all(entropy, &[scores, classes])?[0];
    let negatives = n.op(Select {}, &[is_found, zero, entropies])?;
    let rank = ranks(n, negatives)?;
    let found = n.op(Cast::to(DType::I64), &[is_found])?;
    let axis = n.ints(&[1])?;
    let count = n.op(ReduceSum { keepdims: true }, &[found, axis])?;
    let three = n.b.constant(Tensor::scalar(3i64))?;
    let mined = n.op(of_ops::elementwise::Mul {}, &[count, three])?;
    let is_mined = n.op(Lt {}, &[rank, mined])?;
    let one = n.floats(&[], &[1.0])?;
    let mut part = |counts| n.op(Select {}, &[counts, entropies, zero]);
    let (positive, negative) = (part(is_found)?, part(is_mined)?);
    let both = n.add(positive, negative)?;
    let score_loss = reduce_sum(n, both, 1)?;
    let total = n.add(place_loss, score_loss)?;
    // Images without objects do not count.
    let count = n.op(Cast::to(DType::F32), &[count])?;
    let count = n.reshape(count, &[-1])?;
    let has_objects = n.op(Gt {}, &[count, zero])?;
    let divisor = n.op(Max {}, &[count, one])?;
    let each = n.math().div(total, divisor)?;
    let each = n.op(Select {}, &[has_objects, each, zero])?;
    n.math().mean(each)
}
