//! File names are bytes: commands take and write files whose names are not UTF-8.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// `text` as an argument, with a byte for `#` that no UTF-8 text contains.
fn arg(text: &str) -> OsString {
    let bytes: Vec<u8> = text.bytes().map(|b| if b == b'#' { 0xff } else { b }).collect();
    OsStr::from_bytes(&bytes).to_owned()
}

/// The model of digits and its images in a folder, under names that are not UTF-8.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
    let to = |name: &str| dir.path().join(arg(name));
    std::fs::create_dir(to("in#")).unwrap();
    std::fs::copy(digits.join("digits.onnx"), to("m#.onnx")).unwrap();
    std::fs::copy(digits.join("images.npy"), to("in#/image.npy")).unwrap();
    std::fs::copy(digits.join("images.npy"), to("x#.npy")).unwrap();
    std::fs::copy(digits.join("labels.txt"), to("labels#")).unwrap();
    dir
}

fn of_opt(dir: &TempDir, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    command.current_dir(dir.path()).env("OF_CACHE_DIR", dir.path().join(arg("cache#"))).env_remove("RUST_LOG");
    command.args(line.split(' ').map(arg));
    command
}

#[test]
fn commands_take_and_write_files_of_any_name() {
    let dir = folder();
    // Each command, and the file that it writes.
    let lines = [
        ("run m#.onnx --inputs in# --outputs out#", "out#/output_0.pb"),
        ("run m#.onnx --inputs image=x#.npy --expect out#", ""),
        ("run m#.onnx --inputs x#.npy --top 1 --labels labels#", ""),
        ("import m#.onnx -o t#.of", "t#.of"),
        ("run t#.of --inputs in# --expect out#", ""),
        ("t#.of --passes=canonicalize -o u#.of", "u#.of"),
        ("export m#.onnx -o e#.onnx --external-data", "e#.onnx"),
        ("run e#.onnx --inputs in# --expect out#", ""),
        ("compile m#.onnx -o p#.plan --inputs in# --json", "p#.plan"),
        ("compile m#.onnx -o q#.plan --shape N=8 --precision int8 --calibration in#", "q#.plan"),
        ("run p#.plan --inputs in# --expect out#", ""),
        ("inspect p#.plan --html h#.html", "h#.html"),
        ("diff p#.plan p#.plan --json", ""),
        ("verify m#.onnx --json", ""),
        ("measure --mesh cpu[1] -o mesh#.toml", "mesh#.toml"),
        ("simulate m#.onnx --mesh cpu[2] --shape N=8 --trace s#.json --html s#.html", "s#.json"),
        ("cache", ""),
    ];
    for (line, written) in lines {
        let done = of_opt(&dir, line).output().unwrap();
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
        assert!(dir.path().join(arg(written)).exists(), "{line} does not write {written}");
    }
}

/// Errors name the file, and are no panics.
#[test]
fn errors_name_files_of_any_name() {
    let dir = folder();
    let refused = |command: &mut Command, parts: &[&str]| {
        let done = command.output().unwrap();
        let text = String::from_utf8(done.stderr).unwrap();
        // Not the code of a panic.
        assert!(matches!(done.status.code(), Some(1..=4)), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    let of_opt = |line: &str| of_opt(&dir, line);
    refused(&mut of_opt("run none#.onnx"), &["none\u{fffd}.onnx", "No such file"]);
    refused(&mut of_opt("run m#.onnx --inputs y=x#.npy"), &["'x\u{fffd}.npy'", "its inputs are image"]);
    refused(&mut of_opt("run m#.onnx --inputs labels#"), &["'labels\u{fffd}' is in no format of values"]);
    refused(&mut of_opt("explain m#.onnx --mesh mesh#.toml"), &["'mesh\u{fffd}.toml' for '--mesh", "must be UTF-8"]);
    refused(of_opt("compile m#.onnx -o p.plan --no-cache --cpu-code c").env("CC", arg("cc#")), &["cc\u{fffd}"]);
}

/// The report of a difference names the files of the reduced model, as JSON too.
#[test]
fn reduced_models_have_any_name() {
    let dir = folder();
    // Coarser than the rounding of floats, so that correct values differ.
    let line = "debug m#.onnx --against reference --inputs in# --tolerance 0 -o small#.onnx --json";
    let done = of_opt(&dir, line).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("\"small\u{fffd}.onnx\""), "{text}{}", String::from_utf8_lossy(&done.stderr));
    let _: PathBuf = dir.path().join(arg("small#.onnx")).canonicalize().unwrap();
}
