//! `cargo xtask faults`: ranks that are killed, stopped and cut off, many times; and `cargo xtask soak`: ranks at full load for long.

use std::process::Command;

use crate::workspace::{cargo, root, run};

/// Repeats each fault, and prints how long ranks took to end.
///
/// # Errors
/// When a rank hangs, ends late, or with an error that does not say why.
pub fn faults(args: &[&str]) -> Result<(), String> {
    let rounds = match args {
        [] => "50",
        ["--rounds", rounds] => rounds,
        _ => return Err("cargo xtask faults [--rounds N]".into()),
    };
    let mut command = cargo();
    command.args([
        "test",
        "--release",
        "--package",
        "of-opt",
        "--test",
        "faults",
        "--",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    run(command.env("OF_FAULTS", rounds))
}

/// Runs ranks at full load, and checks that their memory stays the same.
///
/// # Errors
/// When memory does not, or a rank fails.
pub fn soak(args: &[&str]) -> Result<(), String> {
    let mut build = cargo();
    run(build.args(["build", "--release", "--package", "of-opt"]))?;
    run(Command::new("python3").arg(root().join("tests/soak/soak.py")).args(args))
}
