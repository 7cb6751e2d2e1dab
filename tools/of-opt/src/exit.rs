//! How the program ends: see [`of_cli::exit`] for the codes.

use signal_hook::consts::SIGPIPE;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_driver::error;

pub use of_cli::exit::{code, code_of_comparison, number_of};

/// The result of a comparison that found a difference: nothing to report beyond what was printed.
pub fn different() -> Diagnostics {
    Diagnostics::default()
}

/// Ends the program because nothing reads its results any more (`| head`), with the code of a program that SIGPIPE ended.
pub fn nothing_reads() -> ! {
    std::process::exit(128 + SIGPIPE)
}

/// A wrong command line.
pub fn usage(what: impl Into<String>) -> Diagnostic {
    error(Code::INPUT, what).hint("'of-opt --help' lists commands and options")
}
