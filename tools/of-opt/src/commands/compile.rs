//! `of-opt compile`: compiles a model to a plan.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use of_codegen::{LeftOut, Summary};
use of_diag::{Code, Diagnostic, Diagnostics};
use of_driver::{CompileOptions, Compiler, Observer, count, io_error};

use crate::arguments::{Codegen, InputFiles, ModelFile, Shapes};
use crate::console::Console;
use crate::show::{bytes, time};
use crate::{exit, model_file};

/// Flags.
#[derive(Args, Debug)]
pub struct Compile {
    /// The model.
    #[command(flatten)]
    pub model: ModelFile,
    /// The plan
    #[arg(short, long, value_name = "MODEL.plan")]
    pub output: PathBuf,
    /// Shapes.
    #[command(flatten)]
    pub shapes: Shapes,
    /// A further program in the plan for these shapes, e.g. "batch=8,seq=128"; may be repeated
    #[arg(long, value_name = "SHAPES")]
    pub variant: Vec<String>,
    /// Take the shapes from these inputs
    #[command(flatten)]
    pub inputs: InputFiles,
    /// Measure for so long which register tiles are the fastest for this model's products and convolutions, on this
    /// machine and with these threads. The cache keeps the result; 0 only reads the cache
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["mesh", "target"])]
    pub tune: Option<f64>,
    /// Code generation.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// Executes the subcommand.
///
/// # Errors
/// When the model is damaged, shapes do not fit, or something is not supported.
pub fn compile(c: &Compile, console: &Console) -> Result<(), Diagnostics> {
    let started = Instant::now();
    let model = model_file::open_model_for(&c.model, &c.inputs.inputs, console)?;
    if c.codegen.mesh.is_some() && !c.variant.is_empty() {
        return Err(exit::usage("a plan for a mesh holds one program: --variant cannot be used with --mesh").into());
    }
    let tuning = c.tune.map(Duration::try_from_secs_f64).transpose();
    let tuning = tuning.map_err(|_| exit::usage("--tune takes a number of seconds, 0 or more"))?;
    let options = CompileOptions { tuning, recorded_flags: flags(c), ..c.codegen.options()? };
    let compiler = Compiler::with_options(options)
        .shapes(&c.shapes.shape)
        .variants(&c.variant)
        .shapes_of_files(&c.inputs.inputs)
        .observer(console);
    let compiled = compiler.compile(model)?;
    let progress = console.progress(&format!("writing {}", c.output.display()));
    compiled.save(&c.output)?;
    drop(progress);
    let size = std::fs::metadata(&c.output).map_err(|e| io_error(&c.output, "read", &e))?.len();
    let content = match compiled.plan().meshes.first() {
        Some(mesh) => {
            format!("{}, {}", count(mesh.ranks.len(), "rank"), count(compiled.programs, "template"))
        }
        None => format!("{}, {}", count(compiled.programs, "program"), count(compiled.ops, "op")),
    };
    console.note(&format!("{}: {content}, {} in {}", c.output.display(), bytes(size), time(started.elapsed())));
    note_summary(compiled.summary(), console);
    Ok(())
}

/// The flags that determine the result, as the plan records them, without paths: equal inputs give equal plans.
fn flags(c: &Compile) -> Vec<String> {
    let mut out: Vec<String> = c.shapes.shape.iter().map(|s| format!("--shape={s}")).collect();
    out.extend(c.variant.iter().map(|v| format!("--variant={v}")));
    let g = &c.codegen;
    out.extend(g.threads.map(|t| format!("--threads={t}")));
    out.extend(g.mesh.as_ref().map(|m| format!("--mesh={m}")));
    out.extend(g.stages.map(|s| format!("--stages={}x{}", s.stages, s.microbatches)));
    let search: Vec<String> = g.search.iter().filter_map(|s| Some(s.to_possible_value()?.get_name().into())).collect();
    out.extend((!search.is_empty()).then(|| format!("--search={}", search.join(","))));
    out.extend(g.target.as_ref().map(|t| format!("--target={t}")));
    out.extend(g.isa.as_ref().map(|i| format!("--isa={i}")));
    out.extend(g.precision.and_then(|p| p.to_possible_value()).map(|p| format!("--precision={}", p.get_name())));
    out.extend(c.tune.map(|_| "--tune".into()));
    out.extend(g.no_winograd.then(|| "--no-winograd".into()));
    out.extend((!g.backend.is_empty()).then(|| format!("--backend={}", g.backend.join(","))));
    out.extend(g.backend_for.iter().map(|p| format!("--pin={p}")));
    out.extend(g.min_subgraph_size.map(|n| format!("--min-subgraph-size={n}")));
    out.extend(g.passes.as_ref().map(|p| format!("--passes={p}")));
    out
}

/// Notes the numbers of the generated code, and the ops without native code: no fallback is silent.
pub fn note_summary(s: &Summary, console: &Console) {
    let (steps, kernels) = (count(s.steps, "step"), count(s.kernels, "kernel"));
    let cached = if s.compiled < s.kernels { ", the others from the cache" } else { "" };
    // The kernels of a backend that executes whole functions are not counted.
    match s.kernels {
        0 => console.note(&format!("  {steps}")),
        _ => console.note(&format!("  {steps}, {kernels} ({} compiled now{cached})", s.compiled)),
    }
    console.note(&format!(
        "  peak memory {}; the lower bound of all allocations is {}",
        bytes(s.peak_bytes),
        bytes(s.lower_bound_bytes)
    ));
    note_left_out(s, console);
}

/// Most ops that a warning lists.
const LISTED: usize = 8;

/// Warns of the ops that the interpreter executes because there is no native code for them, the slowest first.
pub fn note_left_out(s: &Summary, console: &Console) {
    let mut left: Vec<&LeftOut> = s.left_out.iter().filter(|l| l.computes()).collect();
    left.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
    if let Some(first) = left.first() {
        let all: f64 = left.iter().map(|l| l.seconds()).sum();
        let run = if left.len() == 1 { "runs" } else { "run" };
        let what =
            format!("{} {run} on the interpreter, estimated {} a run", count(left.len(), "op"), time(seconds(all)));
        let mut d = Diagnostic::warning(Code::CODEGEN, first.location.clone(), what);
        let most = if console.verbose > 0 { left.len() } else { LISTED };
        for l in left.iter().take(most) {
            let cost = format!("{}, {} operations, {}", time(seconds(l.seconds())), l.flops, bytes(l.bytes));
            d.notes.push(format!("{} at {}: {}; {cost}", l.op, l.location, l.reason));
        }
        if left.len() > most {
            d.notes.push(format!("{} more; -v lists them", left.len() - most));
        }
        if s.left_out.iter().any(|l| l.open) {
            d.notes.push(format!("the estimates take an open extent as {}", of_ops::work::OPEN));
        }
        console.diagnostic(&d);
    }
    if console.verbose > 0 {
        for l in s.left_out.iter().filter(|l| !l.computes()) {
            console.note(&format!("    {} on '{}' at {} tells extents: {}", l.op, l.backend, l.location, l.reason));
        }
    }
}

/// An estimated time; what no clock counts is none.
fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)
}
