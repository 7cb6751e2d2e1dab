//! `cargo xtask fuzz-graphs`: random graphs: interpreter, passes and native code, or another runtime, must agree.

use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, root, run};

/// Passes `args` on to `of-fuzz`. With `--onnxruntime PYTHON` it writes models, which the Python of that name, that has
/// the packages onnx, numpy and onnxruntime, compares.
///
/// # Errors
/// When graphs disagree, and when a program cannot be run.
pub fn fuzz(args: &[&str]) -> Result<(), String> {
    let mut args = args.to_vec();
    let Some(at) = args.iter().position(|a| *a == "--onnxruntime") else { return of_fuzz(&args, None) };
    args.remove(at);
    if at >= args.len() {
        return Err("--onnxruntime needs a Python that has the packages onnx, numpy and onnxruntime".into());
    }
    let python = args.remove(at);
    let folder = std::env::temp_dir().join(format!("of-fuzz-models-{}", std::process::id()));
    let compare = || {
        of_fuzz(&args, Some(&folder))?;
        run(Command::new(python).arg(root().join("tests/onnxruntime/compare_models.py")).arg(&folder))
    };
    let result = compare();
    match &result {
        Ok(()) => std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?,
        Err(_) => println!("the models are in {}", folder.display()),
    }
    result
}

fn of_fuzz(args: &[&str], models: Option<&Path>) -> Result<(), String> {
    let mut command = cargo();
    command.args(["run", "--release", "--package", "of-fuzz", "--"]).args(args);
    if let Some(folder) = models {
        command.arg("--onnx").arg(folder);
    }
    run(&mut command)
}
