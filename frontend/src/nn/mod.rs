//! Layers: ops and their parameters.
//!
//! A layer holds the first values of its parameters, and [`Layer::apply`] adds its ops to a function. Parameters get their names there:
//! the path of [`Builder::within`] and the name in the layer, such as `features.0.weight`. Layers of a [`Sequential`] are within their
//! names, so the names are those of PyTorch's modules of the same structure. Attention differs: it has a projection each for queries, keys
//! and values. `frontend/tests/torch` compares parameters, results and gradients with PyTorch's.
//!
//! Dropout and stochastic depth do nothing until [`crate::training`] makes a training step, in which they are random.

mod activation;
mod adaptive_pool;
mod attention;
mod cache;
mod conv;
mod init;
mod linear;
mod norm;
mod pool;
mod recurrent;
mod sequential;

pub use activation::{Activation, LogSoftmax, PRelu, Softmax};
pub use adaptive_pool::{AdaptiveAvgPool, AdaptiveMaxPool};
pub use attention::MultiHeadAttention;
pub use cache::KeyValueCache;
pub use conv::{Conv, ConvTranspose};
pub use init::{Fan, Init, Initializer};
pub use linear::{Embedding, Linear};
pub use norm::{BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm};
pub use pool::{AvgPool, GlobalAvgPool, GlobalMaxPool, MaxPool};
pub use recurrent::{Gru, Lstm, LstmState, RecurrentWeights};
pub use sequential::{Dropout, Flatten, Sequential, StochasticDepth};

use of_diag::Diagnostic;
use of_ir::ValueId;

use crate::Builder;

/// A layer with one input and one output.
pub trait Layer {
    /// Adds the layer's ops to a function, and returns its output for the input `x`.
    ///
    /// # Errors
    /// When `x` has a type that the layer does not take.
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic>;
}

#[cfg(test)]
mod tests;
