//! Crash reproducers: the module before the pass that failed, with the remaining pipeline.

use std::any::Any;
use std::fs;
use std::path::{Path, PathBuf};

use of_diag::Diagnostics;
use of_ir::Module;
use of_ir::text::{PrintOptions, write_module};

/// Writes `before`, and the command that runs `pipeline` on it, to a file in `dir`. Returns its path.
///
/// # Errors
/// When it cannot be written.
pub fn write(dir: &Path, pass: &str, before: &Module, pipeline: &str) -> Result<PathBuf, Diagnostics> {
    let path = dir.join(format!("of-opt-{pass}-{}.of", std::process::id()));
    write_module(&path, before, &PrintOptions { locations: true, ..PrintOptions::default() })?;
    let head = format!("// of-opt {} --passes='{pipeline}' --verify-each\n", path.display());
    let io = |e: std::io::Error| {
        let what = format!("'{}' cannot be written: {e}", path.display());
        Diagnostics::from(of_diag::Diagnostic::error(of_diag::Code::IO, of_diag::Location::Unknown, what))
    };
    let text = fs::read_to_string(&path).map_err(io)?;
    of_files::write(&path, head + &text).map_err(io)?;
    Ok(path)
}

/// The message of a panic.
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}
