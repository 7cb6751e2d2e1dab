//! `of-opt diff`: what it says of plans of one model, compiled in different ways.

use std::path::Path;
use std::process::{Command, Output};

use regex_lite::Regex;
use serde_json::Value;
use tempfile::TempDir;

/// A function of a product and elementwise ops, on a batch of open extent.
const MODEL: &str = "func @main(%x: tensor<?(N)x32xf32> {of.name = \"x\"}) -> (tensor<?(N)x16xf32> {of.name = \"y\"}) {
  %w = of.constant {value = dense<0.5> : tensor<32x16xf32>} : () -> tensor<32x16xf32>
  %p = of.matmul %x, %w : (tensor<?(N)x32xf32>, tensor<32x16xf32>) -> tensor<?(N)x16xf32>
  %t = of.tanh %p : (tensor<?(N)x16xf32>) -> tensor<?(N)x16xf32>
  %y = of.softmax %t {axis = -1} : (tensor<?(N)x16xf32>) -> tensor<?(N)x16xf32>
  of.return %y : (tensor<?(N)x16xf32>) -> ()
}
";

/// What plans are compiled with, unless a test says otherwise: the same on every machine.
const BASE: [&str; 3] = ["--isa=x86-64", "--threads=1", "--shape=N=4"];

fn of_opt(dir: &Path, args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    c.args(args).current_dir(dir).env("OF_CACHE_DIR", dir.join("cache")).env("NO_COLOR", "1");
    c.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn compile(dir: &Path, model: &str, plan: &str, options: &[&str]) {
    let file = format!("{plan}.of");
    std::fs::write(dir.join("model.of"), model).unwrap();
    // The name of the file is in the plan.
    let out = of_opt(dir, &[&["compile", "model.of", "-o", plan], options].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    std::fs::rename(dir.join("model.of"), dir.join(file)).unwrap();
}

/// Two plans of the models, compiled with these options.
fn plans(a: (&str, &[&str]), b: (&str, &[&str])) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path(), a.0, "a.plan", a.1);
    compile(dir.path(), b.0, "b.plan", b.1);
    dir
}

/// The difference as text without what the C compiler decides: hashes, sizes of machine code, and the part about sections.
fn diff(dir: &TempDir, more: &[&str]) -> String {
    let out = of_opt(dir.path(), &[&["diff", "a.plan", "b.plan"], more].concat());
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert!(out.stderr.is_empty(), "{}", text(&out.stderr));
    let mut said = text(&out.stdout);
    for (pattern, with) in [
        ("[0-9a-f]{16}", "HASH"),
        (r"(?m)^sections .*\n", ""),
        (r"sections\n(  .*\n)+\n", ""),
        (r"(?m)(blake3 HASH(?:, isa [\w-]+)?), [0-9.]+ (?:B|KiB)( ->|$| \([-+0-9.]+ %\)$)", "${1}${2}"),
        (r"(?m)(blake3 HASH) \([-+0-9.]+ %\)$", "${1}"),
    ] {
        said = Regex::new(pattern).unwrap().replace_all(&said, with).into_owned();
    }
    said
}

fn diff_json(dir: &TempDir) -> Value {
    let out = of_opt(dir.path(), &["diff", "a.plan", "b.plan", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(if report["equal"] == true { 0 } else { 1 }), "{}", text(&out.stderr));
    report
}

fn part<'r>(report: &'r Value, title: &str) -> &'r Value {
    report["parts"].as_array().unwrap().iter().find(|p| p["title"] == title).unwrap()
}

fn names(part: &Value) -> Vec<&str> {
    part["changes"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect()
}

#[test]
fn equal_plans_are_the_same() {
    let dir = plans((MODEL, &BASE), (MODEL, &BASE));
    let out = of_opt(dir.path(), &["diff", "a.plan", "b.plan"]);
    assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(0), "a.plan and b.plan are the same\n"));
    let report = diff_json(&dir);
    assert!(report["parts"].as_array().unwrap().iter().all(|p| p["changes"].as_array().unwrap().is_empty()));
}

#[test]
fn another_batch() {
    let dir = plans((MODEL, &BASE), (MODEL, &["--isa=x86-64", "--threads=1", "--shape=N=64"]));
    insta::assert_snapshot!("batch", diff(&dir, &[]));
}

#[test]
fn an_open_batch() {
    let dir = plans((MODEL, &BASE), (MODEL, &BASE[..2]));
    insta::assert_snapshot!("open_batch", diff(&dir, &[]));
}

#[test]
fn another_instruction_set() {
    let dir = plans((MODEL, &BASE), (MODEL, &["--isa=avx2", "--threads=1", "--shape=N=4"]));
    let report = diff_json(&dir);
    assert_eq!(names(part(&report, "provenance")), ["--isa"]);
    assert!(names(part(&report, "target")).contains(&"CPU feature avx2"), "{report:#}");
    assert!(!names(part(&report, "kernels")).is_empty(), "{report:#}");
}

