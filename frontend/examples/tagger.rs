//! Builds a network that gives each word of a sentence a tag, and its training step.
//!
//! `cargo run --release -p of-frontend --example tagger`

use std::collections::HashMap;

use of_frontend::Builder;
use of_frontend::nn::{Dropout, Embedding, Init, Layer, Linear, Lstm, Sequential};
use of_frontend::training::{Hyperparameters, Loss, TrainingSpec, named, training};
use of_ir::{DType, Dim, Type};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut init = Init::new(1);
    let network = Sequential::new()
        .named("words", Embedding::new(&mut init, 5000, 64)?)
        .named("lstm", Lstm::bidirectional(&mut init, 64, 128, 2)?.dropout(0.1))
        .then(Dropout(0.1))
        .named("tags", Linear::new(&mut init, 2 * 128, 17)?);
    let mut b = Builder::new("tagger");
    let words = b.input("words", Type::tensor(DType::I64, vec![Dim::symbol("N"), Dim::symbol("T")]));
    let scores = network.apply(&mut b, words)?;
    let model = b.finish(&[("scores", scores)])?;
    // Scores are [N, T, tags]; labels, [N, T], have -100 where a sentence has ended.
    let loss = Loss::CrossEntropy { smoothing: 0.0, ignore: -100, axis: -1 };
    let (optimizer, masks) = (named("adamw", &Hyperparameters::default()).ok_or("no such optimizer")?, HashMap::new());
    let step = training(&model, &TrainingSpec::new(loss, &*optimizer, &masks))?;
    for parameter in &step.parameters {
        println!("{} {}", parameter.name, parameter.elements);
    }
    println!("{} in all", step.parameters.iter().map(|parameter| parameter.elements).sum::<usize>());
    Ok(())
}
