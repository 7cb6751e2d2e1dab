//! Subnormal numbers in kernels for the CPU: zeros by default, computed with where the plan keeps them, and kept outside kernels.

use of_codegen::toolchain::cache::Cache;
use of_codegen::{CompileOptions, CpuCode, Isa, Target};
use of_ir::{DType, Elements, Tensor};
use of_ops::Value;
use of_reference::Reference;
use of_test_support::plans;

const ROWS: usize = 300;

/// Products with one half, and products with the identity: both keep the operand's exponents.
const PROGRAM: &str =
    "func @main(%x: tensor<300x8xf32>, %eye: tensor<8x8xf32>) -> (tensor<300x8xf32>, tensor<300x8xf32>) {
  %half = of.constant {value = dense<0.5> : tensor<f32>}
  %y = of.mul %x, %half
  %z = of.matmul %x, %eye
  of.return %y, %z
}";

fn results(cpu_code: CpuCode, keep_subnormals: bool, threads: usize, x: f32) -> Vec<Vec<f32>> {
    let f = plans::function_of(PROGRAM);
    let target = Target { cpu_code, keep_subnormals, ..Target::new(Isa::host(), &[&Reference]) };
    let plan = plans::compile_for(&f, &CompileOptions::new(target, Cache::none())).unwrap_or_else(|d| panic!("{d}"));
    let eye = (0..64).map(|i| f64::from(u8::from(i % 9 == 0))).collect();
    let inputs = [
        Tensor::from_elements(DType::F32, vec![ROWS, 8], Elements::Float(vec![f64::from(x); ROWS * 8])),
        Tensor::from_elements(DType::F32, vec![8, 8], Elements::Float(eye)),
    ];
    let inputs = inputs.map(|t| Value::from(t.expect("the elements fit")));
    let out = plans::run(plan.open().unwrap_or_else(|d| panic!("{d}")), Reference, &inputs, threads);
    plans::tensors(&out).iter().map(|t| t.as_slice::<f32>().expect("f32").to_vec()).collect()
}

#[test]
fn a_plan_flushes_or_keeps_subnormal_numbers() {
    let subnormal = f32::MIN_POSITIVE / 4.0;
    for (cpu_code, threads) in [(CpuCode::C, 1), (CpuCode::Machine, 1), (CpuCode::Machine, 3)] {
        let flushed = results(cpu_code, false, threads, subnormal);
        assert!(flushed.iter().flatten().all(|y| *y == 0.0), "{cpu_code:?} on {threads} threads");
        let kept = results(cpu_code, true, threads, subnormal);
        assert!(kept[0].iter().all(|y| *y == subnormal / 2.0), "{cpu_code:?} on {threads} threads");
        assert!(kept[1].iter().all(|y| *y == subnormal), "{cpu_code:?} on {threads} threads");
        // A normal operand with a subnormal result.
        let edge = results(cpu_code, false, threads, f32::MIN_POSITIVE);
        assert!(edge[0].iter().all(|y| *y == 0.0) && edge[1].iter().all(|y| *y == f32::MIN_POSITIVE));
    }
    // The mode ends with the kernels.
    assert!(std::hint::black_box(subnormal) * std::hint::black_box(0.5) > 0.0);
}
