//! The training step as a file of the IR.

use std::path::Path;

use of_diag::Diagnostics;
use of_ir::Module;
use of_ir::text::{Constants, PrintOptions, write_module};
use of_passes::{Manager, Specialize};

use crate::compiler::Job;
use crate::prepare::module_of;

/// Writes the training step as the function `main` of a module, which every command takes that takes a model. Extents are those of the
/// job.
///
/// # Errors
/// When extents do not fit, or the file cannot be written.
pub(super) fn write(step: &Job, model: &Module, path: &Path) -> Result<(), Diagnostics> {
    let mut module = module_of(step.func.clone(), model);
    let mut manager = Manager::default();
    manager.add::<Specialize>(step.bindings.clone()).append("infer-shapes")?;
    manager.run(&mut module, &mut |_| {})?;
    write_module(path, &module, &PrintOptions { generic: false, locations: false, constants: Constants::Inline })
}
