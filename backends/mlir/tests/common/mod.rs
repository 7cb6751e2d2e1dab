//! Helpers shared by the tests: runs of a function.
#![allow(dead_code, reason = "each test uses its part")]

use of_ir::Func;
use of_mlir::{COMPILES, HINT, Mlir};
use of_ops::Value;

use of_test_support::component::{MLIR, available};
pub use of_test_support::plans as support;

/// Whether this build has MLIR.
#[track_caller]
pub fn compiles() -> bool {
    available(&MLIR, if COMPILES { Ok(()) } else { Err(HINT) })
}

/// The results of a function.
pub fn run(mlir: &Mlir, func: &Func, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let results = of_mlir::evaluate(mlir.kernel(func)?, &support::tensors(inputs))?;
    Ok(results.into_iter().map(Value::Tensor).collect())
}
