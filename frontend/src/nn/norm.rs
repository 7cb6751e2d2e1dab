//! Normalisations. Their first scale is 1 and their first shift 0, as in PyTorch.

use std::panic::Location as Caller;

use of_diag::{Code, Diagnostic};
use of_ir::{Tensor, TensorError, ValueId};

use super::Layer;
use crate::Builder;
use crate::builder::location;

fn filled(length: usize, value: f32) -> Result<Tensor, TensorError> {
    Tensor::from_slice(&[length], &vec![value; length])
}

/// Normalises the last axis by its mean and variance.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// `[size]`.
    pub weight: Tensor,
    /// `[size]`.
    pub bias: Tensor,
    /// Added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// For a last axis of this size.
    ///
    /// # Errors
    /// When the parameters would be larger than memory can address.
    pub fn new(size: usize) -> Result<LayerNorm, TensorError> {
        Ok(LayerNorm { weight: filled(size, 1.0)?, bias: filled(size, 0.0)?, epsilon: 1e-5 })
    }
}

impl Layer for LayerNorm {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let (w, bias) = (b.parameter("weight", self.weight.clone())?, b.parameter("bias", self.bias.clone())?);
        b.op(of_ops::nn::LayerNorm { axis: -1, epsilon: self.epsilon, return_stats: false }, &[x, w, bias])
    }
}

/// Normalises the last axis by its root mean square.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[size]`.
    pub weight: Tensor,
    /// Added to the mean square.
    pub epsilon: f64,
}

impl RmsNorm {
    /// For a last axis of this size.
    ///
    /// # Errors
    /// When the parameters would be larger than memory can address.
    pub fn new(size: usize) -> Result<RmsNorm, TensorError> {
        Ok(RmsNorm { weight: filled(size, 1.0)?, epsilon: 1e-6 })
    }
}

impl Layer for RmsNorm {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let w = b.parameter("weight", self.weight.clone())?;
        b.op(of_ops::nn::RmsNorm { axis: -1, epsilon: self.epsilon }, &[x, w])
    }
}

/// Normalises groups of channels of `[batch, channels, spatial…]`.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// `[channels]`.
    pub weight: Tensor,
    /// `[channels]`.
    pub bias: Tensor,
    /// Number of groups.
    pub groups: i64,
    /// Added to the variance.
    pub epsilon: f64,
}

impl GroupNorm {
    /// For this many groups and channels.
    ///
    /// # Errors
    /// When the parameters would be larger than memory can address.
    pub fn new(groups: usize, channels: usize) -> Result<GroupNorm, TensorError> {
        let (weight, bias) = (filled(channels, 1.0)?, filled(channels, 0.0)?);
        Ok(GroupNorm { weight, bias, groups: groups as i64, epsilon: 1e-5 })
    }
}

impl Layer for GroupNorm {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let (w, bias) = (b.parameter("weight", self.weight.clone())?, b.parameter("bias", self.bias.clone())?);
        let norm = of_ops::nn::GroupNorm { num_groups: self.groups, epsilon: self.epsilon, channels_last: false };
        b.op(norm, &[x, w, bias])
    }
}

/// Normalises each channel of each sample of `[batch, channels, spatial…]`. Source: Ulyanov, Vedaldi and Lempitsky, "Instance
/// normalization" (2016).
#[derive(Clone, Debug)]
pub struct InstanceNorm {
    /// Number of channels.
    pub channels: usize,
    /// Weight and bias, both `[channels]`; `None` is 1 and 0.
    pub affine: Option<[Tensor; 2]>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl InstanceNorm {
    /// Without parameters, as in PyTorch.
    pub fn new(channels: usize) -> InstanceNorm {
        InstanceNorm { channels, affine: None, epsilon: 1e-5 }
    }

    /// With a weight and a bias for each channel.
    ///
    /// # Errors
    /// When the parameters would be larger than memory can address.
    pub fn affine(channels: usize) -> Result<InstanceNorm, TensorError> {
        let affine = Some([filled(channels, 1.0)?, filled(channels, 0.0)?]);
        Ok(InstanceNorm { affine, ..InstanceNorm::new(channels) })
    }
}

impl Layer for InstanceNorm {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let (weight, bias) = match &self.affine {
            Some([weight, bias]) => (b.parameter("weight", weight.clone())?, b.parameter("bias", bias.clone())?),
            None => {
                let at = location(Caller::caller());
                let made = |value| {
                    filled(self.channels, value).map_err(|e| Diagnostic::error(Code::TYPE, at.clone(), e.to_string()))
                };
                (b.constant(made(1.0)?)?, b.constant(made(0.0)?)?)
            }
        };
        b.op(of_ops::nn::InstanceNorm { epsilon: self.epsilon, channels_last: false }, &[x, weight, bias])
    }
}

/// Normalises channels of `[batch, channels, spatial…]` by running statistics; in a training step by those of the batch.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// `[channels]`.
    pub weight: Tensor,
    /// `[channels]`.
    pub bias: Tensor,
    /// `[channels]`.
    pub running_mean: Tensor,
    /// `[channels]`.
    pub running_var: Tensor,
    /// Added to the variance.
    pub epsilon: f64,
}

impl BatchNorm {
    /// For this many channels.
    ///
    /// # Errors
    /// When the parameters would be larger than memory can address.
    pub fn new(channels: usize) -> Result<BatchNorm, TensorError> {
        let (ones, zeros) = (filled(channels, 1.0)?, filled(channels, 0.0)?);
        let (running_mean, running_var) = (zeros.clone(), ones.clone());
        Ok(BatchNorm { weight: ones, bias: zeros, running_mean, running_var, epsilon: 1e-5 })
    }
}

impl Layer for BatchNorm {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let operands = [
            x,
            b.parameter("weight", self.weight.clone())?,
            b.parameter("bias", self.bias.clone())?,
            b.parameter("running_mean", self.running_mean.clone())?,
            b.parameter("running_var", self.running_var.clone())?,
        ];
        b.op(of_ops::nn::BatchNorm { epsilon: self.epsilon, channels_last: false }, &operands)
    }
}
