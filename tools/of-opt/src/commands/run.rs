//! `of-opt run`: executes a model or plan on inputs, and prints, writes or compares the outputs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use of_diag::{Code, Diagnostics};
use of_driver::compare::{self, Comparison, Tolerance};
use of_driver::session::run_error;
use of_driver::{Backends, Cache, Session, SessionOptions, count, error, io_error, output_and_input, tensor_files};
use serde_json::json;

use crate::arguments::{Codegen, CpuCodeArg, InputFiles, ModelFile, Shapes};
use crate::console::{Console, is_dash};
use crate::ranks::{self, Joined, RankOptions, Role};
use crate::sandbox::Access;
use crate::show::{self, Labels};
use crate::signed_plan::Signed;
use crate::telemetry::{JobTrace, TraceFlags};
use crate::workload::workload_of;
use crate::{exit, sandbox};

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
    /// Number of iterations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub iterations: usize,
    /// Feed an output of one iteration to an input of the next, such as present=past for the state of a model.
    /// Comma-separated or repeated
    #[arg(long, value_name = "OUTPUT=INPUT", value_delimiter = ',')]
    pub feed: Vec<String>,
    /// Set a variable of the plan before the first iteration: NAME=FILE (.npy or .pb). May be repeated
    #[arg(long, value_name = "NAME=FILE")]
    pub set: Vec<String>,
    /// Write a variable of the plan after the last iteration: NAME=FILE.npy. May be repeated
    #[arg(long, value_name = "NAME=FILE.npy")]
    pub save: Vec<String>,
    /// Folder for output_0.pb, output_1.pb … in the order of the graph; without it the outputs are printed
    #[arg(long, value_name = "DIR")]
    pub outputs: Option<PathBuf>,
    /// Format of the files in --outputs
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "pb")]
    pub output_format: Format,
    /// Print the K largest elements along the last axis with their indices
    #[arg(long, value_name = "K", conflicts_with = "outputs", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub top: Option<usize>,
    /// Names for the indices of --top, one a line; without FILE those next to the model, NAME.labels.txt, which a training writes
    #[arg(long, value_name = "FILE", requires = "top")]
    pub labels: Option<Option<PathBuf>>,
    /// Compare with the output_0.pb (or .npy) … in a folder; exit code 1 where they differ
    #[arg(long, value_name = "DIR")]
    pub expect: Option<PathBuf>,
    /// Relative tolerance of floats against --expect
    #[arg(long, value_name = "X", default_value_t = 1e-3, requires = "expect")]
    pub rtol: f64,
    /// Absolute tolerance of floats against --expect [default: 0.0001 of the output's scale, the median size of its numbers]
    #[arg(long, value_name = "X", requires = "expect")]
    pub atol: Option<f64>,
    /// Print the comparison of --expect as JSON
    #[arg(long, requires = "expect")]
    pub json: bool,
    /// Who must have signed the plan.
    #[command(flatten)]
    pub signed: Signed,
    /// Give up all rights that the run does not need before the model is opened, for models of strangers: no other programs, no
    /// network, and only the files that this command line names. Kernels are compiled in process, without the cache
    #[arg(long)]
    pub sandbox: bool,
    /// Traces.
    #[command(flatten)]
    pub traces: TraceFlags,
    /// Ranks as processes.
    #[command(flatten)]
    pub ranks: RankOptions,
    /// Code generation, for models that are not compiled yet.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// The time between two reports of how far the iterations are: a run may take microseconds.
const PROGRESS: Duration = Duration::from_millis(100);

/// Formats of output files.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ONNX TensorProto.
    Pb,
    /// NumPy.
    Npy,
}

/// Enters the sandbox, if the flags ask for it.
///
/// # Errors
/// When the system has none, a flag needs what the sandbox does not give, or the folder of the outputs cannot be made.
pub fn enter_sandbox(c: &Run, libraries: &[PathBuf]) -> Result<(), Diagnostics> {
    if !c.sandbox {
        return Ok(());
    }
    if !matches!(ranks::role(&c.ranks)?, Role::All) {
        return Err(exit::usage("ranks connect to one another, which --sandbox does not allow").into());
    }
    if c.ranks.metrics_port.is_some() {
        return Err(exit::usage("metrics are served over the network, which --sandbox does not allow").into());
    }
    #[cfg(feature = "serve")]
    if c.traces.trace_endpoint.is_some() {
        return Err(exit::usage("traces go over the network, which --sandbox does not allow").into());
    }
    if c.codegen.cpu_code == Some(CpuCodeArg::C) {
        return Err(exit::usage("the C compiler is another program, which --sandbox does not start").into());
    }
    let mut access = Access::default();
    if let Some(dir) = &c.outputs {
        std::fs::create_dir_all(dir).map_err(|e| io_error(dir, "created", &e))?;
        access.write.push(dir.clone());
    }
    // A model may have its weights in files next to it; a plan is one file.
    let model = &c.model.model;
    let folder = model.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !is_dash(model) {
        access.read.push(folder.to_owned());
    }
    for input in &c.inputs.inputs {
        // NAME=FILE or FILE: both are tried, as names of files may hold `=`.
        let bytes = input.as_encoded_bytes();
        let files = (0..bytes.len()).filter(|at| bytes[*at] == b'=').map(|at| &bytes[at + 1..]);
        access.read.extend(files.filter_map(|file| std::str::from_utf8(file).ok()).map(PathBuf::from));
        access.read.push(input.into());
    }
    let labels = labels_file(c);
    let named = [&labels, &c.expect, &c.signed.require_signature, &c.signed.signature].into_iter().flatten();
    access.read.extend(named.chain(libraries).cloned());
    if c.signed.require_signature.is_some() {
        access.read.push(of_signature::signature_file(model));
    }
    sandbox::enter(&access)
}

