//! `of-opt lsp`: the language server.

use std::io::{stdin, stdout};

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::error;
use of_lsp::Ended;

/// Flags.
#[derive(Args, Debug)]
pub struct Lsp {
    /// Use stdin and stdout, as always; some clients give this flag
    #[arg(long)]
    pub stdio: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When stdin is no stream of messages, or ends without the messages `shutdown` and `exit`.
pub fn lsp(_: &Lsp) -> Result<(), Diagnostics> {
    match of_lsp::serve(stdin(), stdout()) {
        Ok(Ended::Properly) => Ok(()),
        Ok(Ended::Abruptly) => Err(error(Code::RUN, "the client ended without 'shutdown'").into()),
        Err(e) => {
            let hint = "an editor starts this command; docs/editor.md says how";
            Err(error(Code::IO, format!("stdin holds no messages of the language server protocol: {e}"))
                .hint(hint)
                .into())
        }
    }
}
