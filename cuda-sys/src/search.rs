//! Where the libraries of CUDA's toolkit are searched.

use std::path::PathBuf;

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The library file that an environment variable names, if it is set and not empty.
pub fn from_variable(name: &str) -> Option<PathBuf> {
    variable(name)
}

/// The folder that `cargo xtask cuda-toolkit` installs to: `$OF_CUDA_TOOLKIT`, else a folder of the user's cache.
pub fn toolkit() -> Option<PathBuf> {
    let cache = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    variable("OF_CUDA_TOOLKIT").or_else(|| cache().map(|cache| cache.join("of-opt/cuda-toolkit")))
}

/// The files to try for a library with one of these names, in order: those that exist in the installed toolkit, in
/// `$CUDA_PATH` and in `/usr/local/cuda`, then the bare names, which the system's linker looks up.
pub fn candidates(names: &[&str]) -> Vec<PathBuf> {
    let folders = [
        toolkit().map(|folder| folder.join("lib")),
        variable("CUDA_PATH").map(|folder| folder.join("lib64")),
        Some(PathBuf::from("/usr/local/cuda/lib64")),
    ];
    let files = folders.into_iter().flatten().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    files.filter(|file| file.exists()).chain(names.iter().map(PathBuf::from)).collect()
}
