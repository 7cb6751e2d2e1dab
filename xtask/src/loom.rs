//! `cargo xtask loom`: the interleavings of threads at the runtime's own locks and lock-free places, and at the ring of the transport
//! through shared memory, explored by loom.

use crate::workspace::{cargo, run, target};

/// How often a thread may be interrupted in one interleaving, unless the command says it.
const PREEMPTIONS: &str = "4";

/// Explores them.
///
/// # Errors
/// When an interleaving breaks what a test asserts, or has accesses to memory that nothing orders.
pub fn loom(args: &[&str]) -> Result<(), String> {
    let preemptions = match args {
        [] => PREEMPTIONS,
        ["--preemptions", n] if n.parse::<usize>().is_ok() => n,
        other => return Err(format!("unknown options {}; --preemptions N is known", other.join(" "))),
    };
    let mut command = cargo();
    command.args(["test", "--release", "--package", "of-runtime", "--package", "of-transport", "--lib", "loom_tests"]);
    // Another configuration of the same crates, so another folder.
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom"));
    run(command.env("LOOM_MAX_PREEMPTIONS", preemptions))
}
