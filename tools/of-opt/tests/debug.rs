//! `of-opt debug`: what it finds in models whose code is wrong on purpose, by a backend in a shared library
//! (`debug/broken.c`) or by the GPU kernel of a user op, and in models that are right.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use of_test_support::component::{ONNXRUNTIME, python_with, require};
use of_test_support::plans::emulated_gpu;
use serde_json::Value;
use tempfile::TempDir;

/// Faults of `broken.c`.
#[derive(Clone, Copy)]
enum Fault {
    None = 0,
    Abs = 1,
    Chain = 2,
    TwoChains = 3,
    Fails = 4,
}

/// A folder with models, a cache of kernels, and a library.
struct Bench {
    dir: TempDir,
    options: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Builds a shared library from C.
fn build(source: &Path, to: &Path, more: &str) {
    let include = root().join("docs");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", more, "-I"]).arg(include).arg(source);
    let out = cc.arg("-o").arg(to).arg("-lm").output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
}

impl Bench {
    fn new() -> Bench {
        Bench { dir: tempfile::tempdir().unwrap(), options: Vec::new() }
    }

    /// A bench whose backend has this fault, and executes these ops.
    fn broken(fault: Fault, ops: &[&str]) -> Bench {
        let mut bench = Bench::new();
        let library = bench.path("libbroken.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/debug/broken.c");
        build(&source, &library, &format!("-DFAULT={}", fault as i32));
        bench.options = vec!["--library".into(), library.display().to_string()];
        bench.options.extend(ops.iter().map(|op| format!("--pin=of.{op}=broken")));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn of_opt(&self, args: &[&str]) -> Output {
        let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        c.args(args).args(&self.options).current_dir(self.dir.path());
        c.env("OF_CACHE_DIR", self.path("cache")).env("NO_COLOR", "1").output().unwrap()
    }

    /// Runs `debug --json`; returns the report, and whether the exit code is that of its result.
    fn debug(&self, model: &Path, against: &str, more: &[&str]) -> Value {
        let model = model.to_str().unwrap();
        let args = [&["debug", model, "--against", against, "--json"], more].concat();
        let out = self.of_opt(&args);
        let report: Value =
            serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out.stderr)));
        let code = if report["equal"] == true { 0 } else { 1 };
        assert_eq!(out.status.code(), Some(code), "{report:#}\n{}", text(&out.stderr));
        report
    }

    /// Whether 'of-opt run' of a reduced model gives other outputs than expected.
    fn still_differs(&self, reduced: &Value) -> bool {
        let file = |name: &str| reduced[name].as_str().unwrap().to_string();
        let (model, inputs, outputs) = (file("model"), file("inputs"), file("outputs"));
        let args = ["run", &model, "--inputs", &inputs, "--expect", &outputs];
        let out = self.of_opt(&args);
        out.status.code() == Some(1) && text(&out.stderr).contains("differs from the expected value")
    }
}

/// `x` through unary ops, the first of which stands in line 2.
fn chain(ops: &[&str]) -> String {
    let ty = "tensor<4x8xf32>";
    let mut out = format!("func @main(%x: {ty} {{of.name = \"x\"}}) -> ({ty} {{of.name = \"y\"}}) {{\n");
    let mut last = "x".to_string();
    for (i, op) in ops.iter().enumerate() {
        out += &format!("  %v{i} = of.{op} %{last} : ({ty}) -> {ty}\n");
        last = format!("v{i}");
    }
    out + &format!("  of.return %{last} : ({ty}) -> ()\n}}\n")
}

fn ops(finding: &Value) -> Vec<&str> {
    finding["ops"].as_array().unwrap().iter().map(|op| op["op"].as_str().unwrap()).collect()
}

#[test]
fn the_first_wrong_op_is_found_and_the_model_reduced_to_it() {
    let bench = Bench::broken(Fault::Abs, &["abs"]);
    let model = bench.write("m.of", &chain(&["tanh", "abs", "sqrt", "neg", "abs", "tanh"]));
    let report = bench.debug(&model, "reference", &["-o", "small.of"]);
    let finding = &report["finding"];
    assert_eq!(finding["kind"], "op", "{report:#}");
    assert_eq!((ops(finding), finding["cause"].as_str()), (vec!["of.abs"], Some("code generation")));
    let at = finding["ops"][0]["location"].as_str().unwrap();
    assert!(at.ends_with("m.of:3:9"), "{at}");
    assert_eq!(finding["executors"], serde_json::json!(["backend 'broken'"]));
    let value = &finding["values"][0];
    let (got, expected) = (&value["difference"]["got"], &value["difference"]["expected"]);
    let number = |v: &Value| v.as_str().unwrap().parse::<f64>().unwrap();
    assert!(number(got) == -number(expected) && number(got) < 0.0, "{value:#}");
    // Each op is judged by itself: what comes after a wrong op is right.
    let wrong: Vec<bool> = report["checks"].as_array().unwrap().iter().map(|c| c["differs"] == true).collect();
    assert_eq!(wrong, [false, true, false, false, true, false]);
    assert_eq!(report["reduced"]["shows"], true);
    assert!(bench.still_differs(&report["reduced"]));
    let small = std::fs::read_to_string(bench.path("small.of")).unwrap();
    assert!(small.contains("of.abs") && !small.contains("of.tanh"), "{small}");
}

