//! `cargo xtask benchmark`: training on several numbers of devices, measured and simulated, next to PyTorch.

use std::process::Command;

use crate::workspace::{cargo, of_opt, root, run};

/// Builds `of-opt`, and runs `bindings/python/benches/train_scaling.py` with it and these arguments. The Python has the packages that
/// `train_steps.py` next to it names.
///
/// # Errors
/// When a program cannot be run, or losses of the first step differ.
pub fn benchmark(args: &[&str]) -> Result<(), String> {
    let ["--python", python, rest @ ..] = args else {
        return Err(
            "usage: cargo xtask benchmark --python PYTHON [MODEL …] [--devices 1,4,8,16,32] [--rounds N] …".into()
        );
    };
    run(cargo().args(["build", "--release", "--package", "of-opt"]))?;
    let script = root().join("bindings/python/benches/train_scaling.py");
    run(Command::new(python).arg(script).arg("--of-opt").arg(of_opt("release")).args(rest))
}
