//! Kernel compilers: the machine's C compiler, clang for WebAssembly, the C++ compiler for the emulated GPU, and NVRTC.

pub mod cache;
mod cached;
pub mod emulator;
mod in_process;
pub mod machine;
mod module;
pub mod nvrtc;
pub mod object;
mod private;
mod program;
mod scratch;
mod supervisor;

use std::io::Write;
use std::time::{Duration, Instant};

pub use cached::CachedCompiler;
pub use in_process::InProcess;
pub use private::{read as read_private, write as write_private};
pub use program::{Program, spelled};
pub use supervisor::stop;

use crate::isa::{Isa, Language};
use crate::print::Source;
use crate::toolchain::object::{Blob, FlattenError, flatten};

/// Flags of every compilation for a CPU: the parts of fast math that keep IEEE semantics (no errno, no traps), and FMA contraction
/// (-ffp-contract=fast), which omits one rounding. Nothing is reassociated, and subnormals (denormals) are not flushed to zero.
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

/// The least time that one kernel may take to compile. The largest take seconds on an idle machine.
const KERNEL_TIME: Duration = Duration::from_secs(300);
/// More time for each KiB of its text.
const TIME_PER_KIB: Duration = Duration::from_secs(1);

/// Why a kernel failed to compile.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler was not found.
    #[error("no {} compiler was found: '{program}' (${variable}): {why}", match .language { Language::C => "C", Language::WebAssembly => "WebAssembly", _ => "C++" })]
    Missing {
        /// The language that it compiles.
        language: Language,
        /// The environment variable that names it.
        variable: &'static str,
        /// The program that was tried.
        program: String,
        /// Why it is none.
        why: String,
    },
    /// The compiler rejected the kernel.
    #[error("the compiler failed: {stderr}\nthe kernel's text is in {kept}")]
    Failed {
        /// Its error output.
        stderr: String,
        /// The path of the saved kernel text.
        kept: String,
    },
    /// The compiler was killed at the deadline.
    #[error("the compiler was stopped after {:.1} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// NVRTC was not found or failed.
    #[error(transparent)]
    Nvrtc(#[from] nvrtc::NvrtcError),
    /// The object is not self-contained.
    #[error(transparent)]
    Flatten(#[from] FlattenError),
    /// The module needs what its host does not have.
    #[error(transparent)]
    Module(#[from] module::ModuleError),
    /// A temporary file failed.
    #[error("temporary file: {0}")]
    Io(#[from] std::io::Error),
}

/// All flags for `isa`.
pub fn flags(isa: &Isa) -> Vec<&'static str> {
    match isa.language {
        Language::C => [FLAGS, C, isa.flags].concat(),
        Language::WebAssembly => {
            // It links, too, and is no GCC.
            let others = FLAGS.iter().copied().filter(|f| !["-c", "-fno-tree-loop-distribute-patterns"].contains(f));
            let others: Vec<&str> = others.collect();
            [&others, C, module::FLAGS, isa.flags].concat()
        }
        Language::CudaEmulated => [FLAGS, emulator::FLAGS, isa.flags].concat(),
        Language::Cuda => [nvrtc::FLAGS, isa.flags].concat(),
    }
}

/// How long a kernel may take to compile: minutes, more for long ones.
pub fn kernel_time(text: &str) -> Duration {
    KERNEL_TIME + TIME_PER_KIB * u32::try_from(text.len() / 1024).unwrap_or(u32::MAX)
}

/// The version of the compiler for `isa`; `None` if there is none.
pub fn version(isa: &Isa) -> Option<String> {
    match isa.language {
        Language::Cuda => nvrtc::identity().ok(),
        language => Program::find(language).and_then(|p| p.version()).ok(),
    }
}

/// Compiles one kernel with the compiler of this machine.
///
/// # Errors
/// When the compiler is missing, fails or takes minutes, or its object is not self-contained.
pub fn compile(source: &Source, isa: &Isa) -> Result<Blob, CompileError> {
    let text = source.text(isa);
    match isa.language {
        Language::Cuda => compile_cuda(&text, isa),
        language => compile_c(&Program::find(language)?, &text, isa, Instant::now() + kernel_time(&text)),
    }
}

/// Compiles one kernel in process. NVRTC cannot be interrupted.
fn compile_cuda(text: &str, isa: &Isa) -> Result<Blob, CompileError> {
    Ok(Blob { bytes: nvrtc::compile(text, isa.flags)?, entry: 0 })
}

/// Compiles one kernel as a child process, which is killed at the deadline.
fn compile_c(program: &Program, text: &str, isa: &Isa, deadline: Instant) -> Result<Blob, CompileError> {
    let (folder, handle) = (scratch::Scratch::new()?, supervisor::Handle::new()?);
    std::fs::write(folder.path().join("kernel.c"), text)?;
    let own = ["kernel.c", "-o", "kernel.o"];
    let flags = flags(isa).into_iter().chain(own).map(String::from);
    let words: Vec<String> = program.words.iter().cloned().chain(flags).collect();
    let started = Instant::now();
    let done = supervisor::run(&words, folder.path(), deadline, &handle)?;
    let Some(status) = done.status else { return Err(CompileError::TimedOut(started.elapsed())) };
    if !status.success() {
        let stderr = if done.stderr.is_empty() { status.to_string() } else { done.stderr };
        return Err(CompileError::Failed { stderr, kept: keep(text)? });
    }
    let object = std::fs::read(folder.path().join("kernel.o"))?;
    Ok(if isa.language == Language::WebAssembly { module::check(object)? } else { flatten(&object, "kernel")? })
}

/// Keeps the text of a kernel that does not compile, for a report of the fault; returns its path.
fn keep(text: &str) -> std::io::Result<String> {
    let mut file = tempfile::Builder::new().prefix("of-failed-kernel-").suffix(".c").tempfile()?;
    file.write_all(text.as_bytes())?;
    Ok(file.keep().map_err(|e| e.error)?.1.display().to_string())
}
