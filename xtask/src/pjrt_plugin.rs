//! `cargo xtask pjrt-plugin`: XLA's plugin for CPUs, from PyPI.

use std::fs;
use std::path::PathBuf;

use crate::wheel;

/// The wheel, of which nothing but the library is used, and its hash.
const PACKAGE: &str = "lammps-jax-pjrt-cpu==0.11.2";
const SHA256: &str = "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1";
/// The library in the wheel, and its name where it is installed.
const LIBRARY: &str = "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so";

/// Downloads the wheel with pip, which checks the hash, and installs the library for this user.
///
/// # Errors
/// When there is no Python with pip, the download fails, or nothing can be written.
pub fn install() -> Result<(), String> {
    let library = library()?;
    let aside = library.with_file_name("download");
    wheel::fetch(PACKAGE, SHA256, &aside)?;
    let from = aside.join(LIBRARY);
    fs::rename(&from, &library).map_err(|e| format!("{}: {e}", from.display()))?;
    fs::remove_dir_all(&aside).map_err(|e| format!("{}: {e}", aside.display()))?;
    eprintln!("{}: of-opt finds it there", library.display());
    Ok(())
}

/// Whether a plugin is where of-opt finds it: the installed one, or the one that `OF_PJRT_PLUGIN` names.
pub fn installed() -> bool {
    let named = std::env::var_os("OF_PJRT_PLUGIN").map(PathBuf::from);
    named.or_else(|| library().ok()).is_some_and(|l| l.is_file())
}

/// Where backends/xla/src/plugin.rs looks for it.
fn library() -> Result<PathBuf, String> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let data = var("XDG_DATA_HOME").or_else(|| var("HOME").map(|d| d.join(".local").join("share")));
    let data = data.ok_or("neither XDG_DATA_HOME nor HOME is set")?;
    Ok(data.join("of-opt").join("pjrt").join("pjrt_c_api_cpu_plugin.so"))
}
