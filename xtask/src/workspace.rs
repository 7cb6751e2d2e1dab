//! Where the workspace is, what files it has, and running programs in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace: that of the xtask that cargo runs, else that of the one that was compiled.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

/// Folders that hold nothing of the project's own.
const SKIPPED: &[&str] = &["target", ".git", ".venv", "node_modules"];

/// Every file below `root`, sorted, as paths relative to it.
///
/// # Errors
/// When a folder cannot be read.
pub fn files(root: &Path) -> Result<Vec<PathBuf>, String> {
    fn walk(root: &Path, dir: &Path, out: &mut Vec<PathBuf>) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
        for entry in fs::read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            if entry.file_type().map_err(failed)?.is_dir() {
                if !SKIPPED.contains(&&*entry.file_name().to_string_lossy()) {
                    walk(root, &path, out)?;
                }
            } else if let Ok(relative) = path.strip_prefix(root) {
                out.push(relative.to_path_buf());
            }
        }
        Ok(())
    }
    let mut out = Vec::new();
    walk(root, root, &mut out)?;
    out.sort();
    Ok(out)
}

/// The program that builds: the cargo that runs this one.
pub fn cargo() -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_package(c.current_dir(root()));
    c
}

/// Removes what cargo sets for the package of this program: a build script that reads such variables would run again, and all that
/// depends on it be built again, for each package that starts a build.
pub fn without_package(command: &mut Command) {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
        command.env_remove(name);
    }
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where cargo puts of-opt in the profile `debug` or `release`.
pub fn of_opt(profile: &str) -> PathBuf {
    target().join(profile).join(format!("of-opt{}", std::env::consts::EXE_SUFFIX))
}

/// Shows a command, runs it, and demands that it succeeds.
///
/// # Errors
/// When it cannot be run or fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    let words: Vec<String> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = format!("{program} {}", words.join(" "));
    eprintln!("> {text}");
    let status = command.status().map_err(|e| format!("'{text}' cannot be run: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("'{text}' failed")) }
}

/// Reads a text file of the workspace.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a text file of the workspace.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
