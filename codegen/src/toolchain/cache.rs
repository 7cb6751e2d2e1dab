//! On-disk cache of compiled kernels.
//!
//! Entries are written to a temporary file and renamed, so that readers (this process or another) see only whole entries. Each
//! stores the hash of its key and content, so that a damaged or renamed one is recompiled. An unusable cache is not an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::private::{self, PART};
use crate::toolchain::object::Blob;

/// Version of the entry format.
const FORMAT: &[u8] = b"of-kernel-2";
/// The folder of known versions of compilers, next to the entries.
const COMPILERS: &str = "compilers";
/// The file whose time says when the size was checked last.
const CHECKED: &str = "checked";
/// How often the size is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// A cache of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: Option<PathBuf>,
    limit: u64,
}

/// What a cache holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Its folder; `None` if the cache is disabled.
    pub folder: Option<PathBuf>,
    /// Number of kernels.
    pub entries: usize,
    /// Bytes of all kernels.
    pub bytes: u64,
    /// Maximum bytes, from time to time.
    pub limit: u64,
    /// When the entry was used last that is unused for longest.
    pub oldest: Option<SystemTime>,
    /// The last use of any entry.
    pub newest: Option<SystemTime>,
}

/// An entry on disk. The order is that of the last use.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

impl Cache {
    /// Maximum bytes of the default cache.
    pub const DEFAULT_LIMIT: u64 = 1 << 30;

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

    /// The compiler's version and the kernel under a key.
    pub(super) fn read(&self, key: &str) -> Option<(String, Blob)> {
        let path = self.dir.as_ref()?.join(key);
        let found = decode(key, &private::read(&path)?)?;
        // The modification time records the last use, for trimming.
        if let Ok(f) = fs::File::options().append(true).open(path) {
            let _ = f.set_modified(SystemTime::now());
        }
        Some(found)
    }

