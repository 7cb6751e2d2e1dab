//! The program as scripts see it: what it prints, what it writes, its exit codes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use of_onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use of_plan::PlanFile;
use prost::Message;
use tempfile::TempDir;

fn digits(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").join(file)
}

/// The program with a kernel cache of its own in `dir`.
fn of_opt(dir: &TempDir) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    c.env("OF_CACHE_DIR", dir.path().join("cache")).env_remove("RUST_LOG").current_dir(dir.path());
    c
}

fn run(c: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = c.output().unwrap();
    let text = |b| String::from_utf8(b).unwrap();
    (status.code().expect("no signal"), text(stdout), text(stderr))
}

fn ok(c: &mut Command) -> String {
    let (code, out, err) = run(c);
    assert_eq!(code, 0, "{err}");
    out
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn image() -> String {
    format!("image={}", digits("images.npy").display())
}

fn compile(dir: &TempDir, name: &str, more: &[&str]) -> PathBuf {
    let plan = dir.path().join(name);
    ok(of_opt(dir).arg("compile").arg(digits("digits.onnx")).arg("-o").arg(&plan).args(["--shape", "N=8"]).args(more));
    plan
}

#[test]
fn run_classifies_digits() {
    let dir = dir();
    let mut c = of_opt(&dir);
    c.arg("run")
        .arg(digits("digits.onnx"))
        .args(["--inputs", &image(), "--top", "1", "--labels"])
        .arg(digits("labels.txt"));
    let out = ok(&mut c);
    let first: Vec<&str> = out.lines().filter_map(|l| l.split_whitespace().nth(1)).filter(|w| w.len() == 1).collect();
    assert_eq!(first, ["7", "0", "3", "9", "1", "4", "8", "2"], "{out}");
}

#[test]
fn plans_are_deterministic_and_run_without_a_compiler() {
    let dir = dir();
    let plan = compile(&dir, "a.plan", &[]);
    let again = compile(&dir, "b.plan", &["--no-cache"]);
    assert!(std::fs::read(&plan).unwrap() == std::fs::read(&again).unwrap(), "the plans differ");
    let outputs = |name: &str, model: &Path, compiler: bool| {
        let out = dir.path().join(name);
        let mut c = of_opt(&dir);
        if !compiler {
            c.env_clear().env("PATH", dir.path().join("empty")).env("HOME", dir.path());
        }
        ok(c.arg("run").arg(model).args(["--inputs", &image(), "--threads", "2", "--outputs"]).arg(&out));
        std::fs::read(out.join("output_0.pb")).unwrap()
    };
    let direct = outputs("direct", &digits("digits.onnx"), true);
    assert!(direct == outputs("plan", &plan, false), "the plan computes something else");
}

/// What tuning finds is kept and taken again; the plan computes the same.
#[test]
fn tuned_plans_compute_the_same() {
    let dir = dir();
    let digits = digits("digits.onnx");
    let compile = |name: &str, tune: &str| {
        let args = ["--shape", "N=64", "--threads=1", tune, "-o", name];
        let (code, _, said) = run(of_opt(&dir).arg("compile").arg(&digits).args(args));
        assert_eq!(code, 0, "{said}");
        (std::fs::read(dir.path().join(name)).unwrap(), said)
    };
    let (tuned, said) = compile("tuned.plan", "--tune=20");
    assert!(said.contains("tuned ") && !said.contains("tuned 0"), "{said}");
    assert_eq!(compile("again.plan", "--tune=0").0, tuned);

    let images = of_ops::sample::Rng::new(1).f32s(&[64, 1, 8, 8]);
    of_onnx::tensor_io::write(&dir.path().join("images.pb"), "image", &images).unwrap();
    let inputs = ["--inputs", "image=images.pb"];
    ok(of_opt(&dir).arg("run").arg(&digits).args(inputs).args(["--outputs", "plain"]));
    ok(of_opt(&dir).args(["run", "tuned.plan"]).args(inputs).args(["--expect", "plain"]));

    let (code, _, err) = run(of_opt(&dir).arg("compile").arg(&digits).args(["-o", "x.plan", "--tune=-1"]));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("a duration is a number of seconds"), "{err}");
}

