//! How the program ends: see [`of_cli::exit`] for the codes.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use signal_hook::consts::SIGPIPE;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_driver::error;

pub use of_cli::exit::{code_of_comparison, number_of};

/// The code with which a program ends that SIGPIPE ended.
pub const NOTHING_READS: u8 = 128 + SIGPIPE as u8;

/// What is to be done before the program ends because nothing reads its results.
static BEFORE_QUIET_END: OnceLock<fn()> = OnceLock::new();

/// The exit code of the rank that failed first, where this process started ranks and one did; 0 otherwise.
static OF_RANK: AtomicU8 = AtomicU8::new(0);

/// Ends this process with the code of a rank that failed, once its error is reported.
pub fn as_rank(code: u8) {
    OF_RANK.store(code, Ordering::Release);
}

/// The exit code for these errors.
pub fn code(errors: &Diagnostics) -> ExitCode {
    match OF_RANK.load(Ordering::Acquire) {
        0 => of_cli::exit::code(errors),
        code => code.into(),
    }
}

/// The result of a comparison that found a difference: nothing to report beyond what was printed.
pub fn different() -> Diagnostics {
    Diagnostics::default()
}

/// Ends the program because nothing reads its results any more (`| head`), with the code of a program that SIGPIPE ended.
pub fn nothing_reads() -> ! {
    BEFORE_QUIET_END.get().inspect(|before| before());
    std::process::exit(NOTHING_READS.into())
}

/// Gives what is to be done before [`nothing_reads`] ends the program.
pub fn before_quiet_end(before: fn()) {
    // Given once.
    let _ = BEFORE_QUIET_END.set(before);
}

/// A wrong command line.
pub fn usage(what: impl Into<String>) -> Diagnostic {
    error(Code::INPUT, what).hint("'of-opt --help' lists commands and options")
}
