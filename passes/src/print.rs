//! `print`: prints the module.

use of_diag::Diagnostics;
use of_ir::Module;
use of_ir::text::{Constants, PrintOptions, print_module};

use crate::{Pass, PassContext, pass_options};

pass_options! {
    /// Options of `print`.
    pub struct PrintPassOptions {
        /// The generic form that upstream MLIR reads.
        generic: bool = false,
        /// The location of every op.
        locations: bool = false,
    }
}

/// The pass.
pub struct Print;

impl Pass for Print {
    const NAME: &'static str = "print";
    const SUMMARY: &'static str = "prints the module without large constants";
    type Options = PrintPassOptions;

    fn run(options: &Self::Options, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let PrintPassOptions { generic, locations } = *options;
        cx.emit(&print_module(module, &PrintOptions { generic, locations, constants: Constants::Elided }));
        Ok(())
    }
}
