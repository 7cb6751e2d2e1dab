//! Wide and deep learning.

use of_ir::DType;
use of_ops::contraction::MatMul;
use of_ops::elementwise::Sigmoid;
use of_ops::reduction::ReduceSum;

use super::dlrm::{KAGGLE, category, synthetic};
use super::net::{Net, ZEROS, normal, torch_bias, torch_weight};
use super::resnet::relu;
use super::settings::{Settings, setting};
use super::{Mode, Model, Outputs};
use crate::nn::{Layer, Linear};

/// Wide & Deep.
pub(super) const WIDE_DEEP: Model = Model {
    name: "wide_deep",
    about: "Wide & Deep (Cheng et al., 2016) for Criteo's Kaggle data, as DeepCTR-Torch's WDL with sparse features C1, … and dense ones",
    loss: "--loss bce",
    settings: &[
        setting("rows", KAGGLE, "50-20-100-7", "rows of each table of categories"),
        setting("size", "4", "4", "features of a category"),
        setting("dense", "13", "13", "numbers of a sample"),
        setting("layers", "256-128", "16-8", "features of the deep part's layers"),
    ],
    unused: &[],
    frozen: &[],
    build,
    synthetic,
};

/// The standard deviation of first weights.
const SPREAD: f64 = 0.0001;

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (rows, size, dense, layers) = (s.list("rows")?, s.number("size")?, s.number("dense")?, s.list("layers")?);
    let numbers = n.input("dense", DType::F32, &[Some(dense)], "");
    let categories = n.input("sparse", DType::I64, &[Some(rows.len())], "");
    let (mut wide, mut deep) = (Vec::new(), Vec::new());
    for (i, rows) in rows.iter().enumerate() {
        let ids = category(n, categories, i)?;
        let name = format!("embedding_dict.C{}", i + 1);
        deep.push(n.embedding(&name, ids, [*rows, size], normal(SPREAD))?);
        wide.push(n.embedding(&format!("linear_model.{name}"), ids, [*rows, 1], normal(SPREAD))?);
    }
    let wide = n.concat(1, &wide)?;
    let axis = n.ints(&[1])?;
    let wide = n.op(ReduceSum { keepdims: true }, &[wide, axis])?;
    let weight = n.parameter("linear_model.weight", normal(SPREAD), &[dense, 1])?;
    let linear = n.op(MatMul {}, &[numbers, weight])?;
    let wide = n.add(wide, linear)?;
    deep.push(numbers);
    let mut x = n.concat(1, &deep)?;
    let mut from = rows.len() * size + dense;
    for (i, to) in layers.iter().enumerate() {
        x = n.linear(&format!("dnn.linears.{i}"), x, [from, *to], (normal(SPREAD), torch_bias(from)))?;
        x = relu(n, x)?;
        from = *to;
    }
    let weight = n.tensor(torch_weight(), &[1, from])?;
    let deep = n.b.within("dnn_linear", |b| Linear { weight, bias: None }.apply(b, x))?;
    let scores = n.add(wide, deep)?;
    let bias = n.parameter("out.bias", ZEROS, &[1])?;
    let scores = n.add(scores, bias)?;
    match n.mode {
        Mode::Training => Ok(vec![("scores", scores)]),
        Mode::Inference => Ok(vec![("probabilities", n.op(Sigmoid {}, &[scores])?)]),
    }
}
