//! `cargo xtask musl`: the C library musl, from the system's packages, and Rust's standard library for it.

use std::path::PathBuf;

use crate::system::{apt, has_rust_target, run_all, rust_target, rust_target_folder};

/// Rust's name of the target.
pub const TARGET: &str = "x86_64-unknown-linux-musl";
/// The compiler and linker of C, with musl.
pub const LINKER: &str = "musl-gcc";

/// Installs both.
///
/// # Errors
/// When apt-get or rustup fails.
pub fn install() -> Result<(), String> {
    if !run_all(&[LINKER]) {
        apt(&["musl-tools"])?;
    }
    rust_target(TARGET)
}

/// Whether both are there.
pub fn installed() -> bool {
    run_all(&[LINKER]) && has_rust_target(TARGET)
}

/// The unwinder that Rust has for it: that of GCC is made for glibc.
///
/// # Errors
/// When rustc does not say where its libraries are.
pub fn unwinder() -> Result<PathBuf, String> {
    Ok(rust_target_folder(TARGET).ok_or("rustc has no libraries for musl")?.join("self-contained/libunwind.a"))
}