/// What takes more bytes in the plan than in the model is said, with the option that changes it.
#[test]
fn compile_says_which_weights_take_more_bytes() {
    let dir = dir();
    let model = "func @main(%x: tensor<1x128x28x28xf32>) -> (tensor<1x128x28x28xf32>) {
  %w = of.constant {value = dense<0.5> : tensor<128x128x3x3xf32>}
  %y = of.conv %x, %w {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = \"NOTSET\", channels_last = false}
  of.return %y
}
";
    std::fs::write(dir.path().join("conv.of"), model).unwrap();
    let compile = |more: &[&str]| {
        let (code, _, said) = run(of_opt(&dir).args(["compile", "conv.of", "-o", "conv.plan"]).args(more));
        assert_eq!(code, 0, "{said}");
        (said, std::fs::metadata(dir.path().join("conv.plan")).unwrap().len())
    };
    let ((said, large), (plain, small)) = (compile(&[]), compile(&["--no-winograd"]));
    assert!(said.contains("weights in the plan: 1 weight of 576.0 KiB as") && said.contains("--no-winograd"), "{said}");
    assert!(!plain.contains("weights in the plan") && small + (1 << 20) < large, "{plain}{small} {large}");
}

/// Precision int8 needs calibration data, reports the accuracy change, and still classifies the digits.
#[test]
fn int8_precision_needs_calibration_and_keeps_the_digits() {
    let dir = dir();
    let digits_model = digits("digits.onnx");
    let (code, _, said) = run(of_opt(&dir).arg("compile").arg(&digits_model).args([
        "--precision=int8",
        "--calibration",
        &image(),
        "-o",
        "int8.plan",
    ]));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("products and convolutions in 8-bit integers, 1 set of calibration inputs"), "{said}");
    assert!(said.contains("the same in 8 of 8 rows"), "{said}");
    let plan = dir.path().join("int8.plan");
    let size = |p: &Path| std::fs::metadata(p).unwrap().len();
    assert!(size(&plan) < size(&compile(&dir, "floats.plan", &[])));
    let top = ok(of_opt(&dir)
        .arg("run")
        .arg(&plan)
        .args(["--inputs", &image(), "--top", "1", "--labels"])
        .arg(digits("labels.txt")));
    let first: Vec<&str> = top.lines().filter_map(|l| l.split_whitespace().nth(1)).filter(|w| w.len() == 1).collect();
    assert_eq!(first, ["7", "0", "3", "9", "1", "4", "8", "2"], "{top}");

    let (code, _, err) = run(of_opt(&dir).arg("compile").arg(&digits_model).args(["--precision=int8", "-o", "x.plan"]));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("--calibration"), "{err}");
}

/// Precisions f16 and bf16 need no calibration data, but report that the accuracy change is unmeasured.
#[test]
fn f16_and_bf16_precision_work_without_calibration() {
    let dir = dir();
    let model = digits("digits.onnx");
    let compiled = |args: &[&str]| run(of_opt(&dir).arg("compile").arg(&model).args(["-o", "x.plan"]).args(args));
    let (code, _, said) = compiled(&["--precision=f16"]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("f16: ") && said.contains("products and convolutions") && said.contains("is unknown"),
        "{said}"
    );
    let (code, _, said) = compiled(&["--precision=bf16", "--calibration", &image()]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("1 set of calibration inputs") && said.contains("the same in 8 of 8 rows"), "{said}");
}

#[test]
fn damaged_plans_are_refused() {
    let dir = dir();
    let plan = compile(&dir, "a.plan", &[]);
    let good = std::fs::read(&plan).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let mut bytes = good.clone();
    for _ in 0..10_000 {
        let (at, mask) = (random.usize(..good.len()), random.u8(1..));
        bytes[at] ^= mask;
        assert!(PlanFile::from_bytes(&bytes).is_err(), "byte {at} ^ {mask} is not noticed");
        bytes[at] ^= mask;
    }
    for _ in 0..1000 {
        assert!(PlanFile::from_bytes(&good[..random.usize(..good.len())]).is_err());
    }
    // What the library refuses, the program refuses: with a message and a code, not a signal.
    bytes[good.len() / 2] ^= 1;
    std::fs::write(&plan, &bytes).unwrap();
    for command in ["run", "inspect", "verify", "bench"] {
        let (code, _, err) = run(of_opt(&dir).arg(command).arg(&plan));
        assert_eq!(code, 2, "{command}: {err}");
        assert!(err.contains("error["), "{command}: {err}");
    }
}

