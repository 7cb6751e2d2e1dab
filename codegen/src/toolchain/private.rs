//! Files that this user alone can have written. The cache holds machine code, so it reads no others.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Once;

use rustix::fs::OFlags;

/// What the names of unfinished files begin with.
pub const PART: &str = ".part-";
/// Permissions that let others write: the group and everyone.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The content of a file of the cache. `None` if there is none, it cannot be read, or it is refused: it belongs to another user, others may write to it,
/// or it is not a regular file. The first refusal of the process is logged.
pub fn read(path: &Path) -> Option<Vec<u8>> {
    // A FIFO or a device is not even opened: that could block or have effects.
    let before = fs::symlink_metadata(path).ok()?;
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
    let why = if !m.is_file() {
        "it is not a regular file".into()
    } else if m.uid() != rustix::process::geteuid().as_raw() {
        format!("it belongs to the user {}", m.uid())
    } else if m.mode() & WRITABLE_BY_OTHERS != 0 {
        format!("other users may write to it (mode {:03o})", m.mode() & 0o777)
    } else {
        return Some(());
    };
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!("the cache does not read '{}': {why}; 'of-opt cache clean' removes it", path.display())
    });
    None
}

/// Writes a file that appears whole, accessible to this user alone, and so are the folders that it needs.
///
/// # Errors
/// When a folder or the file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
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
}
