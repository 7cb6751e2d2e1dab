//! Files that this user alone can have written. The cache holds machine code, so it reads no others.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use rustix::fs::OFlags;

/// What the names of unfinished files begin with.
pub const PART: &str = ".part-";
/// Permissions that let others write: the group and everyone.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The content of a file of the cache. `None` if there is none, it cannot be read, or it is refused: it or its folder belongs to
/// another user, others may write to one of them, or it is not a regular file. The first refusal of the process is logged.
pub fn read(path: &Path) -> Option<Vec<u8>> {
    // A FIFO or a device is not even opened: that could block or have effects.
    let before = fs::symlink_metadata(path).ok()?;
    // Who may write to the folder can put another file of this user in the place of this one.
    logged(&folder_of(path), check_folder(&folder_of(path)))?;
    accept(path, &before)?;
    // The file may have been replaced since.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let mut file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path).ok()?;
    let m = file.metadata().ok()?;
    accept(path, &m)?;
    let mut bytes = Vec::with_capacity(usize::try_from(m.len()).ok()?);
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn accept(path: &Path, m: &fs::Metadata) -> Option<()> {
    logged(path, if m.is_file() { check_owner(m) } else { Err("it is not a regular file".into()) })
}

/// Whether this user alone may write to a file or folder; the error says who else may.
fn check_owner(m: &fs::Metadata) -> Result<(), String> {
    if m.uid() != rustix::process::geteuid().as_raw() {
        Err(format!("it belongs to the user {}", m.uid()))
    } else if m.mode() & WRITABLE_BY_OTHERS != 0 {
        Err(format!("other users may write to it (mode {:03o})", m.mode() & 0o777))
    } else {
        Ok(())
    }
}

/// The same for a folder, by its path.
fn check_folder(folder: &Path) -> Result<(), String> {
    check_owner(&fs::metadata(folder).map_err(|e| e.to_string())?)
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Logs why a file or folder is refused: the first time in a process, since one refused folder refuses every file.
fn logged(path: &Path, checked: Result<(), String>) -> Option<()> {
    static ONCE: Once = Once::new();
    let Err(why) = checked else { return Some(()) };
    ONCE.call_once(|| {
        let remedy = if path.is_dir() {
            "make the folder yours and run 'chmod go-w' on it, or name another one in OF_CACHE_DIR"
        } else {
            "'of-opt cache clean' removes it"
        };
        tracing::warn!("the cache does not use '{}': {why}; {remedy}", path.display());
    });
    None
}

/// Writes a file that appears whole, accessible to this user alone, and so are the folders that it needs.
///
/// # Errors
/// When a folder or the file cannot be written, or the folder is refused: another user owns it or may write to it.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = &folder_of(path);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let checked = check_folder(folder);
    logged(folder, checked.clone());
    checked.map_err(io::Error::other)?;
    let mut file = tempfile::Builder::new().prefix(PART).tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_regular_files_that_others_cannot_write_are_read() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        let (file, link) = (folder.join("file"), folder.join("link"));
        write(&file, b"text").unwrap();
        assert_eq!(read(&file).unwrap(), b"text");
        for made in [&folder, &parent.path().join("a")] {
            assert_eq!(fs::metadata(made).unwrap().mode() & 0o777, 0o700);
        }
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for (mode, readable) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&file).is_some(), readable, "{mode:o}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read(&link).is_none() && read(&folder).is_none() && read(&folder.join("none")).is_none());
        // The FIFO has no writer: opening it would block.
        let fifo = folder.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&fifo).is_none());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(1234), None).unwrap();
            assert!(read(&file).is_none());
        }
    }

    #[test]
    fn folders_that_others_own_or_may_write_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("kernels");
        let file = folder.join("file");
        write(&file, b"text").unwrap();
        for (mode, usable) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false), (0o1777, false)] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!((read(&file).is_some(), write(&file, b"text").is_ok()), (usable, usable), "{mode:o}");
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(1234), None).unwrap();
            let refused = write(&file, b"text").unwrap_err().to_string();
            assert!(read(&file).is_none() && refused.contains("belongs to the user 1234"), "{refused}");
        }
    }
}
