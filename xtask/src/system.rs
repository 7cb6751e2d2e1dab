//! Packages of the system, by apt-get, and targets and components of Rust's compiler, by rustup.

use std::path::PathBuf;
use std::process::Command;

/// Installs packages of the system.
///
/// # Errors
/// When there is no apt-get, the user may not use it, or it fails.
pub fn apt(packages: &[&str]) -> Result<(), String> {
    let install = [&["install", "--yes"], packages].concat();
    // A new machine has no list of packages yet.
    if apt_get(&install) || (apt_get(&["update"]) && apt_get(&install)) {
        return Ok(());
    }
    Err(format!("'apt-get install {}' fails", packages.join(" ")))
}

/// Whether apt-get does this. Who is not root needs sudo.
fn apt_get(args: &[&str]) -> bool {
    let sudo = [&["--non-interactive", "apt-get"], args].concat();
    [("apt-get", args), ("sudo", &sudo)]
        .iter()
        .any(|(program, args)| done(Command::new(program).args(*args)) == Ok(true))
}

/// Installs Rust's standard library for a target, for the compiler of this project.
///
/// # Errors
/// When there is no rustup, or it fails.
pub fn rust_target(triple: &str) -> Result<(), String> {
    if has_rust_target(triple) {
        return Ok(());
    }
    rustup(&["target", "add", triple])?;
    if has_rust_target(triple) { Ok(()) } else { Err(format!("'rustup target add {triple}' installs nothing")) }
}

/// Runs rustup for the compiler of this project, if nothing else is named.
///
/// # Errors
/// When there is no rustup, or it fails.
pub fn rustup(args: &[&str]) -> Result<(), String> {
    let mut rustup = Command::new("rustup");
    // In the root, where rust-toolchain.toml is.
    rustup.current_dir(crate::workspace::root()).args(args);
    if done(&mut rustup)? { Ok(()) } else { Err(format!("'rustup {}' fails", args.join(" "))) }
}

/// Whether Rust's standard library for a target is there.
pub fn has_rust_target(triple: &str) -> bool {
    rust_target_folder(triple).is_some()
}

/// Where Rust's standard library for a target is, if it is there.
pub fn rust_target_folder(triple: &str) -> Option<PathBuf> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(crate::workspace::root()).args(["--print", "target-libdir", "--target", triple]);
    let out = rustc.output().ok().filter(|out| out.status.success())?;
    let folder = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
    folder.exists().then_some(folder)
}

/// Whether each of the programs runs.
pub fn run_all(programs: &[&str]) -> bool {
    let runs = |program: &&str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    programs.iter().all(runs)
}

fn done(command: &mut Command) -> Result<bool, String> {
    // Nothing but the value of OF_REQUIRE goes to the output of `cargo xtask components`.
    command.stdout(std::io::stderr());
    let name = command.get_program().to_string_lossy().into_owned();
    command.status().map(|status| status.success()).map_err(|e| format!("{name}: {e}"))
}
