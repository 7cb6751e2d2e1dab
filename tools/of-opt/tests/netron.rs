//! Netron opens what `of-opt export` writes: its own reader, without a window.

use std::path::{Path, PathBuf};
use std::process::Command;

use of_test_support::component::{NETRON, python_with, require};
use serde_json::Value;

/// The folder of Netron's package, if Node.js can run it.
fn netron() -> Option<PathBuf> {
    let folder = python_with(&["netron"]).and_then(|python| {
        let script = "import netron, os; print(os.path.dirname(netron.__file__), end='')";
        let out = Command::new(python).args(["-c", script]).output().map_err(|e| e.to_string())?;
        Command::new("node").arg("--version").output().map_err(|e| format!("node: {e}"))?;
        Ok(PathBuf::from(String::from_utf8_lossy(&out.stdout).into_owned()))
    });
    require(&NETRON, folder)
}

/// Exports a model, and returns what Netron reads.
fn opened(netron: &Path, model: &Path, to: &Path) -> Value {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut export = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    let out = export.arg("export").arg(model).arg("-o").arg(to).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out = Command::new("node").arg(tests.join("netron.mjs")).arg(netron).arg(to).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{errors}");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{errors}"))
}

/// The types of the nodes, in their order.
fn types(model: &Value) -> Vec<&str> {
    model["nodes"].as_array().unwrap().iter().map(|node| node["type"].as_str().unwrap()).collect()
}

#[test]
fn an_exported_model_opens_in_netron() {
    let Some(netron) = netron() else { return };
    let folder = tempfile::tempdir().unwrap();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
    let model = opened(&netron, &digits, &folder.path().join("digits.onnx"));
    assert!(model["format"].as_str().unwrap().starts_with("ONNX"), "{model}");
    assert_eq!(model["inputs"], serde_json::json!(["image: float32[N,1,8,8]"]));
    assert_eq!(model["outputs"], serde_json::json!(["probability: float32[N,10]"]));
    let types = types(&model);
    assert_eq!(types.iter().filter(|t| **t == "Conv").count(), 3, "{types:?}");
    assert_eq!(types.last(), Some(&"Softmax"));
    let pool = model["nodes"].as_array().unwrap().iter().find(|node| node["type"] == "MaxPool").unwrap();
    assert_eq!(pool["attributes"]["kernel_shape"], "2,2");
}

#[test]
fn an_exported_module_with_a_mesh_opens_in_netron() {
    let Some(netron) = netron() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("sharded.of");
    std::fs::write(&source, SHARDED).unwrap();
    let exported = folder.path().join("sharded.onnx");
    let model = opened(&netron, &source, &exported);
    assert_eq!(types(&model), ["MatMul"]);
    assert_eq!(model["outputs"], serde_json::json!(["y: float32[8,6]"]));
    // Netron ignores the layouts; the file has them.
    let back =
        Command::new(env!("CARGO_BIN_EXE_of-opt")).arg("import").arg(&exported).args(["-o", "-"]).output().unwrap();
    assert!(String::from_utf8_lossy(&back.stdout).contains("#of.sbp<@mesh, [S(0), B]>"), "{back:?}");
}

/// A product whose rows are split over two devices.
const SHARDED: &str = r#"of.mesh @mesh {devices = "cpu", shape = [2, 1]}
func @main(%x: tensor<8x4xf32, #of.sbp<@mesh, [S(0), B]>>, %w: tensor<4x6xf32, #of.sbp<@mesh, [B, B]>>) -> (tensor<8x6xf32, #of.sbp<@mesh, [S(0), B]>> {of.name = "y"}) {
  %y = of.matmul %x, %w : (tensor<8x4xf32, #of.sbp<@mesh, [S(0), B]>>, tensor<4x6xf32, #of.sbp<@mesh, [B, B]>>) -> tensor<8x6xf32, #of.sbp<@mesh, [S(0), B]>>
  of.return %y : (tensor<8x6xf32, #of.sbp<@mesh, [S(0), B]>>) -> ()
}
"#;
