//! `of-opt completions`: a script that completes the command line in a shell.

use clap::{Args, Command};
use clap_complete::Shell;
use of_diag::Diagnostics;

use crate::console::Console;

/// Flags.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  of-opt completions bash > ~/.local/share/bash-completion/completions/of-opt\n  \
    of-opt completions fish > ~/.config/fish/completions/of-opt.fish")]
pub struct Completions {
    /// The shell that runs the script
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

/// Executes the subcommand for the command line `program`.
///
/// # Errors
/// When stdout cannot be written.
pub fn completions(c: &Completions, mut program: Command, console: &Console) -> Result<(), Diagnostics> {
    let mut script = Vec::new();
    clap_complete::generate(c.shell, &mut program, "of-opt", &mut script);
    console.print(&String::from_utf8_lossy(&script))
}
