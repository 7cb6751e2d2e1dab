//! `cargo xtask nnsmith`: random models of another generator, NNSmith, by `of-opt run` and by onnxruntime.

use std::process::Command;

use crate::workspace::{cargo, of_opt, root, run};

/// Generates models with a Python that has the packages nnsmith, torch, onnx, numpy and onnxruntime, runs them, and compares.
///
/// # Errors
/// When results differ, when a model is refused or takes too long, and when a program cannot be run.
pub fn nnsmith(args: &[&str]) -> Result<(), String> {
    let usage = "usage: cargo xtask nnsmith --python PYTHON [--models N] [--seed S]";
    let (mut python, mut models, mut seed) = (None, "100", "1");
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} needs a value\n{usage}"))?;
        match *arg {
            "--python" => python = Some(*value),
            "--models" => models = value,
            "--seed" => seed = value,
            other => return Err(format!("'cargo xtask nnsmith' does not know {other}\n{usage}")),
        }
    }
    let python = python.ok_or(usage)?;
    for (name, number) in [("--models", models), ("--seed", seed)] {
        number.parse::<u32>().map_err(|_| format!("{name} is '{number}', it must be a number\n{usage}"))?;
    }
    run(cargo().args(["build", "--release", "--package", "of-opt"]))?;
    let folder = std::env::temp_dir().join(format!("of-nnsmith-{}", std::process::id()));
    let script = root().join("tests/onnxruntime/nnsmith_models.py");
    let result = run(Command::new(python).arg(script).arg(of_opt("release")).arg(&folder).args([models, seed]));
    match &result {
        Ok(()) if folder.exists() => {
            std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        Ok(()) => {}
        Err(_) => println!("the models are in {}", folder.display()),
    }
    result
}
