//! Compiles a model once, runs it many times, saves the plan, and deploys it with the runtime alone.
//!
//! `cargo run -p of-driver --example compile_and_deploy`

use std::sync::Arc;

use of_driver::{Compiler, Model, SessionOptions, Target};
use of_plan::PlanFile;
use of_runtime::Tensor;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/digits.onnx"))?;
    let compiled = Compiler::new().target(Target::host()).shape("N", 1).compile(model)?;

    // Compiled once, the model runs many times.
    let mut session = compiled.session(&SessionOptions { threads: 2, ..SessionOptions::default() })?;
    let image = Tensor::from_elements([1, 1, 8, 8], &[0.5_f32; 64])?;
    for _ in 0..3 {
        let outputs = session.run(&[("image", image.clone())])?;
        println!("compiled: {:?}", outputs["probability"].as_tensor().and_then(Tensor::to_elements::<f32>));
    }

    let path = std::env::temp_dir().join("digits.plan");
    compiled.save(&path)?;

    // From here on a program needs `of_plan` and `of_runtime` alone.
    let plan = Arc::new(PlanFile::open(&path)?);
    let mut session = of_runtime::Session::new(plan, 0, of_runtime::Options::default(), &[])?;
    let outputs = session.run(vec![image.into()])?;
    println!("deployed: {:?}", outputs[0].as_tensor().and_then(Tensor::to_elements::<f32>));
    Ok(())
}
