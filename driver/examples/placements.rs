//! Two products on two placements: the first is split by rows over two devices, the second by columns over two others.
//!
//! `cargo run -p of-driver --example placements`

use of_driver::{Compiler, MeshOptions, Model, SessionOptions};
use of_frontend::Builder;
use of_frontend::placement::{Placement, Sbp};
use of_ir::{DType, Type};
use of_ops::contraction::MatMul;
use of_runtime::Tensor;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let f32s = |dims: &[usize]| Type::fixed(DType::F32, dims);

    let p = Placement::mesh("p", "cpu", &[4])?.parts(0, 2)?;
    let mut b = Builder::new("two_products");
    let a0 = b.global_input("a0", f32s(&[4, 5]), &p[0], &[Sbp::Split(0)])?;
    let b0 = b.global_input("b0", f32s(&[5, 8]), &p[0], &[Sbp::Broadcast])?;
    let y0 = b.op(MatMul {}, &[a0, b0])?;
    let y0 = b.to_global(y0, &p[1], &[Sbp::Broadcast])?;
    let b1 = b.global_input("b1", f32s(&[8, 6]), &p[1], &[Sbp::Split(1)])?;
    let y2 = b.op(MatMul {}, &[y0, b1])?;
    let module = b.finish(&[("y2", y2)])?;

    let mesh = MeshOptions { mesh: "cpu[4]".into(), ..MeshOptions::default() };
    let compiled = Compiler::new().mesh(mesh).compile(Model::from_module(module))?;
    let mut session = compiled.session(&SessionOptions::default())?;
    let ramp = |rows: usize, columns: usize| {
        let values: Vec<f32> = (0..rows * columns).map(|i| (i % 7) as f32 - 3.0).collect();
        Tensor::from_elements([rows as i64, columns as i64], &values)
    };
    let outputs = session.run(&[("a0", ramp(4, 5)?), ("b0", ramp(5, 8)?), ("b1", ramp(8, 6)?)])?;
    println!("{:?}", outputs["y2"].as_tensor().and_then(Tensor::to_elements::<f32>).unwrap_or_default());
    Ok(())
}
