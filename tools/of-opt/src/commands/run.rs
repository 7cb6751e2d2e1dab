//! `of-opt run`: inputs in, outputs out.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use of_diag::Diagnostics;
use of_passes::specialize::Bindings;
use of_plan::PlanFile;
use of_runtime::Value;

use crate::cli::{Codegen, ModelFile};
use crate::console::Console;
use crate::inputs::{self, Given, InputFiles};
use crate::model::{Model, Source, load};
use crate::show::{self, Labels};
use crate::{driver, exit, values};

/// Flags.
#[derive(Args, Debug)]
pub struct Run {
    /// The model.
    #[command(flatten)]
    pub model: ModelFile,
    /// Inputs.
    #[command(flatten)]
    pub inputs: InputFiles,
    /// Folder for output_0.pb, output_1.pb … in the order of the graph; without it the outputs are printed
    #[arg(long, value_name = "DIR")]
    pub outputs: Option<PathBuf>,
    /// Format of the files in --outputs
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "pb")]
    pub output_format: Format,
    /// Print the K largest along the last axis with their indices
    #[arg(long, value_name = "K", conflicts_with = "outputs")]
    pub top: Option<usize>,
    /// Names for the indices of --top, one a line
    #[arg(long, value_name = "FILE", requires = "top")]
    pub labels: Option<PathBuf>,
    /// Code generation, for models that are not compiled yet.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// Formats of output files.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ONNX TensorProto.
    Pb,
    /// NumPy.
    Npy,
}

/// Runs it.
///
/// # Errors
/// When the inputs do not fit, something is not supported, or the run fails.
pub fn run(c: &Run, console: &mut Console) -> Result<(), Diagnostics> {
    let labels = c.labels.as_deref().map(Labels::read).transpose()?;
    let (plan, inputs) = match load(&c.model.model, console)? {
        Model::Plan(plan) => {
            let given = inputs::read_for_plan(&c.inputs, &plan)?;
            let values = values::to_runtime_all(given)?;
            (*plan, values)
        }
        Model::Module(source) => from_source(&source, c, console)?,
    };
    let program = driver::find_program(&plan, &inputs)?;
    let mut session = driver::session(Arc::new(plan), program, Some(driver::threads(c.codegen.threads)), false)?;
    let outputs = session.run(inputs).map_err(|e| driver::run_error(&e))?;
    let names: Vec<String> = session.program().outputs.iter().map(|p| p.name.clone()).collect();
    write(c, &names, &outputs, labels.as_ref(), console)
}

/// Compiles a model for the shapes of the inputs.
fn from_source(source: &Source, c: &Run, console: &mut Console) -> Result<(PlanFile, Vec<Value>), Diagnostics> {
    driver::verify(&source.module)?;
    let func = driver::main_func(&source.module)?;
    let given: Vec<Given> = inputs::read(&c.inputs, func)?;
    let ordered = inputs::in_order(given, func)?;
    let mut bindings = Bindings::new();
    inputs::bind(&ordered, func, &mut bindings)?;
    let funcs = driver::prepare(&source.module, &[bindings], &c.codegen, console)?;
    let compiled = driver::compile(&funcs, source, &c.codegen, Vec::new(), console)?;
    if console.verbose > 0 {
        super::compile::left_out(&compiled.summary, console);
    }
    let plan = compiled.open()?;
    let values = values::to_runtime_all(ordered.into_iter().map(|g| g.value).collect())?;
    Ok((plan, values))
}

fn write(
    c: &Run,
    names: &[String],
    outputs: &[Value],
    labels: Option<&Labels>,
    console: &Console,
) -> Result<(), Diagnostics> {
    let Some(dir) = &c.outputs else {
        let mut text = String::new();
        for (name, value) in names.iter().zip(outputs) {
            let value = values::from_runtime(value)?;
            text += &match c.top {
                Some(k) => show::top(name, &value, k, labels),
                None => show::value(name, &value),
            };
        }
        return console.print(&text);
    };
    std::fs::create_dir_all(dir).map_err(|e| exit::io(dir, "made", &e))?;
    for (i, (name, value)) in names.iter().zip(outputs).enumerate() {
        let value = values::from_runtime(value)?;
        match c.output_format {
            Format::Pb => values::write_pb(&dir.join(format!("output_{i}.pb")), name, &value)?,
            Format::Npy => values::write_npy(&dir.join(format!("output_{i}.npy")), name, &value)?,
        }
    }
    Ok(())
}
