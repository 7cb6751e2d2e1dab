//! `cargo xtask cuda-toolkit`: the compiler of kernels for GPUs, from PyPI, without a GPU or CUDA's own installer.

use std::fs;
use std::path::{Path, PathBuf};

use crate::wheel;

/// The wheel that carries NVRTC, and its hash. The generated kernels include no header, so that nothing else is needed.
const PACKAGE: &str = "nvidia-cuda-nvrtc==13.2.86";
const SHA256: &str = "8111c5130e967b78222ea2124145f8efe9ce201b752b2579a2513100a53be1c5";

/// Downloads the wheel into a temporary folder, checks its hash and lays its libraries where code generation looks for
/// them: `$OF_CUDA_TOOLKIT/lib`, else `~/.cache/of-opt/cuda-toolkit/lib`.
///
/// # Errors
/// When there is no Python with pip, the registry cannot be reached, or the hash is another.
pub fn toolkit() -> Result<(), String> {
    let lib = folder()?.join("lib");
    let failed = |what: &Path, e: std::io::Error| format!("{}: {e}", what.display());
    fs::create_dir_all(&lib).map_err(|e| failed(&lib, e))?;
    let work = lib.with_file_name("download");
    wheel::fetch(PACKAGE, SHA256, &work)?;
    let from = work.join("nvidia/cu13/lib");
    for file in fs::read_dir(&from).map_err(|e| failed(&from, e))?.filter_map(Result::ok) {
        fs::copy(file.path(), lib.join(file.file_name())).map_err(|e| failed(&file.path(), e))?;
    }
    fs::remove_dir_all(&work).map_err(|e| failed(&work, e))?;
    eprintln!("NVRTC is in {}", lib.display());
    Ok(())
}

/// Whether NVRTC is in that folder.
pub fn installed() -> bool {
    let lib = folder().and_then(|f| fs::read_dir(f.join("lib")).map_err(|e| e.to_string()));
    let is_nvrtc = |f: fs::DirEntry| f.file_name().to_string_lossy().starts_with("libnvrtc.so");
    lib.is_ok_and(|files| files.filter_map(Result::ok).any(is_nvrtc))
}

/// As `of_cuda_sys::toolkit` says.
fn folder() -> Result<PathBuf, String> {
    let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|d| d.join(".cache")));
    let own = var("OF_CUDA_TOOLKIT").or_else(|| cache().map(|d| d.join("of-opt/cuda-toolkit")));
    own.ok_or_else(|| "set OF_CUDA_TOOLKIT to a folder".into())
}