#[test]
fn bench_ends_with_a_json_line() {
    let dir = dir();
    let out = ok(of_opt(&dir).arg("bench").arg(digits("digits.onnx")).args(["--iters", "3", "--threads", "1"]));
    let line: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    for key in ["median_ms", "p90_ms", "min_ms", "cpu_ms", "share", "load_ms", "first_ms", "iters", "peak_rss_mb"] {
        assert!(line[key].as_f64().is_some_and(|x| x > 0.0), "{key} in {line}");
    }
}

#[test]
fn inspect_prints_text_and_json() {
    let dir = dir();
    let plan = compile(&dir, "a.plan", &[]);
    let text = ok(of_opt(&dir).arg("inspect").arg(&plan));
    assert!(text.contains("image") && text.contains("probability"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&ok(of_opt(&dir).args(["inspect", "--json"]).arg(&plan))).unwrap();
    assert!(json.is_object(), "{json}");
    ok(of_opt(&dir).arg("verify").arg(&plan));
}

#[test]
fn open_dimensions_are_bound_and_inputs_can_be_random() {
    let dir = dir();
    let model = dir.path().join("m.of");
    let text = "func @main(%x: tensor<?(batch)x?(2*s)xf32>, %y: tensor<?(s)xf32>) -> (tensor<?(batch)x?(2*s)xf32>) {\n  \
        %a = of.exp %x : (tensor<?(batch)x?(2*s)xf32>) -> tensor<?(batch)x?(2*s)xf32>\n  \
        of.return %a : (tensor<?(batch)x?(2*s)xf32>) -> ()\n}\n";
    std::fs::write(&model, text).unwrap();
    let plan = dir.path().join("m.plan");
    ok(of_opt(&dir).arg("compile").arg(&model).arg("-o").arg(&plan));
    let shown = ok(of_opt(&dir).arg("inspect").arg(&plan));
    assert!(shown.contains("input x: f32[batch, 2*s]") && shown.contains("input y: f32[s]"), "{shown}");
    // The plan and the model are asked alike.
    for file in [&plan, &model] {
        let (code, _, err) = run(of_opt(&dir).arg("run").arg(file));
        assert_eq!(code, 2);
        assert!(err.contains("no value for input x") && err.contains("--shape"), "{err}");
        let out = ok(of_opt(&dir).arg("run").arg(file).args(["--shape", "x=2x6"]));
        assert!(out.starts_with("a: tensor<2x6xf32>"), "{out}");
        let (code, _, err) = run(of_opt(&dir).arg("run").arg(file).args(["--shape", "x=2x6,s=4"]));
        assert!(code == 2 && err.contains('s'), "{err}");
        let (code, _, err) = run(of_opt(&dir).arg("run").arg(file).args(["--shape", "q=2"]));
        assert!(code == 2 && err.contains("its open dimensions are batch, s"), "{err}");
        let (code, out, err) = run(of_opt(&dir).arg("bench").arg(file).args(["--shape", "s=2", "--iters", "3"]));
        assert!(code == 0 && out.contains("median_ms") && err.contains("no extent for dimension 'batch'"), "{err}");
    }
}

#[test]
fn expect_compares_outputs_with_files() {
    let dir = dir();
    let (out, model) = (dir.path().join("out"), digits("digits.onnx"));
    ok(of_opt(&dir).arg("run").arg(&model).args(["--inputs", &image(), "--outputs"]).arg(&out));
    let same = ok(of_opt(&dir).arg("run").arg(&model).args(["--inputs", &image(), "--expect"]).arg(&out));
    assert!(same.ends_with("cosine 1.000000000\n1 output matches\n"), "{same}");
    let bytes = std::fs::read(out.join("output_0.pb")).unwrap();
    let damaged: Vec<u8> = bytes.iter().rev().take(3).map(|_| 0).collect();
    std::fs::write(out.join("output_0.pb"), [&bytes[..bytes.len() - 3], &damaged].concat()).unwrap();
    let (code, _, err) = run(of_opt(&dir).arg("run").arg(&model).args(["--inputs", &image(), "--expect"]).arg(&out));
    assert!(code == 1 && err.contains("differs from the expected value: 1 of"), "{code} {err}");
}

#[test]
fn models_and_plans_pass_through_pipes() {
    let dir = dir();
    let piped = |args: &[&str], input: Vec<u8>| {
        let mut c = of_opt(&dir);
        c.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = c.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let out = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let model = std::fs::read(digits("digits.onnx")).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    assert!(text(piped(&["inspect", "-"], model.clone())).contains("function    @main"));
    assert!(text(piped(&["import", "-"], model.clone())).contains("func @main"));
    let plan = piped(&["compile", "-", "-o", "-", "--shape", "N=8"], model.clone());
    let out = text(piped(&["run", "-", "--inputs", &image(), "--top", "1"], plan));
    assert!(out.contains("[0] 7 "), "{out}");
    let exported = piped(&["export", "-", "-o", "-"], model);
    assert!(text(piped(&["import", "-", "--elide-constants"], exported)).contains("of.conv"));
    let (code, _, err) = run(of_opt(&dir).args(["import", "-"]).stdin(Stdio::null()));
    assert!(code == 2 && err.contains("<stdin> is empty"), "{err}");
}

#[test]
fn empty_models_are_named() {
    let dir = dir();
    for name in ["empty.onnx", "empty.of", "empty.plan"] {
        std::fs::write(dir.path().join(name), b"").unwrap();
        let (code, _, err) = run(of_opt(&dir).args(["run", name]));
        assert!(code == 2 && err.contains(name), "{err}");
    }
}

#[test]
fn reports_are_printed_as_json() {
    let dir = dir();
    let plan = dir.path().join("digits.plan");
    let json = |c: &mut Command| serde_json::from_str::<serde_json::Value>(&ok(c)).unwrap();
    let compiled = json(of_opt(&dir).arg("compile").arg(digits("digits.onnx")).arg("-o").arg(&plan).arg("--json"));
    assert_eq!((&compiled["programs"], &compiled["memory_depends_on"]), (&1.into(), &"N".into()));
    assert_eq!(json(of_opt(&dir).arg("verify").arg(&plan).arg("--json"))["valid"], true);
    assert_eq!(json(of_opt(&dir).arg("verify").arg(digits("digits.onnx")).arg("--json"))["functions"], 1);
    assert!(json(of_opt(&dir).args(["backends", "--json"]))["native"]["isa"].is_string());
    let explained = json(
        of_opt(&dir).arg("explain").arg(digits("digits.onnx")).args(["--shape", "N=8", "--mesh", "cpu[2]", "--json"]),
    );
    assert!(!explained["values"].as_array().unwrap().is_empty());
    let mut bench = of_opt(&dir);
    bench.arg("bench").arg(&plan).args(["--shape", "N=2", "--iters", "3", "--max-seconds", "0.1", "--json"]);
    let (code, out, err) = run(&mut bench);
    assert!(code == 0 && err.is_empty() && serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{err}{out}");
}

#[test]
fn images_are_inputs() {
    let dir = dir();
    // A grey picture of the size of a digit.
    let mut picture = b"P5\n8 8\n255\n".to_vec();
    picture.extend([128; 64]);
    std::fs::write(dir.path().join("grey.pgm"), picture).unwrap();
    let out = ok(of_opt(&dir).arg("run").arg(digits("digits.onnx")).args(["--inputs", "image=grey.pgm", "--top", "1"]));
    assert!(out.contains("tensor<1x10xf32>"), "{out}");
    let mut wrong = of_opt(&dir);
    wrong.arg("run").arg(digits("digits.onnx")).args(["--inputs", "image=grey.pgm", "--image-mean", "1,2,3"]);
    let (code, _, err) = run(&mut wrong);
    assert!(code == 2 && err.contains("--image-mean has 3 numbers, and input 'image' has 1 channels"), "{err}");
}

#[test]
fn import_round_trips_through_text() {
    let dir = dir();
    let text = dir.path().join("digits.of");
    ok(of_opt(&dir).arg("import").arg(digits("digits.onnx")).arg("-o").arg(&text));
    let outputs = |name: &str, model: &Path| {
        let out = dir.path().join(name);
        ok(of_opt(&dir).arg("run").arg(model).args(["--inputs", &image(), "--outputs"]).arg(&out));
        std::fs::read(out.join("output_0.pb")).unwrap()
    };
    assert!(outputs("a", &text) == outputs("b", &digits("digits.onnx")), "the text computes something else");
}

#[test]
fn ops_passes_and_backends_are_listed() {
    let dir = dir();
    for (command, known) in [("ops", "of.conv"), ("passes", "canonicalize"), ("backends", "reference")] {
        let out = ok(of_opt(&dir).arg(command));
        assert!(out.contains(known), "{command}: {out}");
    }
    assert!(ok(of_opt(&dir).args(["ops", "of.conv"])).contains("strides"));
}

#[test]
fn exit_codes_distinguish_failure_bad_input_and_unsupported() {
    let dir = dir();
    let code = |args: &[&str]| run(of_opt(&dir).args(args)).0;
    assert_eq!(code(&["run", "nothing.onnx"]), 2);
    assert_eq!(code(&["no-such-command"]), 2);
    assert_eq!(code(&["compile", "nothing.onnx"]), 2);
    std::fs::write(dir.path().join("bad.of"), "func @main(").unwrap();
    assert_eq!(code(&["bad.of", "--passes", "cse"]), 2);
}

#[test]
fn all_unsupported_operators_are_listed_at_once() {
    let dir = dir();
    let node = |name: &str, op: &str, domain: &str, x: &str, y: &str| NodeProto {
        name: Some(name.into()),
        op_type: Some(op.into()),
        domain: Some(domain.into()),
        input: vec![x.into()],
        output: vec![y.into()],
        ..NodeProto::default()
    };
    let value = |name: &str| ValueInfoProto { name: Some(name.into()), ..ValueInfoProto::default() };
    let set = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    let graph = GraphProto {
        node: vec![node("first", "Nonsense", "", "x", "a"), node("second", "Gizmo", "com.example", "x", "b")],
        input: vec![],
        output: vec![value("a"), value("b")],
        ..GraphProto::default()
    };
    let mut graph = graph;
    graph.node.insert(
        0,
        NodeProto {
            name: Some("zero".into()),
            op_type: Some("Constant".into()),
            output: vec!["x".into()],
            attribute: vec![of_onnx::proto::AttributeProto {
                name: Some("value_float".into()),
                f: Some(1.0),
                r#type: Some(of_onnx::proto::attribute_proto::AttributeType::Float as i32),
                ..Default::default()
            }],
            ..NodeProto::default()
        },
    );
    let model = ModelProto {
        graph: Some(graph),
        opset_import: vec![set("", 18), set("com.example", 2)],
        ..ModelProto::default()
    };
    std::fs::write(dir.path().join("m.onnx"), model.encode_to_vec()).unwrap();
    let (code, _, err) = run(of_opt(&dir).args(["compile", "m.onnx", "-o", "m.plan"]));
    assert_eq!(code, 3, "{err}");
    for part in ["first", "Nonsense", "ai.onnx", "opset 18", "second", "Gizmo", "com.example", "opset 2"] {
        assert!(err.contains(part), "'{part}' is not in\n{err}");
    }
    assert!(!dir.path().join("m.plan").exists());
}

#[test]
fn exported_models_compute_the_same() {
    let dir = dir();
    let (out, cut) = (dir.path().join("out.onnx"), dir.path().join("cut.onnx"));
    ok(of_opt(&dir).arg("export").arg(digits("digits.onnx")).arg("-o").arg(&out).args(["--passes", "simplify"]));
    ok(of_opt(&dir).arg("export").arg(&out).arg("-o").arg(&cut).args(["--passes", "cpu", "--external-data"]));
    let answer = |model: &Path| ok(of_opt(&dir).arg("run").arg(model).args(["--inputs", &image(), "--top", "1"]));
    assert_eq!(answer(&out), answer(&digits("digits.onnx")));
    let classes =
        |text: String| text.lines().map(|l| l.split_whitespace().nth(1).map(str::to_owned)).collect::<Vec<_>>();
    assert_eq!(classes(answer(&cut)), classes(answer(&out)));
    let (code, _, err) = run(of_opt(&dir).arg("export").arg(&out).arg("-o").arg(&cut).args(["--opset", "7"]));
    assert_eq!(code, 3, "{err}");
    let plan = compile(&dir, "d.plan", &[]);
    let (code, _, err) = run(of_opt(&dir).arg("export").arg(plan).arg("-o").arg(&cut));
    assert!(code == 2 && err.contains("is a plan"), "{err}");
}

/// A build without the feature names it; one with it gives the results of native code.
#[test]
fn mlir_runs_or_names_the_missing_feature() {
    let dir = dir();
    let toy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lit/place/toy.of");
    let run = |more: &[&str]| {
        let mut c = of_opt(&dir);
        c.arg("run").arg(&toy).args(["--shape", "x=4x8,w=4x8"]).args(more).output().unwrap()
    };
    let (plain, mlir) = (run(&[]), run(&["--backend", "mlir", "--min-subgraph-size", "0"]));
    let said = String::from_utf8_lossy(&mlir.stderr);
    if cfg!(feature = "mlir") {
        assert_eq!(String::from_utf8_lossy(&mlir.stdout), String::from_utf8_lossy(&plain.stdout), "{said}");
    } else {
        assert_eq!(mlir.status.code(), Some(2), "{said}");
        assert!(said.contains("--features mlir"), "{said}");
    }
}

#[test]
fn a_plan_says_how_runs_end_and_what_was_rewritten() {
    let dir = dir();
    let inspect = |plan: &Path, more: &[&str]| ok(of_opt(&dir).arg("inspect").arg(plan).args(more));
    let plain = inspect(&compile(&dir, "plain.plan", &[]), &[]);
    let exit = |text: &str| text.lines().find(|line| line.starts_with("  exit ")).map(str::to_owned);
    let ends = exit(&plain).unwrap();
    assert!(ends.starts_with("  exit a run ends after ") && ends.ends_with(" acts, with 1 output"), "{ends}");
    assert!(!plain.contains("  rewrite "), "{plain}");
    let recorded = compile(&dir, "recorded.plan", &["--record-rewrites"]);
    let text = inspect(&recorded, &[]);
    assert_eq!(exit(&text), Some(ends));
    assert!(text.contains("flags        --shape=N=8 --record-rewrites"), "{text}");
    let rewrites: Vec<&str> = text.lines().filter(|line| line.starts_with("  rewrite ")).collect();
    assert!(rewrites.iter().any(|line| line.starts_with("  rewrite expand-composites: of.gemm (")), "{rewrites:#?}");
    let json: serde_json::Value = serde_json::from_str(&inspect(&recorded, &["--json"])).unwrap();
    assert_eq!(json["programs"][0]["rewrites"].as_array().map(Vec::len), Some(rewrites.len()));
    assert!(json["programs"][0]["exit_condition"].as_str().is_some_and(|text| text.starts_with("a run ends")));
    // The trail changes nothing in what the plan does.
    let run = |plan: &str| ok(of_opt(&dir).args(["run", plan, "--inputs", &image()]));
    assert_eq!(run("plain.plan"), run("recorded.plan"));
    // On a mesh each rank's program has the trail of the whole function before its own.
    let mesh = inspect(&compile(&dir, "mesh.plan", &["--record-rewrites", "--mesh", "cpu[2]"]), &[]);
    for rewrite in ["expand-composites: of.gemm (", "channels-last: of.conv ("] {
        assert!(mesh.contains(&format!("  rewrite {rewrite}")), "{mesh}");
    }
}
