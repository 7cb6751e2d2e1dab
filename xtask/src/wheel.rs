//! Wheels from PyPI, pinned by hash: the source of third-party libraries.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Downloads a wheel (`name==version`) with pip, which checks the hash, and unpacks it into the folder `to`.
///
/// # Errors
/// When there is no Python with pip, the registry cannot be reached, or the hash is another.
pub fn fetch(package: &str, sha256: &str, to: &Path) -> Result<(), String> {
    let failed = |what: &Path, e: std::io::Error| format!("{}: {e}", what.display());
    fs::create_dir_all(to).map_err(|e| failed(to, e))?;
    let list = to.join("requirements.txt");
    fs::write(&list, format!("{package} --hash=sha256:{sha256}\n")).map_err(|e| failed(&list, e))?;
    let args = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"];
    python(Command::new("python3").args(args).arg("-d").arg(to).arg("-r").arg(&list))?;
    for file in fs::read_dir(to).map_err(|e| failed(to, e))?.filter_map(Result::ok) {
        if file.path().extension().is_some_and(|e| e == "whl") {
            python(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(file.path()).arg(to))?;
        }
    }
    Ok(())
}

fn python(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("python3 cannot be run: {e}"))?;
    if status.success() { Ok(()) } else { Err("python3 failed; its words are above".into()) }
}
