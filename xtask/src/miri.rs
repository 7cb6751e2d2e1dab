//! `cargo xtask miri`: the state machines of the runtime in Miri, which finds undefined behaviour: accesses outside of memory or to memory
//! that is gone, values that their types do not have, references that must not exist at once.
//!
//! Miri interprets Rust, some thousand times slower than the processor, and has neither shared mappings nor machine code. So it runs the
//! tests of state machines, which have no memory of plans; the rest is for loom and ThreadSanitizer.

use std::process::Command;

use crate::system::rustup;
use crate::workspace::{root, run, target, without_package};

/// The compiler that Miri is a component of.
const TOOLCHAIN: &str = "nightly";

/// The modules of the runtime whose unit tests are run.
const MODULES: [&str; 8] = [
    "actor::",
    "boxing::",
    "combine::",
    "frozen_parts::",
    "rank_exchange::",
    "simulator::",
    "state_copies::",
    "value::",
];

/// The tests of the simulator that take seconds: programs with thousands of acts take hours.
const SIMULATOR: [&str; 2] = ["actors_refuse", "bad_options"];

/// Runs them.
///
/// # Errors
/// When a test fails, or Miri finds undefined behaviour, or is not installed.
pub fn miri(args: &[&str]) -> Result<(), String> {
    match args {
        [] => {}
        ["--install"] => {
            let parts = ["--profile", "minimal", "--component", "miri", "--component", "rust-src"];
            return rustup(&[&["toolchain", "install", TOOLCHAIN], &parts[..]].concat());
        }
        other => return Err(format!("'cargo xtask miri' does not know {}", other.join(" "))),
    }
    let installed = cargo().args(["miri", "--version"]).output();
    if !installed.is_ok_and(|out| out.status.success()) {
        return Err(format!("Miri is not installed for Rust's {TOOLCHAIN} ('cargo xtask miri --install')"));
    }
    for (tests, names) in [(&["--lib"][..], &MODULES[..]), (&["--test", "simulator"], &SIMULATOR)] {
        let mut command = cargo();
        command.args(["miri", "test", "--package", "of-runtime"]).args(tests).arg("--").args(names);
        // Tests read the clock and the environment. The compiler is another, so another folder.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        run(command.env("CARGO_TARGET_DIR", target().join("miri")))?;
    }
    Ok(())
}

/// Cargo of the compiler that has Miri.
fn cargo() -> Command {
    let mut command = Command::new("rustup");
    without_package(command.current_dir(root()).args(["run", TOOLCHAIN, "cargo"]));
    command
}
