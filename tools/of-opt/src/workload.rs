//! The workload that flags describe: a plan or a model to compile, and its inputs.

use of_diag::Diagnostics;
use of_driver::{Backends, InputSource, ModelOrPlan, Workload};

use crate::arguments::{Codegen, InputFiles, Shapes};
use crate::console::Console;

/// The plan, or the model compiled for the shapes of its inputs. With `random`, inputs are random where there are no files.
///
/// # Errors
/// When a file cannot be read, the inputs do not fit, or an op is not supported.
pub fn workload_of(
    opened: ModelOrPlan,
    files: &InputFiles,
    shapes: &Shapes,
    random: bool,
    codegen: &Codegen,
    backends: &Backends,
    console: &Console,
) -> Result<Workload, Diagnostics> {
    let inputs = InputSource {
        files: &files.inputs,
        shapes: &shapes.shape,
        conversion: &files.conversion()?,
        random,
        memory: codegen.memory,
    };
    match opened {
        ModelOrPlan::Plan(plan) => {
            codegen.check_no_compile_flags(&[])?;
            inputs.for_plan(*plan, console)
        }
        ModelOrPlan::Model(model) => inputs.for_model(*model, &codegen.options()?, backends, console),
    }
}
