//! `cargo xtask tsan`: the threads of the runtime and of the transports under ThreadSanitizer, which reports accesses to memory that
//! nothing orders.
//!
//! The standard library is built for it, too: in the one that comes with the compiler, locks and channels order nothing that the
//! sanitizer sees, so it would report what they protect. Building it needs its source, and options of the compiler that are not stable.

use crate::tsan_tools::{host, install, parts};
use crate::workspace::{cargo, run, target};

const PACKAGES: [&str; 2] = ["of-runtime", "of-transport"];

/// Their tests that start threads, next to those of the libraries. Both packages have `ranks`.
const TESTS: [&str; 10] = [
    "asynchronous",
    "attempts",
    "fused_transfers",
    "overlap",
    "ranks",
    "session",
    "session_pool",
    "task_kinds",
    "tls",
    "workers",
];

/// Parts of the names of tests that have one thread, and take long.
const SKIPPED: [&str; 4] = ["simulation::", "damaged_files", "random_bytes", "torn_records"];

/// Runs them.
///
/// # Errors
/// When a test fails, or has accesses that nothing orders, or a part of the compiler is missing.
pub fn tsan(args: &[&str]) -> Result<(), String> {
    match args {
        [] => {}
        ["--install"] => return install(),
        other => return Err(format!("'cargo xtask tsan' does not know {}", other.join(" "))),
    }
    parts()?;
    let mut command = cargo();
    // With an explicit target, what runs in the compiler is built without the sanitizer.
    command.args(["test", "--release", "-Zbuild-std", "--target", &host()?, "--no-fail-fast", "--lib"]);
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    command.args(TESTS.iter().flat_map(|test| ["--test", test]));
    command.arg("--").args(SKIPPED.iter().flat_map(|name| ["--skip", name]));
    // Other flags for the same crates, so another folder. Reports name lines.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=thread");
    command.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    run(command.env("CARGO_TARGET_DIR", target().join("tsan")))
}
