//! `cargo xtask python-packages`: the Python packages that tests compare with, in an environment of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the environment holds: onnxruntime with onnx and numpy, jaxlib, whose MLIR verifies StableHLO, pyarrow, what builds and tests the
/// Python package, model-signing with the pyOpenSSL that it imports and does not declare, tritonclient with what it needs for HTTP
/// and gRPC, the SDK of KServe, schemathesis, moto, whose server has the protocol of S3, with what that needs, a validator of Kubernetes manifests, and Netron, whose reader opens exported models.
const PACKAGES: [(&str, &str); 21] = [
    ("numpy", "2.4.6"),
    ("onnx", "1.23.2"),
    ("onnxruntime", "1.32.0"),
    ("jaxlib", "0.10.2"),
    ("pyarrow", "26.0.1"),
    ("maturin", "1.16.0"),
    ("pytest", "9.2.0"),
    ("model-signing", "1.1.1"),
    ("pyopenssl", "26.4.0"),
    ("tritonclient", "2.73.0"),
    ("geventhttpclient", "2.6.1"),
    ("greenlet", "3.3.2"),
    ("grpcio", "1.85.3"),
    ("protobuf", "6.33.6"),
    ("kserve", "0.21.0"),
    ("schemathesis", "4.32.5"),
    ("moto", "5.2.5"),
    ("flask", "3.1.3"),
    ("flask-cors", "6.0.5"),
    ("kubernetes-validate", "1.37.0"),
    ("netron", "9.3.3"),
];

/// Makes a virtual environment in `~/.cache/of-opt/python` and installs the packages in it.
///
/// # Errors
/// When there is no Python with pip, or the registry cannot be reached.
pub fn packages() -> Result<(), String> {
    make(&folder()?, &PACKAGES)
}

/// The version of torch that the backend of `torch.compile` is tested with.
const TORCH: &str = "2.15.0";

/// Installs torch in the environment. pip's index decides which build: the usual one has libraries of CUDA, several gigabytes.
///
/// # Errors
/// As [`packages`].
pub fn torch() -> Result<(), String> {
    if !installed() {
        packages()?;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--python"]).arg(folder()?.join("bin/python3"));
    run(pip.args(["install", "--quiet", "--only-binary=:all:"]).arg(format!("torch=={TORCH}")))
}

/// Whether Netron's reader can run: the packages, and Node.js.
pub fn has_netron() -> bool {
    installed() && Command::new("node").arg("--version").output().is_ok_and(|out| out.status.success())
}

/// Installs what Netron's reader needs from Python's registry.
///
/// # Errors
/// As [`packages`], and without Node.js, which comes from the system.
pub fn netron() -> Result<(), String> {
    if !installed() {
        packages()?;
    }
    if has_netron() { Ok(()) } else { Err("there is no node ('apt-get install nodejs')".into()) }
}

/// Whether the environment has torch, whichever build of the version.
pub fn has_torch() -> bool {
    has("torch", TORCH)
}

/// The versions of JAX and flax that `of_opt.jax` is tested with.
const JAX: [(&str, &str); 2] = [("jax", "0.10.2"), ("flax", "0.12.8")];

/// Installs JAX and flax in the environment.
///
/// # Errors
/// As [`packages`].
pub fn jax() -> Result<(), String> {
    if !installed() {
        packages()?;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--python"]).arg(folder()?.join("bin/python3"));
    let names = JAX.map(|(name, version)| format!("{name}=={version}"));
    run(pip.args(["install", "--quiet", "--only-binary=:all:"]).args(names))
}

/// Whether the environment has JAX and flax.
pub fn has_jax() -> bool {
    JAX.iter().all(|(name, version)| has(name, version))
}

/// Programs that import onnxruntime and have their models with them, what they need, and what reads and writes their inputs.
const DROP_IN: [(&str, &str); 8] = [
    ("numpy", "2.4.6"),
    ("pillow", "13.0.0"),
    ("onnxruntime", "1.32.0"),
    ("rapidocr-onnxruntime", "1.4.4"),
    ("magika", "1.0.3"),
    ("nudenet", "3.4.2"),
    ("ddddocr", "1.6.1"),
    ("faster-whisper", "1.2.1"),
];

/// Makes a virtual environment of its own, as these programs disagree with others on versions, and installs them in it.
///
/// # Errors
/// As [`packages`].
pub fn drop_in() -> Result<(), String> {
    make(&drop_in_folder()?, &DROP_IN)
}

/// Whether there are the programs that import onnxruntime.
pub fn has_drop_in() -> bool {
    drop_in_folder().is_ok_and(|folder| has_all(&folder, &DROP_IN))
}

/// The Python of the programs that import onnxruntime.
///
/// # Errors
/// As [`interpreter`].
pub fn drop_in_interpreter() -> Result<PathBuf, String> {
    Ok(drop_in_folder()?.join("bin/python3"))
}

fn drop_in_folder() -> Result<PathBuf, String> {
    Ok(folder()?.with_file_name("drop-in"))
}

/// Makes a virtual environment with these packages.
fn make(to: &Path, packages: &[(&str, &str)]) -> Result<(), String> {
    // Without pip of its own: the pip that makes it installs into it.
    run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(to))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--python"]).arg(to.join("bin/python3"));
    pip.args(["install", "--quiet", "--only-binary=:all:"]);
    run(pip.args(packages.iter().map(|(name, version)| format!("{name}=={version}"))))?;
    eprintln!("{}: tests find it there", to.display());
    Ok(())
}

/// Whether an environment has the packages in these versions.
fn has_all(folder: &Path, packages: &[(&str, &str)]) -> bool {
    let names: Vec<String> = packages.iter().map(|(name, _)| format!("'{name}'")).collect();
    let script = format!("from importlib.metadata import version as v\nprint(*[v(p) for p in [{}]])", names.join(","));
    let out = Command::new(folder.join("bin/python3")).args(["-c", &script]).output();
    out.is_ok_and(|o| {
        let found = String::from_utf8_lossy(&o.stdout);
        o.status.success() && found.split_whitespace().eq(packages.iter().map(|(_, version)| *version))
    })
}

/// Whether the environment has a package in this version, whichever build.
fn has(name: &str, wanted: &str) -> bool {
    let script = format!("from importlib.metadata import version\nprint(version('{name}').partition('+')[0])");
    let Ok(folder) = folder() else { return false };
    let out = Command::new(folder.join("bin/python3")).args(["-c", &script]).output();
    out.is_ok_and(|o| o.status.success() && String::from_utf8_lossy(&o.stdout).trim() == wanted)
}

/// Whether the environment has the packages in these versions.
pub fn installed() -> bool {
    folder().is_ok_and(|folder| has_all(&folder, &PACKAGES))
}

/// The Python of the environment.
///
/// # Errors
/// When neither HOME nor XDG_CACHE_HOME is set.
pub fn interpreter() -> Result<PathBuf, String> {
    Ok(folder()?.join("bin/python3"))
}

/// Where `of_test_support::component::python_with` looks.
fn folder() -> Result<PathBuf, String> {
    let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|d| d.join(".cache")));
    Ok(cache.ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join("of-opt/python"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("python3 cannot be run: {e}"))?;
    if status.success() { Ok(()) } else { Err("python3 failed; its messages are above".into()) }
}
