//! Large constants in a data file next to the text: written once, mapped when read, never copied, always checked.
//!
//! `#of.data<"model.ofdata", offset, length, "blake3"> : tensor<…>`. The file is a plain sequence of constants, each
//! at a multiple of 64 bytes; only the text says where each is.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use crate::Blob;

/// Constants begin at multiples of this, so that mapped slices suit any vector load.
const ALIGN: u64 = 64;

// ---- writing ----

/// Collects the constants of a module while its text is printed.
pub struct DataFile {
    name: String,
    state: RefCell<State>,
}

struct State {
    out: Box<dyn Write>,
    at: u64,
    seen: HashMap<blake3::Hash, u64>,
    error: Option<io::Error>,
}

impl DataFile {
    /// Writes to `out`; the text will name the file `name`, a path relative to the text.
    pub fn new(name: impl Into<String>, out: impl Write + 'static) -> Self {
        let state = State { out: Box::new(out), at: 0, seen: HashMap::new(), error: None };
        DataFile { name: name.into(), state: RefCell::new(state) }
    }

    /// How the text names the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stores `bytes` unless they are stored already; returns their offset and hash.
    pub(super) fn put(&self, bytes: &[u8]) -> (u64, blake3::Hash) {
        let hash = hash_of(bytes);
        let mut s = self.state.borrow_mut();
        if let Some(offset) = s.seen.get(&hash) {
            return (*offset, hash);
        }
        let offset = s.at.next_multiple_of(ALIGN);
        let padding = vec![0; (offset - s.at) as usize];
        if s.error.is_none() {
            s.error = s.out.write_all(&padding).and_then(|()| s.out.write_all(bytes)).err();
        }
        s.at = offset + bytes.len() as u64;
        s.seen.insert(hash, offset);
        (offset, hash)
    }

    /// Ends the file and returns its length.
    ///
    /// # Errors
    /// The first write that failed.
    pub fn finish(self) -> io::Result<u64> {
        let mut s = self.state.into_inner();
        match s.error {
            Some(e) => Err(e),
            None => s.out.flush().map(|()| s.at),
        }
    }
}

fn hash_of(bytes: &[u8]) -> blake3::Hash {
    // Below this, threads cost more than they bring.
    const PARALLEL: usize = 1 << 20;
    let mut h = blake3::Hasher::new();
    if bytes.len() < PARALLEL {
        h.update(bytes)
    } else {
        h.update_rayon(bytes)
    };
    h.finalize()
}

// ---- reading ----

/// Constants of data files whose hashes were compared. Where a text is parsed again and again, its data is then read only
/// when a file changed.
#[derive(Default)]
pub struct CheckedData(RefCell<HashMap<PathBuf, CheckedFile>>);

/// What is known about one file.
struct CheckedFile {
    stamp: Stamp,
    constants: HashSet<(usize, usize, blake3::Hash)>,
}

/// What changes when a file is written: its length and time.
type Stamp = (u64, Option<SystemTime>);

impl CheckedData {
    /// Forgets what it knows of a file with another stamp.
    fn see(&self, path: &Path, stamp: Stamp) {
        let mut files = self.0.borrow_mut();
        if files.get(path).is_none_or(|f| f.stamp != stamp) {
            files.insert(path.to_owned(), CheckedFile { stamp, constants: HashSet::new() });
        }
    }

    fn contains(&self, path: &Path, constant: &(usize, usize, blake3::Hash)) -> bool {
        self.0.borrow().get(path).is_some_and(|f| f.constants.contains(constant))
    }

    fn add(&self, path: &Path, constant: (usize, usize, blake3::Hash)) {
        if let Some(f) = self.0.borrow_mut().get_mut(path) {
            f.constants.insert(constant);
        }
    }
}

/// A file that is mapped.
#[derive(Clone)]
struct Mapped {
    path: PathBuf,
    bytes: Blob,
}

/// Maps the data files that a text names, each once.
pub(super) struct Loader<'a> {
    base: Option<&'a Path>,
    files: HashMap<String, Mapped>,
    checked: Option<&'a CheckedData>,
}

impl<'a> Loader<'a> {
    /// Reads files below `base`, none without it.
    pub fn new(base: Option<&'a Path>) -> Self {
        Loader { base, files: HashMap::new(), checked: None }
    }

    /// Compares hashes only of constants that are not known.
    pub fn know(&mut self, checked: &'a CheckedData) {
        self.checked = Some(checked);
    }

    /// The file called `name`, or an error.
    pub fn file(&mut self, name: &str) -> Result<Blob, String> {
        if let Some(m) = self.files.get(name) {
            return Ok(m.bytes.clone());
        }
        let base = self.base.ok_or("this text was not read from a file, so it has no data file")?;
        let path = Path::new(name);
        let inside = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        let read = |e: io::Error| format!("'{}' cannot be read: {e}", base.join(path).display());
        // A hostile model must not name the user's other files, neither directly nor through a link.
        let base = if base.as_os_str().is_empty() { Path::new(".") } else { base };
        if name.is_empty() || !path.components().all(inside) {
            return Err(format!("'{name}' is not a path inside the folder of the text"));
        }
        let full = base.join(path).canonicalize().map_err(read)?;
        if !full.starts_with(base.canonicalize().map_err(read)?) {
            return Err(format!("'{name}' leads outside the folder of the text"));
        }
        if !full.is_file() {
            return Err(format!("'{name}' is not a file"));
        }
        if let Some(checked) = self.checked {
            // Before the file is mapped: one that is written in between is read again the next time.
            let data = full.metadata().map_err(read)?;
            checked.see(&full, (data.len(), data.modified().ok()));
        }
        let bytes = Blob::map(&full).map_err(read)?;
        self.files.insert(name.to_owned(), Mapped { path: full, bytes: bytes.clone() });
        Ok(bytes)
    }

    /// Whether `bytes`, a part of the file called `name` from `offset` on, have this hash.
    pub fn has_hash(&self, name: &str, offset: usize, bytes: &[u8], hash: blake3::Hash) -> bool {
        let known = self.checked.zip(self.files.get(name).map(|f| f.path.as_path()));
        let constant = (offset, bytes.len(), hash);
        if known.is_some_and(|(checked, path)| checked.contains(path, &constant)) {
            return true;
        }
        let equal = hash_of(bytes) == hash;
        if let Some((checked, path)) = known.filter(|_| equal) {
            checked.add(path, constant);
        }
        equal
    }
}
