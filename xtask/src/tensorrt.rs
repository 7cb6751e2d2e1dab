//! `cargo xtask tensorrt`: TensorRT-RTX from PyPI, and the C API in front of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::wheel;
use crate::workspace::{cargo, root, write};

/// The wheel of the libraries. Its builder and parser need no GPU.
const PACKAGE: &str = "tensorrt-rtx-cu13-libs==1.7.1.116";
const SHA256: &str = "e3fd45fed001240d63304e77a2d4006319b839994237cb294b6e7ad72acaabcd";
/// The libraries in it.
const LIBRARIES: [&str; 2] = ["libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"];

/// The crate that carries NVIDIA's headers, and the checksum that the registry has of it.
const HEADERS: &str = "trtx-sys";
const VERSION: &str = "0.9.1+rtx1.7";
const CHECKSUM: &str = "5480ee056292951daa1bc74532162d6cb75190f091e45d7d97c0c356916ae171";
/// The folder of the headers in it, and that of the few types of CUDA that they need.
const FOLDER: &str = "TensorRT-Headers/TRT-RTX-1.7";

/// Fetches libraries and headers, and compiles the C API into the folder of the libraries: `$OF_TENSORRT`, else
/// `$XDG_DATA_HOME/of-opt/tensorrt`, else `~/.local/share/of-opt/tensorrt`.
///
/// With `--sdk DIR`, TensorRT as NVIDIA ships it (`DIR/include`, `DIR/lib`) takes their place; CUDA's headers are then found as
/// the compiler finds them, or below `$CUDA_HOME/include`.
///
/// # Errors
/// When something cannot be fetched, a hash is another, or the C API does not compile.
pub fn install(args: &[&str]) -> Result<(), String> {
    let to = folder()?;
    fs::create_dir_all(&to).map_err(|e| format!("{}: {e}", to.display()))?;
    match args {
        [] => {
            let work = to.join("download");
            wheel::fetch(PACKAGE, SHA256, &work)?;
            for name in LIBRARIES {
                let from = work.join("tensorrt_rtx_libs").join(name);
                fs::rename(&from, to.join(name)).map_err(|e| format!("{}: {e}", from.display()))?;
            }
            let headers = headers(&work)?;
            let cuda = headers.parent().unwrap_or(&headers).to_path_buf();
            let libraries: Vec<String> = LIBRARIES.iter().map(|l| format!("-l:{l}")).collect();
            compile_c_api(&to, &[headers, cuda], &to, &libraries)?;
            fs::remove_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
        }
        ["--sdk", sdk] => {
            let sdk = PathBuf::from(sdk);
            let mut include = vec![sdk.join("include")];
            include.extend(std::env::var_os("CUDA_HOME").map(|d| PathBuf::from(d).join("include")));
            let libraries = ["-lnvinfer".to_string(), "-lnvonnxparser".to_string()];
            compile_c_api(&to, &include, &sdk.join("lib"), &libraries)?;
        }
        _ => return Err("write 'tensorrt' or 'tensorrt --sdk DIR'".into()),
    }
    println!("TensorRT is in {}", to.display());
    Ok(())
}

/// As `of_tensorrt::folder` says.
fn folder() -> Result<PathBuf, String> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let data = || var("XDG_DATA_HOME").or_else(|| var("HOME").map(|d| d.join(".local").join("share")));
    let own = var("OF_TENSORRT").or_else(|| data().map(|d| d.join("of-opt").join("tensorrt")));
    own.ok_or_else(|| "set OF_TENSORRT to a folder".into())
}

/// The folder of the headers, in a crate that cargo fetches and checks.
fn headers(work: &Path) -> Result<PathBuf, String> {
    let project = work.join("headers");
    let version = VERSION.split('+').next().unwrap_or(VERSION);
    let manifest = format!(
        "[package]\nname = \"headers\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         {HEADERS} = \"={version}\"\n\n[workspace]\n"
    );
    write(&project.join("Cargo.toml"), &manifest)?;
    write(&project.join("src/lib.rs"), "")?;
    let mut metadata = cargo();
    metadata.args(["metadata", "--format-version", "1"]).current_dir(&project);
    let out = metadata.output().map_err(|e| format!("cargo cannot be run: {e}"))?;
    if !out.status.success() {
        return Err(format!("the headers cannot be fetched: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let lock = crate::workspace::read(&project.join("Cargo.lock"))?;
    let pinned = format!("name = \"{HEADERS}\"\nversion = \"{VERSION}\"\n");
    let checksum = lock.split_once(&pinned).and_then(|(_, rest)| rest.split_once("checksum = \"")).map(|(_, c)| c);
    if !checksum.is_some_and(|c| c.starts_with(CHECKSUM)) {
        return Err(format!("the registry has another {HEADERS} {VERSION} than this program knows"));
    }
    let all: Value = serde_json::from_slice(&out.stdout).map_err(|e| e.to_string())?;
    let packages = all["packages"].as_array().ok_or("cargo describes no packages")?;
    let own = packages.iter().find(|p| p["name"] == HEADERS).and_then(|p| p["manifest_path"].as_str());
    let own = own.and_then(|m| Path::new(m).parent()).ok_or("cargo does not say where the headers are")?;
    Ok(own.join(FOLDER))
}

/// Compiles the C API into `to`.
fn compile_c_api(to: &Path, include: &[PathBuf], libraries: &Path, link: &[String]) -> Result<(), String> {
    let compiler = std::env::var("CXX").ok().filter(|c| !c.is_empty()).unwrap_or_else(|| "c++".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O2", "-shared", "-fPIC", "-w"]);
    for folder in include {
        command.arg("-isystem").arg(folder);
    }
    command.arg(root().join("backends/tensorrt/src/c_api.cpp")).arg("-o").arg(to.join("libof_tensorrt.so"));
    command.arg("-L").arg(libraries).args(link).arg("-ldl");
    // The libraries are next to the C API, or in their own folder.
    command.arg("-Wl,-rpath,$ORIGIN").arg(format!("-Wl,-rpath,{}", libraries.display()));
    let status = command.status().map_err(|e| format!("'{compiler}' cannot be run: {e}"))?;
    if status.success() { Ok(()) } else { Err("the C API does not compile; the compiler's words are above".into()) }
}
