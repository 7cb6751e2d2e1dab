//! Exit codes: 0 done, 1 failed or different, 2 bad input, 3 not supported, 4 a limit is exceeded, 128+N ended by signal N.

use std::process::ExitCode;

use of_diag::{Code, Diagnostic, Diagnostics, Location, Severity};

/// The exit code for these errors. An unsupported op or option decides over errors that follow from it.
pub fn code(errors: &Diagnostics) -> ExitCode {
    ExitCode::from(number(errors))
}

/// The number with which a command ends that reports an error of this code alone.
pub fn number_of(code: Code) -> u8 {
    number(&Diagnostic::error(code, Location::Unknown, "").into())
}

fn number(errors: &Diagnostics) -> u8 {
    let mut codes = errors.0.iter().filter(|d| d.severity == Severity::Error).map(|d| d.code);
    if codes.clone().any(|c| c == Code::UNSUPPORTED) {
        3
    } else if codes.clone().any(|c| c == Code::LIMIT) {
        4
    } else if codes.any(|c| [Code::CODEGEN, Code::RUN, Code::EVAL, Code::PASS_BUG].contains(&c)) {
        1
    } else {
        2
    }
}

/// The exit code of a command that compares: 1 says that something differs, and errors of any other kind are 2 or 3.
pub fn code_of_comparison(errors: &Diagnostics) -> ExitCode {
    ExitCode::from(match number(errors) {
        _ if errors.0.is_empty() => 1,
        1 => 2,
        n => n,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_takes_precedence_in_the_exit_code() {
        let of = |codes: &[Code]| {
            number(&Diagnostics(codes.iter().map(|c| Diagnostic::error(*c, Location::Unknown, "x")).collect()))
        };
        assert_eq!(of(&[Code::SYNTAX]), 2);
        assert_eq!(of(&[Code::SHAPE, Code::UNSUPPORTED]), 3);
        assert_eq!(of(&[Code::INPUT, Code::RUN]), 1);
        assert_eq!(of(&[Code::LIMIT]), 4);
    }
}
