//! Constructors of diagnostics that have no location in a source file.

use std::path::Path;

use of_diag::{Code, Diagnostic, Location};

/// An error without a source location.
pub fn error(code: Code, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(code, Location::Unknown, message)
}

/// An error of the file system; `action` is a past participle: `read`, `written`, `created`.
pub fn io_error(path: &Path, action: &str, e: &std::io::Error) -> Diagnostic {
    error(Code::IO, format!("'{}' cannot be {action}: {e}", path.display()))
}

/// A number of things for a message: `1 kernel`, `3 kernels`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
