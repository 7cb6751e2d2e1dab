//! GPT-2.
//!
//! With `cache`, the graph for inference keeps the keys and values of earlier runs in variables, so that a run has new tokens alone: `T` of
//! them after `position` others.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, Type, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Gelu};
use of_ops::movement::{Gather, Split};

use super::attention::{View, attention, positions};
use super::bert::{check_heads, first_rows};
use super::net::{Net, ValueResult, ZEROS, normal};
use super::settings::{Settings, setting, wrong};
use super::synthetic::{Samples, rows};
use super::{Columns, Mode, Model, Outputs};
use crate::nn::{Initializer, KeyValueCache};

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
        setting("cache", "0", "0", "positions whose keys and values inference keeps; 0 for none"),
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

/// The attention of new tokens to them and to the tokens before `position`, whose keys and values variables hold.
fn cached(
    n: &mut Net,
    name: &str,
    operands: [ValueId; 3],
    position: ValueId,
    [heads, length, size]: [usize; 3],
) -> ValueResult {
    n.b.within(name, |b| {
        let cache = KeyValueCache::variables(b, DType::F32, Dim::symbol("N"), [heads, length, size]);
        let (y, next) = cache.attend(b, operands, position)?;
        cache.carry(b, next)?;
        Ok(y)
    })
}

fn layer(n: &mut Net, name: &str, x: ValueId, s: &Settings, position: Option<ValueId>) -> ValueResult {
    let (hidden, heads, dropout) = (s.number("hidden")?, s.number("heads")?, s.probability("dropout")?);
    // Weights into the residual stream are scaled by the number of additions to it.
    let residual = normal(0.02 / (2.0 * s.number("layers")? as f64).sqrt());
    let y = n.layer_norm(&format!("{name}.ln_1"), x, hidden, 1e-5)?;
    let y = product(n, &format!("{name}.attn.c_attn"), y, [hidden, 3 * hidden], normal(0.02))?;
    let sizes = n.ints(&[hidden as i64; 3])?;
    let parts = n.b.op_all(Split { axis: 2, num_outputs: 3 }, &[y, sizes])?;
    let &[q, k, v] = &parts[..] else { return Err(wrong("three parts are expected".into())) };
    let y = match position {
        None => attention(n, [q, k, v], View { heads, mask: None, is_causal: true, dropout })?,
        Some(position) => {
            let extents = [heads, s.count("cache")?, hidden / heads];
            cached(n, &format!("{name}.attn"), [q, k, v], position, extents)?
        }
    };
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

/// The input that counts the tokens in the cache; `None` without a cache.
fn cache_position(n: &mut Net, s: &Settings) -> Result<Option<ValueId>, Diagnostic> {
    let (cache, most) = (s.count("cache")?, s.number("positions")?);
    if cache == 0 {
        return Ok(None);
    }
    if n.mode == Mode::Training {
        return Err(wrong("a model with a cache of keys and values cannot be trained".into())
            .hint("leave out the setting 'cache': it changes no parameter"));
    }
    if cache > most {
        return Err(wrong(format!("a cache of {cache} tokens is longer than 'positions', {most}")));
    }
    Ok(Some(n.b.input("position", Type::fixed(DType::I64, &[]))))
}

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (hidden, vocabulary) = (s.number("hidden")?, s.number("vocabulary")?);
    check_heads(hidden, s.number("heads")?)?;
    let ids = n.input("input_ids", DType::I64, &[None], "T");
    let position = cache_position(n, s)?;
    let words = n.parameter("transformer.wte.weight", normal(0.02), &[vocabulary, hidden])?;
    let places = n.parameter("transformer.wpe.weight", normal(0.02), &[s.number("positions")?, hidden])?;
    let x = n.op(Gather { axis: 0 }, &[words, ids])?;
    let place = match position {
        None => first_rows(n, places, ids)?,
        Some(position) => {
            let steps = positions(n, ids, 1)?;
            let at = n.add(steps, position)?;
            n.op(Gather { axis: 0 }, &[places, at])?
        }
    };
    let x = n.add(x, place)?;
    let mut x = n.dropout(x, s.probability("dropout")?)?;
    for i in 0..s.number("layers")? {
        x = layer(n, &format!("transformer.h.{i}"), x, s, position)?;
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
