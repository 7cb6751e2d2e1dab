//! Losses: what a training step makes small.

use of_diag::{Code, Diagnostic};
use of_ir::{DType, Dim, Shape, Type, ValueId};
use of_ops::OpSpec;
use of_ops::elementwise::{Eq, Log, Max, Min, Pow, Select, Sigmoid, Softplus};
use of_ops::list::as_op;
use of_ops::movement::{Flatten, Reshape, Squeeze, Transpose, Unsqueeze};
use of_ops::reduction::{LogSoftmax, ReduceSum, Softmax};

use super::arithmetic::{Arithmetic, ValueResult};
use crate::Builder;

/// A loss, the mean over the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Softmax cross entropy of scores against classes (i64), whose shape is that of the scores without the axis of classes. Part
    /// `smoothing` of each label goes to all classes alike. Labels equal to `ignore` do not count.
    CrossEntropy {
        /// Label smoothing, 0 to 1.
        smoothing: f64,
        /// A label that does not count.
        ignore: i64,
        /// The axis of classes; a negative one counts from the last.
        axis: i64,
    },
    /// Softmax cross entropy of scores against probabilities of the classes, which have the shape of the scores. Part `smoothing` of
    /// each goes to all classes alike.
    SoftCrossEntropy {
        /// Label smoothing, 0 to 1.
        smoothing: f64,
        /// The axis of classes; a negative one counts from the last.
        axis: i64,
    },
    /// Binary cross entropy of scores, before the sigmoid, against numbers from 0 to 1. A sigmoid at the end of the model is left out.
    BinaryCrossEntropy,
    /// Mean squared error.
    Mse,
    /// Mean absolute error.
    L1,
    /// Half the squared error up to `delta`, and linear beyond.
    Huber {
        /// Where it becomes linear.
        delta: f64,
    },
    /// Binary cross entropy of scores in which what is predicted well counts less.
    Focal {
        /// Weight of label 1; that of label 0 is `1 - alpha`. `None` weighs both alike.
        alpha: Option<f64>,
        /// How much less: the power of the error.
        gamma: f64,
    },
    /// Connectionist temporal classification of scores `[N, T, C]` against labels `[N, S]`, in which negative ones are padding.
    Ctc {
        /// The class that stands for no label.
        blank: i64,
    },
    /// Embeddings `[N, D]` of one label, `[N]`, become similar, and others different.
    Contrastive {
        /// What similarities are divided by.
        temperature: f64,
    },
    /// Pairs of embeddings `[N, 2, D]` become similar for label 1, `[N]`, and different for label -1.
    CosineEmbedding {
        /// The similarity below which a pair is different enough.
        margin: f64,
    },
    /// The output itself, whose elements are losses: for models that compute their loss. There are no labels but inputs of the model.
    Output,
}

/// Names of losses on the command line.
pub const LOSSES: [&str; 11] = [
    "cross-entropy",
    "soft-cross-entropy",
    "bce",
    "mse",
    "l1",
    "huber",
    "focal",
    "ctc",
    "contrastive",
    "cosine-embedding",
    "output",
];

impl Loss {
    /// The loss of this name, with its usual parameters.
    pub fn named(name: &str) -> Option<Loss> {
        Some(match name {
            "cross-entropy" => Loss::CrossEntropy { smoothing: 0.0, ignore: -100, axis: 1 },
            "soft-cross-entropy" => Loss::SoftCrossEntropy { smoothing: 0.0, axis: 1 },
            "bce" => Loss::BinaryCrossEntropy,
            "mse" => Loss::Mse,
            "l1" => Loss::L1,
            "huber" => Loss::Huber { delta: 1.0 },
            "focal" => Loss::Focal { alpha: Some(0.25), gamma: 2.0 },
            "ctc" => Loss::Ctc { blank: 0 },
            "contrastive" => Loss::Contrastive { temperature: 0.5 },
            "cosine-embedding" => Loss::CosineEmbedding { margin: 0.0 },
            "output" => Loss::Output,
            _ => return None,
        })
    }

    /// Whether labels are classes, or probabilities of classes.
    pub fn has_classes(&self) -> bool {
        matches!(self, Loss::CrossEntropy { .. } | Loss::SoftCrossEntropy { .. })
    }

