//! Convolutions over one, two or three spatial axes.

use of_diag::Diagnostic;
use of_ir::{Tensor, TensorError, ValueId};

use super::Layer;
use super::init::{Init, torch_default};
use crate::Builder;

/// A convolution of `[batch, channels, spatial…]`; the kernel has an extent for each spatial axis.
#[derive(Clone, Debug)]
pub struct Conv {
    /// `[outputs, inputs / groups, kernel…]`.
    pub weight: Tensor,
    /// `[outputs]`; `None` adds nothing.
    pub bias: Option<Tensor>,
    /// Step of the window.
    pub stride: i64,
    /// Zeros on each side.
    pub padding: i64,
    /// Distance of the elements that a window reads.
    pub dilation: i64,
    /// Groups of channels that do not read each other.
    pub groups: i64,
}

impl Conv {
    /// First values as in PyTorch: weight and bias uniform in ±1 / sqrt(inputs times kernel). Step 1, no padding.
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, inputs: usize, outputs: usize, kernel: &[usize]) -> Result<Conv, TensorError> {
        Conv::grouped(init, inputs, outputs, kernel, 1)
    }

    /// As [`Conv::new`], with groups of channels.
    ///
    /// # Errors
    /// As [`Conv::new`].
    pub fn grouped(
        init: &mut Init,
        inputs: usize,
        outputs: usize,
        kernel: &[usize],
        groups: usize,
    ) -> Result<Conv, TensorError> {
        let own = inputs / groups.max(1);
        let dims: Vec<usize> = [outputs, own].into_iter().chain(kernel.iter().copied()).collect();
        let weight = init.tensor(torch_default(), &dims)?;
        let bias = init.bias(outputs, own * kernel.iter().product::<usize>())?;
        Ok(Conv { weight, bias: Some(bias), stride: 1, padding: 0, dilation: 1, groups: groups as i64 })
    }

    /// With this step of the window.
    pub fn stride(self, stride: i64) -> Conv {
        Conv { stride, ..self }
    }

    /// With this many zeros on each side.
    pub fn padding(self, padding: i64) -> Conv {
        Conv { padding, ..self }
    }

    /// Without a bias.
    pub fn without_bias(self) -> Conv {
        Conv { bias: None, ..self }
    }
}

impl Layer for Conv {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let spatial = self.weight.dims().len().saturating_sub(2);
        let w = b.parameter("weight", self.weight.clone())?;
        let bias = self.bias.clone().map(|bias| b.parameter("bias", bias)).transpose()?;
        let conv = of_ops::nn::Conv {
            strides: vec![self.stride; spatial],
            pads: vec![self.padding; 2 * spatial],
            dilations: vec![self.dilation; spatial],
            group: self.groups,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        b.op(conv, &[Some(x), Some(w), bias].into_iter().flatten().collect::<Vec<_>>())
    }
}

/// A transposed convolution of `[batch, channels, spatial…]`.
#[derive(Clone, Debug)]
pub struct ConvTranspose {
    /// `[inputs, outputs, kernel…]`.
    pub weight: Tensor,
    /// `[outputs]`; `None` adds nothing.
    pub bias: Option<Tensor>,
    /// Step of the window in the output.
    pub stride: i64,
    /// Elements that are left out on each side of the output.
    pub padding: i64,
    /// Elements that are added at the end of each axis of the output.
    pub output_padding: i64,
}

impl ConvTranspose {
    /// First values as in PyTorch: weight and bias uniform in ±1 / sqrt(outputs times kernel). Step 1, no padding.
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, inputs: usize, outputs: usize, kernel: &[usize]) -> Result<ConvTranspose, TensorError> {
        let dims: Vec<usize> = [inputs, outputs].into_iter().chain(kernel.iter().copied()).collect();
        let weight = init.tensor(torch_default(), &dims)?;
        let bias = init.bias(outputs, outputs * kernel.iter().product::<usize>())?;
        Ok(ConvTranspose { weight, bias: Some(bias), stride: 1, padding: 0, output_padding: 0 })
    }

    /// With this step of the window in the output.
    pub fn stride(self, stride: i64) -> ConvTranspose {
        ConvTranspose { stride, ..self }
    }
}

impl Layer for ConvTranspose {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let spatial = self.weight.dims().len().saturating_sub(2);
        let w = b.parameter("weight", self.weight.clone())?;
        let bias = self.bias.clone().map(|bias| b.parameter("bias", bias)).transpose()?;
        let conv = of_ops::nn::ConvTranspose {
            strides: vec![self.stride; spatial],
            pads: vec![self.padding; 2 * spatial],
            dilations: vec![1; spatial],
            output_padding: vec![self.output_padding; spatial],
            output_shape: Vec::new(),
            group: 1,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        b.op(conv, &[Some(x), Some(w), bias].into_iter().flatten().collect::<Vec<_>>())
    }
}
