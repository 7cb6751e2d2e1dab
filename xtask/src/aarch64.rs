//! `cargo xtask aarch64`: a compiler, a disassembler and an emulator for AArch64, from the system's packages.

use std::process::Command;

const PACKAGES: [&str; 3] = ["gcc-aarch64-linux-gnu", "binutils-aarch64-linux-gnu", "qemu-user"];
const PROGRAMS: [&str; 3] = ["aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump", "qemu-aarch64"];

/// Installs the packages.
///
/// # Errors
/// When there is no apt-get, the user may not use it, or it fails.
pub fn install() -> Result<(), String> {
    let done = |command: &mut Command| command.status().map_err(|e| e.to_string()).map(|status| status.success());
    let words = |program| {
        let mut command = Command::new(program);
        // Nothing but the value of OF_REQUIRE goes to the output of `cargo xtask components`.
        command.stdout(std::io::stderr());
        command
    };
    let packages = ["install", "--yes"].into_iter().chain(PACKAGES);
    // Who is not root needs sudo.
    let (first, second) = (packages.clone(), ["--non-interactive", "apt-get"].into_iter().chain(packages));
    if done(words("apt-get").args(first))? || done(words("sudo").args(second))? {
        return Ok(());
    }
    Err(format!("'apt-get install {}' fails", PACKAGES.join(" ")))
}

/// Whether all programs are there.
pub fn installed() -> bool {
    let runs = |program: &&str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    PROGRAMS.iter().all(runs)
}
