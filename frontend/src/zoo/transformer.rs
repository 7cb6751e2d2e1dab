//! The transformer with encoder and decoder.

use of_diag::Diagnostic;
use of_ir::{DType, ValueId};
use of_ops::movement::Slice;

use super::attention::{View, attention, causal_key_mask, padding_mask};
use super::bert::{check_heads, first_rows};
use super::net::{Net, ValueResult, ZEROS, torch_bias};
use super::resnet::relu;
use super::settings::{Settings, setting, wrong};
use super::synthetic::{Samples, rows};
use super::{Columns, Model, Outputs};
use crate::nn::Initializer;

/// The transformer, base.
pub(super) const TRANSFORMER: Model = Model {
    name: "transformer",
    about: "Transformer-base (Vaswani et al., 2017) for translation, as torch.nn.Transformer in PyTorch's tutorial (Seq2SeqTransformer); a label is the next token",
    loss: "--loss cross-entropy --class-axis -1",
    settings: &[
        setting("layers", "6", "2", "layers of encoder and of decoder"),
        setting("hidden", "512", "32", "features of a token"),
        setting("heads", "8", "2", "attention heads"),
        setting("feedforward", "2048", "64", "features inside of a layer"),
        setting("source", "37000", "32", "tokens of the source"),
        setting("target", "37000", "32", "tokens of the target"),
        setting("positions", "5000", "64", "the longest text"),
        setting("dropout", "0.1", "0", "dropout of training"),
        setting("length", "64", "12", "tokens of a synthetic sample"),
    ],
    unused: &["positional_encoding.pos_embedding"],
    frozen: &[],
    build,
    synthetic,
};

/// The token that fills short texts up, which has no part in attention.
const PADDING: i64 = 1;
const XAVIER: Initializer = Initializer::XavierUniform { gain: 1.0 };
const EPSILON: f64 = 1e-5;

/// Sines and cosines of positions: `[positions, hidden]`.
fn wave(n: &mut Net, positions: usize, hidden: usize) -> ValueResult {
    let mut values = vec![0f32; positions.saturating_mul(hidden)];
    for (at, row) in values.chunks_mut(hidden).enumerate() {
        for (i, value) in row.iter_mut().enumerate() {
            let pair = (i / 2 * 2) as f64;
            let angle = at as f64 * (-pair * 10000f64.ln() / hidden as f64).exp();
            *value = if i % 2 == 0 { angle.sin() } else { angle.cos() } as f32;
        }
    }
    n.floats(&[positions, hidden], &values)
}

/// `torch.nn.MultiheadAttention`: the projections of queries, keys and values are one parameter.
fn multi_head(n: &mut Net, name: &str, [x, y]: [ValueId; 2], hidden: usize, view: View) -> ValueResult {
    let weight = n.parameter(&format!("{name}.in_proj_weight"), XAVIER, &[3 * hidden, hidden])?;
    let bias = n.parameter(&format!("{name}.in_proj_bias"), ZEROS, &[3 * hidden])?;
    let axis = n.ints(&[0])?;
    let mut operands = [x, y, y];
    for (i, operand) in operands.iter_mut().enumerate() {
        let (from, to) = (n.ints(&[(i * hidden) as i64])?, n.ints(&[((i + 1) * hidden) as i64])?);
        let own = n.op(Slice {}, &[weight, from, to, axis])?;
        let own = n.transpose(own, &[1, 0])?;
        let shift = n.op(Slice {}, &[bias, from, to, axis])?;
        let product = n.op(of_ops::contraction::MatMul {}, &[*operand, own])?;
        *operand = n.add(product, shift)?;
    }
    let mixed = attention(n, operands, view)?;
    n.linear(&format!("{name}.out_proj"), mixed, [hidden, hidden], (XAVIER, ZEROS))
}

/// Adds what a part has made, with dropout, and normalises.
fn residual(n: &mut Net, name: &str, [x, y]: [ValueId; 2], hidden: usize, dropout: f64) -> ValueResult {
    let y = n.dropout(y, dropout)?;
    let x = n.add(x, y)?;
    n.layer_norm(name, x, hidden, EPSILON)
}

