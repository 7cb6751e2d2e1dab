//! `of-opt import`: ONNX to IR text.

use std::path::PathBuf;

use clap::Args;
use of_diag::Diagnostics;
use of_driver::model;
use of_driver::prepare::verify;
use of_ir::text::{Constants, PrintOptions, print_module, write_module};

use crate::console::{Console, is_dash};

/// Flags.
#[derive(Args, Debug)]
pub struct Import {
    /// The ONNX model
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Where the IR goes, `-` for stdout; large constants go to a file of the same name with the extension ofdata, or into the text on stdout
    #[arg(short, long, value_name = "MODEL.of")]
    pub output: PathBuf,
    /// Print the form that upstream MLIR reads
    #[arg(long)]
    pub print_generic: bool,
    /// Print where every op comes from
    #[arg(long)]
    pub print_locations: bool,
    /// Print large constants as `…`; such text cannot be parsed again
    #[arg(long)]
    pub elide_constants: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When the model is damaged or holds what is not supported.
pub fn import(c: &Import, console: &Console) -> Result<(), Diagnostics> {
    let module = model::import(&c.model, console)?.module;
    verify(&module)?;
    let constants = if c.elide_constants { Constants::Elided } else { Constants::Inline };
    let options = PrintOptions { generic: c.print_generic, locations: c.print_locations, constants };
    let _progress = console.progress(&format!("writing {}", c.output.display()));
    if is_dash(&c.output) {
        console.print(&print_module(&module, &options))
    } else if c.elide_constants {
        of_files::write(&c.output, print_module(&module, &options))
            .map_err(|e| of_driver::io_error(&c.output, "written", &e).into())
    } else {
        write_module(&c.output, &module, &options)
    }
}
