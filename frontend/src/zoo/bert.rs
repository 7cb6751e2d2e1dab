//! BERT with its heads for pre-training.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Gelu, Tanh};
use of_ops::movement::{Gather, Slice};

use super::attention::{View, attention, key_mask};
use super::net::{Net, ValueResult, ZEROS, normal};
use super::settings::{Settings, setting, wrong};
use super::synthetic::{Samples, rows, vector};
use super::{Columns, Mode, Model, Outputs};
use crate::training::Loss;

/// BERT, base.
pub(super) const BERT: Model = Model {
    name: "bert",
    about: "BERT-base (Devlin et al., 2018) with masked language model and next sentence prediction, as transformers' BertForPreTraining",
    loss: "--loss output",
    settings: &[
        setting("layers", "12", "2", "layers"),
        setting("hidden", "768", "32", "features of a token"),
        setting("heads", "12", "2", "attention heads"),
        setting("intermediate", "3072", "64", "features inside of a layer"),
        setting("vocabulary", "30522", "64", "tokens"),
        setting("positions", "512", "32", "the longest text"),
        setting("types", "2", "2", "types of tokens"),
        setting("dropout", "0.1", "0", "dropout of training"),
        setting("length", "128", "16", "tokens of a synthetic sample"),
    ],
    unused: &["bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"],
    frozen: &[],
    build,
    synthetic,
};

/// The token that stands for one to predict, in synthetic data.
const MASK: i64 = 1;
/// Labels that do not count.
const IGNORED: i64 = -100;

fn linear(n: &mut Net, name: &str, x: ValueId, extents: [usize; 2]) -> ValueResult {
    n.linear(name, x, extents, (normal(0.02), ZEROS))
}

/// Rows `0..T` of a table of positions, for tokens `[N, T]`.
pub(super) fn first_rows(n: &mut Net, table: ValueId, tokens: ValueId) -> ValueResult {
    let (start, end, axis) = (n.ints(&[0])?, n.extent(tokens, 1)?, n.ints(&[0])?);
    n.op(Slice {}, &[table, start, end, axis])
}

/// Extents that must divide each other.
pub(super) fn check_heads(hidden: usize, heads: usize) -> Result<(), Diagnostic> {
    if hidden.is_multiple_of(heads) {
        return Ok(());
    }
    Err(wrong(format!("{heads} heads do not divide {hidden} features")))
}

/// Scores `[N, T, V]` against labels `[N, T]`: the mean over those that count.
fn cross_entropy(n: &mut Net, scores: ValueId, labels: ValueId, axis: i64) -> ValueResult {
    Loss::CrossEntropy { smoothing: 0.0, ignore: IGNORED, axis }.build(&mut n.b, scores, Some(labels))
}

