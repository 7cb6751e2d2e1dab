//! `cargo xtask ci`: everything that must hold.

use std::path::PathBuf;
use std::process::Command;

use crate::components::is_required;
use crate::tidy::tidy;
use crate::workspace::{cargo, root, run};
use crate::{book, cargo_deny};

/// The tests, as README has them.
pub const TEST: &[&str] = &["test", "--workspace", "--release"];

/// Where LLVM and MLIR 22 are: `MLIR_SYS_220_PREFIX`, or where Debian's packages put them.
fn llvm() -> Option<PathBuf> {
    let named = std::env::var_os("MLIR_SYS_220_PREFIX").filter(|v| !v.is_empty()).map(PathBuf::from);
    let prefix = named.unwrap_or_else(|| "/usr/lib/llvm-22".into());
    // What the backend links, and what its bindings are made of.
    let has = |file: &str| prefix.join(file).is_file();
    (has("bin/llvm-config") && has("lib/libMLIRCAPIIR.a") && has("include/mlir-c/IR.h")).then_some(prefix)
}

/// Builds and tests the backend that needs LLVM; says so where that is not installed.
fn mlir(with_tests: bool) -> Result<(), String> {
    let Some(prefix) = llvm() else {
        if is_required("mlir") {
            return Err("OF_REQUIRE names mlir, and LLVM and MLIR 22 are not installed (docs/backends.md)".into());
        }
        eprintln!(
            "SKIPPED: the feature mlir is neither built nor tested, as LLVM and MLIR 22 are not installed (docs/backends.md); \
             MLIR_SYS_220_PREFIX says where they are"
        );
        return Ok(());
    };
    let with_feature = |args: &[&str]| {
        let mut cargo = cargo();
        cargo.env("MLIR_SYS_220_PREFIX", &prefix).env("TABLEGEN_220_PREFIX", &prefix);
        cargo.args(args).args(["-p", "of-mlir", "--features", "mlir"]);
        cargo
    };
    run(with_feature(&["clippy", "--all-targets"]).args(["--", "-D", "warnings"]))?;
    if with_tests { run(&mut with_feature(&["test", "--release"])) } else { Ok(()) }
}

/// Checks licences and sources of dependencies by cargo-deny. Without it that is skipped, unless OF_REQUIRE names it.
fn deny() -> Result<(), String> {
    if let Some(program) = cargo_deny::program() {
        let args = ["check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
        return run(Command::new(program).current_dir(root()).args(args));
    }
    let missing = "cargo-deny is not installed ('cargo xtask cargo-deny')";
    if is_required("cargo-deny") {
        return Err(format!("OF_REQUIRE names cargo-deny, and {missing}"));
    }
    eprintln!("SKIPPED: the rules of deny.toml are not checked, as {missing}");
    Ok(())
}

/// Builds the book, if there is an mdbook. Without it that is skipped, unless OF_REQUIRE names it.
fn book() -> Result<(), String> {
    if book::installed() || is_required("mdbook") {
        return book::build();
    }
    eprintln!("SKIPPED: the book is not built, as mdbook is not installed ('cargo xtask mdbook')");
    Ok(())
}

/// Runs everything and says what failed; later steps run although earlier ones failed.
///
/// # Errors
/// Which steps failed.
pub fn ci(args: &[&str]) -> Result<(), String> {
    let with_tests = match args {
        [] => true,
        ["--without-tests"] => false,
        other => return Err(format!("'cargo xtask ci' does not know {}", other.join(" "))),
    };
    let mut failed = Vec::new();
    let mut step = |name: &'static str, result: Result<(), String>| {
        if let Err(why) = result {
            eprintln!("error: {why}");
            failed.push(name);
        }
    };
    step("format", run(cargo().args(["fmt", "--all", "--check"])));
    step("tidy", tidy());
    step("dependencies", deny());
    step("book", book());
    step("lints", run(cargo().args(["clippy", "--workspace", "--all-targets", "--release", "--", "-D", "warnings"])));
    if with_tests {
        step("tests", run(cargo().args(TEST)));
    }
    step("mlir", mlir(with_tests));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
