//! What `cargo xtask new` writes compiles: tried on a copy of the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies what is needed to build the crates of ops and passes.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let (source, target) = (entry.path(), to.join(&name));
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && name != ".git" {
                fs::create_dir_all(&target).unwrap();
                copy(&source, &target);
            }
        } else {
            fs::copy(&source, &target).unwrap();
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Runs a program in the copy, as `cargo xtask` there would.
fn run(copy: &Path, program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args).current_dir(copy).env("CARGO_MANIFEST_DIR", copy.join("xtask"));
    // Crates of the registry are checked in the folder that has their macros and build scripts compiled.
    let out = command.env("CARGO_TARGET_DIR", target()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{program} {}:\n{text}", args.join(" "));
}

/// The target folder of this test: two levels above the program of xtask.
fn target() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_xtask")).ancestors().nth(2).unwrap().to_path_buf()
}

#[test]
fn new_ops_and_passes_compile_and_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    copy(&root(), dir.path());
    let xtask = |args: &[&str]| run(dir.path(), env!("CARGO_BIN_EXE_xtask"), args);
    xtask(&["new", "op", "brand_new", "--kind", "primitive", "--family", "nn"]);
    xtask(&["new", "op", "of.quite_new", "--kind=composite", "--family=reduction"]);
    xtask(&["new", "pass", "improve-everything"]);
    let check = ["check", "--quiet", "--release", "--offline", "--package", "of-ops", "--package", "of-passes"];
    run(dir.path(), env!("CARGO"), &check);
    let ops = fs::read_to_string(dir.path().join("ops/src/list.rs")).unwrap();
    assert!(ops.contains("    crate::nn::BrandNew,\n") && ops.contains("    crate::reduction::QuiteNew,\n"));
    let passes = fs::read_to_string(dir.path().join("passes/src/list.rs")).unwrap();
    assert!(passes.contains("ImproveEverything"), "{passes}");
}