#[test]
fn a_fault_of_a_fused_group_alone_is_named_with_the_group() {
    let bench = Bench::broken(Fault::Chain, &["abs", "neg"]);
    let model = bench.write("m.of", &chain(&["tanh", "abs", "neg", "exp", "sqrt"]));
    let report = bench.debug(&model, "reference", &["-o", "small.of"]);
    assert!(report["checks"].as_array().unwrap().iter().all(|c| c["differs"] == false), "{report:#}");
    let finding = &report["finding"];
    assert_eq!(finding["kind"], "fused group", "{report:#}");
    let lines: Vec<&str> =
        finding["ops"].as_array().unwrap().iter().map(|op| op["location"].as_str().unwrap()).collect();
    assert!(lines.iter().any(|l| l.contains("m.of:3:9")) && lines.iter().any(|l| l.contains("m.of:4:9")), "{lines:?}");
    assert!(bench.still_differs(&report["reduced"]), "{report:#}");
    let small = std::fs::read_to_string(bench.path("small.of")).unwrap();
    assert!(small.contains("of.abs") && small.contains("of.neg") && !small.contains("of.exp"), "{small}");
}

#[test]
fn a_fault_of_two_groups_together_is_a_run_of_ops() {
    let bench = Bench::broken(Fault::TwoChains, &["abs", "neg"]);
    let model = bench.write("m.of", &chain(&["tanh", "abs", "exp", "neg", "tanh", "sigmoid"]));
    let report = bench.debug(&model, "reference", &["-o", "small.of"]);
    let finding = &report["finding"];
    assert_eq!(finding["kind"], "run of ops", "{report:#}");
    assert_eq!(ops(finding), ["of.abs", "of.exp", "of.neg"]);
    assert!(bench.still_differs(&report["reduced"]), "{report:#}");
}

#[test]
fn code_that_fails_is_a_difference() {
    let bench = Bench::broken(Fault::Fails, &["neg"]);
    let model = bench.write("m.of", &chain(&["tanh", "neg"]));
    let report = bench.debug(&model, "reference", &[]);
    assert_eq!(ops(&report["finding"]), ["of.neg"]);
    assert!(report["finding"]["failure"].as_str().unwrap().contains("broken on purpose"), "{report:#}");
}

#[test]
fn a_right_backend_shows_no_difference() {
    let bench = Bench::broken(Fault::None, &["abs", "neg"]);
    let model = bench.write("m.of", &chain(&["tanh", "abs", "neg", "exp", "sqrt"]));
    let report = bench.debug(&model, "reference", &["-o", "small.of"]);
    assert!(report["equal"] == true && report["finding"].is_null() && report["reduced"].is_null(), "{report:#}");
    assert!(!bench.path("small.of").exists());
}

#[test]
fn extents_that_only_the_whole_model_knows_are_no_difference() {
    // Alone, the reshape has a shape that is an input: its extents are symbols other than the one of its operand.
    let bench = Bench::new();
    let model = bench.write(
        "extents.of",
        "module @extents { func @main(%x: tensor<4xf32>) -> (tensor<2x2xi64>) {
            %one = of.constant {value = dense<1> : tensor<2xi64>}
            %shape = of.add %one, %one
            %places = of.nonzero %x : (tensor<4xf32>) -> tensor<1x?(u1)xi64>
            %square = of.reshape %places, %shape {allowzero = true}
            of.return %square
        } }",
    );
    let report = bench.debug(&model, "reference", &[]);
    assert!(report["finding"].is_null(), "{report:#}");
    assert_eq!(report["checks"].as_array().map(Vec::len), Some(3), "{report:#}");
}

