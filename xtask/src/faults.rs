//! `cargo xtask faults`: ranks that are killed, stopped and cut off, many times; `cargo xtask restarts`: trainings of which ranks or all are
//! killed, and which go on; `cargo xtask soak`: ranks at full load for long;
//! `cargo xtask soak-server` and `cargo xtask fuzz-server`: the model server with clients of all kinds.

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

/// Kills a rank at a random step, which is started again, and whole trainings, which go on from a snapshot; prints how long that took.
///
/// # Errors
/// When a result differs from that of a training without a loss.
pub fn restarts(args: &[&str]) -> Result<(), String> {
    let rounds = match args {
        [] => "20",
        ["--rounds", rounds] => rounds,
        _ => return Err("cargo xtask restarts [--rounds N]".into()),
    };
    for (test, filter) in [("train_restarts", ""), ("train_ranks", "killed_trainings_go_on")] {
        let mut command = cargo();
        command.args(["test", "--release", "--package", "of-opt", "--test", test, filter]);
        command.args(["--", "--nocapture", "--test-threads", "1"]);
        run(command.env("OF_RESTARTS", rounds))?;
    }
    Ok(())
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

/// Runs the model server at full load: with clients that misbehave, models that are replaced, and signals to end.
///
/// # Errors
/// When a request is lost, memory grows, or a connection stays open.
pub fn soak_server(args: &[&str]) -> Result<(), String> {
    let mut build = cargo();
    run(build.args(["build", "--release", "--package", "of-opt"]))?;
    run(Command::new("python3").arg(root().join("tests/soak/server.py")).args(args))
}

/// Sends damaged frames of both protocols to the model server.
///
/// # Errors
/// When it panics, answers wrongly, leaves a connection open, or its memory grows.
pub fn fuzz_server(args: &[&str]) -> Result<(), String> {
    let frames = match args {
        [] => "10000000",
        ["--frames", frames] => frames,
        _ => return Err("cargo xtask fuzz-server [--frames N]".into()),
    };
    let mut command = cargo();
    command.args(["test", "--release", "--package", "of-serving", "--test", "server", "fuzz::"]);
    command.args(["--", "--nocapture", "--test-threads", "1"]);
    run(command.env("OF_FUZZ_FRAMES", frames))
}
