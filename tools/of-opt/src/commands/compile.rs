//! `of-opt compile`: compiles a model to a plan.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use of_cli::quantity;
use of_codegen::lower::weight_form::{Form, WeightForm};
use of_codegen::{NotNative, Summary};
use of_diag::{Code, Diagnostic, Diagnostics};
use of_driver::{CompileOptions, CompiledModel, Compiler, Observer, count, io_error};
use serde_json::json;

use crate::arguments::{Codegen, InputFiles, ModelFile, Shapes, SubnormalsArg};
use crate::console::{Console, is_dash};
use crate::show::{bytes, time};
use crate::{exit, model_file};

/// Flags.
#[derive(Args, Debug)]
pub struct Compile {
    /// The model.
    #[command(flatten)]
    pub model: ModelFile,
    /// The plan; `-` for stdout
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
    /// Keep an input's value in the session: the output is its value for the next run. With :zeros it is zeros at first, else
    /// 'run --set' sets it. Comma-separated or repeated
    #[arg(long, value_name = "OUTPUT=INPUT[:zeros]", value_delimiter = ',')]
    pub variable: Vec<String>,
    /// Tune the register tiles of products and convolutions by measurement, for at most this time: 30s, 2m. The cache keeps
    /// the result for this machine and number of threads; 0 only reads the cache
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["mesh", "target"], value_parser = quantity::duration)]
    pub tune: Option<Duration>,
    /// Refuse a model with ops that have no native code, and list them: programs that have the runtime alone, such as those that
    /// link the C library, have no interpreter for them
    #[arg(long)]
    pub require_native: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
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
    let options = CompileOptions {
        tuning: c.tune,
        recorded_flags: flags(c),
        variables: c.variable.clone(),
        require_native: c.require_native,
        ..c.codegen.options()?
    };
    let compiler = Compiler::with_options(options)
        .shapes(&c.shapes.shape)
        .variants(&c.variant)
        .shapes_of_files(&c.inputs.inputs)
        .observer(console);
    let compiled = compiler.compile(model)?;
    if c.json && is_dash(&c.output) {
        return Err(exit::usage("--json and a plan on stdout exclude each other").into());
    }
    let size = write(&compiled, &c.output, console)?;
    if c.json {
        return console.print(&as_json(&compiled, c, size, started.elapsed()));
    }
    let content = match compiled.plan().meshes.first() {
        Some(mesh) => {
            let entry_points = compiled.plan().meshes.len();
            let of_several = if entry_points > 1 { format!("{entry_points} sets of shapes, ") } else { String::new() };
            format!("{}, {of_several}{}", count(mesh.ranks.len(), "rank"), count(compiled.programs, "template"))
        }
        None => format!("{}, {}", count(compiled.programs, "program"), count(compiled.ops, "op")),
    };
    console.note(&format!("{}: {content}, {} in {}", c.output.display(), bytes(size), time(started.elapsed())));
    note_summary(compiled.summary(), compiled.plan(), console);
    Ok(())
}

fn as_json(compiled: &CompiledModel, c: &Compile, size: u64, elapsed: Duration) -> String {
    let s = compiled.summary();
    let not_native = s.not_native.iter().map(|l| {
        json!({
            "op": l.op, "backend": l.backend, "location": l.location.to_string(), "reason": l.reason.to_string(),
            "operations": l.flops, "bytes": l.bytes, "seconds": l.seconds(),
        })
    });
    let weight_forms = by_form(&s.weight_forms).into_iter().map(|(n, w)| {
        json!({
            "form": w.form.to_string(), "weights": n, "model_bytes": w.model_bytes, "plan_bytes": w.plan_bytes,
        })
    });
    let report = json!({
        "plan": c.output.display().to_string(), "bytes": size, "seconds": elapsed.as_secs_f64(),
        "programs": compiled.programs, "ops": compiled.ops, "steps": s.steps, "kernels": s.kernels,
        "kernels_in_process": s.in_process, "kernels_compiled": s.compiled, "kernels_cached": s.cached,
        "kernels_refused": s.not_emitted.len(), "peak_bytes": s.peak_bytes, "lower_bound_bytes": s.lower_bound_bytes,
        "weight_forms": weight_forms.collect::<Vec<_>>(), "memory_depends_on": open_extents(compiled.plan()), "without_native_code": not_native.collect::<Vec<_>>(),
    });
    format!("{report:#}\n")
}