/// Executes the subcommand.
///
/// # Errors
/// When the inputs do not fit, something is not supported, or the run fails.
pub fn run(c: &Run, console: &Console) -> Result<(), Diagnostics> {
    let job = match c.sandbox {
        true => JobTrace::none("the sandbox has no network"),
        false => JobTrace::begin(&c.traces, "of-opt run")?,
    };
    let result = run_traced(c, &job, console);
    job.end(result)
}

/// The file of --labels: without a value the one next to the model.
fn labels_file(c: &Run) -> Option<PathBuf> {
    let file = c.labels.as_ref()?;
    Some(file.clone().unwrap_or_else(|| c.model.model.with_extension("labels.txt")))
}

fn run_traced(c: &Run, job: &JobTrace, console: &Console) -> Result<(), Diagnostics> {
    let role = ranks::role(&c.ranks)?;
    if let Role::Launcher(job) = &role {
        if is_dash(&c.model.model) {
            return Err(exit::usage("--ranks starts processes, which cannot all read stdin; give a file").into());
        }
        return ranks::launch(job, &c.ranks, 0).map(drop);
    }
    ranks::serve_metrics(&c.ranks, &role)?;
    let labels = labels_file(c).as_deref().map(Labels::read).transpose().map_err(|errors| match c.labels {
        Some(None) => {
            let hint = "--labels without a file takes that next to the model; --labels FILE names another";
            Diagnostics(errors.0.into_iter().map(|error| error.hint(hint)).collect())
        }
        _ => errors,
    })?;
    let mut options = c.codegen.options()?;
    if c.sandbox {
        options.cache = Cache::none();
    }
    let backends = Backends::new(&options)?;
    let random = !c.shapes.shape.is_empty();
    let opened = ranks::open(&role, &c.signed, &c.model, &c.inputs, console)?;
    let workload = workload_of(opened, &c.inputs, &c.shapes, random, &c.codegen, &backends, console)?;
    if let Some(summary) = &workload.summary {
        super::compile::note_not_emitted(summary, console);
        if console.verbose > 0 {
            super::compile::note_not_native(summary, console);
        }
    }
    let threads = ranks::threads(&c.ranks, &role, &options)?;
    let session = SessionOptions { threads, profile: false, memory: ranks::memory(&c.ranks, &role, options.memory)? };
    let plan = Arc::new(workload.plan);
    let (mut session, joined) =
        ranks::session(&c.ranks, &role, (plan, &c.model.model), &workload.inputs, &session, &backends)?;
    let names = session.output_names();
    set_variables(&c.set, &session)?;
    let outputs = iterate(c, job, &mut session, workload.inputs, console)
        .map_err(|errors| ranks::explained_end(&role, "start it again", errors))?;
    save_variables(&c.save, &session)?;
    // All ranks have the outputs; the first one reports them.
    let reports = session.reports();
    drop(session);
    joined.map_or(Ok(()), Joined::done)?;
    if !reports {
        return Ok(());
    }
    let results: Vec<(&str, of_ops::Value)> = names
        .iter()
        .zip(&outputs)
        .map(|(name, value)| Ok((name.as_str(), tensor_files::from_runtime(value)?)))
        .collect::<Result<_, Diagnostics>>()?;
    write(c, &results, labels.as_ref(), console)?;
    let Some(dir) = &c.expect else { return Ok(()) };
    let compared = compare::with_folder(dir, &results, Tolerance { relative: c.rtol, absolute: c.atol })?;
    console.print(&if c.json { as_json(&compared) } else { as_text(&compared) })?;
    compare::check(&compared)
}

/// The variables of a session, and for each text the name and the file.
fn variable_files<'s>(list: &'s [String], session: &'s Session) -> Result<Vec<(&'s str, &'s str)>, Diagnostics> {
    let known: Vec<&str> = session.variables().map_or(Vec::new(), of_driver::SessionVariables::names);
    let split = |item: &'s String| {
        // Names may hold `=` as well: every split is tried.
        let split = item
            .match_indices('=')
            .find_map(|(at, _)| known.contains(&&item[..at]).then(|| (&item[..at], &item[at + 1..])));
        split.ok_or_else(|| {
            let hint = match known.is_empty() {
                true => "the plan has none; 'compile --variable' makes them".to_string(),
                false => format!("its variables are {}", known.join(", ")),
            };
            error(Code::INPUT, format!("'{item}' names no variable, as NAME=FILE")).hint(hint).into()
        })
    };
    list.iter().map(split).collect()
}

