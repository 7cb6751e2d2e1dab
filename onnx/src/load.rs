//! File or bytes to module.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Blob, Module};
use prost::Message;

use crate::proto::ModelProto;
use crate::{Imported, Options, import};

/// Imports a model file. The weights of the module are parts of the mapped file.
///
/// Warnings, e.g. about declared shapes that inference contradicts, go to the log;
/// [`import_with_warnings`] gives them back.
///
/// # Errors
/// Everything that is wrong with the model or not supported, in the order of its nodes.
pub fn import_file(path: &Path, options: &Options) -> Result<Module, Diagnostics> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let options = Options { folder: options.folder.clone().or(Some(folder)), ..options.clone() };
    log(import_with_warnings(map(path)?, &options)?)
}

/// Imports a model from memory. External data needs [`Options::folder`].
///
/// # Errors
/// As [`import_file`].
pub fn import_bytes(model: impl Into<Bytes>, options: &Options) -> Result<Module, Diagnostics> {
    log(import_with_warnings(model.into(), options)?)
}

/// As [`import_bytes`], with the warnings.
///
/// # Errors
/// As [`import_file`].
pub fn import_with_warnings(model: Bytes, options: &Options) -> Result<Imported, Diagnostics> {
    // No bytes decode to a message without fields.
    if model.is_empty() {
        let problem = Diagnostic::error(Code::MODEL, Location::Unknown, "the file is empty, not an ONNX model");
        return Err(problem.hint("export or download it again").into());
    }
    let model: ModelProto = decode(model, "an ONNX model")?;
    import::model(&model, options)
}

fn log(imported: Imported) -> Result<Module, Diagnostics> {
    for w in &imported.warnings.0 {
        tracing::warn!("{w}");
    }
    Ok(imported.module)
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
    M::decode(bytes).map_err(|e| {
        Diagnostic::error(Code::MODEL, Location::Unknown, format!("the file is not {what}, or damaged: {e}"))
            .hint("export or download it again")
    })
}
