//! Files: atomic replacement, and maps whose memory can be given back.
//!
//! A file appears completely or not at all. It is written under a temporary name in the target's folder and
//! renamed when it is complete. So a reader sees the old file or the new one, a mapped old file stays valid, and an error leaves no file
//! behind. Durability after a power failure depends on the file system.

#[cfg(not(target_family = "wasm"))]
mod mapped;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(not(target_family = "wasm"))]
pub use mapped::{MappedFile, release};

/// Does nothing: there are no maps of files.
#[cfg(target_family = "wasm")]
pub fn release(_bytes: &[u8]) {}

/// Temporary files of this process.
static PARTS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn parts() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files of all unfinished writes, for a program that a signal is about to end. Those writes fail.
pub fn remove_unfinished() {
    for part in &*parts() {
        // It may not be created yet.
        let _ = fs::remove_file(part);
    }
}

/// A file that will atomically replace `path`. Dropped without [`keep`](AtomicFile::keep), it leaves no trace.
#[derive(Debug)]
pub struct AtomicFile {
    /// Where it gets to.
    path: PathBuf,
    /// Where it is written; none where that is `path` itself, and none once it is kept.
    part: Option<PathBuf>,
}

impl AtomicFile {
    /// A file for `path`. A link is followed. What is no regular file (a device, a pipe) cannot be replaced: it is
    /// written to as it is.
    ///
    /// # Errors
    /// When `path` is a folder, or cannot be looked at.
    pub fn new(path: &Path) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(m) if m.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(m) if !m.is_file() => return Ok(AtomicFile { path: path.to_owned(), part: None }),
            Ok(_) => fs::canonicalize(path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(e) => return Err(e),
        };
        let part = part_of(&path);
        parts().insert(part.clone());
        Ok(AtomicFile { path, part: Some(part) })
    }

    /// Whether it is a regular file, so that a second file can be next to it.
    pub fn is_regular(&self) -> bool {
        self.part.is_some()
    }

    /// Opens it for writing.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create(&self) -> io::Result<File> {
        match &self.part {
            Some(part) => OpenOptions::new().write(true).create_new(true).open(part),
            None => OpenOptions::new().write(true).open(&self.path),
        }
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// As [`OpenOptions::open`] and [`Write::write_all`].
    pub fn write(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.create()?.write_all(bytes.as_ref())
    }

    /// Puts it in its place, with the permissions of the file that was there.
    ///
    /// # Errors
    /// As [`fs::rename`]; nothing is left behind.
    pub fn keep(mut self) -> io::Result<()> {
        let Some(part) = &self.part else { return Ok(()) };
        if let Ok(old) = fs::metadata(&self.path) {
            fs::set_permissions(part, old.permissions())?;
        }
        fs::rename(part, &self.path)?;
        parts().remove(part);
        self.part = None;
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // What was begun is of no use; where it was not even created, or cannot be removed, an earlier error matters.
            let _ = fs::remove_file(part);
            parts().remove(part);
        }
    }
}

/// Writes a file whole or not at all.
///
/// # Errors
/// As [`AtomicFile`]'s functions.
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let file = AtomicFile::new(path.as_ref())?;
    file.write(bytes)?;
    file.keep()
}

/// A unique temporary name in the folder of `path`.
fn part_of(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{}.part", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn old_file_stays_until_the_new_one_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write(&path, "old").unwrap();
        let file = AtomicFile::new(&path).unwrap();
        file.write("new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["f"]);
    }

    #[test]
    fn dropped_file_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let file = AtomicFile::new(&dir.path().join("f")).unwrap();
        file.write("half").unwrap();
        drop(file);
        assert_eq!(names(dir.path()), [""; 0]);
        assert_eq!(write(dir.path(), "x").unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert!(write(dir.path().join("no/such"), "x").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn symlinks_are_followed_and_pipes_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&link, "new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");

        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write(&pipe, "through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert_eq!(names(dir.path()), ["link", "pipe", "real"]);
    }
}