/// Writes the plan, and returns its bytes.
fn write(compiled: &CompiledModel, path: &Path, console: &Console) -> Result<u64, Diagnostics> {
    if is_dash(path) {
        let bytes = compiled.to_bytes()?;
        console.print_bytes("a plan", &bytes)?;
        return Ok(bytes.len() as u64);
    }
    let _progress = console.progress(&format!("writing {}", path.display()));
    compiled.save(path)?;
    Ok(std::fs::metadata(path).map_err(|e| io_error(path, "read", &e))?.len())
}

/// The flags that determine the result, as the plan records them, without paths: equal inputs give equal plans.
fn flags(c: &Compile) -> Vec<String> {
    let mut out: Vec<String> = c.shapes.shape.iter().map(|s| format!("--shape={s}")).collect();
    out.extend(c.variant.iter().map(|v| format!("--variant={v}")));
    let g = &c.codegen;
    out.extend(g.threads.map(|t| format!("--threads={t}")));
    out.extend(g.mesh.as_ref().map(|m| format!("--mesh={m}")));
    out.extend(g.stages.map(|s| format!("--stages={s}")));
    out.extend(g.microbatches.iter().map(|m| format!("--microbatches={m}")));
    let search: Vec<String> =
        g.joint_search.iter().filter_map(|s| Some(s.to_possible_value()?.get_name().into())).collect();
    out.extend((!search.is_empty()).then(|| format!("--joint-search={}", search.join(","))));
    out.extend(g.target.as_ref().map(|t| format!("--target={t}")));
    out.extend(g.isa.as_ref().map(|i| format!("--isa={i}")));
    out.extend(g.precision.and_then(|p| p.to_possible_value()).map(|p| format!("--precision={}", p.get_name())));
    out.extend(c.tune.map(|_| "--tune".into()));
    out.extend(g.cpu_code.and_then(|c| c.to_possible_value()).map(|c| format!("--cpu-code={}", c.get_name())));
    out.extend((g.subnormals == SubnormalsArg::Keep).then(|| "--subnormals=keep".into()));
    out.extend(g.no_winograd.then(|| "--no-winograd".into()));
    out.extend(g.record_rewrites.then(|| "--record-rewrites".into()));
    out.extend((!g.backend.is_empty()).then(|| format!("--backend={}", g.backend.join(","))));
    out.extend(g.pin.iter().map(|p| format!("--pin={p}")));
    out.extend(g.min_subgraph_size.map(|n| format!("--min-subgraph-size={n}")));
    out.extend(g.passes.as_ref().map(|p| format!("--passes={p}")));
    out
}

/// Notes the numbers of the generated code, and the ops without native code: no fallback is silent.
pub fn note_summary(s: &Summary, plan: &of_plan::Plan, console: &Console) {
    let (steps, kernels) = (count(s.steps, "step"), count(s.kernels, "kernel"));
    let sources = [(s.in_process, "compiled in process"), (s.compiled, "compiled now"), (s.cached, "from the cache")];
    let sources: Vec<String> = sources.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    // The kernels of a backend that executes whole functions are not counted.
    match s.kernels {
        0 => console.note(&format!("  {steps}")),
        _ => console.note(&format!("  {steps}, {kernels} ({})", sources.join(", "))),
    }
    let (peak, bound) = (bytes(s.peak_bytes), bytes(s.lower_bound_bytes));
    match open_extents(plan) {
        None => console.note(&format!("  peak memory {peak}; the lower bound of all allocations is {bound}")),
        Some(depends) => {
            let laid_out = if s.peak_bytes == 0 { String::new() } else { format!("{peak} is laid out in advance; ") };
            console.note(&format!("  memory: {laid_out}a run allocates the values whose size depends on {depends}"));
        }
    }
    note_weight_forms(&s.weight_forms, console);
    note_not_emitted(s, console);
    note_not_native(s, console);
}

/// Bytes that the weights of a form must add to a plan for a note.
const NOTED_GROWTH: u64 = 1 << 20;

