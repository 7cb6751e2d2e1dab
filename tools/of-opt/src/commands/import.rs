//! `of-opt import`: ONNX or StableHLO to IR text.

use std::path::PathBuf;

use clap::Args;
use of_diag::Diagnostics;
use of_driver::prepare::verify;
use of_ir::text::{Constants, PrintOptions, print_module, write_module};

use crate::console::{Console, goes_to_terminal, is_dash};
use crate::model_file;

/// Flags.
#[derive(Args, Debug)]
pub struct Import {
    /// The ONNX model or StableHLO module; `-` for stdin
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Output file of the IR; large constants go to a file of the same name with the extension ofdata. On stdout they are
    /// part of the text
    /// [default: stdout]
    #[arg(short, long, value_name = "MODEL.of")]
    pub output: Option<PathBuf>,
    /// Print the form that upstream MLIR reads
    #[arg(long)]
    pub print_generic: bool,
    /// Print where every op comes from
    #[arg(long)]
    pub print_locations: bool,
    /// Print large constants as `…`; such text cannot be parsed again. Always so on a terminal
    #[arg(long)]
    pub elide_constants: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When the model is damaged or holds what is not supported.
pub fn import(c: &Import, console: &Console) -> Result<(), Diagnostics> {
    let module = model_file::import(&c.model, console)?.module;
    verify(&module)?;
    let elide = c.elide_constants || goes_to_terminal(c.output.as_deref());
    let constants = if elide { Constants::Elided } else { Constants::Inline };
    let options = PrintOptions { generic: c.print_generic, locations: c.print_locations, constants };
    let Some(output) = c.output.as_deref().filter(|path| !is_dash(path)) else {
        return console.print(&print_module(&module, &options));
    };
    let _progress = console.progress(&format!("writing {}", output.display()));
    if c.elide_constants {
        let written = of_files::write(output, print_module(&module, &options));
        written.map_err(|e| of_driver::io_error(output, "written", &e).into())
    } else {
        write_module(output, &module, &options)
    }
}