#[test]
fn another_precision() {
    let bf16 = ["--isa=x86-64", "--threads=1", "--shape=N=4", "--precision=bf16"];
    let dir = plans((MODEL, &BASE), (MODEL, &bf16));
    let report = diff_json(&dir);
    assert_eq!(names(part(&report, "provenance")), ["--precision"]);
    assert!(!names(part(&report, "weights")).is_empty(), "{report:#}");
}

#[test]
fn a_changed_op_is_named_by_its_origin() {
    let dir = plans((MODEL, &BASE), (&MODEL.replace("of.tanh", "of.sigmoid"), &BASE));
    insta::assert_snapshot!("changed_op", diff(&dir, &["-v"]));
    // Both directions have the same number of changes.
    let back = of_opt(dir.path(), &["diff", "b.plan", "a.plan", "--json"]);
    let back: Value = serde_json::from_slice(&back.stdout).unwrap();
    let count = |r: &Value| {
        r["parts"].as_array().unwrap().iter().map(|p| p["changes"].as_array().unwrap().len()).sum::<usize>()
    };
    assert_eq!(count(&back), count(&diff_json(&dir)));
}

#[test]
fn an_op_that_moves_to_another_backend_is_a_move() {
    let chain = "func @main(%x: tensor<4x8xf32>, %m: tensor<4x4xf32>) -> (tensor<4x8xf32>) {
  %d = of.det %m : (tensor<4x4xf32>) -> tensor<f32>
  %y = of.mul %x, %d : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  of.return %y : (tensor<4x8xf32>) -> ()
}
";
    let pinned = ["--isa=x86-64", "--threads=1", "--pin=of.mul=reference"];
    let dir = plans((chain, &BASE[..2]), (chain, &pinned));
    let report = diff_json(&dir);
    let moved: Vec<&Value> =
        part(&report, "tasks")["changes"].as_array().unwrap().iter().filter(|c| c["kind"] == "moved").collect();
    assert!(moved.iter().any(|c| c["name"].as_str().unwrap().contains("mul")), "{report:#}");
}

#[test]
fn a_mesh_shows_its_ranks_and_transfers() {
    let fixed = MODEL.replace("?(N)", "4");
    let mesh = ["--isa=x86-64", "--threads=1", "--mesh=cpu[2]"];
    let dir = plans((&fixed, &BASE[..2]), (&fixed, &mesh));
    let report = diff_json(&dir);
    assert!(names(part(&report, "meshes")).iter().any(|n| n.starts_with("mesh ")), "{report:#}");
    assert!(names(part(&report, "target")).contains(&"ranks"), "{report:#}");
}

#[test]
fn models_are_refused_with_a_hint() {
    let dir = plans((MODEL, &BASE), (MODEL, &BASE));
    let out = of_opt(dir.path(), &["diff", "a.plan", "b.plan.of"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("is a model") && said.contains("of-opt compile"), "{said}");
    assert_eq!(of_opt(dir.path(), &["diff", "a.plan", "none.plan"]).status.code(), Some(2));
}

#[test]
fn plans_record_the_hashes_of_external_data() {
    let dir = tempfile::tempdir().unwrap();
    let ok = |args: &[&str]| {
        let out = of_opt(dir.path(), args);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout)
    };
    std::fs::write(dir.path().join("m.of"), MODEL).unwrap();
    ok(&["export", "m.of", "-o", "m.onnx", "--external-data"]);
    let data = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let data: Vec<_> = data.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("m.onnx.")).collect();
    let [data] = &data[..] else { panic!("{data:?}") };
    ok(&[&["compile", "m.onnx", "-o", "a.plan"], &BASE[..]].concat());
    let hash = |path: &Path| blake3_of(&std::fs::read(path).unwrap());
    let name = data.file_name().unwrap().to_str().unwrap();
    let inspected = ok(&["inspect", "a.plan"]);
    for (name, path) in [("m.onnx", &dir.path().join("m.onnx")), (name, data)] {
        let line = format!("made from    {name} blake3 {}\n", hash(path));
        assert!(inspected.contains(&line), "{line}{inspected}");
    }
    // The model's own file stays the same; only its data changes.
    let mut bytes = std::fs::read(data).unwrap();
    bytes[3] ^= 1;
    std::fs::write(data, bytes).unwrap();
    ok(&[&["compile", "m.onnx", "-o", "b.plan"], &BASE[..]].concat());
    let line = format!("made from    {name} blake3 {}\n", hash(data));
    assert!(ok(&["inspect", "b.plan"]).contains(&line), "{line}");
}

fn blake3_of(bytes: &[u8]) -> String {
    of_driver::model::hash_of_bytes(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
