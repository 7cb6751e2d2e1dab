//! What builds and runs programs of WebAssembly: clang, LLVM's linker, Node.js and Rust's target; and a browser.

use of_test_support::browser;

use crate::system::{apt, has_rust_target, run_all, rust_target};

/// Rust's name of the target.
pub const TARGET: &str = "wasm32-unknown-unknown";
/// The linker of the target, which Rust has.
pub const LINKER: &str = "rust-lld";
const PACKAGES: [&str; 3] = ["clang", "lld", "nodejs"];
const PROGRAMS: [&str; 3] = ["clang", "wasm-ld", "node"];

/// Installs clang, LLVM's linker and Node.js from the system's packages, and Rust's standard library.
///
/// # Errors
/// When apt-get or rustup fails.
pub fn install() -> Result<(), String> {
    let missing: Vec<&str> = PROGRAMS.iter().zip(PACKAGES).filter(|(p, _)| !run_all(&[p])).map(|(_, p)| p).collect();
    if !missing.is_empty() {
        apt(&missing)?;
    }
    rust_target(TARGET)
}

/// Whether all is there.
pub fn installed() -> bool {
    run_all(&PROGRAMS) && has_rust_target(TARGET)
}

/// Installs a browser.
///
/// # Errors
/// When apt-get fails.
pub fn install_browser() -> Result<(), String> {
    apt(&["chromium"])
}

/// Whether there is a browser.
pub fn has_browser() -> bool {
    browser::installed().is_ok()
}
