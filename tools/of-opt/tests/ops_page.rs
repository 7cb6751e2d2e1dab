//! `docs/ops.md` says what is supported now, `docs/exactness.md` which rewrites are not exact. `cargo xtask bless` writes them
//! anew.

use std::path::Path;
use std::process::Command;

#[test]
fn ops_page_is_current() {
    let out = Command::new(env!("CARGO_BIN_EXE_of-opt")).args(["ops", "--markdown"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let now = String::from_utf8(out.stdout).unwrap();
    is_current("ops.md", &now);
}

#[test]
fn exactness_page_is_current() {
    is_current("exactness.md", &of_passes::exactness::page());
}

fn is_current(name: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    // As for snapshots, so that one command updates all.
    if std::env::var_os("INSTA_UPDATE").is_some_and(|v| v == "always") {
        std::fs::write(&path, now).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = now.lines().zip(kept.lines().chain(std::iter::repeat(""))).find(|(a, b)| a != b);
    assert!(
        now == kept,
        "docs/{name} is not current, run 'cargo xtask bless'; the first line that differs: {differs:?}"
    );
}
