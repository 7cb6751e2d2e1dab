//! Pooling of `[batch, channels, spatial…]`.

use of_diag::Diagnostic;
use of_ir::ValueId;

use super::Layer;
use crate::Builder;

/// The maximum of each window.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxPool {
    /// Extents of the window.
    pub kernel: Vec<i64>,
    /// Step of the window.
    pub stride: Vec<i64>,
    /// Elements around the image, which are never the maximum.
    pub padding: i64,
}

impl MaxPool {
    /// Windows of this size next to each other.
    pub fn new(kernel: &[i64]) -> MaxPool {
        MaxPool { kernel: kernel.to_vec(), stride: kernel.to_vec(), padding: 0 }
    }
}

impl Layer for MaxPool {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let pool = of_ops::nn::MaxPool {
            kernel: self.kernel.clone(),
            strides: self.stride.clone(),
            pads: vec![self.padding; 2 * self.kernel.len()],
            dilations: vec![1; self.kernel.len()],
            ceil_mode: false,
            storage_order: 0,
            return_indices: false,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        b.op(pool, &[x])
    }
}

/// The mean of each window.
#[derive(Clone, Debug, PartialEq)]
pub struct AvgPool {
    /// Extents of the window.
    pub kernel: Vec<i64>,
    /// Step of the window.
    pub stride: Vec<i64>,
    /// Zeros around the image, which count.
    pub padding: i64,
}

impl AvgPool {
    /// Windows of this size next to each other.
    pub fn new(kernel: &[i64]) -> AvgPool {
        AvgPool { kernel: kernel.to_vec(), stride: kernel.to_vec(), padding: 0 }
    }
}

impl Layer for AvgPool {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let pool = of_ops::nn::AvgPool {
            kernel: self.kernel.clone(),
            strides: self.stride.clone(),
            pads: vec![self.padding; 2 * self.kernel.len()],
            dilations: vec![1; self.kernel.len()],
            ceil_mode: false,
            count_include_pad: true,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        b.op(pool, &[x])
    }
}

/// The mean of each channel: `[batch, channels, 1…]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalAvgPool;

impl Layer for GlobalAvgPool {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        b.op(of_ops::nn::GlobalAveragePool { channels_last: false }, &[x])
    }
}

/// The maximum of each channel: `[batch, channels, 1…]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalMaxPool;

impl Layer for GlobalMaxPool {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        b.op(of_ops::nn::GlobalMaxPool { channels_last: false }, &[x])
    }
}
