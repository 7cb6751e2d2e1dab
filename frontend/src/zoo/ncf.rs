//! Neural collaborative filtering.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, Type};
use of_ops::elementwise::{Mul, Sigmoid};

use super::net::{Net, normal, torch_bias};
use super::resnet::relu;
use super::settings::{Settings, setting, wrong};
use super::synthetic::{Samples, column, vector};
use super::{Columns, Mode, Model, Outputs};
use crate::nn::Initializer;

/// NeuMF.
pub(super) const NCF: Model = Model {
    name: "ncf",
    about: "NeuMF of neural collaborative filtering (He et al., 2017), as MLPerf's recommendation benchmark, for MovieLens 20M",
    loss: "--loss bce",
    settings: &[
        setting("users", "138493", "100", "users"),
        setting("items", "26744", "80", "items"),
        setting("factors", "64", "8", "factors of the matrix factorization"),
        setting("mlp", "256-256-128-64", "16-16-8", "features of the perceptron's layers"),
    ],
    unused: &[],
    frozen: &[],
    build,
    synthetic,
};

fn build(n: &mut Net, s: &Settings) -> Outputs {
    let (users, items, factors) = (s.number("users")?, s.number("items")?, s.number("factors")?);
    let layers = s.list("mlp")?;
    if !layers[0].is_multiple_of(2) {
        return Err(wrong("the first number of 'mlp' is not even: user and item have a half each".into()));
    }
    let mut ids = |name: &str| n.b.input(name, Type::tensor(DType::I64, vec![Dim::symbol("N")]));
    let (user, item) = (ids("user"), ids("item"));
    let mut rows = |name: &str, ids, rows, size| n.embedding(name, ids, [rows, size], normal(0.01));
    let (left, right) = (rows("mf_user_embed", user, users, factors)?, rows("mf_item_embed", item, items, factors)?);
    let half = layers[0] / 2;
    let (a, b) = (rows("mlp_user_embed", user, users, half)?, rows("mlp_item_embed", item, items, half)?);
    let product = n.op(Mul {}, &[left, right])?;
    let mut x = n.concat(1, &[a, b])?;
    for (i, pair) in layers.windows(2).enumerate() {
        let glorot = Initializer::XavierUniform { gain: 1.0 };
        x = n.linear(&format!("mlp.{i}"), x, [pair[0], pair[1]], (glorot, torch_bias(pair[0])))?;
        x = relu(n, x)?;
    }
    let x = n.concat(1, &[product, x])?;
    let last = layers.last().copied().unwrap_or(1) + factors;
    let bound = (3.0 / last as f64).sqrt();
    let lecun = Initializer::Uniform { low: -bound, high: bound };
    let scores = n.linear("final", x, [last, 1], (lecun, torch_bias(last)))?;
    match n.mode {
        Mode::Training => Ok(vec![("scores", scores)]),
        Mode::Inference => Ok(vec![("probabilities", n.op(Sigmoid {}, &[scores])?)]),
    }
}

/// Users like items of similar hidden numbers.
fn synthetic(s: &Settings, made: &mut Samples) -> Result<Columns, Diagnostic> {
    let (users, items) = (made.below(s.number("users")?, made.count), made.below(s.number("items")?, made.count));
    let likes = |(user, item): (&i64, &i64)| {
        let close = Samples::hidden(0, *user) * Samples::hidden(1, *item) > 0.0;
        f32::from(u8::from(close))
    };
    let labels: Vec<f32> = users.iter().zip(&items).map(likes).collect();
    Ok(vec![("user", vector(&users)?), ("item", vector(&items)?), ("labels", column(&labels)?)])
}