fn feedforward(n: &mut Net, name: &str, x: ValueId, [hidden, inner]: [usize; 2], dropout: f64) -> ValueResult {
    let y = n.linear(&format!("{name}.linear1"), x, [hidden, inner], (XAVIER, torch_bias(hidden)))?;
    let y = relu(n, y)?;
    let y = n.dropout(y, dropout)?;
    n.linear(&format!("{name}.linear2"), y, [inner, hidden], (XAVIER, torch_bias(inner)))
}

/// Tokens as vectors, with their positions.
fn embedded(n: &mut Net, name: &str, ids: ValueId, [rows, hidden]: [usize; 2], places: ValueId) -> ValueResult {
    let x = n.embedding(&format!("{name}.embedding"), ids, [rows, hidden], XAVIER)?;
    let x = n.math().scale(x, (hidden as f64).sqrt())?;
    let place = first_rows(n, places, ids)?;
    n.add(x, place)
}

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (hidden, heads, layers) = (s.number("hidden")?, s.number("heads")?, s.number("layers")?);
    let (inner, dropout) = (s.number("feedforward")?, s.probability("dropout")?);
    check_heads(hidden, heads)?;
    let source = n.input("source", DType::I64, &[None], "S");
    let target = n.input("target", DType::I64, &[None], "T");
    let places = wave(n, s.number("positions")?, hidden)?;
    let view = |mask| View { heads, mask: Some(mask), is_causal: false, dropout };
    let seen = padding_mask(n, source, PADDING)?;
    let before = causal_key_mask(n, target, PADDING)?;
    let x = embedded(n, "src_tok_emb", source, [s.number("source")?, hidden], places)?;
    let mut x = n.dropout(x, dropout)?;
    for i in 0..layers {
        let name = format!("transformer.encoder.layers.{i}");
        let y = multi_head(n, &format!("{name}.self_attn"), [x, x], hidden, view(seen))?;
        x = residual(n, &format!("{name}.norm1"), [x, y], hidden, dropout)?;
        let y = feedforward(n, &name, x, [hidden, inner], dropout)?;
        x = residual(n, &format!("{name}.norm2"), [x, y], hidden, dropout)?;
    }
    let memory = n.layer_norm("transformer.encoder.norm", x, hidden, EPSILON)?;
    let x = embedded(n, "tgt_tok_emb", target, [s.number("target")?, hidden], places)?;
    let mut x = n.dropout(x, dropout)?;
    for i in 0..layers {
        let name = format!("transformer.decoder.layers.{i}");
        let y = multi_head(n, &format!("{name}.self_attn"), [x, x], hidden, view(before))?;
        x = residual(n, &format!("{name}.norm1"), [x, y], hidden, dropout)?;
        let y = multi_head(n, &format!("{name}.multihead_attn"), [x, memory], hidden, view(seen))?;
        x = residual(n, &format!("{name}.norm2"), [x, y], hidden, dropout)?;
        let y = feedforward(n, &name, x, [hidden, inner], dropout)?;
        x = residual(n, &format!("{name}.norm3"), [x, y], hidden, dropout)?;
    }
    let x = n.layer_norm("transformer.decoder.norm", x, hidden, EPSILON)?;
    let scores = n.linear("generator", x, [hidden, s.number("target")?], (XAVIER, torch_bias(hidden)))?;
    Ok(vec![("scores", scores)])
}

/// The target is the source in reverse order, behind a token that begins it.
fn synthetic(s: &Settings, made: &mut Samples) -> Result<Columns, Diagnostic> {
    let (length, tokens) = (s.number("length")?, s.number("source")?.min(s.number("target")?));
    if length >= s.number("positions")? || tokens < 5 {
        return Err(wrong("texts need fewer tokens than 'positions', and five different tokens".into()));
    }
    let texts = made.sequences(tokens, 3, length);
    let reversed = || texts.iter().map(|text| text.iter().rev().copied().collect::<Vec<i64>>());
    // 2 begins a text, as in the tutorial.
    let target: Vec<Vec<i64>> = reversed().map(|text| [&[2], &text[..length - 1]].concat()).collect();
    let labels: Vec<Vec<i64>> = reversed().collect();
    Ok(vec![("source", rows(&texts)?), ("target", rows(&target)?), ("labels", rows(&labels)?)])
}
