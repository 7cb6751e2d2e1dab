//! A compiler behind the cache of kernels.
//!
//! The key of an entry is what decides the machine code apart from the compiler's version: the text, the flags, the instruction set
//! and the compiler's name as `$CC` spells it. The version is recorded in the entry and compared where a compiler exists; an entry
//! of another version is compiled again. So a machine without a compiler can use what is cached. The version is known without a
//! process: the cache keeps it under the paths, sizes and times of the programs in `$CC`. Only when these are new is the
//! compiler asked. A wrapper that starts another compiler without changing itself is not noticed.

use std::sync::OnceLock;
use std::time::Instant;

use super::cache::Cache;
use super::program::{Program, spelled};
use super::{CompileError, compile_c, compile_cuda, flags, kernel_time, nvrtc};
use crate::isa::{Isa, Language};
use crate::print::Source;
use crate::toolchain::object::Blob;

/// The compiler for an instruction set, with a cache of its results.
pub struct CachedCompiler<'a> {
    isa: &'a Isa,
    cache: &'a Cache,
    program: OnceLock<Option<Program>>,
    version: OnceLock<Option<String>>,
}

impl<'a> CachedCompiler<'a> {
    /// The compiler for `isa`. It is not looked for yet.
    pub fn new(isa: &'a Isa, cache: &'a Cache) -> CachedCompiler<'a> {
        CachedCompiler { isa, cache, program: OnceLock::new(), version: OnceLock::new() }
    }

    /// The kernel, if the cache has it.
    pub fn cached(&self, source: &Source) -> Option<Blob> {
        let (version, blob) = self.cache.read(&self.key(&source.text(self.isa)))?;
        self.version().is_none_or(|own| own == version).then_some(blob)
    }

    /// Compiles the kernel and puts it into the cache. `deadline` replaces the usual one.
    ///
    /// # Errors
    /// As [`super::compile`].
    pub fn compile(&self, source: &Source, deadline: Option<Instant>) -> Result<Blob, CompileError> {
        let text = source.text(self.isa);
        let blob = match self.isa.language {
            Language::Cuda => compile_cuda(&text, self.isa)?,
            language => {
                let program = self.program().map_or_else(|| Program::find(language), |p| Ok(p.clone()))?;
                let deadline = deadline.unwrap_or_else(|| Instant::now() + kernel_time(&text));
                compile_c(&program, &text, self.isa, deadline)?
            }
        };
        if let Some(version) = self.version()
            && let Err(e) = self.cache.write(&self.key(&text), version, &blob)
        {
            tracing::debug!(error = %e, "the kernel cache cannot be written");
        }
        Ok(blob)
    }

    /// Checks that there is a compiler.
    ///
    /// # Errors
    /// When there is none.
    pub fn check(&self) -> Result<(), CompileError> {
        match self.isa.language {
            Language::Cuda => nvrtc::identity().map(drop).map_err(CompileError::from),
            _ if self.program().is_some() => Ok(()),
            language => Program::find(language).map(drop),
        }
    }

    fn program(&self) -> Option<&Program> {
        self.program.get_or_init(|| Program::find(self.isa.language).ok()).as_ref()
    }

    /// The compiler's version; `None` where there is no compiler.
    fn version(&self) -> Option<&str> {
        let find = || match self.isa.language {
            Language::Cuda => nvrtc::identity().ok(),
            _ => {
                let program = self.program()?;
                let fingerprint = program.fingerprint();
                let known = self.cache.version_of(&fingerprint);
                Some(known.unwrap_or_else(|| {
                    let version = program.version().unwrap_or_else(|_| fingerprint.clone());
                    self.cache.keep_version(&fingerprint, &version);
                    version
                }))
            }
        };
        self.version.get_or_init(find).as_deref()
    }

    fn key(&self, text: &str) -> String {
        let compiler = match self.isa.language {
            Language::Cuda => String::new(),
            language => spelled(language),
        };
        let mut h = blake3::Hasher::new();
        for part in [&compiler, self.isa.name, text] {
            h.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        for flag in flags(self.isa) {
            h.update(flag.as_bytes()).update(&[0]);
        }
        h.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn source(n: usize) -> Source {
        Source::new(format!("  ((f32 *)args[0])[0] = {n};\n"), 1usize.into(), 1)
    }

    #[test]
    fn entries_are_kept_checked_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path(), 1 << 20);
        let compiler = CachedCompiler::new(Isa::host(), &cache);
        assert!(compiler.cached(&source(1)).is_none());
        let first = compiler.compile(&source(1), None).unwrap();
        assert_eq!(compiler.cached(&source(1)).unwrap(), first);
        // A damaged entry is refused.
        let entry = dir.path().join(compiler.key(&source(1).text(Isa::host())));
        let data = fs::read(&entry).unwrap();
        for damaged in
            [[&data[..data.len() - 1], &[data[data.len() - 1] ^ 1]].concat(), data[..40].to_vec(), Vec::new()]
        {
            fs::write(&entry, damaged).unwrap();
            assert!(compiler.cached(&source(1)).is_none());
        }
        // So is one under the key of another kernel.
        fs::remove_file(&entry).unwrap();
        compiler.compile(&source(1), None).unwrap();
        fs::rename(&entry, dir.path().join(compiler.key(&source(2).text(Isa::host())))).unwrap();
        assert!(compiler.cached(&source(2)).is_none());
        Cache::at(dir.path(), 0).trim();
        assert_eq!(cache.usage().entries, 0);
    }

    #[test]
    fn an_entry_of_another_compiler_version_is_compiled_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path(), 1 << 20);
        let by = |version: Option<&str>| CachedCompiler {
            version: OnceLock::from(version.map(String::from)),
            ..CachedCompiler::new(Isa::host(), &cache)
        };
        by(Some("1")).compile(&source(1), None).unwrap();
        assert!(by(Some("1")).cached(&source(1)).is_some());
        assert!(by(Some("2")).cached(&source(1)).is_none());
        assert!(by(None).cached(&source(1)).is_some(), "without a compiler, the entry is all there is");
    }

    #[test]
    fn two_writers_do_not_disturb_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path(), 1 << 20);
        let compile = || CachedCompiler::new(Isa::host(), &cache).compile(&source(7), None).unwrap();
        let blobs: Vec<Blob> = std::thread::scope(|s| {
            let work: Vec<_> = (0..4).map(|_| s.spawn(compile)).collect();
            work.into_iter().map(|w| w.join().unwrap()).collect()
        });
        assert!(blobs.windows(2).all(|w| w[0] == w[1]));
        assert!(CachedCompiler::new(Isa::host(), &cache).cached(&source(7)).is_some());
    }
}
