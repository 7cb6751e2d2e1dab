//! Layers one after the other, and layers without parameters.

use std::panic::Location as Caller;

use of_diag::{Code, Diagnostic};
use of_ir::{Elements, Tensor, ValueId};
use of_ops::elementwise::Mul;
use of_ops::movement::{Concat, Expand};
use of_ops::structural::ShapeOf;

use super::Layer;
use crate::Builder;
use crate::builder::location;

/// Layers one after the other, each within its name.
#[derive(Default)]
pub struct Sequential {
    layers: Vec<(String, Box<dyn Layer>)>,
}

impl Sequential {
    /// No layers.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// With one more layer, called by its number.
    #[must_use]
    pub fn then(self, layer: impl Layer + 'static) -> Sequential {
        let name = self.layers.len().to_string();
        self.named(name, layer)
    }

    /// With one more layer of this name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>, layer: impl Layer + 'static) -> Sequential {
        self.layers.push((name.into(), Box::new(layer)));
        self
    }
}

impl Layer for Sequential {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        self.layers.iter().try_fold(x, |x, (name, layer)| b.within(name, |b| layer.apply(b, x)))
    }
}

/// Sets elements to zero with this probability in a training step, and scales the others so that the mean stays. Otherwise it does
/// nothing. Source: Srivastava et al. (2014).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout(pub f64);

impl Layer for Dropout {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let ratio = b.constant(Tensor::scalar(self.0 as f32))?;
        b.op(of_ops::nn::Dropout { return_mask: false, seed: 0 }, &[x, ratio])
    }
}

/// Sets all of a sample to zero with this probability in a training step, and scales the other samples so that their mean stays; otherwise
/// nothing. For the branch of a residual connection. Source: Huang et al., "Deep Networks with Stochastic Depth" (2016).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StochasticDepth(pub f64);

impl Layer for StochasticDepth {
    /// # Errors
    /// When `x` is no tensor of floats with an axis of samples.
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let ty = b.ty(x).as_tensor().and_then(|t| Some((t.dtype, t.rank().filter(|rank| *rank > 0)?)));
        let loc = location(Caller::caller());
        let wrong = |what: String| Diagnostic::error(Code::TYPE, loc.clone(), what);
        let Some((dtype, rank)) = ty else {
            return Err(wrong(format!("{} has no axis of samples", b.ty(x))));
        };
        let one = Tensor::from_elements(dtype, vec![1; rank], Elements::Float(vec![1.0]));
        let one = one.map_err(|e| wrong(e.to_string()))?;
        let one = b.constant(one)?;
        let samples = b.op(ShapeOf { start: None, end: Some(1) }, &[x])?;
        let rest =
            b.constant(Tensor::from_slice(&[rank - 1], &vec![1i64; rank - 1]).map_err(|e| wrong(e.to_string()))?)?;
        let shape = b.op(Concat { axis: 0 }, &[samples, rest])?;
        let ones = b.op(Expand {}, &[one, shape])?;
        let kept = Dropout(self.0).apply(b, ones)?;
        b.op(Mul {}, &[x, kept])
    }
}

/// All axes but the first as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flatten;

impl Layer for Flatten {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        b.op(of_ops::movement::Flatten { axis: 1 }, &[x])
    }
}
