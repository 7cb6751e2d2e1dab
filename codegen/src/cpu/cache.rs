//! Compiled kernels on disk, by the hash of what they were compiled from.
//!
//! Entries are written to a temporary file and renamed, so processes that share the folder never see half of one; each
//! carries a checksum, and one that does not match is compiled again. Whatever goes wrong with the folder costs time
//! alone.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::flatten::Blob;

/// Changes whenever the meaning of an entry does.
const FORMAT: &[u8; 8] = b"OFKERN01";

/// Bytes of format, checksum, entry and alignment before the code.
const HEADER: usize = 8 + 32 + 8 + 8;

/// The most that all entries take together unless `OF_CACHE_BYTES` says otherwise.
const DEFAULT_LIMIT: u64 = 512 << 20;

/// A folder of compiled kernels, or none.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: Option<PathBuf>,
    limit: u64,
}

impl Cache {
    /// The user's cache: `OF_CACHE_DIR`, else `of-opt` in `XDG_CACHE_HOME`, else `~/.cache/of-opt`.
    pub fn of_user() -> Self {
        let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
        let dir = var("OF_CACHE_DIR")
            .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("of-opt")))
            .or_else(|| var("HOME").map(|d| d.join(".cache").join("of-opt")));
        let limit = std::env::var("OF_CACHE_BYTES").ok().and_then(|s| s.parse().ok()).unwrap_or(DEFAULT_LIMIT);
        Self { dir: dir.map(|d| d.join("kernels")), limit }
    }

    /// A cache in a folder of its own, of at most `limit` bytes.
    pub fn in_dir(dir: impl Into<PathBuf>, limit: u64) -> Self {
        Self { dir: Some(dir.into()), limit }
    }

    /// No cache.
    pub const fn none() -> Self {
        Self { dir: None, limit: 0 }
    }

    /// The key of a source text compiled by a compiler of the given identity.
    pub fn key(source: &str, identity: &str) -> blake3::Hash {
        let mut h = blake3::Hasher::new();
        for part in [&FORMAT[..], identity.as_bytes(), source.as_bytes()] {
            h.update(&(part.len() as u64).to_le_bytes());
            h.update(part);
        }
        h.finalize()
    }

    fn path(&self, key: &blake3::Hash) -> Option<PathBuf> {
        self.dir.as_ref().map(|d| d.join(key.to_hex().as_str()))
    }

    /// The kernel under a key, if there is an undamaged one.
    pub fn get(&self, key: &blake3::Hash) -> Option<Blob> {
        let path = self.path(key)?;
        let bytes = fs::read(&path).ok()?;
        let blob = decode(key, &bytes);
        if blob.is_none() {
            tracing::warn!(path = %path.display(), "a cached kernel is damaged and is compiled again");
            let _ = fs::remove_file(&path);
            return None;
        }
        // The time of last use orders eviction; a folder that cannot be written keeps its order.
        if let Ok(file) = fs::File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        blob
    }

    /// Keeps a kernel. A folder that cannot be written is left alone.
    pub fn put(&self, key: &blake3::Hash, blob: &Blob) {
        let (Some(path), Some(dir)) = (self.path(key), self.dir.as_deref()) else { return };
        if let Err(error) = write(dir, &path, &encode(key, blob)) {
            tracing::debug!(path = %path.display(), %error, "a compiled kernel was not cached");
        }
    }

    /// Removes the entries not used for longest until all fit the bound. Temporary files that a killed process left
    /// behind go as well.
    pub fn trim(&self) {
        let Some(entries) = self.dir.as_deref().and_then(|d| fs::read_dir(d).ok()) else { return };
        let mut files = Vec::new();
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_file() {
                files.push((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), meta.len(), entry.path()));
            }
        }
        let mut total: u64 = files.iter().map(|f| f.1).sum();
        files.sort();
        for (_, size, path) in files {
            if total <= self.limit {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                total -= size;
            }
        }
    }
}