    /// The axis of classes, where labels are probabilities.
    pub fn axis_of_probabilities(&self) -> Option<i64> {
        match self {
            Loss::SoftCrossEntropy { axis, .. } => Some(*axis),
            _ => None,
        }
    }

    /// The type of the labels for an output of the model; `None` for a loss without labels.
    ///
    /// # Errors
    /// When the output is no tensor of floats of known rank, or has no axis of classes.
    pub fn label_type(&self, output: &Type) -> Result<Option<Type>, Diagnostic> {
        let wrong =
            |what: &str| Diagnostic::error(Code::TYPE, of_diag::Location::Unknown, format!("the loss needs {what}"));
        let tensor = output.as_tensor().filter(|t| t.dtype.is_float());
        let tensor = tensor.ok_or_else(|| wrong("an output of floats"))?;
        let shape = tensor.shape.clone().ok_or_else(|| wrong("an output of known rank"))?;
        let rank = shape.len();
        let axis = match *self {
            Loss::CrossEntropy { axis, .. } => axis,
            Loss::Ctc { .. } if rank == 3 => {
                return Ok(Some(Type::tensor(DType::I64, vec![shape[0].clone(), Dim::symbol(LABEL_LENGTH)])));
            }
            Loss::Ctc { .. } => return Err(wrong("an output of scores [samples, steps, classes]")),
            Loss::Contrastive { .. } if rank == 2 => {
                return Ok(Some(Type::tensor(DType::I64, vec![shape[0].clone()])));
            }
            Loss::Contrastive { .. } => return Err(wrong("an output of embeddings [samples, size]")),
            Loss::CosineEmbedding { .. } if rank == 3 && shape[1].as_const() == Some(2) => {
                return Ok(Some(Type::tensor(tensor.dtype, vec![shape[0].clone()])));
            }
            Loss::CosineEmbedding { .. } => return Err(wrong("an output of pairs of embeddings [samples, 2, size]")),
            Loss::Output => return Ok(None),
            _ => return Ok(Some(Type::tensor(tensor.dtype, shape))),
        };
        let axis = of_ops::shape::axis(axis, rank).ok().filter(|axis| *axis > 0);
        let axis = axis.ok_or_else(|| wrong("an output with an axis of classes behind that of the samples"))?;
        let labels: Shape = (0..rank).filter(|a| *a != axis).map(|a| shape[a].clone()).collect();
        Ok(Some(Type::tensor(DType::I64, labels)))
    }

    /// The loss of an output against labels. A softmax at the end of a model is left out, because cross entropy has its own; so is a
    /// sigmoid before binary cross entropy.
    ///
    /// # Errors
    /// When the types do not fit.
    pub(crate) fn build(&self, b: &mut Builder, output: ValueId, labels: Option<ValueId>) -> ValueResult {
        // Without labels the output is the loss.
        let Some(labels) = labels else { return Arithmetic::new(b).mean(output) };
        match *self {
            Loss::Output => Arithmetic::new(b).mean(output),
            Loss::CrossEntropy { smoothing, ignore, axis } => {
                cross_entropy(b, output, labels, (smoothing, ignore, axis))
            }
            Loss::SoftCrossEntropy { smoothing, axis } => soft_cross_entropy(b, output, labels, (smoothing, axis)),
            Loss::BinaryCrossEntropy => {
                let scores = binary_scores(b, output)?;
                let b = &mut Arithmetic::new(b);
                let all = binary_cross_entropy(b, scores, labels)?;
                b.mean(all)
            }
            Loss::Focal { alpha, gamma } => {
                let scores = binary_scores(b, output)?;
                focal(&mut Arithmetic::new(b), scores, labels, (alpha, gamma))
            }
            Loss::Ctc { blank } => super::ctc::ctc(b, output, labels, blank),
            Loss::Contrastive { temperature } => {
                super::contrastive::contrastive(&mut Arithmetic::new(b), output, labels, temperature)
            }
            Loss::CosineEmbedding { margin } => {
                super::contrastive::cosine_embedding(&mut Arithmetic::new(b), output, labels, margin)
            }
            Loss::Mse => {
                let b = &mut Arithmetic::new(b);
                let difference = b.sub(output, labels)?;
                let square = b.square(difference)?;
                b.mean(square)
            }
            Loss::L1 => {
                let b = &mut Arithmetic::new(b);
                let difference = b.sub(output, labels)?;
                let size = b.abs(difference)?;
                b.mean(size)
            }
            Loss::Huber { delta } => {
                // With q = min(|d|, delta): q^2 / 2 + delta (|d| - q).
                let b = &mut Arithmetic::new(b);
                let difference = b.sub(output, labels)?;
                let size = b.abs(difference)?;
                let limit = b.number(delta, size)?;
                let near = b.op(Min {}, &[size, limit])?;
                let square = b.square(near)?;
                let (half, far) = (b.scale(square, 0.5)?, b.sub(size, near)?);
                let linear = b.scale(far, delta)?;
                let all = b.add(half, linear)?;
                b.mean(all)
            }
        }
    }
}

