//! Upstream MLIR reads the generic form, and what it prints reads back as the same module.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use of_test_support::component::{MLIR_OPT, require};

use super::{module, random, show};
use crate::text::{PrintOptions, print_module};

/// `mlir-opt`, from `MLIR_OPT` or the usual places.
fn mlir_opt() -> Option<PathBuf> {
    if let Some(p) = std::env::var_os("MLIR_OPT") {
        return Some(p.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).flat_map(|d| {
        let versions = (15..30).rev().map(|v| format!("mlir-opt-{v}"));
        std::iter::once("mlir-opt".to_owned()).chain(versions).map(move |n| d.join(n))
    });
    let installed = (15..30).rev().map(|v| PathBuf::from(format!("/usr/lib/llvm-{v}/bin/mlir-opt")));
    in_path.chain(installed).find(|p| p.is_file())
}

fn run(program: &PathBuf, text: &str) -> String {
    let mut child = Command::new(program)
        .args(["--allow-unregistered-dialect", "--mlir-print-op-generic", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mlir-opt starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = text.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let out = child.wait_with_output().expect("mlir-opt ends");
    let _ = writer.join();
    assert!(out.status.success(), "{}\n--- for\n{text}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("mlir-opt prints UTF-8")
}

#[test]
fn mlir_opt_reads_the_generic_form() {
    let Some(program) = require(&MLIR_OPT, mlir_opt().ok_or("it is not in PATH")) else { return };
    for seed in 0..40 {
        let m = random::module(seed);
        let options = PrintOptions { generic: true, locations: true, ..PrintOptions::default() };
        run(&program, &print_module(&m, &options));
        // Upstream renames values; after one pass through our own parser the names are numbers on both sides.
        let text = show(&m, true);
        let back = module(&run(&program, &text));
        assert_eq!(without_names(&show(&back, true)), without_names(&text), "seed {seed}");
    }
}

/// The text with every value called `%_`.
fn without_names(text: &str) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for p in parts {
        out.push_str("%_");
        out.push_str(p.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.' | '-')));
    }
    out
}
