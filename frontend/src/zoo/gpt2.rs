//! GPT-2.

use of_diag::Diagnostic;
use of_ir::{DType, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Gelu};
use of_ops::movement::{Gather, Split};

use super::attention::{View, attention};
use super::bert::{check_heads, first_rows};
use super::net::{Net, ValueResult, ZEROS, normal};
use super::settings::{Settings, setting, wrong};
use super::synthetic::{Samples, rows};
use super::{Columns, Model, Outputs};
use crate::nn::Initializer;

/// GPT-2, 124 million parameters.
pub(super) const GPT2: Model = Model {
    name: "gpt2",
    about: "GPT-2 (Radford et al., 2019), as transformers' GPT2LMHeadModel; a label is the next token",
    loss: "--loss cross-entropy --class-axis -1",
    settings: &[
        setting("layers", "12", "2", "layers"),
        setting("hidden", "768", "32", "features of a token"),
        setting("heads", "12", "2", "attention heads"),
        setting("vocabulary", "50257", "64", "tokens"),
        setting("positions", "1024", "32", "the longest text"),
        setting("dropout", "0.1", "0", "dropout of training"),
        setting("length", "1024", "16", "tokens of a synthetic sample"),
    ],
    unused: &["lm_head.weight", "*.attn.bias", "*.attn.masked_bias"],
    frozen: &[],
    build,
    synthetic,
};

/// A product with a matrix `[inputs, outputs]`, as transformers' `Conv1D`.
fn product(n: &mut Net, name: &str, x: ValueId, extents: [usize; 2], weight: Initializer) -> ValueResult {
    let w = n.parameter(&format!("{name}.weight"), weight, &extents)?;
    let bias = n.parameter(&format!("{name}.bias"), ZEROS, &[extents[1]])?;
    let y = n.op(MatMul {}, &[x, w])?;
    n.op(Add {}, &[y, bias])
}

fn layer(n: &mut Net, name: &str, x: ValueId, s: &Settings) -> ValueResult {
    let (hidden, heads, dropout) = (s.number("hidden")?, s.number("heads")?, s.probability("dropout")?);
    // Weights into the residual stream are scaled by the number of additions to it.
    let residual = normal(0.02 / (2.0 * s.number("layers")? as f64).sqrt());
    let y = n.layer_norm(&format!("{name}.ln_1"), x, hidden, 1e-5)?;
    let y = product(n, &format!("{name}.attn.c_attn"), y, [hidden, 3 * hidden], normal(0.02))?;
    let sizes = n.ints(&[hidden as i64; 3])?;
    let parts = n.b.op_all(Split { axis: 2, num_outputs: 3 }, &[y, sizes])?;
    let &[q, k, v] = &parts[..] else { return Err(wrong("three parts are expected".into())) };
    let y = attention(n, [q, k, v], View { heads, mask: None, is_causal: true, dropout })?;
    let y = product(n, &format!("{name}.attn.c_proj"), y, [hidden, hidden], residual)?;
    let y = n.dropout(y, dropout)?;
    let x = n.add(x, y)?;
    let y = n.layer_norm(&format!("{name}.ln_2"), x, hidden, 1e-5)?;
    let y = product(n, &format!("{name}.mlp.c_fc"), y, [hidden, 4 * hidden], normal(0.02))?;
    let y = n.op(Gelu { tanh: true }, &[y])?;
    let y = product(n, &format!("{name}.mlp.c_proj"), y, [4 * hidden, hidden], residual)?;
    let y = n.dropout(y, dropout)?;
    n.add(x, y)
}

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (hidden, vocabulary) = (s.number("hidden")?, s.number("vocabulary")?);
    check_heads(hidden, s.number("heads")?)?;
    let ids = n.input("input_ids", DType::I64, &[None], "T");
    let words = n.parameter("transformer.wte.weight", normal(0.02), &[vocabulary, hidden])?;
    let places = n.parameter("transformer.wpe.weight", normal(0.02), &[s.number("positions")?, hidden])?;
    let x = n.op(Gather { axis: 0 }, &[words, ids])?;
    let place = first_rows(n, places, ids)?;
    let x = n.add(x, place)?;
    let mut x = n.dropout(x, s.probability("dropout")?)?;
    for i in 0..s.number("layers")? {
        x = layer(n, &format!("transformer.h.{i}"), x, s)?;
    }
    let x = n.layer_norm("transformer.ln_f", x, hidden, 1e-5)?;
    // The table of words is the matrix of the scores.
    let columns = n.transpose(words, &[1, 0])?;
    Ok(vec![("logits", n.op(MatMul {}, &[x, columns])?)])
}

/// Texts in which a token gives the next one.
fn synthetic(s: &Settings, made: &mut Samples) -> Result<Columns, Diagnostic> {
    let (vocabulary, length) = (s.number("vocabulary")?, s.number("length")?);
    if length > s.number("positions")? {
        return Err(wrong(format!("texts of {length} tokens are longer than 'positions'")));
    }
    let texts = made.sequences(vocabulary, 0, length + 1);
    let part = |from: usize| texts.iter().map(|text| text[from..from + length].to_vec()).collect::<Vec<_>>();
    Ok(vec![("input_ids", rows(&part(0))?), ("labels", rows(&part(1))?)])
}
