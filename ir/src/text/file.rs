//! Modules in files: the text in one, the large constants in another beside it.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostic, Diagnostics, Location, SourceMap};

use super::{Constants, DataFile, PrintOptions, parse_module, print_module};
use crate::{Module, Registry};

/// Reads a module from `path`; the text is remembered in `sources`, for messages.
///
/// # Errors
/// When the file cannot be read, and as [`parse_module`].
pub fn read_module(path: &Path, registry: &Registry, sources: &mut SourceMap) -> Result<Module, Diagnostics> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|e| io_error(path, "read", &e))?;
    let module = parse_module(&text, &name, registry, Some(path.parent().unwrap_or(Path::new(""))));
    sources.add(name, text);
    module
}

/// Writes a module to `path` and its large constants to a file of the same name with the extension `ofdata`, which is
/// not made where there are none. `options.constants` is not used.
///
/// Both files are complete before they get their names, so that a module may be written over the file whose data it
/// has mapped.
///
/// # Errors
/// When a file cannot be written.
pub fn write_module(path: &Path, module: &Module, options: &PrintOptions<'_>) -> Result<(), Diagnostics> {
    let data_path = path.with_extension("ofdata");
    let data_name = data_path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let (text_part, data_part) = (partial(path), partial(&data_path));
    let write = || -> io::Result<()> {
        let data = DataFile::new(data_name, BufWriter::new(File::create(&data_part)?));
        let text = print_module(module, &PrintOptions { constants: Constants::Beside(&data), ..*options });
        if data.finish()? == 0 {
            fs::remove_file(&data_part)?;
        } else {
            fs::rename(&data_part, &data_path)?;
        }
        fs::write(&text_part, text)?;
        fs::rename(&text_part, path)
    };
    write().map_err(|e| {
        // What was begun is of no use; that it cannot be removed either does not matter more than the first error.
        let _ = fs::remove_file(&text_part);
        let _ = fs::remove_file(&data_part);
        io_error(path, "written", &e)
    })
}

/// Where a file is written before it gets its name.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn io_error(path: &Path, what: &str, e: &io::Error) -> Diagnostics {
    let what = format!("'{}' cannot be {what}: {e}", path.display());
    Diagnostic::error(Code::IO, Location::Unknown, what).into()
}
