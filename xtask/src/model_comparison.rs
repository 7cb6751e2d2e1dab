//! `cargo xtask nnsmith` and `cargo xtask sklearn`: models that a Python script makes, by `of-opt run` and by onnxruntime.

use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, of_opt, root, run};

/// Random models of the generator NNSmith. The Python has the packages nnsmith, torch, onnx, numpy and onnxruntime.
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
    compare(python, "nnsmith", &[models, seed])
}

/// Estimators and pipelines of scikit-learn and LightGBM as their converters export them, all or those whose labels contain
/// a name. The Python has the packages that `tests/onnxruntime/sklearn_models.py` names.
///
/// # Errors
/// As [`nnsmith`].
pub fn sklearn(args: &[&str]) -> Result<(), String> {
    match args {
        ["--python", python, names @ ..] => compare(python, "sklearn", names),
        _ => Err("usage: cargo xtask sklearn --python PYTHON [NAME …]".into()),
    }
}

/// Runs `tests/onnxruntime/GENERATOR_models.py` with this program, a folder for the models and further arguments. The folder
/// is kept where the comparison fails.
fn compare(python: &str, generator: &str, args: &[&str]) -> Result<(), String> {
    run(cargo().args(["build", "--release", "--package", "of-opt"]))?;
    let folder = std::env::temp_dir().join(format!("of-{generator}-{}", std::process::id()));
    let script = root().join(format!("tests/onnxruntime/{generator}_models.py"));
    let result = run(Command::new(python).arg(script).arg(of_opt("release")).arg(&folder).args(args));
    match &result {
        Ok(()) => remove(&folder)?,
        Err(_) => println!("the models are in {}", folder.display()),
    }
    result
}

fn remove(folder: &Path) -> Result<(), String> {
    if !folder.exists() {
        return Ok(());
    }
    std::fs::remove_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}
