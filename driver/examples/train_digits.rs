//! Builds a convolutional network, trains it on handwritten digits, and writes it as ONNX.
//!
//! `cargo run --release -p of-driver --example train_digits`, in the folder of the repository.

use of_driver::training::{
    Dataset, Hyperparameters, Loss, Schedule, ScheduleKind, TrainOptions, Trainer, columns, named, sample_order,
};
use of_driver::{CompileOptions, ImageOptions, Model, SessionOptions, Silent};
use of_frontend::Builder;
use of_frontend::nn::{Activation, BatchNorm, Conv, Dropout, Flatten, Init, Layer, Linear, MaxPool, Sequential};
use of_ir::{DType, Dim, Tensor, Type};
use of_ops::elementwise::Mul;

/// Convolution, normalisation, activation.
fn block(init: &mut Init, inputs: usize, outputs: usize) -> Result<Sequential, Box<dyn std::error::Error>> {
    let conv = Conv::new(init, inputs, outputs, &[3, 3])?.padding(1);
    Ok(Sequential::new().then(conv).then(BatchNorm::new(outputs)?).then(Activation::Relu))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The network: parameters are called features.0.weight, … classify.bias.
    let mut init = Init::new(1);
    let features = Sequential::new()
        .named("0", block(&mut init, 1, 16)?)
        .named("1", block(&mut init, 16, 32)?)
        .then(MaxPool::new(&[2, 2]))
        .named("3", block(&mut init, 32, 32)?)
        .then(MaxPool::new(&[2, 2]));
    let network = Sequential::new()
        .named("features", features)
        .then(Flatten)
        .then(Dropout(0.1))
        .named("classify", Linear::new(&mut init, 32 * 2 * 2, 10)?);
    let mut b = Builder::new("digits");
    let shape = vec![Dim::symbol("N"), Dim::from(1i64), Dim::from(8i64), Dim::from(8i64)];
    let image = b.input("image", Type::tensor(DType::F32, shape));
    let scale = b.constant(Tensor::scalar(1f32 / 16.0))?;
    let scaled = b.op(Mul {}, &[image, scale])?;
    let scores = network.apply(&mut b, scaled)?;
    let model = Model::from_module(b.finish(&[("scores", scores)])?);

    // The training.
    let optimizer = named("adamw", &Hyperparameters::default()).ok_or("no such optimizer")?;
    let loss = Loss::named("cross-entropy").ok_or("no such loss")?;
    let options = TrainOptions { no_decay: vec!["*.bias".into()], ..TrainOptions::new(loss, optimizer, 32) };
    let wanted = columns(&model, &options)?;
    let read = |file: &str| Dataset::read(&[file.into()], &wanted, &ImageOptions::default());
    let (train, test) = (read("examples/digits/train.npz")?, read("examples/digits/test.npz")?);
    let rests = [test.len() % options.batch];
    let (compile, session) = (CompileOptions::default(), SessionOptions::default());
    let mut trainer = Trainer::new(model, &options, &rests, &compile, session, &Silent)?;
    let (epochs, steps) = (8, train.len() / options.batch);
    let schedule = Schedule { kind: ScheduleKind::Cosine, rate: 0.005, warmup: 0 };
    for epoch in 0..epochs {
        let order = sample_order(train.len(), 0, epoch);
        for (step, samples) in order.chunks_exact(options.batch).enumerate() {
            let rate = schedule.rate(epoch * steps + step, epochs * steps);
            trainer.step(train.batch(samples)?, rate)?;
        }
    }
    println!("accuracy {:.3}", trainer.evaluate(&test)?.accuracy.unwrap_or(0.0));
    let path = std::env::temp_dir().join("digits.onnx");
    of_onnx::export_file(&path, &trainer.trained_model()?, &of_onnx::ExportOptions::default())?;
    Ok(())
}
