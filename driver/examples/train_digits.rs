//! Builds a convolutional network, trains it on handwritten digits, and writes it as ONNX.
//!
//! `cargo run --release -p of-driver --example train_digits`, in the folder of the repository.

use std::sync::Arc;

use of_driver::training::{
    Dataset, EpochReport, Evaluation, Hyperparameters, JobEvent, JobOptions, Loss, Schedule, ScheduleKind,
    TrainOptions, Trainer, TrainingJob, columns, named,
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
    let schedule = Schedule { kind: ScheduleKind::Cosine { floor: 0.0 }, rate: 0.005, warmup: 0 };
    let outputs = vec![std::env::temp_dir().join("digits.onnx")];
    let options = JobOptions { outputs, ..JobOptions::new(8, schedule) };
    let mut observe = |event: JobEvent<'_>| {
        if let JobEvent::Epoch(EpochReport {
            loss, evaluation: Some(Evaluation { accuracy: Some(right), .. }), ..
        }) = event
        {
            println!("loss {loss:.4}, accuracy {right:.3}");
        }
        Ok(())
    };
    TrainingJob::new(&mut trainer, (&Arc::new(train), Some(&test)), &options, &mut observe)?.run(None)?;
    Ok(())
}