/// The GPU kernel of a user op, half of what the op's CPU function computes.
#[test]
fn a_wrong_kernel_of_a_user_op_is_found() {
    if emulated_gpu().is_none() {
        return;
    }
    let mut bench = Bench::new();
    let swish = std::fs::read_to_string(root().join("examples/user-op/swish.c")).unwrap();
    let wrong = swish.replace("y[i] = x[i] *", "y[i] = 0.5f * x[i] *");
    assert_ne!(swish, wrong);
    let library = bench.path("libswish.so");
    build(&bench.write("swish.c", &wrong), &library, "-O2");
    bench.options = vec!["--target=cuda:emulated".into(), "--library".into(), library.display().to_string()];
    let model = std::fs::read_to_string(root().join("examples/user-op/swish.of")).unwrap();
    let model = bench.write("m.of", &model.replace("demo.swish", "clib.swish"));
    let report = bench.debug(&model, "reference", &["-o", "small.onnx"]);
    assert_eq!((report["finding"]["kind"].as_str(), ops(&report["finding"])), (Some("op"), vec!["clib.swish"]));
    assert!(bench.still_differs(&report["reduced"]), "{report:#}");
}

/// The op that is wrong is inside of a loop.
#[test]
fn a_wrong_op_inside_of_control_flow_is_named_with_its_region() {
    let bench = Bench::broken(Fault::Abs, &["abs"]);
    let model = "func @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {
  %n = of.constant {value = dense<3> : tensor<i64>} : () -> tensor<i64>
  %none = of.none
  %last = of.loop %n, %none, %x : (tensor<i64>, none, tensor<4xf32>) -> tensor<4xf32> {
  ^(%i: tensor<i64>, %c: tensor<i1>, %s: tensor<4xf32>):
    %t = of.tanh %s : (tensor<4xf32>) -> tensor<4xf32>
    %a = of.abs %t : (tensor<4xf32>) -> tensor<4xf32>
    %m = of.sub %a, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    of.yield %c, %m : (tensor<i1>, tensor<4xf32>) -> ()
  }
  of.return %last : (tensor<4xf32>) -> ()
}
";
    let model = bench.write("m.of", model);
    let report = bench.debug(&model, "reference", &[]);
    let finding = &report["finding"];
    assert_eq!((finding["kind"].as_str(), ops(finding)), (Some("op in a region"), vec!["of.abs"]), "{report:#}");
    assert!(finding["region"].as_str().unwrap().contains("region 0 of 'of.loop'"), "{report:#}");
}

#[test]
fn onnxruntime_is_the_other_side() {
    let Some(python) = require(&ONNXRUNTIME, python_with(&["numpy", "onnx", "onnxruntime"])) else { return };
    let python = ["--python", python.to_str().unwrap()];
    let digits = root().join("examples/digits/digits.onnx");
    let images = format!("image={}", root().join("examples/digits/images.npy").display());
    let report = Bench::new().debug(&digits, "onnxruntime", &[&python[..], &["--inputs", &images]].concat());
    assert_eq!((report["equal"].as_bool(), report["checks"].as_array().unwrap().len()), (Some(true), 12));
    assert!(report["against"].as_str().unwrap().starts_with("onnxruntime 1."), "{report:#}");
    // A model in text is exported for onnxruntime, and its ops are named by the nodes.
    let bench = Bench::broken(Fault::Abs, &["abs"]);
    let model = bench.write("m.of", &chain(&["tanh", "abs", "sqrt"]));
    let report = bench.debug(&model, "onnxruntime", &[&python[..], &["-o", "small.onnx"]].concat());
    assert_eq!(ops(&report["finding"]), ["Abs"], "{report:#}");
    assert!(report["finding"]["ops"][0]["location"].as_str().unwrap().starts_with("node "), "{report:#}");
    assert!(bench.still_differs(&report["reduced"]), "{report:#}");
}

#[test]
fn bad_command_lines_are_errors_with_hints() {
    let bench = Bench::new();
    let digits = root().join("examples/digits/digits.onnx");
    let digits = digits.to_str().unwrap();
    let refused = |args: &[&str], expected: &str| {
        let out = bench.of_opt(args);
        let said = text(&out.stderr);
        assert!(out.status.code() == Some(2) && said.contains(expected), "{args:?}: {said}");
    };
    let python = ["--python", "/nonexistent/python"];
    refused(&[&["debug", digits, "--against", "onnxruntime"], &python[..]].concat(), "pip install onnxruntime");
    refused(&[&["debug", digits, "--against", "reference"], &python[..]].concat(), "--python needs");
    refused(&["debug", digits], "--against");
    refused(&["debug", digits, "--against", "reference", "--tolerance=-1"], "0 or more");
    refused(&["debug", "none.onnx", "--against", "reference"], "none.onnx");
    assert!(bench.of_opt(&["compile", digits, "-o", "d.plan"]).status.success());
    refused(&["debug", "d.plan", "--against", "reference"], "is a plan");
}
