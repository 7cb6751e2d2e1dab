//! The op in a shared library that CONTRIBUTING.md describes: its commands, as they stand there, and the op in C.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What stands before the commands.
const MARK: &str = "<!-- tested by tools/of-opt/tests/user_op.rs -->\n```sh\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs of-opt in the repository.
fn of_opt(args: &[&str], cache: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_of-opt"))
        .args(args)
        .current_dir(root())
        .env("OF_CACHE_DIR", cache)
        .output()
        .unwrap()
}

/// What it prints where it succeeds.
fn said(args: &[&str], cache: &Path) -> String {
    let out = of_opt(args, cache);
    assert!(out.status.success(), "{args:?}\n{}", text(&out.stderr));
    text(&out.stdout)
}

/// The same function with the op of the list: the inputs that are made up are always the same.
fn with_swish_of_the_list(dir: &Path) -> String {
    let model = std::fs::read_to_string(root().join("examples/user-op/swish.of")).unwrap();
    let plain = dir.join("plain.of");
    std::fs::write(&plain, model.replace("demo.swish", "of.swish")).unwrap();
    said(&["run", plain.to_str().unwrap(), "--shape", "x=4x8"], dir)
}

/// The numbers of a printed result.
fn numbers(printed: &str) -> Vec<f32> {
    let word = |c: char| !(c.is_ascii_digit() || "+-.e".contains(c));
    printed.split(word).filter(|w| w.contains('.')).filter_map(|w| w.parse().ok()).collect()
}

fn close(a: &str, b: &str) {
    let (x, y) = (numbers(a), numbers(b));
    assert!(x.len() == y.len() && !x.is_empty(), "{a}\n{b}");
    assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 1e-4 * y.abs().max(1.0)), "{a}\n{b}");
}

#[test]
fn the_commands_of_the_guide_make_an_op_outside_the_workspace_that_runs() {
    let guide = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let commands = guide.split_once(MARK).and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("demo-ops").display().to_string();
    // The crates of the repository are built already.
    let built = Path::new(env!("CARGO_BIN_EXE_of-opt")).parent().and_then(Path::parent).unwrap();
    let mut runs = Vec::new();
    for line in commands.lines() {
        if line.contains("cuda:shim")
            && let Err(why) = of_codegen::cuda::shim::isa()
        {
            eprintln!("skipped: the op on the emulated GPU: {why}");
            continue;
        }
        let line = line
            .replace("cargo run --release --", env!("CARGO_BIN_EXE_of-opt"))
            .replace("demo-ops/target", &built.display().to_string())
            .replace("--out demo-ops", &format!("--out {made}"))
            .replace("demo-ops/", &format!("{made}/"));
        let mut sh = Command::new("sh");
        sh.args(["-c", &line]).current_dir(root()).env("CARGO_TARGET_DIR", built).env("CARGO_NET_OFFLINE", "true");
        let out = sh.env("OF_CACHE_DIR", dir.path()).output().unwrap();
        assert!(out.status.success(), "{line}\n{}", text(&out.stderr));
        if line.contains(" run ") {
            runs.push(text(&out.stdout));
        }
    }
    let plain = with_swish_of_the_list(dir.path());
    assert!(runs.len() >= 2);
    runs.iter().for_each(|run| close(run, &plain));
    // The model that was written names the op by its domain.
    let model = std::fs::read(dir.path().join("demo-ops/swish.onnx")).unwrap();
    assert!(text(&model).contains("com.example.demo"));
    // Without the library nobody knows it.
    let without = of_opt(&["run", "examples/user-op/swish.of"], dir.path());
    assert_eq!(without.status.code(), Some(2));
    assert!(text(&without.stderr).contains("demo.swish"));
    // NVRTC takes its kernel.
    let library = built.join("release/libdemo_ops.so").display().to_string();
    let plan = dir.path().join("swish.plan").display().to_string();
    match of_codegen::cuda::nvrtc::identity() {
        Ok(_) => drop(said(
            &["compile", "examples/user-op/swish.of", "-o", &plan, "--target", "cuda:sm_90", "--library", &library],
            dir.path(),
        )),
        Err(why) => eprintln!("skipped: the op's kernel in NVRTC: {why}"),
    }
}

#[test]
fn an_op_in_c_does_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libswish.so");
    let library = library.to_str().unwrap();
    let cc = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", "docs", "examples/user-op/swish.c"])
        .args(["-o", library, "-lm"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(cc.status.success(), "{}", text(&cc.stderr));
    let model = std::fs::read_to_string(root().join("examples/user-op/swish.of")).unwrap();
    let own = dir.path().join("c.of");
    std::fs::write(&own, model.replace("demo.swish", "clib.swish").replace("4x8", "?(N)x8")).unwrap();
    let own = own.to_str().unwrap();
    let plain = with_swish_of_the_list(dir.path());
    close(&said(&["run", own, "--shape", "N=4", "--library", library], dir.path()), &plain);
    // Open extents stay what they are; layouts are those that the library gives.
    let sharded = said(&[own, "--passes", "cpu", "--library", library], dir.path());
    assert!(sharded.contains("clib.swish") && sharded.contains("tensor<?(N)x8xf32>"), "{sharded}");
    assert!(said(&["ops", "clib.swish", "--library", library], dir.path()).contains("alpha"));
    match of_codegen::cuda::shim::isa() {
        Ok(_) => {
            let on = ["run", own, "--shape", "N=4", "--target", "cuda:shim", "--library", library];
            close(&said(&on, dir.path()), &plain);
        }
        Err(why) => eprintln!("skipped: the op on the emulated GPU: {why}"),
    }
    // What the op refuses is an error with its words.
    let wrong = dir.path().join("wrong.of");
    let text_of = "func @main(%x: tensor<2xf64>) -> (tensor<2xf64>) {\n  %y = clib.swish %x {alpha = 1.0 : f64} : \
                   (tensor<2xf64>) -> tensor<2xf64>\n  of.return %y : (tensor<2xf64>) -> ()\n}\n";
    std::fs::write(&wrong, text_of).unwrap();
    let refused = of_opt(&["run", wrong.to_str().unwrap(), "--library", library], dir.path());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("x must be of f32"), "{}", text(&refused.stderr));
    // Twice is once too often.
    let twice = of_opt(&["ops", "--library", library, "--library", library], dir.path());
    assert!(text(&twice.stderr).contains("there is an op 'clib.swish' already"), "{}", text(&twice.stderr));
}
