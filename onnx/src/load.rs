//! File or bytes to module.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Blob, Module};
use prost::Message;

use crate::failed_download::failed_download;
use crate::proto::ModelProto;
use crate::{Imported, Options, import};

/// Imports a model file. The weights of the module are parts of the mapped file.
///
/// Warnings, e.g. about declared shapes that inference contradicts, go to the log;
/// [`import_with_warnings`] returns them.
///
/// # Errors
/// Everything that is wrong with the model or not supported, in the order of its nodes.
pub fn import_file(path: &Path, options: &Options) -> Result<Module, Diagnostics> {
    Ok(import_file_with_data(path, options)?.module)
}

/// As [`import_file`], with the files of external data.
///
/// # Errors
/// As [`import_file`].
pub fn import_file_with_data(path: &Path, options: &Options) -> Result<Imported, Diagnostics> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let options = Options { folder: options.folder.clone().or(Some(folder)), ..options.clone() };
    let imported = import_with_warnings(map(path)?, &options).map_err(|mut all| {
        for d in all.0.iter_mut().filter(|d| d.location == Location::Unknown) {
            if let Some(rest) = d.message.strip_prefix(THE_FILE) {
                d.message = format!("{}{rest}", path.display());
            }
        }
        all
    })?;
    log(&imported);
    Ok(imported)
}

/// How messages about the bytes begin; who knows the file's name puts it there.
const THE_FILE: &str = "the file";

/// Imports a model from memory. External data needs [`Options::folder`].
///
/// # Errors
/// As [`import_file`].
pub fn import_bytes(model: impl Into<Bytes>, options: &Options) -> Result<Module, Diagnostics> {
    let imported = import_with_warnings(model.into(), options)?;
    log(&imported);
    Ok(imported.module)
}

/// An input of an ONNX model.
pub struct ModelInput {
    /// Its name.
    pub name: String,
    /// Whether an initializer has its name: a default value. [`Options::initializer_inputs`] makes it an input of the
    /// module, which otherwise has a constant.
    pub has_default: bool,
}

/// The inputs of a model file, in order.
///
/// # Errors
/// When the file cannot be read, or is no model.
pub fn model_inputs(path: &Path) -> Result<Vec<ModelInput>, Diagnostic> {
    Ok(import::model_inputs(&read_model(path)?.graph.unwrap_or_default()))
}

/// The protocol buffer of a model file. Its weights are parts of the mapped file.
///
/// # Errors
/// When the file cannot be read, or is no model.
pub fn read_model(path: &Path) -> Result<ModelProto, Diagnostic> {
    decode(map(path)?, "an ONNX model")
}

/// As [`import_bytes`], with the warnings.
///
/// # Errors
/// As [`import_file`].
pub fn import_with_warnings(model: Bytes, options: &Options) -> Result<Imported, Diagnostics> {
    // No bytes decode to a message without fields.
    if model.is_empty() {
        let problem =
            Diagnostic::error(Code::MODEL, Location::Unknown, format!("{THE_FILE} is empty, not an ONNX model"));
        return Err(problem.hint("export or download it again").into());
    }
    let model: ModelProto = decode(model, "an ONNX model")?;
    import::model(&model, options)
}

fn log(imported: &Imported) {
    for w in &imported.warnings.0 {
        tracing::warn!("{w}");
    }
}

/// A file as bytes that are not copied.
pub(crate) fn map(path: &Path) -> Result<Bytes, Diagnostic> {
    let error = |e: std::io::Error| {
        Diagnostic::error(Code::IO, Location::Unknown, format!("cannot read {}: {e}", path.display()))
    };
    if !std::fs::metadata(path).map_err(error)?.is_file() {
        return Err(Diagnostic::error(Code::IO, Location::Unknown, format!("{} is not a file", path.display())));
    }
    Ok(Bytes::from_owner(Blob::map(path).map_err(error)?))
}

/// A message, whose tensor bytes are slices of `bytes`.
pub(crate) fn decode<M: Message + Default>(bytes: Bytes, what: &str) -> Result<M, Diagnostic> {
    if let Some((is, hint)) = failed_download(&bytes) {
        let message = format!("{THE_FILE} is {is}, not {what}");
        return Err(Diagnostic::error(Code::MODEL, Location::Unknown, message).hint(hint));
    }
    M::decode(bytes).map_err(|e| {
        Diagnostic::error(Code::MODEL, Location::Unknown, format!("{THE_FILE} is not {what}, or damaged: {e}"))
            .hint("export or download it again")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_web_pages_are_recognised() {
        let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
        for (bytes, is) in [
            (&lfs[..], "a pointer of Git LFS"),
            (b"\n <!DOCTYPE HTML><title>404</title>", "a web page"),
            (b"<html lang=en>", "a web page"),
        ] {
            let e = decode::<ModelProto>(Bytes::copy_from_slice(bytes), "an ONNX model").unwrap_err();
            assert_eq!(e.message, format!("the file is {is}, not an ONNX model"));
        }
        assert_eq!(failed_download(b"\x08\x08"), None);
        assert_eq!(failed_download(b""), None);
    }
}
