//! `of-opt man`: manual pages.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use of_diag::{Code, Diagnostics};

use crate::console::Console;

/// Flags.
#[derive(Args, Debug)]
pub struct ManPages {
    /// Write a page for the program and one for each command into this folder, instead of the program's to stdout
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Executes the subcommand for the command line `program`.
///
/// # Errors
/// When stdout or a page cannot be written.
pub fn man(c: &ManPages, program: Command, console: &Console) -> Result<(), Diagnostics> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    match &c.out {
        None => console.print(&page(program)?),
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(|e| of_driver::io_error(folder, "written", &e))?;
            for command in program.get_subcommands() {
                write(folder, command.clone())?;
            }
            write(folder, program)
        }
    }
}

/// Writes a command's page; the one of `run` is `of-opt-run.1`.
fn write(folder: &Path, command: Command) -> Result<(), Diagnostics> {
    let path = folder.join(format!("{}.1", command.get_display_name().unwrap_or(command.get_name())));
    of_files::write(&path, page(command)?).map_err(|e| of_driver::io_error(&path, "written", &e).into())
}

/// A command's page as roff.
fn page(command: Command) -> Result<String, Diagnostics> {
    let mut text = Vec::new();
    Man::new(command)
        .render(&mut text)
        .map_err(|e| of_driver::error(Code::IO, format!("the page cannot be rendered: {e}")))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