/// The extent of the labels of a sample, where the model does not give it.
pub const LABEL_LENGTH: &str = "label_length";

/// Binary cross entropy of each score: `max(x, 0) - x z + log(1 + exp(-|x|))`, which does not overflow.
fn binary_cross_entropy(b: &mut Arithmetic<'_>, output: ValueId, labels: ValueId) -> ValueResult {
    let zero = b.number(0.0, output)?;
    let positive = b.op(Max {}, &[output, zero])?;
    let product = b.mul(output, labels)?;
    let size = b.abs(output)?;
    let negative = b.scale(size, -1.0)?;
    let rest = b.op(Softplus {}, &[negative])?;
    let difference = b.sub(positive, product)?;
    b.add(difference, rest)
}

/// Focal loss. Source: Lin et al., "Focal Loss for Dense Object Detection" (2017), as torchvision's `sigmoid_focal_loss`:
/// `alpha_t (1 - p_t)^gamma` times binary cross entropy, where `p_t` is the probability of the label.
fn focal(b: &mut Arithmetic<'_>, output: ValueId, labels: ValueId, (alpha, gamma): (Option<f64>, f64)) -> ValueResult {
    let entropy = binary_cross_entropy(b, output, labels)?;
    let p = b.op(Sigmoid {}, &[output])?;
    // 1 - p_t = p + t - 2 p t.
    let sum = b.add(p, labels)?;
    let product = b.mul(p, labels)?;
    let product = b.scale(product, -2.0)?;
    let error = b.add(sum, product)?;
    let weight = if gamma == 2.0 {
        b.square(error)?
    } else {
        let gamma = b.number(gamma, error)?;
        b.op(Pow {}, &[error, gamma])?
    };
    let mut all = b.mul(entropy, weight)?;
    if let Some(alpha) = alpha {
        let weight = b.scale(labels, 2.0 * alpha - 1.0)?;
        let weight = b.plus(weight, 1.0 - alpha)?;
        all = b.mul(all, weight)?;
    }
    b.mean(all)
}

/// Cross entropy with label smoothing, the mean over labels that count. Source: Szegedy et al., "Rethinking the Inception
/// Architecture" (2016): `(1 - s) nll + s mean over classes of -log p`.
fn cross_entropy(
    b: &mut Builder,
    output: ValueId,
    labels: ValueId,
    (smoothing, ignore, axis): (f64, i64, i64),
) -> ValueResult {
    use of_ops::nn::{NllLoss, SoftmaxCrossEntropyLoss};
    let Some(scores) = scores(b, output, axis).map(|scores| classes_second(b, scores, axis)).transpose()? else {
        // Probabilities that no softmax at the end of the model makes.
        let probabilities = classes_second(b, output, axis)?;
        let b = &mut Arithmetic::new(b);
        let logarithms = b.op(Log {}, &[probabilities])?;
        return b.op(NllLoss { ignore_index: Some(ignore), reduction: "mean".into() }, &[logarithms, labels]);
    };
    let entropy = SoftmaxCrossEntropyLoss {
        ignore_index: Some(ignore),
        reduction: "mean".into(),
        return_log_prob: smoothing > 0.0,
    };
    let results = b.op_all(entropy, &[scores, labels])?;
    let &[loss, logarithms] = &results[..] else { return Ok(results[0]) };
    let classes = b.ty(scores).as_tensor().and_then(|t| t.shape.as_ref()?.get(1).and_then(Dim::as_const));
    let b = &mut Arithmetic::new(b);
    let axis = b.op(of_ops::structural::Constant { value: of_ir::Tensor::from_i64s(&[1]) }, &[])?;
    let sums = b.op(ReduceSum { keepdims: false }, &[logarithms, axis])?;
    // Labels that do not count have no part in the mean.
    let none = b.op(of_ops::structural::Constant { value: of_ir::Tensor::scalar(ignore) }, &[])?;
    let ignored = b.op(Eq {}, &[labels, none])?;
    let (zero, one) = (b.number(0.0, sums)?, b.number(1.0, sums)?);
    let counts = b.op(Select {}, &[ignored, zero, one])?;
    let kept = b.mul(sums, counts)?;
    let (total, count) = (b.sum(kept)?, b.sum(counts)?);
    let mean = b.div(total, count)?;
    let uniform = b.scale(mean, -1.0 / classes.unwrap_or(1).max(1) as f64)?;
    b.running(loss, uniform, 1.0 - smoothing)
}

