//! Modules in files: the text in one, the large constants in a data file.

use std::fs;
use std::io::{self, BufWriter};
use std::path::Path;

use of_diag::{Code, Diagnostic, Diagnostics, Location, SourceMap};
use of_files::AtomicFile;

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
/// has mapped. A pipe has no data file and gets the constants inline. The text names the data file in UTF-8: bytes of the
/// name that are not UTF-8 become U+FFFD in both.
///
/// # Errors
/// When a file cannot be written.
pub fn write_module(path: &Path, module: &Module, options: &PrintOptions<'_>) -> Result<(), Diagnostics> {
    let write = || -> io::Result<()> {
        let text_file = AtomicFile::new(path)?;
        if !text_file.is_regular() {
            return text_file.write(print_module(module, &PrintOptions { constants: Constants::Inline, ..*options }));
        }
        let named = path.with_extension("ofdata");
        let data_name = named.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let data_file = AtomicFile::new(&path.with_file_name(&data_name))?;
        let data = DataFile::new(data_name, BufWriter::new(data_file.create()?));
        text_file.write(print_module(module, &PrintOptions { constants: Constants::DataFile(&data), ..*options }))?;
        if data.finish()? > 0 {
            data_file.keep()?;
        }
        text_file.keep()
    };
    write().map_err(|e| io_error(path, "written", &e))
}

fn io_error(path: &Path, what: &str, e: &io::Error) -> Diagnostics {
    let what = format!("'{}' cannot be {what}: {e}", path.display());
    Diagnostic::error(Code::IO, Location::Unknown, what).into()
}