/// The weights of each form together, and their number.
fn by_form(weights: &[WeightForm]) -> Vec<(usize, WeightForm)> {
    let mut forms: BTreeMap<Form, (usize, WeightForm)> = BTreeMap::new();
    for w in weights {
        let none = WeightForm { model_bytes: 0, plan_bytes: 0, ..*w };
        let (n, total) = forms.entry(w.form).or_insert((0, none));
        *n += 1;
        total.model_bytes += w.model_bytes;
        total.plan_bytes += w.plan_bytes;
    }
    forms.into_values().collect()
}

/// Notes the weights that take more bytes in the plan than in the model, and why.
fn note_weight_forms(weights: &[WeightForm], console: &Console) {
    for (n, w) in by_form(weights).iter().filter(|(_, w)| w.plan_bytes > w.model_bytes + NOTED_GROWTH) {
        let why = match w.form {
            Form::Winograd => "transformed filters of Winograd convolutions; --no-winograd keeps the model's",
            Form::Panels => "padded to whole vectors, and once for each kernel that reads them",
            Form::Taps => "padded to whole vectors",
        };
        let (model, plan) = (bytes(w.model_bytes), bytes(w.plan_bytes));
        console.note(&format!("  weights in the plan: {} of {model} as {plan}, {why}", count(*n, "weight")));
    }
}

/// What the sizes of a plan's values depend on, where some are open.
fn open_extents(plan: &of_plan::Plan) -> Option<String> {
    let is_open = |p: &of_plan::Program| p.registers.iter().any(|r| r.is_object());
    let open: Vec<_> = plan.programs.iter().filter(|p| is_open(p)).collect();
    let mut names: Vec<&str> = open.iter().flat_map(|p| &p.symbols).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    (!open.is_empty()).then(|| if names.is_empty() { "the inputs".into() } else { names.join(", ") })
}

/// Notes the kernels that are left to the C compiler: no fallback is silent.
pub fn note_not_emitted(s: &Summary, console: &Console) {
    if let Some(isa) = s.not_covered {
        console.note(&format!("  the C compiler made all kernels: the compiler in process does not cover {isa}"));
    }
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    s.not_emitted.iter().for_each(|n| *groups.entry(&n.reason).or_default() += 1);
    if groups.is_empty() {
        return;
    }
    let more = if console.verbose > 0 { ":" } else { "; -v lists the reasons" };
    let kernels = count(s.not_emitted.len(), "kernel");
    console.note(&format!("  {kernels} refused by the compiler in process, made by the C compiler{more}"));
    if console.verbose > 0 {
        for (reason, n) in groups {
            console.note(&format!("    {n}: {reason}"));
        }
    }
}

/// Most ops that a warning lists.
const MAX_LISTED: usize = 8;

/// Warns of the ops that the interpreter executes because there is no native code for them, the slowest first.
pub fn note_not_native(s: &Summary, console: &Console) {
    let mut ops: Vec<&NotNative> = s.not_native.iter().filter(|l| l.computes()).collect();
    of_ir::sort::by(&mut ops, |a, b| b.seconds().total_cmp(&a.seconds()));
    if let Some(first) = ops.first() {
        let all: f64 = ops.iter().map(|l| l.seconds()).sum();
        let run = if ops.len() == 1 { "runs" } else { "run" };
        let what =
            format!("{} {run} on the interpreter, estimated {} a run", count(ops.len(), "op"), time(seconds(all)));
        let mut d = Diagnostic::warning(Code::CODEGEN, first.location.clone(), what);
        let most = if console.verbose > 0 { ops.len() } else { MAX_LISTED };
        for l in ops.iter().take(most) {
            let cost = format!("{}, {} operations, {}", time(seconds(l.seconds())), l.flops, bytes(l.bytes));
            d.notes.push(format!("{} at {}: {}; {cost}", l.op, l.location, l.reason));
        }
        if ops.len() > most {
            d.notes.push(format!("{} more; -v lists them", ops.len() - most));
        }
        if ops.iter().any(|l| l.open) {
            d.notes.push(format!("the estimates take an open extent as {}", of_ops::work::OPEN));
        }
        console.diagnostic(&d);
    }
    if console.verbose > 0 {
        for l in s.not_native.iter().filter(|l| !l.computes()) {
            console.note(&format!("    {} on '{}' at {} tells extents: {}", l.op, l.backend, l.location, l.reason));
        }
    }
}

/// An estimated time; what no clock counts is none.
fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)
}
