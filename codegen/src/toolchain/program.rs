//! The compilers that the environment names: `$CC` for C, `$WASM_CC` for C to WebAssembly, `$CXX` for C++.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::CompileError;
use super::scratch::Scratch;
use super::supervisor::{self, Handle};
use crate::isa::Language;

/// How long `--version` may take.
const VERSION_DEADLINE: Duration = Duration::from_secs(30);

/// The variable that names the compiler of a language, and the default.
fn names(language: Language) -> (&'static str, &'static str) {
    match language {
        Language::C => ("CC", "cc"),
        Language::WebAssembly => ("WASM_CC", "clang"),
        Language::CudaEmulated | Language::Cuda => ("CXX", "c++"),
    }
}

/// The compiler of a language as the environment names it.
pub fn spelled(language: Language) -> String {
    let (variable, default) = names(language);
    // A name that is not UTF-8 is not found, and reported; it must not mean the default.
    let named = std::env::var_os(variable).map(|v| v.to_string_lossy().into_owned());
    named.filter(|s| !s.trim().is_empty()).unwrap_or_else(|| default.into())
}

/// A compiler that exists.
#[derive(Clone, Debug)]
pub struct Program {
    /// The absolute path of the program, and arguments that precede all others.
    pub words: Vec<String>,
}

impl Program {
    /// Finds the compiler. `$CC` is split into words as a shell does it (`ccache gcc`, `'/opt/my tools/cc' -m64`), unless all of
    /// it is the path of a program.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn find(language: Language) -> Result<Program, CompileError> {
        let program = spelled(language);
        let missing = |why: &str| CompileError::Missing {
            language,
            variable: names(language).0,
            program: program.clone(),
            why: why.into(),
        };
        let mut words = match executable(Path::new(&program)) {
            true => vec![program.clone()],
            false => shlex::split(&program).ok_or_else(|| missing("a quotation mark is not closed"))?,
        };
        let first = words.first_mut().ok_or_else(|| missing("it has no words"))?;
        let path = search(first).ok_or_else(|| missing("there is no such program"))?;
        *first = path.to_str().ok_or_else(|| missing("its path is not UTF-8"))?.into();
        Ok(Program { words })
    }

    /// What changes when a program of the command line is replaced: paths, sizes and times. It starts no process.
    pub fn fingerprint(&self) -> String {
        let mut text = self.words.join(" ");
        for path in self.words.iter().filter_map(|w| search(w)) {
            // The file behind links: a link to another version has another path.
            let path = path.canonicalize().unwrap_or(path);
            if let Ok(m) = path.metadata() {
                text += &format!(" | {} {} {}.{}", path.display(), m.len(), m.mtime(), m.mtime_nsec());
            }
        }
        text
    }

    /// The first line of `--version`; the fingerprint where the compiler prints none.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn version(&self) -> Result<String, CompileError> {
        let (folder, handle) = (Scratch::new()?, Handle::new()?);
        let words: Vec<String> = self.words.iter().cloned().chain(["--version".into()]).collect();
        let done = supervisor::run(&words, folder.path(), Instant::now() + VERSION_DEADLINE, &handle)?;
        let line = done.stdout.lines().next().map(str::trim).filter(|l| !l.is_empty());
        let succeeded = done.status.is_some_and(|s| s.success());
        Ok(line.filter(|_| succeeded).map_or_else(|| self.fingerprint(), String::from))
    }
}

/// The absolute path of a program, as a shell finds it.
fn search(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return std::path::absolute(name).ok().filter(|p| executable(p));
    }
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| executable(p))?;
    std::path::absolute(found).ok()
}

/// Whether it is a path of a program; a name alone is none.
fn executable(path: &Path) -> bool {
    let is_path = path.as_os_str().as_encoded_bytes().contains(&b'/');
    is_path && path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