fn checksum(key: &blake3::Hash, body: &[u8]) -> blake3::Hash {
    blake3::Hasher::new_keyed(key.as_bytes()).update(body).finalize()
}

fn encode(key: &blake3::Hash, blob: &Blob) -> Vec<u8> {
    let mut body = Vec::with_capacity(HEADER + blob.code.len());
    body.extend_from_slice(&(blob.entry as u64).to_le_bytes());
    body.extend_from_slice(&(blob.align as u64).to_le_bytes());
    body.extend_from_slice(&blob.code);
    let mut out = FORMAT.to_vec();
    out.extend_from_slice(checksum(key, &body).as_bytes());
    out.extend_from_slice(&body);
    out
}

fn decode(key: &blake3::Hash, bytes: &[u8]) -> Option<Blob> {
    let (format, rest) = bytes.split_at_checked(8)?;
    let (sum, body) = rest.split_at_checked(32)?;
    if format != FORMAT || checksum(key, body).as_bytes() != sum {
        return None;
    }
    let (entry, rest) = body.split_at_checked(8)?;
    let (align, code) = rest.split_at_checked(8)?;
    let number = |b: &[u8]| usize::try_from(u64::from_le_bytes(b.try_into().ok()?)).ok();
    let blob = Blob { entry: number(entry)?, align: number(align)?, code: code.to_vec() };
    (blob.entry < blob.code.len() && blob.align.is_power_of_two()).then_some(blob)
}

fn write(dir: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(n: u8) -> Blob {
        Blob { code: vec![n; 1000], entry: 16, align: 64 }
    }

    #[test]
    fn damaged_entries_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::in_dir(dir.path(), 1 << 20);
        let key = Cache::key("source", "cc");
        assert_eq!(cache.get(&key), None);
        cache.put(&key, &blob(1));
        assert_eq!(cache.get(&key), Some(blob(1)));
        let path = cache.path(&key).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in [0, 7, 40, 55, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(cache.get(&key), None, "{cut}");
        }
        for at in [3, 20, 45, 200] {
            let mut bad = whole.clone();
            bad[at] ^= 4;
            fs::write(&path, &bad).unwrap();
            assert_eq!(cache.get(&key), None, "{at}");
        }
        // An entry under another key is no entry.
        let other = Cache::key("other", "cc");
        fs::write(cache.path(&other).unwrap(), &whole).unwrap();
        assert_eq!(cache.get(&other), None);
    }

    #[test]
    fn the_oldest_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::in_dir(dir.path(), 2500);
        let keys: Vec<_> = (0..4).map(|i| Cache::key(&i.to_string(), "cc")).collect();
        for (i, k) in keys.iter().enumerate() {
            cache.put(k, &blob(i as u8));
            let file = fs::File::options().append(true).open(cache.path(k).unwrap()).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(i as u64)).unwrap();
        }
        assert!(cache.get(&keys[0]).is_some(), "use makes it the newest");
        cache.trim();
        let left: Vec<bool> = keys.iter().map(|k| cache.path(k).unwrap().exists()).collect();
        assert_eq!(left, [true, false, false, true]);
    }

    #[test]
    fn two_writers_leave_one_whole_entry() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::in_dir(dir.path(), 1 << 20);
        let key = Cache::key("source", "cc");
        std::thread::scope(|s| {
            for n in 0..4 {
                let cache = &cache;
                s.spawn(move || (0..50).for_each(|_| cache.put(&key, &blob(n))));
            }
            for _ in 0..200 {
                if let Some(b) = cache.get(&key) {
                    assert!(b.code.iter().all(|x| *x == b.code[0]));
                }
            }
        });
        assert!(cache.get(&key).is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_unusable_folder_costs_nothing() {
        let cache = Cache::in_dir("/dev/null/nowhere", 1 << 20);
        let key = Cache::key("source", "cc");
        cache.put(&key, &blob(1));
        assert_eq!(cache.get(&key), None);
        cache.trim();
    }
}
