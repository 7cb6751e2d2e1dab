//! What the tests share: runs of a function, comparison.
#![allow(dead_code)] // each test uses its part

use std::io::Write;

use of_ir::{Func, Tensor};
use of_mlir::{COMPILES, HINT, Mlir};
use of_ops::Value;

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
    let tensors: Vec<&Tensor> = inputs
        .iter()
        .map(|v| match v {
            Value::Tensor(t) => t,
            other => panic!("{other:?} is no tensor"),
        })
        .collect();
    of_mlir::evaluate(mlir.kernel(func)?, &tensors).map(|v| v.into_iter().map(Value::Tensor).collect())
}

/// Where floats are not as close as `tolerance` says, or anything else is not equal.
pub fn difference(got: &[Value], want: &[Value], tolerance: f64) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} outputs, not {}", got.len(), want.len()));
    }
    got.iter().zip(want).enumerate().find_map(|(i, (g, w))| {
        let (Value::Tensor(g), Value::Tensor(w)) = (g, w) else { return Some(format!("output {i} is no tensor")) };
        if (g.dtype(), g.dims()) != (w.dtype(), w.dims()) {
            return Some(format!("output {i} is {:?}, not {:?}", g.ty(), w.ty()));
        }
        if !w.dtype().is_float() {
            return (g != w).then(|| format!("output {i} is {:?}, not {:?}", g.to_i64s(), w.to_i64s()));
        }
        // Half a unit in the last place of 16-bit floats.
        let own = if w.dtype().bits() == Some(16) { 8e-3 } else { tolerance };
        let (g, w) = (g.to_f64s()?, w.to_f64s()?);
        let largest = w.iter().filter(|x| x.is_finite()).fold(1e-3f64, |m, x| m.max(x.abs()));
        let same = |(a, b): (&f64, &f64)| (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= own * largest;
        let at = g.iter().zip(&w).position(|p| !same(p))?;
        Some(format!("output {i}[{at}] is {}, not {}", g[at], w[at]))
    })
}
