//! The deep learning recommendation model.

use of_diag::Diagnostic;
use of_ir::{DType, Tensor, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::Sigmoid;
use of_ops::movement::Gather;

use super::net::{Net, ValueResult, made, normal};
use super::resnet::relu;
use super::settings::{Settings, setting, wrong};
use super::synthetic::{Samples, column};
use super::{Columns, Mode, Model, Outputs};
use crate::nn::Initializer;

/// Rows of the tables for the categories of Criteo's data of the Kaggle competition.
pub(super) const KAGGLE: &str = "1460-583-10131227-2202608-305-24-12517-633-3-93145-5683-8351593-3194-27-14992-5461306-10-5652-2173-4-7046547-18-15-286181-105-142572";

/// DLRM.
pub(super) const DLRM: Model = Model {
    name: "dlrm",
    about: "DLRM (Naumov et al., 2019) for Criteo's Kaggle data, as facebookresearch/dlrm's DLRM_Net",
    loss: "--loss bce",
    settings: &[
        setting("rows", KAGGLE, "50-20-100-7", "rows of each table of categories"),
        setting("size", "16", "4", "features of a category"),
        setting("dense", "13", "13", "numbers of a sample"),
        setting("bottom", "512-256-64-16", "8-4", "features of the lower perceptron's layers"),
        setting("top", "512-256-1", "16-1", "features of the upper perceptron's layers"),
    ],
    unused: &[],
    frozen: &[],
    build,
    synthetic,
};

/// Layers `name.0`, `name.2` and so on, with ReLU between them; also behind the last one, if `is_closed`.
fn perceptron(
    n: &mut Net,
    name: &str,
    mut x: ValueId,
    from: usize,
    layers: &[usize],
    is_closed: bool,
) -> Result<(ValueId, usize), Diagnostic> {
    let mut from = from;
    for (i, to) in layers.iter().enumerate() {
        let (weight, bias) = (normal((2.0 / (from + to) as f64).sqrt()), normal((1.0 / *to as f64).sqrt()));
        x = n.linear(&format!("{name}.{}", 2 * i), x, [from, *to], (weight, bias))?;
        if is_closed || i + 1 < layers.len() {
            x = relu(n, x)?;
        }
        from = *to;
    }
    Ok((x, from))
}

/// A column of `[N, columns]`, as `[N]`.
pub(super) fn category(n: &mut Net, categories: ValueId, at: usize) -> ValueResult {
    let at = n.b.constant(Tensor::scalar(at as i64))?;
    n.op(Gather { axis: 1 }, &[categories, at])
}

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (rows, size, dense) = (s.list("rows")?, s.number("size")?, s.number("dense")?);
    let (bottom, top) = (s.list("bottom")?, s.list("top")?);
    if bottom.last() != Some(&size) {
        return Err(wrong(format!("the last number of 'bottom' is not 'size', {size}")));
    }
    let numbers = n.input("dense", DType::F32, &[Some(dense)], "");
    let categories = n.input("sparse", DType::I64, &[Some(rows.len())], "");
    let (x, _) = perceptron(n, "bot_l", numbers, dense, &bottom, true)?;
    let mut vectors = vec![x];
    for (i, rows) in rows.iter().enumerate() {
        let ids = category(n, categories, i)?;
        let bound = (1.0 / *rows as f64).sqrt();
        let uniform = Initializer::Uniform { low: -bound, high: bound };
        vectors.push(n.embedding(&format!("emb_l.{i}"), ids, [*rows, size], uniform)?);
    }
    // Products of each pair of vectors: what is below the diagonal.
    let count = vectors.len();
    let all = n.concat(1, &vectors)?;
    let all = n.reshape(all, &[0, count as i64, size as i64])?;
    let transposed = n.transpose(all, &[0, 2, 1])?;
    let products = n.op(MatMul {}, &[all, transposed])?;
    let flat = n.reshape(products, &[0, (count * count) as i64])?;
    let below: Vec<i64> = (0..count).flat_map(|i| (0..i).map(move |j| (i * count + j) as i64)).collect();
    let pairs = below.len();
    let below = n.ints(&below)?;
    let products = n.op(Gather { axis: 1 }, &[flat, below])?;
    let x = n.concat(1, &[x, products])?;
    let (scores, _) = perceptron(n, "top_l", x, size + pairs, &top, false)?;
    match n.mode {
        Mode::Training => Ok(vec![("scores", scores)]),
        Mode::Inference => Ok(vec![("probabilities", n.op(Sigmoid {}, &[scores])?)]),
    }
}

/// Clicks, which hidden numbers of the categories and the first number decide.
pub(super) fn synthetic(s: &Settings, made_samples: &mut Samples) -> Result<Columns, Diagnostic> {
    let (rows, dense) = (s.list("rows")?, s.number("dense")?);
    let (mut categories, mut numbers, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..made_samples.count {
        let own: Vec<i64> = rows.iter().map(|rows| made_samples.random.int(0, *rows as i64 - 1)).collect();
        let values: Vec<f32> = (0..dense).map(|_| made_samples.random.float(-1.0, 1.0) as f32).collect();
        let hidden: f64 = own.iter().enumerate().map(|(table, row)| Samples::hidden(table, *row)).sum();
        labels.push(f32::from(u8::from(hidden + f64::from(values[0]) > 0.0)));
        categories.extend(own);
        numbers.extend(values);
    }
    let count = made_samples.count;
    Ok(vec![
        ("dense", made(Tensor::from_slice(&[count, dense], &numbers))?),
        ("sparse", made(Tensor::from_slice(&[count, rows.len()], &categories))?),
        ("labels", column(&labels)?),
    ])
}
