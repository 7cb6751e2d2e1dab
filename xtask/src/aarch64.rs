//! `cargo xtask aarch64`: a compiler, a disassembler and an emulator for AArch64, from the system's packages, and Rust's standard
//! library for it.

use crate::system::{apt, has_rust_target, run_all, rust_target};

const PACKAGES: [&str; 3] = ["gcc-aarch64-linux-gnu", "binutils-aarch64-linux-gnu", "qemu-user"];
const PROGRAMS: [&str; 3] = [LINKER, "aarch64-linux-gnu-objdump", EMULATOR];

/// Rust's name of the target.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The compiler and linker of C, with glibc.
pub const LINKER: &str = "aarch64-linux-gnu-gcc";
/// What runs its programs.
pub const EMULATOR: &str = "qemu-aarch64";

/// Installs the packages, and Rust's standard library.
///
/// # Errors
/// When apt-get or rustup fails.
pub fn install() -> Result<(), String> {
    if !run_all(&PROGRAMS) {
        apt(&PACKAGES)?;
    }
    rust_target(TARGET)
}

/// Whether all is there.
pub fn installed() -> bool {
    run_all(&PROGRAMS) && has_rust_target(TARGET)
}
