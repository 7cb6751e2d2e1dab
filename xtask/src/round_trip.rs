//! `cargo xtask round-trip`: whether another runtime computes the same of what is imported and exported again.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{cargo, of_opt, root, run};

/// Exports every model below a folder with `of-opt export` and the further arguments, and has onnxruntime compare.
///
/// # Errors
/// When results differ, when a model is not exported, and when a program cannot be run.
pub fn round_trip(args: &[&str]) -> Result<(), String> {
    let usage = "cargo xtask round-trip DIR --onnxruntime PYTHON [arguments of 'of-opt export' …]";
    let [dir, "--onnxruntime", python, rest @ ..] = args else { return Err(format!("usage: {usage}")) };
    let dir = PathBuf::from(dir).canonicalize().map_err(|e| format!("{dir}: {e}"))?;
    run(cargo().args(["build", "--release", "--package", "of-opt"]))?;
    let script = root().join("tests/onnxruntime/round_trip.py");
    run(Command::new(python).arg(script).arg(of_opt("release")).arg(dir).args(rest))
}
