//! External tensor data.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use of_diag::{Code, Diagnostic, Location};
use of_ir::Blob;

use crate::failed_download::failed_download;
use crate::proto::{StringStringEntryProto, TensorProto};

/// How a message about a file begins, whichever tensor is in it.
pub(crate) const FILE_FAULT: &str = "external data: ";

/// The folder that data may come from, and the files mapped so far.
#[derive(Default)]
pub(crate) struct External {
    folder: Option<PathBuf>,
    mapped: RefCell<HashMap<PathBuf, Blob>>,
}

impl External {
    /// Files in `folder`; without one there is no external data.
    pub fn new(folder: Option<PathBuf>) -> Self {
        External { folder, mapped: RefCell::default() }
    }

    /// The files that tensors were in, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.mapped.borrow().keys().cloned().collect();
        files.sort_unstable();
        files
    }

    /// The bytes that an externally stored tensor names.
    pub fn bytes(&self, tensor: &TensorProto) -> Result<Blob, Diagnostic> {
        let entry = |key: &str| entry(&tensor.external_data, key);
        let fault = |why: String| {
            Diagnostic::error(Code::EXTERNAL_DATA, Location::Unknown, format!("tensor '{}': {why}", tensor.name()))
        };
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => {
                text.trim().parse::<usize>().map(Some).map_err(|_| fault(format!("{key} '{text}' is not a number")))
            }
        };
        let location = entry("location").ok_or_else(|| fault("its external data has no location".into()))?;
        // The file is at fault, whichever tensor needs it: the message is the same for all, and reported once.
        let file = self.file(location).map_err(|why| {
            Diagnostic::error(Code::EXTERNAL_DATA, Location::Unknown, format!("{FILE_FAULT}{why}"))
                .hint("the model needs the files of its weights in its folder")
        })?;
        let offset = number("offset")?.unwrap_or(0);
        let end = match number("length")? {
            Some(length) => offset.checked_add(length),
            None => Some(file.len()),
        };
        end.and_then(|end| file.slice(offset..end))
            .ok_or_else(|| fault(format!("its data is outside '{location}', which has {} bytes", file.len())))
    }

    /// The file at `location`, which must be in the model's folder, followed through links.
    fn file(&self, location: &str) -> Result<Blob, String> {
        let Some(folder) = &self.folder else { return Err("external data needs the model's folder".into()) };
        let relative = Path::new(location);
        let plain = |c| matches!(c, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || location.contains('\0') || !relative.components().all(plain) {
            return Err(format!("location '{location}' is not a path inside the model's folder"));
        }
        let reason = |what: &Path, e: std::io::Error| format!("cannot read {}: {e}", what.display());
        let root = folder.canonicalize().map_err(|e| reason(folder, e))?;
        let joined = root.join(relative);
        let path = joined.canonicalize().map_err(|e| reason(&joined, e))?;
        if !path.starts_with(&root) {
            return Err(format!("location '{location}' is a link that leaves the model's folder"));
        }
        if let Some(blob) = self.mapped.borrow().get(&path) {
            return Ok(blob.clone());
        }
        if !path.metadata().map_err(|e| reason(&path, e))?.is_file() {
            return Err(format!("location '{location}' is not a file"));
        }
        let blob = Blob::map(&path).map_err(|e| reason(&path, e))?;
        if let Some((is, _)) = failed_download(&blob) {
            return Err(format!("{} is {is}, not data", path.display()));
        }
        self.mapped.borrow_mut().insert(path, blob.clone());
        Ok(blob)
    }
}

fn entry<'a>(entries: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    entries.iter().find(|e| e.key() == key).map(StringStringEntryProto::value)
}
