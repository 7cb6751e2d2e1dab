//! What the tests share: runs of a function.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::Write;

use of_ir::Func;
use of_mlir::{COMPILES, HINT, Mlir};
use of_ops::Value;

#[path = "../../../tests/mod.rs"]
pub mod support;

/// Whether there is MLIR; where there is none, a test says loudly what it does not test.
pub fn compiles() -> bool {
    if !COMPILES {
        // Past the capture of the test's output.
        let _ = writeln!(std::io::stderr(), "SKIPPED: nothing is compiled by MLIR; {HINT}");
    }
    COMPILES
}

/// The results of a function.
pub fn run(mlir: &Mlir, func: &Func, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let results = of_mlir::evaluate(mlir.kernel(func)?, &support::tensors(inputs))?;
    Ok(results.into_iter().map(Value::Tensor).collect())
}
