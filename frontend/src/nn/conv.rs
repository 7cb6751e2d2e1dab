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
        let weight = init.filled(torch_default(), &dims)?;
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

    /// With this distance of the elements that a window reads.
    pub fn dilation(self, dilation: i64) -> Conv {
        Conv { dilation, ..self }
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
    /// `[inputs, outputs / groups, kernel…]`.
    pub weight: Tensor,
    /// `[outputs]`; `None` adds nothing.
    pub bias: Option<Tensor>,
    /// Step of the window in the output.
    pub stride: i64,
    /// Elements that are left out on each side of the output.
    pub padding: i64,
    /// Elements that are added at the end of each axis of the output.
    pub output_padding: i64,
    /// Distance of the elements that a window writes.
    pub dilation: i64,
    /// Groups of channels that do not read each other.
    pub groups: i64,
}

impl ConvTranspose {
    /// First values as in PyTorch: weight and bias uniform in ±1 / sqrt(outputs times kernel). Step 1, no padding.
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, inputs: usize, outputs: usize, kernel: &[usize]) -> Result<ConvTranspose, TensorError> {
        ConvTranspose::grouped(init, inputs, outputs, kernel, 1)
    }

    /// As [`ConvTranspose::new`], with groups of channels.
    ///
    /// # Errors
    /// As [`ConvTranspose::new`].
    pub fn grouped(
        init: &mut Init,
        inputs: usize,
        outputs: usize,
        kernel: &[usize],
        groups: usize,
    ) -> Result<ConvTranspose, TensorError> {
        let own = outputs / groups.max(1);
        let dims: Vec<usize> = [inputs, own].into_iter().chain(kernel.iter().copied()).collect();
        let weight = init.filled(torch_default(), &dims)?;
        let bias = Some(init.bias(outputs, own * kernel.iter().product::<usize>())?);
        let groups = groups as i64;
        Ok(ConvTranspose { weight, bias, stride: 1, padding: 0, output_padding: 0, dilation: 1, groups })
    }

    /// With this step of the window in the output.
    pub fn stride(self, stride: i64) -> ConvTranspose {
        ConvTranspose { stride, ..self }
    }

    /// With this many elements left out on each side of the output.
    pub fn padding(self, padding: i64) -> ConvTranspose {
        ConvTranspose { padding, ..self }
    }

    /// With this many elements added at the end of each axis of the output.
    pub fn output_padding(self, output_padding: i64) -> ConvTranspose {
        ConvTranspose { output_padding, ..self }
    }

    /// With this distance of the elements that a window writes.
    pub fn dilation(self, dilation: i64) -> ConvTranspose {
        ConvTranspose { dilation, ..self }
    }

    /// Without a bias.
    pub fn without_bias(self) -> ConvTranspose {
        ConvTranspose { bias: None, ..self }
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
            dilations: vec![self.dilation; spatial],
            output_padding: vec![self.output_padding; spatial],
            output_shape: Vec::new(),
            group: self.groups,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        b.op(conv, &[Some(x), Some(w), bias].into_iter().flatten().collect::<Vec<_>>())
    }
}
