//! `of-opt run`: executes a model or plan on inputs, and prints, writes or compares the outputs.

use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use of_diag::Diagnostics;
use of_driver::compare::{self, Tolerance};
use of_driver::{Backends, Session, SessionOptions, io_error, tensor_files};

use crate::arguments::{Codegen, InputFiles, ModelFile, Shapes};
use crate::console::Console;
use crate::show::{self, Labels};
use crate::workload::workload;

/// Flags.
#[derive(Args, Debug)]
pub struct Run {
    /// The model.
    #[command(flatten)]
    pub model: ModelFile,
    /// Inputs.
    #[command(flatten)]
    pub inputs: InputFiles,
    /// Shapes; without --inputs, random inputs of these shapes.
    #[command(flatten)]
    pub shapes: Shapes,
    /// Folder for output_0.pb, output_1.pb … in the order of the graph; without it the outputs are printed
    #[arg(long, value_name = "DIR")]
    pub outputs: Option<PathBuf>,
    /// Format of the files in --outputs
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "pb")]
    pub output_format: Format,
    /// Print the K largest along the last axis with their indices
    #[arg(long, value_name = "K", conflicts_with = "outputs", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub top: Option<usize>,
    /// Names for the indices of --top, one a line
    #[arg(long, value_name = "FILE", requires = "top")]
    pub labels: Option<PathBuf>,
    /// Compare with the output_0.pb (or .npy) … in a folder; exit code 1 where they differ
    #[arg(long, value_name = "DIR")]
    pub expect: Option<PathBuf>,
    /// Relative tolerance of floats against --expect
    #[arg(long, value_name = "X", default_value_t = 1e-3, requires = "expect")]
    pub rtol: f64,
    /// Absolute tolerance of floats against --expect
    #[arg(long, value_name = "X", default_value_t = 1e-7, requires = "expect")]
    pub atol: f64,
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

/// Executes the subcommand.
///
/// # Errors
/// When the inputs do not fit, something is not supported, or the run fails.
pub fn run(c: &Run, console: &Console) -> Result<(), Diagnostics> {
    let labels = c.labels.as_deref().map(Labels::read).transpose()?;
    let options = c.codegen.options()?;
    let backends = Backends::new(&options)?;
    let random = !c.shapes.shape.is_empty();
    let workload = workload(&c.model, &c.inputs, &c.shapes, random, &c.codegen, &backends, console)?;
    if let Some(summary) = workload.summary.as_ref().filter(|_| console.verbose > 0) {
        super::compile::note_not_native(summary, console);
    }
    let session = SessionOptions { threads: options.worker_threads(), profile: false, memory: options.memory };
    let mut session = Session::for_inputs(Arc::new(workload.plan), &workload.inputs, &session, &backends)?;
    let outputs = session.run_values(workload.inputs)?;
    let names = session.output_names();
    let results: Vec<(&str, of_ops::Value)> = names
        .iter()
        .zip(&outputs)
        .map(|(name, value)| Ok((name.as_str(), tensor_files::from_runtime(value)?)))
        .collect::<Result<_, Diagnostics>>()?;
    write(c, &results, labels.as_ref(), console)?;
    match &c.expect {
        Some(dir) => compare::with_folder(dir, &results, Tolerance { relative: c.rtol, absolute: c.atol }),
        None => Ok(()),
    }
}

fn write(
    c: &Run,
    results: &[(&str, of_ops::Value)],
    labels: Option<&Labels>,
    console: &Console,
) -> Result<(), Diagnostics> {
    let Some(dir) = &c.outputs else {
        if c.expect.is_some() {
            return Ok(());
        }
        let show = |(name, value): &(&str, of_ops::Value)| match c.top {
            Some(k) => show::top(name, value, k, labels),
            None => show::value(name, value),
        };
        let text: String = results.iter().map(show).collect();
        return console.print(&text);
    };
    std::fs::create_dir_all(dir).map_err(|e| io_error(dir, "created", &e))?;
    for (i, (name, value)) in results.iter().enumerate() {
        match c.output_format {
            Format::Pb => tensor_files::write_pb(&dir.join(format!("output_{i}.pb")), name, value)?,
            Format::Npy => tensor_files::write_npy(&dir.join(format!("output_{i}.npy")), name, value)?,
        }
    }
    Ok(())
}
