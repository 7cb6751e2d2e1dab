//! On-disk cache of compiled kernels, keyed by a hash of all their inputs.
//!
//! Entries are written to a temporary file and renamed, so that readers (this process or another) see only whole entries. Each
//! stores its hash, so that a damaged one is recompiled. An unusable cache is not an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::isa::Isa;
use crate::print::Source;
use crate::toolchain;
use crate::toolchain::CompileError;
use crate::toolchain::object::Blob;

/// Version of the entry format.
const FORMAT: &str = "of-kernel-1";

/// A cache of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: Option<PathBuf>,
    limit: u64,
}

impl Cache {
    /// Maximum bytes of the default cache.
    pub const DEFAULT_LIMIT: u64 = 512 << 20;

    /// The user's cache: `$OF_CACHE_DIR`, else `$XDG_CACHE_HOME/of-opt`, else `~/.cache/of-opt`.
    pub fn user() -> Cache {
        let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
        let dir = var("OF_CACHE_DIR")
            .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("of-opt")))
            .or_else(|| var("HOME").map(|d| d.join(".cache").join("of-opt")));
        Cache { dir: dir.map(|d| d.join("kernels")), limit: Self::DEFAULT_LIMIT }
    }

    /// A cache in `dir` that holds up to `limit` bytes.
    pub fn at(dir: &Path, limit: u64) -> Cache {
        Cache { dir: Some(dir.to_path_buf()), limit }
    }

    /// A disabled cache.
    pub fn none() -> Cache {
        Cache { dir: None, limit: 0 }
    }

    /// The path of another file in the folder that holds the cache; `None` if the cache is disabled.
    pub fn sibling(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.with_file_name(name))
    }

    /// The kernel, from the cache or newly compiled; also whether it was compiled.
    ///
    /// # Errors
    /// When compilation fails.
    pub fn get(&self, source: &Source, isa: &Isa) -> Result<(Blob, bool), CompileError> {
        let path = self.dir.as_ref().map(|d| d.join(key(source, isa)));
        if let Some(blob) = path.as_deref().and_then(read) {
            return Ok((blob, false));
        }
        let blob = toolchain::compile(source, isa)?;
        if let Some(path) = &path
            && let Err(e) = write(path, &blob)
        {
            tracing::debug!(error = %e, "the kernel cache cannot be written");
        }
        Ok((blob, true))
    }

    /// Removes the least recently used entries until the cache fits its limit.
    pub fn trim(&self) {
        let Some(entries) = self.dir.as_ref().and_then(|d| fs::read_dir(d).ok()) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|e| {
                let e = e.ok()?;
                let m = e.metadata().ok()?;
                m.is_file().then_some((m.modified().unwrap_or(SystemTime::UNIX_EPOCH), m.len(), e.path()))
            })
            .collect();
        let mut total: u64 = files.iter().map(|f| f.1).sum();
        files.sort();
        for (_, len, path) in files {
            if total <= self.limit {
                break;
            }
            // Another process may have removed it already.
            let _ = fs::remove_file(path);
            total -= len;
        }
    }
}

fn key(source: &Source, isa: &Isa) -> String {
    let mut h = blake3::Hasher::new();
    for part in [FORMAT, &toolchain::identity(isa), isa.name, &source.text(isa)] {
        h.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    for flag in toolchain::flags(isa) {
        h.update(flag.as_bytes()).update(&[0]);
    }
    h.finalize().to_hex().to_string()
}

/// Reads an entry: the hash of the rest, the entry point, the bytes.
fn read(path: &Path) -> Option<Blob> {
    let data = fs::read(path).ok()?;
    let (hash, rest) = data.split_at_checked(32)?;
    if blake3::hash(rest).as_bytes() != hash {
        return None;
    }
    let (entry, bytes) = rest.split_at_checked(8)?;
    // The modification time records the last use, for trimming.
    if let Ok(f) = fs::File::options().append(true).open(path) {
        let _ = f.set_modified(SystemTime::now());
    }
    Some(Blob { entry: u64::from_le_bytes(entry.try_into().ok()?), bytes: bytes.to_vec() })
}

fn write(path: &Path, blob: &Blob) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut rest = blob.entry.to_le_bytes().to_vec();
    rest.extend_from_slice(&blob.bytes);
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    std::io::Write::write_all(&mut file, blake3::hash(&rest).as_bytes())?;
    std::io::Write::write_all(&mut file, &rest)?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: usize) -> Source {
        Source::new(format!("  ((f32 *)args[0])[0] = {n};\n"), 1usize.into(), 1)
    }

    #[test]
    fn entries_are_kept_checked_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let isa = Isa::host();
        let cache = Cache::at(dir.path(), 1 << 20);
        let (first, compiled) = cache.get(&source(1), isa).unwrap();
        assert!(compiled);
        assert_eq!(cache.get(&source(1), isa).unwrap(), (first.clone(), false));
        // A damaged entry is recompiled.
        let entry = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let mut data = fs::read(&entry).unwrap();
        *data.last_mut().unwrap() ^= 1;
        fs::write(&entry, data).unwrap();
        assert_eq!(cache.get(&source(1), isa).unwrap(), (first, true));
        cache.get(&source(2), isa).unwrap();
        Cache::at(dir.path(), 0).trim();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn two_writers_do_not_disturb_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path(), 1 << 20);
        let blobs: Vec<Blob> = std::thread::scope(|s| {
            let work: Vec<_> = (0..4).map(|_| s.spawn(|| cache.get(&source(7), Isa::host()).unwrap().0)).collect();
            work.into_iter().map(|w| w.join().unwrap()).collect()
        });
        assert!(blobs.windows(2).all(|w| w[0] == w[1]));
    }
}
