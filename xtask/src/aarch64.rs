//! `cargo xtask aarch64`: a compiler, a disassembler and an emulator for AArch64, from the system's packages.

use std::process::Command;

use crate::system_packages;

const PACKAGES: [&str; 3] = ["gcc-aarch64-linux-gnu", "binutils-aarch64-linux-gnu", "qemu-user"];
const PROGRAMS: [&str; 3] = ["aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump", "qemu-aarch64"];

/// Installs the packages.
///
/// # Errors
/// When there is no apt-get, the user may not use it, or it fails.
pub fn install() -> Result<(), String> {
    system_packages::install(&PACKAGES)
}

/// Whether all programs are there.
pub fn installed() -> bool {
    let runs = |program: &&str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    PROGRAMS.iter().all(runs)
}
