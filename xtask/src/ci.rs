//! `cargo xtask ci`: everything that must hold.

use crate::tidy::tidy;
use crate::workspace::{cargo, run};

/// The tests, as README has them.
pub const TEST: &[&str] = &["test", "--workspace", "--release"];

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
    step("lints", run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])));
    if with_tests {
        step("tests", run(cargo().args(TEST)));
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
