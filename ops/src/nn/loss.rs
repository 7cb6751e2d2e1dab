//! `of.nll_loss` and `of.softmax_cross_entropy_loss`.

use std::sync::Arc;

use of_ir::{DType, OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use crate::build::{Build, BuildResult, in_wide};
use crate::elementwise::{Eq, Neg, Select};
use crate::movement::{Gather, GatherElements};
use crate::reduction::LogSoftmax;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, Value, op, op_basics, shape};

op! {
    /// Negative log likelihood: `loss[n, d…] = -x[n, c, d…] * weight[c]` with `c = target[n, d…]`.
    ///
    /// `x` is `[N, C, d…]`, the weight is 1 where it is left out, and the loss is 0 where the target is `ignore_index`.
    /// `reduction` is `none`, `sum`, or `mean`, which divides the sum by that of the weights used. Source: ONNX
    /// NegativeLogLikelihoodLoss.
    pub struct NllLoss = "of.nll_loss" [Composite, onnx: "NegativeLogLikelihoodLoss"] {
        operands: (x, target, weight?),
        results: (loss),
        attrs: {
            /// A target that does not count; it need not be a class.
            ignore_index: Option<i64>,
            reduction: Arc<str>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (operands, ignore_index, reduction) = sample(&mut r);
        Some((operands, NllLoss { ignore_index, reduction }))
    };
}

op! {
    /// Cross entropy of the softmax of scores: `of.nll_loss` of `log_softmax(scores)` along axis 1.
    ///
    /// With `return_log_prob`, result 1 is that logarithm. Source: ONNX SoftmaxCrossEntropyLoss.
    pub struct SoftmaxCrossEntropyLoss = "of.softmax_cross_entropy_loss" [Composite, onnx: "SoftmaxCrossEntropyLoss"] {
        operands: (scores, labels, weights?),
        results: (output, log_prob?),
        attrs: {
            /// A label that does not count; it need not be a class.
            ignore_index: Option<i64>,
            reduction: Arc<str>,
            /// Whether there is a second result.
            return_log_prob: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (operands, ignore_index, reduction) = sample(&mut r);
        Some((operands, SoftmaxCrossEntropyLoss { ignore_index, reduction, return_log_prob: r.int(0, 1) == 0 }))
    };
}

/// Operands, the target that is ignored, the reduction.
fn sample(r: &mut Rng) -> (Vec<Value>, Option<i64>, Arc<str>) {
    let rank = r.int(2, 4) as usize;
    let dims = r.dims(rank, 2, 4);
    let classes = dims[1];
    let mut own = dims.clone();
    own.remove(1);
    let ignore = r.pick(&[None, Some(-100), Some(0)]);
    let target = r.tensor(DType::I64, &own, 0.0, classes as f64);
    let mut list = target.to_i64s().unwrap_or_default();
    if let (Some(i), Some(first)) = (ignore, list.first_mut()) {
        *first = i;
    }
    // One target counts at least, so that the mean is a number.
    if let Some(last) = list.last_mut() {
        *last = 1;
    }
    let target = Tensor::from_slice(&own, &list).unwrap_or(target);
    let weight = if r.int(0, 1) == 0 { Value::None } else { Value::Tensor(r.tensor(DType::F32, &[classes], 0.5, 2.0)) };
    (vec![r.f32s(&dims), target.into(), weight], ignore, r.pick(&["none", "mean", "sum"]).into())
}

/// Checks the operands; gives the type of the loss.
fn check(cx: &OpView<'_>, reduction: &str) -> Result<TensorType, OpError> {
    let (x, target) = (cx.tensor(0)?, cx.tensor(1)?);
    if !x.dtype.is_float() || !target.dtype.is_int() {
        return Err(OpError::ty(format!(
            "operand 0 must be floating-point and operand 1 integers, they are {} and {}",
            x.dtype, target.dtype
        )));
    }
    if !["none", "mean", "sum"].contains(&reduction) {
        return Err(OpError::attr(format!("reduction is '{reduction}', it must be none, mean or sum")));
    }
    let mut own = target.shape.clone();
    if let Some(s) = &x.shape {
        if s.len() < 2 {
            return Err(OpError::shape("operand 0 must be [N, C, …]"));
        }
        let mut of_x = s.clone();
        let classes = of_x.remove(1);
        if let Some(t) = &target.shape
            && (t.len() != of_x.len() || t.iter().zip(&of_x).any(|(a, b)| a.provably_ne(b)))
        {
            return Err(OpError::shape(format!("targets of shape {} do not fit {}", shape::show(t), shape::show(s))));
        }
        if let Some(Type::Tensor(w)) = cx.ty(2)
            && let Some(w) = &w.shape
            && (w.len() != 1 || w[0].provably_ne(&classes))
        {
            return Err(OpError::shape(format!("weights of shape {} are not one for each class", shape::show(w))));
        }
        own.get_or_insert(of_x);
    }
    if let Some(Type::Tensor(w)) = cx.ty(2)
        && w.dtype != x.dtype
    {
        return Err(OpError::ty(format!("the weights must be {}, they are {}", x.dtype, w.dtype)));
    }
    let shape = if reduction == "none" { own } else { Some(Vec::new()) };
    Ok(TensorType { dtype: x.dtype, shape, sbp: None })
}

/// The loss of logarithms of probabilities; `operands` are theirs with the targets and the weights.
fn loss(b: &mut Build<'_, '_>, operands: &[ValueId], ignore: Option<i64>, reduction: &str) -> BuildResult {
    let (x, mut target) = (operands[0], operands[1]);
    let axes: Vec<usize> = (0..b.rank(x)?.saturating_sub(1)).collect();
    let mut ignored = None;
    if let Some(i) = ignore {
        let i = b.number(i as f64, target)?;
        let is = b.op(Eq {}, &[target, i])?;
        let zero = b.number(0.0, target)?;
        target = b.op(Select {}, &[is, zero, target])?;
        ignored = Some(is);
    }
    let at = b.unsqueeze(target, &[1])?;
    let picked = b.op(GatherElements { axis: 1 }, &[x, at])?;
    let picked = b.squeeze(picked, &[1])?;
    let mut loss = b.op(Neg {}, &[picked])?;
    let mut weight = match b.given(operands, 2) {
        Some(w) => Some(b.op(Gather { axis: 0 }, &[w, target])?),
        None => None,
    };
    if let Some(w) = weight {
        loss = b.mul(loss, w)?;
    }
    if let Some(is) = ignored {
        let zero = b.number(0.0, x)?;
        loss = b.op(Select {}, &[is, zero, loss])?;
        if reduction == "mean" {
            let own = match weight {
                Some(w) => w,
                None => b.number(1.0, x)?,
            };
            weight = Some(b.op(Select {}, &[is, zero, own])?);
        }
    }
    match (reduction, weight) {
        ("none", _) => Ok(loss),
        ("mean", Some(w)) => {
            let (sum, by) = (b.sum(loss, &axes, false)?, b.sum(w, &axes, false)?);
            b.div(sum, by)
        }
        ("mean", None) => {
            let mean = b.mean(loss, &axes)?;
            b.squeeze(mean, &axes)
        }
        _ => b.sum(loss, &axes, false),
    }
}

/// Splits along every axis but that of the classes.
fn splits(cx: &OpView<'_>, reduction: &str, return_log_prob: bool) -> Vec<SbpSignature> {
    let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return Vec::new() };
    let one = |a: usize| {
        let x = Sbp::Split(u8::try_from(a).ok()?);
        let target = Sbp::Split(u8::try_from(a.saturating_sub(1)).ok()?);
        let mut operands = vec![Sbp::Broadcast; cx.operands.len()];
        (operands[0], operands[1]) = (x, target);
        let loss = if reduction == "none" { target } else { Sbp::Partial(PartialKind::Sum) };
        let results = if return_log_prob { vec![loss, x] } else { vec![loss] };
        Some(SbpSignature::new(&operands, &results))
    };
    let axes = (0..rank).filter(|a| *a != 1 && reduction != "mean");
    axes.filter_map(one).collect()
}

impl Op for NllLoss {
    op_basics!(NllLoss);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::Tensor(check(cx, &self.reduction)?)])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        in_wide(rw, operands, |rw, operands| {
            Ok(vec![loss(&mut Build::new(rw), operands, self.ignore_index, &self.reduction)?])
        })
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx, &self.reduction, false)
    }
}

impl Op for SoftmaxCrossEntropyLoss {
    op_basics!(SoftmaxCrossEntropyLoss);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let mut out = vec![Type::Tensor(check(cx, &self.reduction)?)];
        if self.return_log_prob {
            out.push(Type::Tensor(TensorType { sbp: None, ..cx.tensor(0)?.clone() }));
        }
        Ok(out)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        in_wide(rw, operands, |rw, operands| {
            let b = &mut Build::new(rw);
            let logs = b.op(LogSoftmax { axis: 1 }, &operands[..1])?;
            let mut own = operands.to_vec();
            own[0] = logs;
            let loss = loss(b, &own, self.ignore_index, &self.reduction)?;
            Ok(if self.return_log_prob { vec![loss, logs] } else { vec![loss] })
        })
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        splits(cx, &self.reduction, self.return_log_prob)
    }
}
