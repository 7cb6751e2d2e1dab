//! Recurrent layers over `[batch, steps, inputs]`. They start from zeros and return all states, `[batch, steps, size]`.

use of_diag::Diagnostic;
use of_ir::{Tensor, TensorError, ValueId};
use of_ops::movement::Reshape;

use super::Layer;
use super::init::{Init, Initializer};
use crate::Builder;

/// The parameters of a recurrent layer, as ONNX lays them out.
#[derive(Clone, Debug)]
struct Weights {
    /// `[1, gates size, inputs]`.
    input: Tensor,
    /// `[1, gates size, size]`.
    recurrent: Tensor,
    /// `[1, 2 gates size]`.
    bias: Tensor,
}

impl Weights {
    /// First values as in PyTorch: all uniform in ±1 / sqrt(size).
    fn new(init: &mut Init, gates: usize, inputs: usize, size: usize) -> Result<Weights, TensorError> {
        let bound = 1.0 / (size.max(1) as f64).sqrt();
        let uniform = Initializer::Uniform { low: -bound, high: bound };
        Ok(Weights {
            input: init.tensor(uniform, &[1, gates * size, inputs])?,
            recurrent: init.tensor(uniform, &[1, gates * size, size])?,
            bias: init.tensor(uniform, &[1, 2 * gates * size])?,
        })
    }

    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId, op: impl of_ir::NewOp) -> Result<ValueId, Diagnostic> {
        let operands = [
            x,
            b.parameter("weight_ih", self.input.clone())?,
            b.parameter("weight_hh", self.recurrent.clone())?,
            b.parameter("bias", self.bias.clone())?,
        ];
        let y = b.op_all(op, &operands)?[0];
        // [batch, steps, 1, size]: the axis of directions goes.
        let shape = b.constant(Tensor::from_i64s(&[0, 0, -1]))?;
        b.op(Reshape { allowzero: false }, &[y, shape])
    }
}

/// Long short-term memory. Source: Hochreiter and Schmidhuber (1997); gates in the order of ONNX: i, o, f, c.
#[derive(Clone, Debug)]
pub struct Lstm(Weights);

impl Lstm {
    /// First values as in PyTorch.
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, inputs: usize, size: usize) -> Result<Lstm, TensorError> {
        Ok(Lstm(Weights::new(init, 4, inputs, size)?))
    }
}

impl Layer for Lstm {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let lstm = of_ops::recurrent::Lstm {
            direction: "forward".into(),
            layout: 1,
            activations: Vec::new(),
            activation_alpha: Vec::new(),
            activation_beta: Vec::new(),
            clip: None,
            input_forget: false,
        };
        self.0.apply(b, x, lstm)
    }
}

/// Gated recurrent unit. Source: Cho et al. (2014), with the reset gate behind the product, as in PyTorch; gates in the order of ONNX:
/// z, r, h.
#[derive(Clone, Debug)]
pub struct Gru(Weights);

impl Gru {
    /// First values as in PyTorch.
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, inputs: usize, size: usize) -> Result<Gru, TensorError> {
        Ok(Gru(Weights::new(init, 3, inputs, size)?))
    }
}

impl Layer for Gru {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let gru = of_ops::recurrent::Gru {
            direction: "forward".into(),
            layout: 1,
            activations: Vec::new(),
            activation_alpha: Vec::new(),
            activation_beta: Vec::new(),
            clip: None,
            linear_before_reset: true,
        };
        self.0.apply(b, x, gru)
    }
}
