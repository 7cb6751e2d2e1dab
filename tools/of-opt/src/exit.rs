//! What the exit code says: 0 done, 1 failed, 2 bad input, 3 not supported.

use std::process::ExitCode;

use of_diag::{Code, Diagnostic, Diagnostics, Location, Severity};

/// The exit code for these errors. One thing that is not supported outweighs what follows from it.
pub fn code(errors: &Diagnostics) -> ExitCode {
    ExitCode::from(number(errors))
}

fn number(errors: &Diagnostics) -> u8 {
    let mut codes = errors.0.iter().filter(|d| d.severity == Severity::Error).map(|d| d.code);
    if codes.clone().any(|c| c == Code::UNSUPPORTED) {
        3
    } else if codes.any(|c| [Code::CODEGEN, Code::RUN, Code::EVAL, of_passes::BROKEN_PASS].contains(&c)) {
        1
    } else {
        2
    }
}

/// An error without a place.
pub fn error(code: Code, what: impl Into<String>) -> Diagnostic {
    Diagnostic::error(code, Location::Unknown, what)
}

/// The command line does not make sense.
pub fn usage(what: impl Into<String>) -> Diagnostic {
    error(Code::INPUT, what).hint("'of-opt --help' shows what there is")
}

/// A file cannot be read or written.
pub fn io(path: &std::path::Path, what: &str, e: &std::io::Error) -> Diagnostic {
    error(Code::IO, format!("'{}' cannot be {what}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_decides() {
        let of = |codes: &[Code]| number(&Diagnostics(codes.iter().map(|c| error(*c, "x")).collect()));
        assert_eq!(of(&[Code::SYNTAX]), 2);
        assert_eq!(of(&[Code::SHAPE, Code::UNSUPPORTED]), 3);
        assert_eq!(of(&[Code::INPUT, Code::RUN]), 1);
    }
}
