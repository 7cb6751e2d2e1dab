//! Temporary folders of compilers. A lock file in each says whether its process lives, so that others can remove it if not.
//!
//! A lock works where process numbers do not: across containers that share a folder, and after a number was reused.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use tempfile::TempDir;

/// What the names of all folders begin with.
const PREFIX: &str = "of-kernels-";
/// The lock file in each.
const LOCK: &str = "lock";

/// Folders of this process.
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A temporary folder, removed on drop.
pub struct Scratch {
    dir: TempDir,
    /// Locked while the folder is in use.
    _lock: File,
}

impl Scratch {
    /// A new, empty folder. The first one of a process removes those of dead processes.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new() -> io::Result<Scratch> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(|| sweep(&std::env::temp_dir()));
        loop {
            let dir = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
            if let Some(lock) = locked(dir.path())? {
                FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.path().to_owned());
                return Ok(Scratch { dir, _lock: lock });
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).remove(self.dir.path());
    }
}

/// Locks a new folder; `None` if another process took it for one of a dead process and removed it.
fn locked(folder: &Path) -> io::Result<Option<File>> {
    let path = folder.join(LOCK);
    let lock = match File::create_new(&path) {
        Ok(lock) => lock,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if let Err(e) = lock.lock() {
        // A file system without locks: nothing removes this folder after a crash, and `sweep` cannot either.
        tracing::debug!(error = %e, "temporary folders cannot be locked");
    }
    Ok(path.exists().then_some(lock))
}

/// Removes the folders of dead processes of this user.
pub fn sweep(parent: &Path) {
    let own = rustix::process::geteuid().as_raw();
    let folders = fs::read_dir(parent).into_iter().flatten().flatten();
    for folder in folders.filter(|f| f.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        let path = folder.path();
        // Links are not followed.
        if folder.metadata().is_ok_and(|m| m.is_dir() && m.uid() == own) {
            remove_abandoned(&path);
        }
    }
}

/// Removes a folder that no process uses. Where this fails, another process was faster.
fn remove_abandoned(folder: &Path) {
    match File::options().read(true).write(true).open(folder.join(LOCK)) {
        // The lock is held until the folder is gone. A process that just made the folder waits for it, and makes another one.
        Ok(lock) if lock.try_lock().is_ok() => {
            tracing::debug!(folder = %folder.display(), "removing the temporary folder of a dead process");
            let _ = fs::remove_dir_all(folder);
        }
        // Without a lock, it is new and empty, or partly removed.
        Err(e) if e.kind() == io::ErrorKind::NotFound && fs::remove_dir(folder).is_err() => {
            let names: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|f| f.file_name()).collect();
            if !names.is_empty() && names.iter().all(|n| n != LOCK) {
                let _ = fs::remove_dir_all(folder);
            }
        }
        _ => {}
    }
}

/// Removes all folders of this process, for one that is about to exit.
pub(super) fn remove_all() {
    for folder in &*FOLDERS.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_dead_processes_are_removed_and_those_in_use_kept() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (dead, partly_removed) = (folder("of-kernels-dead"), folder("of-kernels-partly"));
        let (alive, other) = (folder("of-kernels-alive"), folder("other"));
        fs::write(dead.join(LOCK), "").unwrap();
        fs::write(partly_removed.join("kernel.c"), "").unwrap();
        let lock = locked(&alive).unwrap().unwrap();
        sweep(parent.path());
        assert!(!dead.exists() && !partly_removed.exists());
        assert!(alive.exists() && other.exists());
        drop(lock);
        // A child that another test has just forked shares the lock until it executes its program.
        for _ in 0..1000 {
            sweep(parent.path());
            if !alive.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!alive.exists() && other.exists());
    }
}
