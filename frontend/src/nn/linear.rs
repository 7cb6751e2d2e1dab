//! Products with a matrix, and its rows by number.

use of_diag::Diagnostic;
use of_ir::{Tensor, TensorError, ValueId};
use of_ops::contraction::{Gemm, MatMul};
use of_ops::elementwise::Add;
use of_ops::movement::{Gather, Transpose};

use super::Layer;
use super::init::{Init, Initializer, torch_default};
use crate::Builder;

/// `y = x wᵀ + b` along the last axis.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// `[outputs]`; `None` adds nothing.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// First values as in PyTorch: weight and bias uniform in ±1 / sqrt(inputs).
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, inputs: usize, outputs: usize) -> Result<Linear, TensorError> {
        let weight = init.filled(torch_default(), &[outputs, inputs])?;
        Ok(Linear { weight, bias: Some(init.bias(outputs, inputs)?) })
    }

    /// Without a bias.
    pub fn without_bias(self) -> Linear {
        Linear { bias: None, ..self }
    }
}

impl Layer for Linear {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let w = b.parameter("weight", self.weight.clone())?;
        let bias = self.bias.clone().map(|bias| b.parameter("bias", bias)).transpose()?;
        if b.ty(x).as_tensor().and_then(|t| t.rank()) == Some(2) {
            let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true };
            return b.op(gemm, &[Some(x), Some(w), bias].into_iter().flatten().collect::<Vec<_>>());
        }
        let columns = b.op(Transpose { perm: Some(vec![1, 0]) }, &[w])?;
        let y = b.op(MatMul {}, &[x, columns])?;
        bias.map_or(Ok(y), |bias| b.op(Add {}, &[y, bias]))
    }
}

/// Rows of a table by their numbers: `[…]` of i64 to `[…, size]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[rows, size]`.
    pub weight: Tensor,
}

impl Embedding {
    /// First values as in PyTorch: standard normal.
    ///
    /// # Errors
    /// When the table would be larger than memory can address.
    pub fn new(init: &mut Init, rows: usize, size: usize) -> Result<Embedding, TensorError> {
        Ok(Embedding { weight: init.filled(Initializer::Normal { mean: 0.0, std: 1.0 }, &[rows, size])? })
    }
}

impl Layer for Embedding {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let table = b.parameter("weight", self.weight.clone())?;
        b.op(Gather { axis: 0 }, &[table, x])
    }
}
