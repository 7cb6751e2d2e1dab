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

/// Runs cargo in the copy. What is built runs for a moment only: neither optimised nor with debug information, it takes
/// a fraction of the time and of the disk.
fn cargo(copy: &Path, target: &Path, args: &[&str]) -> String {
    let out = Command::new(env!("CARGO"))
        .args(["--config=profile.dev.opt-level=0", "--config=profile.dev.debug=false"])
        .args(["--config=profile.dev.package.'*'.opt-level=0", "--config=profile.dev.incremental=false"])
        .args(args)
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "cargo {}:\n{text}", args.join(" "));
    text
}

#[test]
fn new_ops_and_passes_compile_and_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    copy(&root(), dir.path());
    let target = dir.path().join("target");
    let xtask = |args: &[&str]| {
        cargo(dir.path(), &target, &[&["run", "--quiet", "--offline", "--package", "xtask", "--"], args].concat())
    };
    xtask(&["new", "op", "brand_new", "--kind", "primitive", "--family", "nn"]);
    xtask(&["new", "op", "of.quite_new", "--kind=composite", "--family=reduction"]);
    xtask(&["new", "pass", "improve-everything"]);
    cargo(dir.path(), &target, &["check", "--quiet", "--offline", "--package", "of-ops", "--package", "of-passes"]);
    let list = fs::read_to_string(dir.path().join("ops/src/list.rs")).unwrap();
    assert!(list.contains("    crate::nn::BrandNew,\n") && list.contains("    crate::reduction::QuiteNew,\n"));
    cargo(dir.path(), &target, &["test", "--quiet", "--offline", "--package", "of-passes", "--lib", "list::"]);
}
