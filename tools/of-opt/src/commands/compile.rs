//! `of-opt compile`: a model becomes a plan.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use of_codegen::Summary;
use of_codegen::kernel::schedule::Schedules;
use of_diag::{Code, Diagnostics};
use of_passes::specialize::Bindings;
use of_tensorrt::Ranges;

use crate::backends::Backends;
use crate::cli::{Codegen, ModelFile, Shapes};
use crate::console::Console;
use crate::inputs::{self, InputFiles};
use crate::model::{Model, Source, load};
use crate::ranks::{self, Which};
use crate::show::{bytes, count, time};
use crate::{driver, exit, precision, shapes, tune};

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
    /// machine and with these threads. What was found is kept beside compiled kernels; 0 takes what is there
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["mesh", "target"])]
    pub tune: Option<f64>,
    /// Code generation.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// Runs it.
///
/// # Errors
/// When the model is damaged, shapes do not fit, or something is not supported.
pub fn compile(c: &Compile, console: &mut Console) -> Result<(), Diagnostics> {
    let started = Instant::now();
    let Model::Module(mut source) = load(&c.model.model, console)? else {
        return Err(exit::error(Code::INPUT, format!("'{}' is a plan already", c.model.model.display())).into());
    };
    driver::verify(&source.module)?;
    precision::lower(&mut source, &c.codegen, console)?;
    let (variants, ranges) = variants(c, &source)?;
    let backends = Backends::within(&c.codegen, &ranges)?;
    if let Some(mesh) = &c.codegen.mesh {
        return compile_mesh(c, mesh, &source, &variants, &backends, started, console);
    }
    let funcs = driver::prepare(&source.module, &variants, &c.codegen, &backends, console)?;
    let schedules = match c.tune {
        Some(seconds) => tune::tune(&funcs, &source, &c.codegen, &backends, seconds, console)?,
        None => Schedules::default(),
    };
    let compiled = driver::compile(&funcs, &source, &c.codegen, &backends, flags(c), &schedules, console)?;
    let progress = console.progress(&format!("writing {}", c.output.display()));
    compiled.write(&c.output)?;
    drop(progress);
    let size = std::fs::metadata(&c.output).map_err(|e| exit::io(&c.output, "read", &e))?.len();
    let ops: usize = funcs.iter().map(|(_, f)| f.graph.walk().len()).sum();
    let (programs, ops, took) = (count(funcs.len(), "program"), count(ops, "op"), time(started.elapsed()));
    console.note(&format!("{}: {programs}, {ops}, {} in {took}", c.output.display(), bytes(size)));
    summary(&compiled.summary, console);
    Ok(())
}

/// A plan for the ranks of a mesh.
fn compile_mesh(
    c: &Compile,
    mesh: &str,
    source: &Source,
    variants: &[Bindings],
    backends: &Backends,
    started: Instant,
    console: &mut Console,
) -> Result<(), Diagnostics> {
    let [bindings] = variants else {
        return Err(exit::usage("a plan for a mesh holds one program: --variant does not go with --mesh").into());
    };
    let ranked = ranks::prepare(&source.module, bindings, &c.codegen, mesh, Which::All, backends, console)?;
    let compiled = ranks::compile(&ranked, source, &c.codegen, backends, flags(c), console)?;
    compiled.write(&c.output)?;
    let size = std::fs::metadata(&c.output).map_err(|e| exit::io(&c.output, "read", &e))?.len();
    let plan = compiled.plan();
    let (ranks, templates) = (count(ranked.ranks.len(), "rank"), count(plan.programs.len(), "template"));
    let took = time(started.elapsed());
    console.note(&format!("{}: {ranks}, {templates}, {} in {took}", c.output.display(), bytes(size)));
    summary(&compiled.summary, console);
    Ok(())
}

/// The numbers of every program that the plan gets, and ranges. What they leave open stays open: the program takes any legal
/// shape, and its engines those in the ranges.
fn variants(c: &Compile, source: &Source) -> Result<(Vec<Bindings>, Ranges), Diagnostics> {
    let func = driver::main_func(&source.module)?;
    let mut base = Bindings::new();
    let given = inputs::read(&c.inputs, func)?;
    inputs::bind(&given, func, &mut base)?;
    let mut ranges = Ranges::new();
    shapes::bind_ranges(&c.shapes.shape, func, &mut base, &mut ranges)?;
    let mut all = Vec::new();
    if c.variant.is_empty() || !base.is_empty() || !ranges.is_empty() {
        all.push(base.clone());
    }
    for v in &c.variant {
        // A variant may say otherwise than --shape; what it leaves open is as --shape says.
        let mut own = Bindings::new();
        let specs: Vec<String> = v.split(',').map(str::to_owned).collect();
        shapes::bind(&specs, func, &mut own)?;
        all.push(base.iter().map(|(k, n)| (k.clone(), *n)).chain(own).collect());
    }
    let mut distinct: Vec<Bindings> = Vec::new();
    for b in all {
        if !distinct.contains(&b) {
            distinct.push(b);
        }
    }
    Ok((distinct, ranges))
}

/// The flags that shape the result, as the plan remembers them: paths are left out, so that equal inputs give equal plans.
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
    out.extend(g.backend_for.iter().map(|p| format!("--backend-for={p}")));
    out.extend(g.min_region.map(|n| format!("--min-region={n}")));
    out.extend(g.passes.as_ref().map(|p| format!("--passes={p}")));
    out
}

/// Says what became of the ops; nothing falls back silently.
pub fn summary(s: &Summary, console: &Console) {
    let (steps, kernels) = (count(s.steps, "step"), count(s.kernels, "kernel"));
    let cached = if s.compiled < s.kernels { ", the others from the cache" } else { "" };
    // A backend that takes whole functions keeps its kernels to itself.
    match s.kernels {
        0 => console.note(&format!("  {steps}")),
        _ => console.note(&format!("  {steps}, {kernels} ({} compiled now{cached})", s.compiled)),
    }
    console.note(&format!(
        "  memory {} at its peak; no layout needs less than {}",
        bytes(s.peak_bytes),
        bytes(s.lower_bound_bytes)
    ));
    left_out(s, console);
}

/// Says which ops run on a backend rather than as native code.
pub fn left_out(s: &Summary, console: &Console) {
    let n = s.left_out.len();
    if n == 0 {
        return;
    }
    let more = if console.verbose > 0 { ":" } else { "; -v says which and why" };
    let (ops, run) = if n == 1 { ("op", "runs") } else { ("ops", "run") };
    console.note(&format!("  {n} {ops} {run} without native code{more}"));
    if console.verbose > 0 {
        for l in &s.left_out {
            console.note(&format!("    {} on '{}' at {}: {}", l.op, l.backend, l.location, l.reason));
        }
    }
}
