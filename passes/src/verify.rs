//! `verify`: verifies the module without changing it.

use of_diag::Diagnostics;
use of_ir::Module;

use crate::{NoOptions, Pass, PassContext};

/// The pass.
pub struct Verify;

impl Pass for Verify {
    const NAME: &'static str = "verify";
    const SUMMARY: &'static str = "verifies structure, dominance and every op against its declaration";
    type Options = NoOptions;

    fn run(_options: &NoOptions, module: &mut Module, _cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        of_ir::verify_module(module)
    }
}
