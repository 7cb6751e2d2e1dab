//! Attention between positions.

use of_diag::Diagnostic;
use of_ir::{TensorError, ValueId};

use super::Layer;
use super::init::Init;
use super::linear::Linear;
use crate::Builder;

/// Multi-head attention of `[batch, positions, size]`. Source: Vaswani et al., "Attention Is All You Need" (2017).
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// The projections of queries, keys and values, and that of the result.
    pub projections: [Linear; 4],
    /// Number of heads.
    pub heads: i64,
    /// Whether a position sees those before it alone.
    pub is_causal: bool,
}

/// Names of the projections.
const NAMES: [&str; 4] = ["q_proj", "k_proj", "v_proj", "out_proj"];

impl MultiHeadAttention {
    /// Projections with first values as those of [`Linear`].
    ///
    /// # Errors
    /// When the weights would be larger than memory can address.
    pub fn new(init: &mut Init, size: usize, heads: usize) -> Result<MultiHeadAttention, TensorError> {
        let mut linear = || Linear::new(init, size, size);
        let projections = [linear()?, linear()?, linear()?, linear()?];
        Ok(MultiHeadAttention { projections, heads: heads as i64, is_causal: false })
    }

    /// In which a position sees those before it alone.
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { is_causal: true, ..self }
    }

    /// The attention of queries `x` to the positions of `y`. A mask `[…, queries, keys]` of bool says which are seen; one of floats is
    /// added to the scores.
    ///
    /// # Errors
    /// When operands have types that do not fit.
    #[track_caller]
    pub fn attend(
        &self,
        b: &mut Builder,
        x: ValueId,
        y: ValueId,
        mask: Option<ValueId>,
    ) -> Result<ValueId, Diagnostic> {
        let mut operands = Vec::with_capacity(4);
        for ((name, projection), from) in NAMES.iter().zip(&self.projections).zip([x, y, y]) {
            operands.push(b.within(*name, |b| projection.apply(b, from))?);
        }
        operands.extend(mask);
        let attention = of_ops::nn::Attention {
            is_causal: self.is_causal,
            q_num_heads: Some(self.heads),
            kv_num_heads: Some(self.heads),
            ..of_ops::nn::Attention::default()
        };
        let mixed = b.op(attention, &operands)?;
        b.within(NAMES[3], |b| self.projections[3].apply(b, mixed))
    }
}

impl Layer for MultiHeadAttention {
    #[track_caller]
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, Diagnostic> {
        self.attend(b, x, x, None)
    }
}