fn set_variables(list: &[String], session: &Session) -> Result<(), Diagnostics> {
    for (name, file) in variable_files(list, session)? {
        let value = tensor_files::to_runtime_all(vec![tensor_files::read(Path::new(file), None)?.value])?.pop();
        let (Some(of_runtime::Value::Tensor(value)), Some(variables)) = (value, session.variables()) else {
            return Err(error(Code::INPUT, format!("'{file}' holds no tensor")).into());
        };
        variables.set(name, &value).map_err(|e| run_error(&e))?;
    }
    Ok(())
}

fn save_variables(list: &[String], session: &Session) -> Result<(), Diagnostics> {
    for (name, file) in variable_files(list, session)? {
        let Some(variables) = session.variables() else { return Ok(()) };
        // Of ranks that are processes, the first one writes.
        let Some(value) = variables.lend_reported(name).map_err(|e| run_error(&e))? else { continue };
        tensor_files::write_npy(Path::new(file), name, &tensor_files::from_runtime(&value.into())?)?;
    }
    Ok(())
}

/// The outputs of the last of all iterations; each feeds its outputs to inputs of the next.
fn iterate(
    c: &Run,
    job: &JobTrace,
    session: &mut Session,
    mut inputs: Vec<of_runtime::Value>,
    console: &Console,
) -> Result<Vec<of_runtime::Value>, Diagnostics> {
    let feeds = feeds(&c.feed, &session.output_names(), &session.input_names())?;
    let reports = session.reports();
    let mut run = |number: usize, inputs: Vec<of_runtime::Value>| {
        if !job.takes(number) {
            return session.run_values(inputs);
        }
        session.set_profiling(true);
        let start = Instant::now();
        let result = session.run_values(inputs);
        job.step("run", number, start, &session.timings());
        session.set_profiling(false);
        result
    };
    // The first rank reports for all of them.
    let progress = (reports && c.iterations > 1).then(|| console.progress("running"));
    let mut reported = Instant::now();
    for number in 1..c.iterations {
        if let Some(progress) = progress.as_ref().filter(|_| reported.elapsed() >= PROGRESS) {
            reported = Instant::now();
            progress.reporter().at("running", number - 1, c.iterations);
        }
        let outputs = run(number - 1, inputs.clone())?;
        for (output, input) in &feeds {
            inputs[*input] = outputs[*output].clone();
        }
    }
    run(c.iterations - 1, inputs)
}

/// `OUTPUT=INPUT` as positions.
fn feeds(list: &[String], outputs: &[String], inputs: &[String]) -> Result<Vec<(usize, usize)>, Diagnostics> {
    let mut out: Vec<(usize, usize)> = Vec::new();
    for item in list {
        let Some((output, input)) = output_and_input(item, outputs, inputs) else {
            let what = format!("--feed '{item}' is no output and input of the model, as OUTPUT=INPUT");
            let hint = format!("its outputs are {}; its inputs are {}", outputs.join(", "), inputs.join(", "));
            return Err(error(Code::INPUT, what).hint(hint).into());
        };
        if let Some((other, _)) = out.iter().find(|(_, fed)| *fed == input) {
            let what = format!(
                "--feed gives input '{}' two values: {} and {}",
                inputs[input], outputs[*other], outputs[output]
            );
            return Err(error(Code::INPUT, what).into());
        }
        out.push((output, input));
    }
    Ok(out)
}

/// A line for each output, and how many match.
fn as_text(compared: &[Comparison]) -> String {
    let mut out = String::new();
    for c in compared {
        let verdict = if c.difference.is_some() { "differs" } else { "matches" };
        let numbers =
            c.errors.map(|e| format!(": max error {:.3e}, mean error {:.3e}, cosine {:.9}", e.max, e.mean, e.cosine));
        out += &format!("{} {verdict}{}\n", of_diag::escaped(&c.name), numbers.unwrap_or_default());
    }
    let wrong = compared.iter().filter(|c| c.difference.is_some()).count();
    let (all, verb) = (count(compared.len(), "output"), if compared.len() == 1 { "matches" } else { "match" });
    out + &if wrong == 0 {
        format!("{all} {verb}\n")
    } else {
        format!("{wrong} of {} outputs differ\n", compared.len())
    }
}

fn as_json(compared: &[Comparison]) -> String {
    let one = |c: &Comparison| {
        json!({
            "name": c.name, "matches": c.difference.is_none(), "difference": c.difference,
            "max_error": c.errors.map(|e| e.max), "mean_error": c.errors.map(|e| e.mean), "cosine": c.errors.map(|e| e.cosine),
        })
    };
    let matches = compared.iter().all(|c| c.difference.is_none());
    format!("{:#}\n", json!({"matches": matches, "outputs": compared.iter().map(one).collect::<Vec<_>>()}))
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