    /// Puts a kernel under a key.
    pub(super) fn write(&self, key: &str, version: &str, blob: &Blob) -> std::io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        private::write(&dir.join(key), &encode(key, version, blob))
    }

    /// The version of the compiler with this fingerprint, if the cache knows it.
    pub(super) fn version_of(&self, fingerprint: &str) -> Option<String> {
        let text = String::from_utf8(private::read(&self.version_file(fingerprint)?)?).ok()?;
        let (known, version) = text.split_once('\n')?;
        (known == fingerprint).then(|| version.to_string())
    }

    /// Keeps the version of the compiler with this fingerprint.
    pub(super) fn keep_version(&self, fingerprint: &str, version: &str) {
        let Some(path) = self.version_file(fingerprint) else { return };
        let kept = private::write(&path, format!("{fingerprint}\n{version}").as_bytes());
        if let Err(e) = kept {
            tracing::debug!(error = %e, "the kernel cache cannot be written");
        }
    }

    fn version_file(&self, fingerprint: &str) -> Option<PathBuf> {
        let name = blake3::hash(fingerprint.as_bytes()).to_hex();
        Some(self.dir.as_ref()?.join(COMPILERS).join(name.as_str()))
    }

    /// Removes the least recently used entries until the cache fits its limit.
    pub fn trim(&self) {
        self.clean(None, self.limit);
    }

    /// [`Cache::trim`], unless the last check was within the hour: a check reads the whole folder.
    pub fn trim_if_due(&self) {
        let Some(stamp) = self.dir.as_ref().map(|d| d.join(CHECKED)) else { return };
        let checked = fs::symlink_metadata(&stamp).and_then(|m| m.modified()).ok();
        if checked.and_then(|t| t.elapsed().ok()).is_some_and(|age| age < CHECK_INTERVAL) {
            return;
        }
        // Before the work, so that processes that start meanwhile do not repeat it.
        if private::write(&stamp, b"").is_ok() {
            self.trim();
        }
    }

    /// What the cache holds.
    pub fn usage(&self) -> Usage {
        let entries = self.entries();
        Usage {
            folder: self.dir.clone(),
            entries: entries.len(),
            bytes: entries.iter().map(|e| e.bytes).sum(),
            limit: self.limit,
            oldest: entries.first().map(|e| e.used),
            newest: entries.last().map(|e| e.used),
        }
    }

    /// Removes entries that were not used for `older_than`, then the least recently used ones until `limit` bytes are left.
    /// Returns how many, and their bytes.
    pub fn clean(&self, older_than: Option<Duration>, limit: u64) -> (usize, u64) {
        let mut entries = self.entries();
        let mut total: u64 = entries.iter().map(|e| e.bytes).sum();
        let old = |e: &Entry| older_than.is_some_and(|age| e.used.elapsed().is_ok_and(|unused| unused > age));
        let first = entries.iter().take_while(|e| old(e)).count();
        let mut removed = (0, 0);
        for (i, entry) in entries.drain(..).enumerate() {
            if i >= first && total <= limit {
                break;
            }
            total -= entry.bytes;
            // Another process may have removed it already.
            if fs::remove_file(entry.path).is_ok() {
                removed = (removed.0 + 1, removed.1 + entry.bytes);
            }
        }
        self.remove_parts();
        removed
    }

    /// All entries, the least recently used first. What is not a regular file is one, too: it can be removed.
    fn entries(&self) -> Vec<Entry> {
        let files = self.dir.iter().filter_map(|d| fs::read_dir(d).ok()).flatten().flatten();
        let is_key = |name: &std::ffi::OsStr| {
            name.len() == 2 * blake3::OUT_LEN && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit)
        };
        let mut entries: Vec<Entry> = files
            .filter(|f| is_key(&f.file_name()))
            .filter_map(|f| {
                let m = f.metadata().ok().filter(|m| !m.is_dir())?;
                Some(Entry { used: m.modified().unwrap_or(SystemTime::UNIX_EPOCH), bytes: m.len(), path: f.path() })
            })
            .collect();
        entries.sort();
        entries
    }

    /// Removes unfinished entries that a killed process left.
    fn remove_parts(&self) {
        let files = self.dir.iter().filter_map(|d| fs::read_dir(d).ok()).flatten().flatten();
        for file in files.filter(|f| f.file_name().as_encoded_bytes().starts_with(PART.as_bytes())) {
            let age = file.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
            if age.is_some_and(|age| age > CHECK_INTERVAL) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

fn hash(key: &str, rest: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(FORMAT).update(key.as_bytes()).update(rest).finalize()
}

/// An entry: the hash of key and rest; the entry point, the length of the version, the version, the code.
fn encode(key: &str, version: &str, blob: &Blob) -> Vec<u8> {
    let (entry, length) = (blob.entry.to_le_bytes(), (version.len() as u64).to_le_bytes());
    let rest = [&entry[..], &length, version.as_bytes(), &blob.bytes].concat();
    [&hash(key, &rest).as_bytes()[..], &rest].concat()
}

fn decode(key: &str, data: &[u8]) -> Option<(String, Blob)> {
    let (stored, rest) = data.split_at_checked(blake3::OUT_LEN)?;
    if hash(key, rest).as_bytes() != stored {
        return None;
    }
    let (entry, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (version, bytes) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let version = String::from_utf8(version.to_vec()).ok()?;
    Some((version, Blob { entry: u64::from_le_bytes(*entry), bytes: bytes.to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of three kernels of about 100 bytes, unused for 3, 2 and 1 days.
    fn of_three(dir: &Path, limit: u64) -> Cache {
        let cache = Cache::at(dir, limit);
        for (days, digit) in [(3, "a"), (2, "b"), (1, "c")] {
            let key = digit.repeat(64);
            cache.write(&key, "cc 1", &Blob { bytes: vec![0; 100], entry: 0 }).unwrap();
            let file = fs::File::options().append(true).open(dir.join(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(days * 86400)).unwrap();
        }
        cache
    }

    #[test]
    fn cleaning_removes_the_least_recently_used() {
        let dir = tempfile::tempdir().unwrap();
        let cache = of_three(dir.path(), 1 << 20);
        let usage = cache.usage();
        let each = usage.bytes / 3;
        assert_eq!(usage.entries, 3);
        assert!(usage.oldest < usage.newest);
        assert_eq!(cache.clean(Some(Duration::from_secs(5 * 86400)), u64::MAX), (0, 0));
        assert_eq!(cache.clean(Some(Duration::from_secs(2 * 86400 + 3600)), u64::MAX), (1, each));
        assert!(cache.read(&"b".repeat(64)).is_some(), "a use makes it the most recently used");
        assert_eq!(cache.clean(None, each), (1, each));
        assert!(cache.read(&"b".repeat(64)).is_some());
        assert_eq!(cache.clean(None, 0), (1, each));
        assert_eq!(Cache::none().clean(None, 0), (0, 0));
    }

    #[test]
    fn the_bound_is_checked_at_most_once_an_hour() {
        let dir = tempfile::tempdir().unwrap();
        let cache = of_three(dir.path(), 0);
        cache.trim_if_due();
        assert_eq!(cache.usage().entries, 0);
        of_three(dir.path(), 0).trim_if_due();
        assert_eq!(cache.usage().entries, 3);
        let stamp = fs::File::options().write(true).open(dir.path().join(CHECKED)).unwrap();
        stamp.set_modified(SystemTime::now() - 2 * CHECK_INTERVAL).unwrap();
        cache.trim_if_due();
        assert_eq!(cache.usage().entries, 0);
    }

    #[test]
    fn what_is_no_entry_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = of_three(dir.path(), 0);
        cache.keep_version("cc 12 3", "cc 1");
        fs::write(dir.path().join("note"), "mine").unwrap();
        let part = dir.path().join(".part-left");
        fs::write(&part, "half an entry").unwrap();
        fs::File::options().write(true).open(&part).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        cache.trim();
        assert_eq!(cache.version_of("cc 12 3").as_deref(), Some("cc 1"));
        assert!(cache.version_of("cc 12 4").is_none());
        assert!(dir.path().join("note").exists() && !part.exists());
    }
}
