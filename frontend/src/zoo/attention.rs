//! Attention and masks, as the transformers of the zoo have them.

use of_ir::{DType, Tensor, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Cast, Eq, Ge, Or, Select};
use of_ops::movement::{Expand, Range, Unsqueeze};
use of_ops::nn::Attention;
use of_ops::reduction::Softmax;

use super::Mode;
use super::net::{Net, ValueResult};

/// What is added to scores that do not count: the least number of f32.
const LEAST: f32 = f32::MIN;

/// How queries see keys.
#[derive(Clone, Copy)]
pub(super) struct View {
    /// Heads.
    pub heads: usize,
    /// What is added to scores.
    pub mask: Option<ValueId>,
    /// A position sees those before it alone.
    pub is_causal: bool,
    /// Dropout of the weights.
    pub dropout: f64,
}

/// `0, 1, …` as far as an axis of a value extends.
pub(super) fn positions(n: &mut Net, x: ValueId, axis: i64) -> ValueResult {
    let extent = n.extent(x, axis)?;
    let extent = n.reshape(extent, &[])?;
    let (zero, one) = (n.b.constant(Tensor::scalar(0i64))?, n.b.constant(Tensor::scalar(1i64))?);
    n.op(Range {}, &[zero, extent, one])
}

fn added(n: &mut Net, counts: ValueId) -> ValueResult {
    let (zero, least) = (n.floats(&[], &[0.0])?, n.floats(&[], &[LEAST])?);
    n.op(Select {}, &[counts, zero, least])
}

/// From `[N, keys]` of i64, 0 where a key does not count, to what is added to scores: `[N, 1, 1, keys]`.
pub(super) fn key_mask(n: &mut Net, counts: ValueId) -> ValueResult {
    let counts = n.op(Cast::to(DType::Bool), &[counts])?;
    let mask = added(n, counts)?;
    let axes = n.ints(&[1, 2])?;
    n.op(Unsqueeze {}, &[mask, axes])
}

/// As [`key_mask`], for tokens of which `padding` does not count.
pub(super) fn padding_mask(n: &mut Net, tokens: ValueId, padding: i64) -> ValueResult {
    let padding = n.b.constant(Tensor::scalar(padding))?;
    let is_padding = n.op(Eq {}, &[tokens, padding])?;
    let (zero, least) = (n.floats(&[], &[0.0])?, n.floats(&[], &[LEAST])?);
    let mask = n.op(Select {}, &[is_padding, least, zero])?;
    let axes = n.ints(&[1, 2])?;
    n.op(Unsqueeze {}, &[mask, axes])
}

/// Which positions see which: those before them and themselves. `[T, T]` of i1.
fn causal(n: &mut Net, x: ValueId) -> ValueResult {
    let keys = positions(n, x, 1)?;
    let queries = n.reshape(keys, &[-1, 1])?;
    n.op(Ge {}, &[queries, keys])
}

/// A causal mask and one of keys in one: `[N, 1, T, T]`.
pub(super) fn causal_key_mask(n: &mut Net, tokens: ValueId, padding: i64) -> ValueResult {
    let seen = causal(n, tokens)?;
    let future = n.op(of_ops::elementwise::Not {}, &[seen])?;
    let padding = n.b.constant(Tensor::scalar(padding))?;
    let is_padding = n.op(Eq {}, &[tokens, padding])?;
    let axes = n.ints(&[1, 2])?;
    let is_padding = n.op(Unsqueeze {}, &[is_padding, axes])?;
    let hidden = n.op(Or {}, &[future, is_padding])?;
    let (zero, least) = (n.floats(&[], &[0.0])?, n.floats(&[], &[LEAST])?);
    n.op(Select {}, &[hidden, least, zero])
}

/// `[N, T, size]` to `[N, heads, T, size / heads]`, or with the last two axes swapped.
fn split(n: &mut Net, x: ValueId, heads: usize, perm: &[i64]) -> ValueResult {
    let size = n.b.ty(x).as_tensor().and_then(|t| t.shape.as_ref()?.last()?.as_const()).unwrap_or(0);
    let x = n.reshape(x, &[0, 0, heads as i64, size / heads.max(1) as i64])?;
    n.transpose(x, perm)
}

/// A mask with a row for each query. ONNX allows one row for all of them, but onnxruntime 1.32 does not.
fn for_all_queries(n: &mut Net, mask: ValueId, q: ValueId) -> ValueResult {
    let (ones, queries, one) = (n.ints(&[1, 1])?, n.extent(q, 1)?, n.ints(&[1])?);
    let shape = n.concat(0, &[ones, queries, one])?;
    n.op(Expand {}, &[mask, shape])
}

/// Attention of `[N, T, size]`, scaled by the inverse square root of the size of a head. With dropout it is written out.
pub(super) fn attention(n: &mut Net, [q, k, v]: [ValueId; 3], view: View) -> ValueResult {
    if n.mode == Mode::Inference || view.dropout == 0.0 {
        let op = Attention {
            is_causal: view.is_causal,
            q_num_heads: Some(view.heads as i64),
            kv_num_heads: Some(view.heads as i64),
            ..Attention::default()
        };
        let mut operands = vec![q, k, v];
        if let Some(mask) = view.mask {
            operands.push(for_all_queries(n, mask, q)?);
        }
        return n.op(op, &operands);
    }
    let size = n.b.ty(q).as_tensor().and_then(|t| t.shape.as_ref()?.last()?.as_const()).unwrap_or(1);
    let (queries, keys) = (split(n, q, view.heads, &[0, 2, 1, 3])?, split(n, k, view.heads, &[0, 2, 3, 1])?);
    let values = split(n, v, view.heads, &[0, 2, 1, 3])?;
    let scores = n.op(MatMul {}, &[queries, keys])?;
    let mut scores = n.math().scale(scores, (view.heads as f64 / size as f64).sqrt())?;
    if let Some(mask) = view.mask {
        scores = n.add(scores, mask)?;
    }
    if view.is_causal {
        let seen = causal(n, q)?;
        let mask = added(n, seen)?;
        scores = n.add(scores, mask)?;
    }
    let weights = n.op(Softmax { axis: -1 }, &[scores])?;
    let weights = n.dropout(weights, view.dropout)?;
    let mixed = n.op(MatMul {}, &[weights, values])?;
    let mixed = n.transpose(mixed, &[0, 2, 1, 3])?;
    n.reshape(mixed, &[0, 0, size])
}