fn layer(n: &mut Net, name: &str, x: ValueId, s: &Settings, mask: ValueId) -> ValueResult {
    let (hidden, heads, dropout) = (s.number("hidden")?, s.number("heads")?, s.probability("dropout")?);
    let inner = s.number("intermediate")?;
    let mut operands = [x; 3];
    for (operand, part) in operands.iter_mut().zip(["query", "key", "value"]) {
        *operand = linear(n, &format!("{name}.attention.self.{part}"), x, [hidden, hidden])?;
    }
    let view = View { heads, mask: Some(mask), is_causal: false, dropout };
    let y = attention(n, operands, view)?;
    let y = linear(n, &format!("{name}.attention.output.dense"), y, [hidden, hidden])?;
    let y = n.dropout(y, dropout)?;
    let y = n.add(y, x)?;
    let x = n.layer_norm(&format!("{name}.attention.output.LayerNorm"), y, hidden, 1e-12)?;
    let y = linear(n, &format!("{name}.intermediate.dense"), x, [hidden, inner])?;
    let y = n.op(Gelu { tanh: false }, &[y])?;
    let y = linear(n, &format!("{name}.output.dense"), y, [inner, hidden])?;
    let y = n.dropout(y, dropout)?;
    let y = n.add(y, x)?;
    n.layer_norm(&format!("{name}.output.LayerNorm"), y, hidden, 1e-12)
}

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (layers, hidden, vocabulary) = (s.number("layers")?, s.number("hidden")?, s.number("vocabulary")?);
    let dropout = s.probability("dropout")?;
    check_heads(hidden, s.number("heads")?)?;
    let mut tokens = |name| n.input(name, DType::I64, &[None], "T");
    let (ids, kinds, counts) = (tokens("input_ids"), tokens("token_type_ids"), tokens("attention_mask"));
    let table = |name: &str| format!("bert.embeddings.{name}.weight");
    let words = n.parameter(&table("word_embeddings"), normal(0.02), &[vocabulary, hidden])?;
    let places = n.parameter(&table("position_embeddings"), normal(0.02), &[s.number("positions")?, hidden])?;
    let mut x = n.op(Gather { axis: 0 }, &[words, ids])?;
    let kind =
        n.embedding("bert.embeddings.token_type_embeddings", kinds, [s.number("types")?, hidden], normal(0.02))?;
    x = n.add(x, kind)?;
    let place = first_rows(n, places, ids)?;
    x = n.add(x, place)?;
    x = n.layer_norm("bert.embeddings.LayerNorm", x, hidden, 1e-12)?;
    x = n.dropout(x, dropout)?;
    let mask = key_mask(n, counts)?;
    for i in 0..layers {
        x = layer(n, &format!("bert.encoder.layer.{i}"), x, s, mask)?;
    }
    let first = n.b.constant(of_ir::Tensor::scalar(0i64))?;
    let pooled = n.op(Gather { axis: 1 }, &[x, first])?;
    let pooled = linear(n, "bert.pooler.dense", pooled, [hidden, hidden])?;
    let pooled = n.op(Tanh {}, &[pooled])?;
    let y = linear(n, "cls.predictions.transform.dense", x, [hidden, hidden])?;
    let y = n.op(Gelu { tanh: false }, &[y])?;
    let y = n.layer_norm("cls.predictions.transform.LayerNorm", y, hidden, 1e-12)?;
    // The table of words is the matrix of the scores.
    let columns = n.transpose(words, &[1, 0])?;
    let scores = n.op(MatMul {}, &[y, columns])?;
    let bias = n.parameter("cls.predictions.bias", ZEROS, &[vocabulary])?;
    let scores = n.add(scores, bias)?;
    let next = linear(n, "cls.seq_relationship", pooled, [hidden, 2])?;
    if n.mode == Mode::Inference {
        return Ok(vec![("prediction_logits", scores), ("seq_relationship_logits", next)]);
    }
    let labels = n.input("labels", DType::I64, &[None], "T");
    let follows = n.b.input("next_sentence_label", of_ir::Type::tensor(DType::I64, vec![Dim::symbol("N")]));
    let masked = cross_entropy(n, scores, labels, 2)?;
    let sentence = cross_entropy(n, next, follows, 1)?;
    let loss = n.add(masked, sentence)?;
    Ok(vec![("loss", loss)])
}

/// Texts by a rule, of two parts. The second part goes on with the first, or is another text; one token in seven is to be predicted.
fn synthetic(s: &Settings, made: &mut Samples) -> Result<Columns, Diagnostic> {
    let (vocabulary, length) = (s.number("vocabulary")?, s.number("length")?);
    if length > s.number("positions")? || length < 8 {
        return Err(wrong(format!("texts of {length} tokens: 8 to 'positions' are needed")));
    }
    let (mut texts, others) = (made.sequences(vocabulary, 2, length), made.sequences(vocabulary, 2, length));
    let (mut follows, mut labels) = (Vec::new(), Vec::new());
    for (text, other) in texts.iter_mut().zip(others) {
        let is_other = made.random.int(0, 1);
        if is_other == 1 {
            text[length / 2..].copy_from_slice(&other[length / 2..]);
        }
        follows.push(is_other);
        let mut wanted = vec![IGNORED; length];
        for at in (made.random.int(0, 6) as usize..length).step_by(7) {
            (wanted[at], text[at]) = (text[at], MASK);
        }
        labels.push(wanted);
    }
    let part = |at: usize| i64::from(at >= length / 2 && s.number("types").is_ok_and(|n| n > 1));
    let kinds = vec![(0..length).map(part).collect(); texts.len()];
    let all = vec![vec![1; length]; texts.len()];
    Ok(vec![
        ("input_ids", rows(&texts)?),
        ("token_type_ids", rows(&kinds)?),
        ("attention_mask", rows(&all)?),
        ("labels", rows(&labels)?),
        ("next_sentence_label", vector(&follows)?),
    ])
}
