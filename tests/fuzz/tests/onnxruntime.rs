//! Random graphs as models, by onnxruntime.

use std::path::Path;
use std::process::Command;

use of_test_support::component::{ONNXRUNTIME, python_with, require};

/// Random graphs; some of them have no model, as ONNX lacks an op.
const GRAPHS: &str = "60";

#[test]
fn onnxruntime_matches_the_interpreter() {
    let python = require(&ONNXRUNTIME, python_with(&["numpy", "onnx", "onnxruntime"]));
    let Some(python) = python else { return };
    let dir = tempfile::tempdir().unwrap();
    let of_fuzz =
        Command::new(env!("CARGO_BIN_EXE_of-fuzz")).args(["--graphs", GRAPHS, "--onnx"]).arg(dir.path()).output();
    let of_fuzz = of_fuzz.unwrap();
    assert!(of_fuzz.status.success(), "{}", String::from_utf8_lossy(&of_fuzz.stdout));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnxruntime/compare_models.py");
    let out = Command::new(python).arg(script).arg(dir.path()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{stdout}\n{stderr}");
}
