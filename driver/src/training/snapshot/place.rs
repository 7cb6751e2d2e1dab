//! Where snapshots are: a folder, or a store of objects.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use of_files::AtomicFile;

/// A file that is being written. It appears whole, when it is finished, or not at all.
pub trait SnapshotFile: Write + Send {
    /// Ends it: then it is there, and survives a power failure.
    ///
    /// # Errors
    /// When it cannot be written.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// A folder for snapshots, or what stands for one. Names have no folders.
pub trait SnapshotFiles: Send + Sync {
    /// Begins a file, which replaces the one of this name.
    ///
    /// # Errors
    /// When it cannot be written.
    fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotFile>>;

    /// Takes note of a file, the first time: a store refuses to [`SnapshotFiles::commit`] where another writer changed it since.
    ///
    /// # Errors
    /// When it cannot be looked at.
    fn watch(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    /// Writes a small file whose appearance is the end of a snapshot. A store refuses it where another writer changed the file since
    /// this one watched, read or wrote it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn commit(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create(name)?;
        file.write_all(bytes)?;
        file.finish()
    }

    /// The bytes of a file, where there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// When a file was written, where there is one.
    ///
    /// # Errors
    /// When it cannot be looked at.
    fn written(&self, name: &str) -> io::Result<Option<SystemTime>>;

    /// The names of the files that start like this.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn names(&self, prefix: &str) -> io::Result<Vec<String>>;

    /// Removes a file, where there is one.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Whether a file could be created, found out without a change that stays: a store writes another object, and removes it again.
    ///
    /// # Errors
    /// When it could not.
    fn check_writable(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    /// How many more bytes files can have, where that is known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether a file replaces another one only if that is still the one that was read: then a snapshot ends with [`SnapshotFiles::commit`].
    fn has_conditional_commits(&self) -> bool {
        false
    }
}

/// Where the snapshots of a training are. Each replaces the one before.
#[derive(Clone)]
pub struct SnapshotPlace {
    files: Arc<dyn SnapshotFiles>,
    name: String,
    /// As it was given.
    shown: String,
}

impl SnapshotPlace {
    /// A file of this machine, or of a folder that several machines see.
    pub fn file(path: &Path) -> SnapshotPlace {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        SnapshotPlace { files: Arc::new(Folder(folder)), name, shown: path.display().to_string() }
    }

    /// A file of a store, with the text that names it in messages.
    pub fn of_store(files: Arc<dyn SnapshotFiles>, name: &str, shown: &str) -> SnapshotPlace {
        SnapshotPlace { files, name: name.into(), shown: shown.into() }
    }

    /// The place's folder.
    pub fn files(&self) -> &dyn SnapshotFiles {
        &*self.files
    }

    /// The name of a snapshot that is one file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name without its ending, with which those of all files of a snapshot begin.
    pub fn stem(&self) -> &str {
        self.name.strip_suffix(SUFFIX).unwrap_or(&self.name)
    }

    /// Whether a snapshot of several files is there.
    pub fn has_index(&self) -> bool {
        matches!(self.files.written(&self.index()), Ok(Some(_)))
    }

    /// Whether a path is that of the snapshot, or of the list of its files.
    pub fn is_at(&self, path: &Path) -> bool {
        let folder = |path: &Path| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())
        };
        let name = path.file_name().map(|name| name.to_string_lossy());
        let is_named = name.is_some_and(|name| name == self.name || name == self.index());
        !self.has_conditional_commits() && is_named && folder(path) == folder(Path::new(&self.shown))
    }

    pub(in crate::training) fn has_conditional_commits(&self) -> bool {
        self.files.has_conditional_commits()
    }

    /// The name of the file that lists those of a snapshot that are several.
    pub fn index(&self) -> String {
        format!("{}{SUFFIX}.index.json", self.stem())
    }

    /// How a user gave it.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// When the snapshot that is there was written, where there is one.
    ///
    /// # Errors
    /// When the place cannot be looked at.
    pub fn written(&self) -> io::Result<Option<SystemTime>> {
        Ok(self.files.written(&self.name)?.max(self.files.written(&self.index())?))
    }

    /// Whether a snapshot could be written.
    ///
    /// # Errors
    /// As [`SnapshotFiles::check_writable`].
    pub fn check_writable(&self) -> io::Result<()> {
        self.files.check_writable(&self.name)
    }
}

/// The ending of files of tensors.
pub const SUFFIX: &str = ".safetensors";

/// A folder of a file system.
struct Folder(PathBuf);

struct FolderFile {
    file: AtomicFile,
    part: File,
    folder: PathBuf,
}

impl SnapshotFiles for Folder {
    fn create(&self, name: &str) -> io::Result<Box<dyn SnapshotFile>> {
        let file = AtomicFile::new(&self.0.join(name))?;
        let part = file.create()?;
        Ok(Box::new(FolderFile { file, part, folder: self.0.clone() }))
    }

    fn check_writable(&self, name: &str) -> io::Result<()> {
        let file = AtomicFile::new(&self.0.join(name))?;
        // Opening a pipe would wait for its reader.
        if file.is_regular() { file.create().map(drop) } else { Ok(()) }
    }

    fn free_bytes(&self) -> Option<u64> {
        let folder = if self.0.as_os_str().is_empty() { Path::new(".") } else { &self.0 };
        // A file system without blocks, as some of networks are, does not say.
        let stat = rustix::fs::statvfs(folder).ok().filter(|stat| stat.f_blocks > 0)?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        known(std::fs::read(self.0.join(name)))
    }

    fn written(&self, name: &str) -> io::Result<Option<SystemTime>> {
        known(std::fs::metadata(self.0.join(name)).and_then(|file| file.modified()))
    }

    fn names(&self, prefix: &str) -> io::Result<Vec<String>> {
        let folder = if self.0.as_os_str().is_empty() { Path::new(".") } else { &self.0 };
        let mut out = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            out.extend(entry?.file_name().into_string().ok().filter(|name| name.starts_with(prefix)));
        }
        Ok(out)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        known(std::fs::remove_file(self.0.join(name))).map(drop)
    }
}

impl Write for FolderFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.part.flush()
    }
}

impl SnapshotFile for FolderFile {
    fn finish(self: Box<Self>) -> io::Result<()> {
        if !self.file.is_regular() {
            return Ok(());
        }
        self.part.sync_all()?;
        self.file.keep()?;
        // The new name is in the folder, which is written as well.
        let folder = if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder };
        File::open(folder)?.sync_all()
    }
}

/// Writes what `fill` gives to a file whole or not at all; it is on the disk when this returns.
pub fn write_durably(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let place = SnapshotPlace::file(path);
    let mut out = BufWriter::with_capacity(1 << 16, place.files().create(place.name())?);
    fill(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
}

fn known<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
