//! Activation functions.

use std::panic::Location as Caller;

use of_diag::{Code, Diagnostic};
use of_ir::{Tensor, TensorError, ValueId};
use of_ops::elementwise::{Elu, Gelu, HardSwish, LeakyRelu, Mish, Relu, Sigmoid, Softplus, Swish, Tanh};
use of_ops::movement::Reshape;

use super::Layer;
use crate::Builder;
use crate::builder::location;

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x`, below 0 times this slope.
    LeakyRelu(f64),
    /// `exp(x) - 1` below 0, times this.
    Elu(f64),
    /// `x` times the normal distribution function of `x`, exactly.
    Gelu,
    /// `x sigmoid(x)`.
    Silu,
    /// `x` times a piecewise linear sigmoid.
    HardSwish,
    /// `x tanh(softplus(x))`.
    Mish,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `log(1 + exp(x))`.
    Softplus,
}

impl Layer for Activation {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        match *self {
            Activation::Relu => b.op(Relu {}, &[x]),
            Activation::LeakyRelu(alpha) => b.op(LeakyRelu { alpha }, &[x]),
            Activation::Elu(alpha) => b.op(Elu { alpha }, &[x]),
            Activation::Gelu => b.op(Gelu { tanh: false }, &[x]),
            Activation::Silu => b.op(Swish { alpha: 1.0 }, &[x]),
            Activation::HardSwish => b.op(HardSwish {}, &[x]),
            Activation::Mish => b.op(Mish {}, &[x]),
            Activation::Tanh => b.op(Tanh {}, &[x]),
            Activation::Sigmoid => b.op(Sigmoid {}, &[x]),
            Activation::Softplus => b.op(Softplus {}, &[x]),
        }
    }
}

/// `x`, below 0 times a slope that is trained, of `[batch, channels, …]`. Source: He et al., "Delving Deep into Rectifiers" (2015).
#[derive(Clone, Debug)]
pub struct PRelu {
    /// `[channels]`, or `[1]` for one slope of all channels.
    pub weight: Tensor,
}

impl PRelu {
    /// One slope for this many channels each, or for all with 1. They begin with 0.25, as in PyTorch.
    ///
    /// # Errors
    /// When the slopes would be larger than memory can address.
    pub fn new(channels: usize) -> Result<PRelu, TensorError> {
        Ok(PRelu { weight: Tensor::from_slice(&[channels], &vec![0.25f32; channels])? })
    }
}

impl Layer for PRelu {
    /// # Errors
    /// When `x` is no tensor of a known rank, or it has another number of channels.
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let Some(rank) = b.ty(x).as_tensor().and_then(|t| t.rank()) else {
            let what = format!("{} has no known number of axes, so slopes have no axis of channels", b.ty(x));
            return Err(Diagnostic::error(Code::TYPE, location(Caller::caller()), what)
                .hint("give the input a shape; extents may be open"));
        };
        let mut slope = b.parameter("weight", self.weight.clone())?;
        // Channels are axis 1; slopes are broadcast from the last axis.
        if rank > 2 && self.weight.dims() != [1] {
            let shape: Vec<i64> = std::iter::once(-1).chain(std::iter::repeat_n(1, rank - 2)).collect();
            let shape = b.constant(Tensor::from_i64s(&shape))?;
            slope = b.op(Reshape { allowzero: false }, &[slope, shape])?;
        }
        b.op(of_ops::elementwise::PRelu {}, &[x, slope])
    }
}

/// `exp(x) / sum(exp(x))` along an axis, as `torch.nn.Softmax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax {
    /// The axis; from the last one if negative.
    pub axis: i64,
}

impl Layer for Softmax {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        b.op(of_ops::reduction::Softmax { axis: self.axis }, &[x])
    }
}

/// The logarithm of [`Softmax`], as `torch.nn.LogSoftmax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSoftmax {
    /// The axis; from the last one if negative.
    pub axis: i64,
}

impl Layer for LogSoftmax {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        b.op(of_ops::reduction::LogSoftmax { axis: self.axis }, &[x])
    }
}
