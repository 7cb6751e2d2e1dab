//! Kernel compilers: the machine's C compiler, its C++ compiler for the emulated GPU, and NVRTC.

pub mod cache;
pub mod nvrtc;
pub mod object;
pub mod shim;
mod version;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::isa::{Isa, Language};
use crate::print::Source;
use crate::toolchain::object::{Blob, FlattenError, flatten};

/// Flags of every compilation for a CPU. Arithmetic must follow IEEE: only those parts of -ffast-math that change no result.
const FLAGS: &[&str] = &[
    "-c",
    "-pipe",
    "-O2",
    "-fPIC",
    "-ffreestanding",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-tree-loop-distribute-patterns",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-w",
];

/// Flags of kernels in C.
const C: &[&str] = &["-std=gnu11", "-x", "c"];

/// Why a kernel failed to compile.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler was not found.
    #[error("no C compiler was found ('{program}': {why})")]
    Missing {
        /// The program that was tried.
        program: String,
        /// The system error.
        why: std::io::Error,
    },
    /// The compiler rejected the kernel.
    #[error("the C compiler failed: {stderr}\nthe kernel's text is in {kept}")]
    Failed {
        /// Its error output.
        stderr: String,
        /// The path of the saved kernel text.
        kept: String,
    },
    /// NVRTC was not found or failed.
    #[error(transparent)]
    Nvrtc(#[from] nvrtc::NvrtcError),
    /// The object is not self-contained.
    #[error(transparent)]
    Flatten(#[from] FlattenError),
    /// A temporary file failed.
    #[error("temporary file: {0}")]
    Io(#[from] std::io::Error),
}

/// The compiler: `$CC`, else `cc`.
pub fn program() -> String {
    std::env::var("CC").ok().filter(|s| !s.trim().is_empty()).unwrap_or_else(|| "cc".into())
}

/// The version of the compiler for `isa`; part of the cache's keys.
pub fn identity(isa: &Isa) -> String {
    static C: OnceLock<String> = OnceLock::new();
    match isa.language {
        Language::C => C.get_or_init(|| version::of(&program())).clone(),
        Language::Shim => shim::identity(),
        Language::Cuda => nvrtc::identity().unwrap_or_default(),
    }
}

/// All flags for `isa`.
pub fn flags(isa: &Isa) -> Vec<&'static str> {
    match isa.language {
        Language::C => [FLAGS, C, isa.flags].concat(),
        Language::Shim => [FLAGS, shim::FLAGS, isa.flags].concat(),
        Language::Cuda => [nvrtc::FLAGS, isa.flags].concat(),
    }
}

/// Compiles one kernel.
///
/// # Errors
/// When the compiler is missing or fails, or its object is not self-contained.
pub fn compile(source: &Source, isa: &Isa) -> Result<Blob, CompileError> {
    let program = match isa.language {
        Language::C => program(),
        Language::Shim => shim::program().to_string(),
        Language::Cuda => {
            let bytes = nvrtc::compile(&source.text(isa), isa.flags)?;
            return Ok(Blob { bytes, entry: 0 });
        }
    };
    let dir = tempfile::Builder::new().prefix("of-kernel-").tempdir()?;
    let (c, o): (PathBuf, PathBuf) = (dir.path().join("kernel.c"), dir.path().join("kernel.o"));
    std::fs::write(&c, source.text(isa))?;
    let out = Command::new(&program)
        .args(flags(isa))
        .arg("kernel.c")
        .args(["-o", "kernel.o"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|why| CompileError::Missing { program: program.clone(), why })?;
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr).trim().to_string();
        let kept = dir.keep().join("kernel.c").display().to_string();
        return Err(CompileError::Failed { stderr, kept });
    }
    Ok(flatten(&std::fs::read(&o)?, "kernel")?)
}