/// Cross entropy against probabilities: the mean over labels of minus the sum over classes of `p log q`, as PyTorch's `cross_entropy`.
fn soft_cross_entropy(b: &mut Builder, output: ValueId, labels: ValueId, (smoothing, axis): (f64, i64)) -> ValueResult {
    let own = scores(b, output, axis);
    let b = &mut Arithmetic::new(b);
    let logarithms = match own {
        Some(scores) => b.op(LogSoftmax { axis }, &[scores])?,
        None => b.op(Log {}, &[output])?,
    };
    let weighted = b.mul(logarithms, labels)?;
    let along = b.op(of_ops::structural::Constant { value: of_ir::Tensor::from_i64s(&[axis]) }, &[])?;
    let sums = b.op(ReduceSum { keepdims: false }, &[weighted, along])?;
    let mean = b.mean(sums)?;
    let loss = b.scale(mean, -1.0)?;
    if smoothing == 0.0 {
        return Ok(loss);
    }
    let uniform = b.mean(logarithms)?;
    let uniform = b.scale(uniform, -1.0)?;
    b.running(loss, uniform, 1.0 - smoothing)
}

/// The scores of an output: what a final softmax along the classes reads, or the output itself. `None` for other outputs that are
/// probabilities.
fn scores(b: &Builder, output: ValueId, axis: i64) -> Option<ValueId> {
    let g = b.graph();
    let Some(op) = g.def_op(output) else { return Some(output) };
    let from_first = |axis: i64| if axis < 0 { axis + rank(b, output) as i64 } else { axis };
    match as_op::<Softmax>(g, op) {
        Some(softmax) if from_first(softmax.axis) == from_first(axis) => Some(g.op(op).operands[0]),
        Some(_) => None,
        None => Some(output),
    }
}

/// The scores of an output with binary labels: what a final sigmoid reads, or the output itself. The output may be the probabilities in
/// another shape, as of a model that ends in `sigmoid(x).squeeze(1)`; then the scores are in this shape, too.
pub(super) fn binary_scores(b: &mut Builder, output: ValueId) -> ValueResult {
    const MOVES: [&str; 5] = [Flatten::NAME, Reshape::NAME, Squeeze::NAME, Transpose::NAME, Unsqueeze::NAME];
    let g = b.graph();
    let (mut v, mut moves) = (output, Vec::new());
    while let Some(op) = g.def_op(v).filter(|op| MOVES.contains(&g.op(*op).name())) {
        v = g.op(op).operands[0];
        moves.push(op);
    }
    let Some(sigmoid) = g.def_op(v).filter(|op| as_op::<Sigmoid>(g, *op).is_some()) else { return Ok(output) };
    let mut scores = g.op(sigmoid).operands[0];
    for op in moves.into_iter().rev() {
        let data = b.graph().op(op);
        let (def, attrs, operands) = (data.def, data.attrs.clone(), [&[scores], &data.operands[1..]].concat());
        scores = b.op((def, attrs), &operands)?;
    }
    Ok(scores)
}

fn rank(b: &Builder, v: ValueId) -> usize {
    b.ty(v).as_tensor().and_then(|t| t.shape.as_ref().map(Vec::len)).unwrap_or(2)
}

/// A tensor whose axis of classes is the second, as losses of ONNX have it.
fn classes_second(b: &mut Builder, v: ValueId, axis: i64) -> ValueResult {
    let rank = rank(b, v);
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    if axis == 1 {
        return Ok(v);
    }
    let mut perm: Vec<i64> = (0..rank as i64).filter(|a| *a != axis).collect();
    perm.insert(1, axis);
    b.op(Transpose { perm: Some(perm) }, &[v])
}
