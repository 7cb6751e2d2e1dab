//! Which format a file of data has.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics};

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
        return Ok(Source::Array { name: name.into(), path: path.into() });
    }
    let path = PathBuf::from(file);
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
    } else if path.exists() {
        let hint = "give NAME=FILE.npy, FILE.npz, FILE.csv, FILE.tfrecord, FILE.ofrecord, FILE.tar, FILE.txt, FILE.jsonl, FILE.parquet, FILE.arrow, FILE.feather, CIFAR's FILE.bin, NAME=FILE.idx, or a folder with a folder of images for each class";
        Err(error(Code::INPUT, format!("'{}' is in no format of data sets", path.display())).hint(hint).into())
    } else {
        Err(io_error(&path, "read", &std::io::ErrorKind::NotFound.into()).into())
    }
}
