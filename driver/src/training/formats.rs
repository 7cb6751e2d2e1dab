//! Which format a file of data has.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics, closest};

use super::data::ColumnSpec;
use super::{columns, idx, ofrecord, text, webdataset};
use crate::error::{error, io_error};

/// A file or folder of data, by its format.
pub(super) enum Source {
    Array { name: String, path: PathBuf },
    Archive(PathBuf),
    Table(PathBuf),
    Images(PathBuf),
    Cifar(PathBuf),
    Records(PathBuf),
    WebDataset(PathBuf),
    Text(PathBuf),
    Columns(PathBuf),
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(wanted))
}

/// The format of a file, by its name and, of CIFAR, by its contents.
///
/// # Errors
/// When there is no such file, or it has none of the formats.
pub(super) fn source(file: &OsStr, wanted: &[ColumnSpec]) -> Result<Source, Diagnostics> {
    let text = file.to_string_lossy();
    if let Some((name, path)) = text.split_once('=')
        && wanted.iter().any(|spec| spec.name == name)
    {
        look(Path::new(path), wanted)?;
        return Ok(Source::Array { name: name.into(), path: path.into() });
    }
    let path = PathBuf::from(file);
    look(&path, wanted)?;
    if has_extension(&path, "npz") {
        Ok(Source::Archive(path))
    } else if has_extension(&path, "csv") {
        Ok(Source::Table(path))
    } else if path.is_file() && idx::is_cifar(&path) {
        Ok(Source::Cifar(path))
    } else if path.is_file()
        && (has_extension(&path, "tfrecord") || has_extension(&path, "tfrecords") || ofrecord::is_ofrecord(&path))
    {
        Ok(Source::Records(path))
    } else if path.is_file() && webdataset::is_webdataset(&path) {
        Ok(Source::WebDataset(path))
    } else if path.is_file() && text::is_text(&path) {
        Ok(Source::Text(path))
    } else if path.is_file() && columns::is_columns(&path) {
        Ok(Source::Columns(path))
    } else if path.is_dir() {
        Ok(Source::Images(path))
    } else {
        let hint = "give NAME=FILE.npy, FILE.npz, FILE.csv, FILE.tfrecord, FILE.ofrecord, FILE.tar, FILE.txt, FILE.jsonl, FILE.parquet, FILE.arrow, FILE.feather, CIFAR's FILE.bin, NAME=FILE.idx, or a folder with a folder of images for each class";
        Err(error(Code::INPUT, format!("'{}' is in no format of data sets", path.display())).hint(hint).into())
    }
}

/// Looks at a file or folder of data.
///
/// # Errors
/// When it is not there, with what may have been meant.
fn look(path: &Path, wanted: &[ColumnSpec]) -> Result<(), Diagnostics> {
    let e = match std::fs::metadata(path) {
        Ok(file) if file.is_file() && file.len() == 0 && !may_be_empty(path) => {
            let what = format!("'{}' is empty, and is to be data", path.display());
            let hint = "it was not written, copied or downloaded completely";
            return Err(error(Code::INPUT, what).hint(hint).into());
        }
        Ok(_) => return Ok(()),
        Err(e) => e,
    };
    if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
        return Err(io_error(path, "read", &e).into());
    }
    let missing = error(Code::IO, format!("there is no file or folder '{}', which is to be data", path.display()));
    Err(missing.hint(meant(path, wanted)).into())
}

/// Whether a file of this name may have no bytes: one of several of texts, or of records, which says so itself.
fn may_be_empty(path: &Path) -> bool {
    let is_records = has_extension(path, "tfrecord") || has_extension(path, "tfrecords") || ofrecord::is_ofrecord(path);
    text::is_text(path) || is_records
}

/// What a path may have meant that names nothing.
fn meant(path: &Path, wanted: &[ColumnSpec]) -> String {
    let text = path.to_string_lossy();
    if let Some((name, _)) = text.split_once('=').filter(|(_, file)| Path::new(file).exists()) {
        let names: Vec<&str> = wanted.iter().map(|spec| spec.name.as_str()).collect();
        return format!(
            "in NAME=FILE, the name is that of an input or of the labels, {}, and not '{name}'",
            names.join(", ")
        );
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return format!("'{}' is no folder either", folder.display());
    }
    let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter().flatten().flatten();
    let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    match closest(&name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean '{}'?", path.with_file_name(near).display()),
        None => match std::env::current_dir() {
            Ok(here) if path.is_relative() => format!("the path begins in '{}'", here.display()),
            _ => "give an existing file or folder".into(),
        },
    }
}
