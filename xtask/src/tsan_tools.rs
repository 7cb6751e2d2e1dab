//! What ThreadSanitizer needs of Rust's compiler: the library of the sanitizer, and the source of the standard library.

use std::path::PathBuf;
use std::process::Command;

use crate::system::{rust_target_folder, rustup};
use crate::workspace::root;

/// Installs the source of the standard library, by rustup.
///
/// # Errors
/// When rustup fails, or the compiler has no ThreadSanitizer.
pub fn install() -> Result<(), String> {
    rustup(&["component", "add", "rust-src"])?;
    parts()
}

/// Looks for the parts of the compiler.
///
/// # Errors
/// What is missing.
pub fn parts() -> Result<(), String> {
    let host = host()?;
    let libraries = rust_target_folder(&host).ok_or("rustc does not say where its libraries are")?;
    // Its name has the channel of the compiler, too.
    let is_runtime = |name: &str| name.starts_with("librustc") && name.contains("rt.tsan.");
    let files = std::fs::read_dir(&libraries).map_err(|e| format!("{}: {e}", libraries.display()))?;
    if !files.flatten().any(|file| is_runtime(&file.file_name().to_string_lossy())) {
        return Err(format!("this compiler has no library of ThreadSanitizer for {host} in {}", libraries.display()));
    }
    let source = PathBuf::from(rustc(&["--print", "sysroot"])?).join("lib/rustlib/src/rust/library/std/Cargo.toml");
    match source.is_file() {
        true => Ok(()),
        false => Err("the source of the standard library is not installed ('cargo xtask tsan --install')".into()),
    }
}

/// Rust's name of this machine.
///
/// # Errors
/// When there is no rustc.
pub fn host() -> Result<String, String> {
    rustc(&["--print", "host-tuple"])
}

/// What the compiler says.
fn rustc(args: &[&str]) -> Result<String, String> {
    let out = Command::new("rustc").current_dir(root()).args(args).output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    if out.status.success() { Ok(text) } else { Err(format!("'rustc {}' fails", args.join(" "))) }
}
