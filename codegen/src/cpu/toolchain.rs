//! The C compiler of the machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::target::Isa;

/// Why there is no object code.
#[derive(Debug, thiserror::Error)]
pub enum ToolchainError {
    /// No compiler was found.
    #[error("no C compiler for {arch} found (tried {tried}); install gcc or clang, or name one in {variable}")]
    Missing {
        /// The architecture it should compile for.
        arch: &'static str,
        /// The programs that were tried.
        tried: String,
        /// The environment variable that names one.
        variable: &'static str,
    },
    /// The compiler could not be run or its files not be written.
    #[error("cannot run {program}: {error}")]
    Run {
        /// The compiler.
        program: PathBuf,
        /// What went wrong.
        error: std::io::Error,
    },
    /// The compiler refused the text.
    #[error("{program} failed on a generated kernel (source kept in {source_file}):\n{stderr}")]
    Failed {
        /// The compiler.
        program: PathBuf,
        /// Where the source can be read; empty if it could not be saved.
        source_file: PathBuf,
        /// What the compiler said.
        stderr: String,
    },
}

/// Flags for every instruction set. Contraction to fused multiply-adds is wanted; NaN and infinities must be right, so
/// nothing of `-ffast-math` but what cannot change a value. No loop may become a call of `memcpy`, which is one itself.
const FLAGS: &[&str] = &[
    "-x",
    "c",
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-ffreestanding",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-jump-tables",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-fno-tree-loop-distribute-patterns",
    "-w",
    "-Wno-psabi",
];

/// A C compiler for one instruction set.
#[derive(Clone, Debug)]
pub struct Toolchain {
    program: PathBuf,
    arguments: Vec<String>,
    identity: String,
}

impl Toolchain {
    /// Looks for a compiler: the one named by `OF_CC` (for another architecture than this machine's:
    /// `OF_CC_AARCH64` or `OF_CC_X86_64`), then the usual names.
    ///
    /// # Errors
    /// If none runs.
    pub fn find(isa: Isa) -> Result<Self, ToolchainError> {
        let native = isa.arch() == std::env::consts::ARCH;
        let variable = match (native, isa.arch()) {
            (true, _) => "OF_CC",
            (false, "aarch64") => "OF_CC_AARCH64",
            (false, _) => "OF_CC_X86_64",
        };
        let mut tried = Vec::new();
        let named = std::env::var(variable).ok().filter(|s| !s.trim().is_empty());
        let usual: &[&str] = match (native, isa.arch()) {
            (true, _) => &["cc", "gcc", "clang"],
            (false, "aarch64") => &["aarch64-linux-gnu-gcc", "clang --target=aarch64-linux-gnu"],
            (false, _) => &["x86_64-linux-gnu-gcc", "clang --target=x86_64-linux-gnu"],
        };
        // A compiler that is named is the one that is used, or it is an error.
        let commands: Vec<&str> = named.as_deref().map_or_else(|| usual.to_vec(), |n| vec![n]);
        for command in commands {
            let mut words = command.split_whitespace();
            let Some(program) = words.next() else { continue };
            let mut arguments: Vec<String> = words.map(str::to_string).collect();
            let version = Command::new(program).args(&arguments).arg("--version").stdin(Stdio::null()).output();
            if let Ok(out) = version
                && out.status.success()
            {
                let version = String::from_utf8_lossy(&out.stdout).into_owned();
                arguments.extend(FLAGS.iter().chain(isa.flags()).map(|f| (*f).to_string()));
                if isa.arch() == "x86_64" {
                    arguments.push("-fcf-protection=none".to_string());
                }
                let identity = format!("{program}\n{version}\n{}", arguments.join(" "));
                return Ok(Self { program: program.into(), arguments, identity });
            }
            tried.push(command.to_string());
        }
        Err(ToolchainError::Missing { arch: isa.arch(), tried: tried.join(", "), variable })
    }

    /// Everything of the compiler that its output depends on: its version and flags.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Compiles C to an object file and returns its bytes. One process a call, so that the code does not depend on
    /// what else is compiled.
    ///
    /// # Errors
    /// If the compiler cannot be run or refuses the text.
    pub fn compile(&self, source: &str) -> Result<Vec<u8>, ToolchainError> {
        let run = |error| ToolchainError::Run { program: self.program.clone(), error };
        let dir = tempfile::Builder::new().prefix("of-kernel-").tempdir().map_err(run)?;
        let object = dir.path().join("kernel.o");
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .arg("-c")
            .arg("-o")
            .arg(&object)
            .arg("-")
            // Messages in one language, and files only where they are cleaned up.
            .env("LC_ALL", "C")
            .env("TMPDIR", dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(run)?;
        let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(source.as_bytes()));
        let out = child.wait_with_output().map_err(run)?;
        if !out.status.success() {
            return Err(self.failed(source, String::from_utf8_lossy(&out.stderr).into_owned(), dir));
        }
        written.map_err(run)?;
        std::fs::read(&object).map_err(run)
    }

    fn failed(&self, source: &str, stderr: String, dir: tempfile::TempDir) -> ToolchainError {
        let file = dir.path().join("kernel.c");
        let saved = std::fs::write(&file, source).is_ok();
        let kept = dir.keep();
        let source_file = if saved { kept.join("kernel.c") } else { PathBuf::new() };
        ToolchainError::Failed { program: self.program.clone(), source_file, stderr }
    }

    /// The compiler's path or name.
    pub fn program(&self) -> &Path {
        &self.program
    }
}
