//! `of-opt debug`: the first op whose values differ between native code and another runtime.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use of_diag::Diagnostics;
use of_driver::debug::{
    Against, Cause, Check, Compared, DebugOptions, DebugReport, Difference, Finding, FindingKind, Problem, Reduced,
    debug as compare, is_text, plan_given,
};
use of_driver::{Backends, InputSource, ModelOrPlan, Observer, count};
use serde_json::{Value, json};

use crate::arguments::{Codegen, InputFiles, ModelFile, Shapes};
use crate::console::Console;
use crate::{exit, model_file};

/// Flags.
#[derive(Args, Debug)]
#[command(after_help = "Each op is compiled alone and runs on the other side's values of its operands, so no error \
    propagates. Where every op is right, fused groups are checked, then runs of ops. Integers must be equal; floats may \
    differ by what injected rounding errors change, or by --tolerance.\n\n\
    Exit codes: 0 nothing differs, 1 something differs, 2 an error, 3 not supported.\n\n\
    Examples:\n  \
    of-opt debug model.onnx --against onnxruntime --inputs DIR\n  \
    of-opt debug model.onnx --against reference --shape batch=2 -o reduced.onnx\n  \
    of-opt debug model.onnx --against onnxruntime --precision int8 --calibration DIR\n  \
    of-opt debug model.onnx --against reference --target cuda:emulated -v")]
pub struct Debug {
    /// The model.
    #[command(flatten)]
    pub model: ModelFile,
    /// What native code is compared with
    #[arg(long, value_enum, value_name = "WHAT")]
    pub against: AgainstArg,
    /// Inputs.
    #[command(flatten)]
    pub inputs: InputFiles,
    /// Shapes; without --inputs, random inputs of these shapes, always the same ones.
    #[command(flatten)]
    pub shapes: Shapes,
    /// The allowed difference of floats, relative to the largest number of each value, instead of the measured bound
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub tolerance: Option<f64>,
    /// Write the fewest ops that show the difference, as ONNX or IR text, and their inputs and expected outputs next to them
    #[arg(short, long, value_name = "REDUCED.onnx|.of")]
    pub output: Option<PathBuf>,
    /// A Python with onnxruntime, onnx and numpy; otherwise $OF_PYTHON, or that of 'cargo xtask python-packages', or python3
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Code generation.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// What native code is compared with.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgainstArg {
    /// onnxruntime, with every tensor of the model as an output
    #[value(name = "onnxruntime")]
    OnnxRuntime,
    /// The interpreter, which evaluates each op by its definition
    Reference,
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    number.ok_or_else(|| "a tolerance is a number, 0 or more".into())
}

/// Executes the subcommand.
///
/// # Errors
/// When the model or its inputs are bad, or the other side does not run them; without diagnostics where something differs.
pub fn debug(c: &Debug, console: &Console) -> Result<(), Diagnostics> {
    if c.python.is_some() && c.against != AgainstArg::OnnxRuntime {
        return Err(exit::usage("--python needs --against onnxruntime").into());
    }
    let options = c.codegen.options()?;
    let backends = Backends::new(&options)?;
    let path = &c.model.model;
    let opened = model_file::open_for(&c.model, &c.inputs.inputs, console)?;
    let ModelOrPlan::Model(model) = opened else { return Err(plan_given(path).into()) };
    let conversion = c.inputs.conversion()?;
    let settings = DebugOptions {
        against: match c.against {
            AgainstArg::OnnxRuntime => Against::OnnxRuntime(c.python.clone()),
            AgainstArg::Reference => Against::Reference,
        },
        tolerance: c.tolerance,
        inputs: InputSource {
            conversion: &conversion,
            files: &c.inputs.inputs,
            shapes: &c.shapes.shape,
            random: true,
            memory: c.codegen.memory,
        },
        output: c.output.as_deref(),
    };
    let report = compare(*model, path, &settings, &options, &backends, console)?;
    let text = if c.json { as_json(&report) } else { as_text(&report, console.verbose > 0) };
    console.print(&text)?;
    if let (Some(reduced), Some(finding)) = (&report.reduced, &report.finding) {
        note_reduced(reduced, finding, c, console);
    }
    if report.is_clean() { Ok(()) } else { Err(exit::different()) }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn note_reduced(reduced: &Reduced, finding: &Finding, c: &Debug, console: &Console) {
    let Reduced { model, inputs, outputs, shows } = reduced;
    if *shows {
        let small = if c.codegen.backend.is_empty() { "" } else { " --min-subgraph-size 0" };
        let difference = finding.values.iter().find_map(|v| v.difference.as_ref());
        let bound = difference.map(|d| format!(" --rtol 0 --atol {:.2e}", d.allowed)).unwrap_or_default();
        console.note(&format!(
            "{} shows the difference: of-opt run {} --inputs {} --expect {}{bound}{small}, with the same options",
            shown(model),
            shown(model),
            shown(inputs),
            shown(outputs)
        ));
    } else {
        let hint = if is_text(model) { "" } else { "; -o NAME.of writes the IR itself" };
        console.note(&format!("{} was written, but read again it does not show the difference{hint}", shown(model)));
    }
}

// ---- text ----

/// Rows of the table without `-v`: the largest differences of ops that are right.
const SHOWN: usize = 10;

fn as_text(report: &DebugReport, all: bool) -> String {
    let mut out = format!("native code against {}\n\n", report.against);
    out += &table(&report.checks, all);
    if let Some(why) = &report.failure {
        let _ = writeln!(out, "\nthe whole model does not run: {why}");
    }
    for compared in report.outputs.iter().filter(|c| all || c.difference.is_some()) {
        let _ = writeln!(out, "\noutput '{}' of the whole model, {}", compared.name, compared.ty);
        let _ = writeln!(out, "  {}", compared_text(compared));
    }
    match &report.finding {
        None => out += "\nnothing differs\n",
        Some(finding) => out += &finding_text(finding),
    }
    out
}

/// The table of ops that were checked alone: all that differ, and of the others those that differ by most.
fn table(checks: &[Check], all: bool) -> String {
    let relative = |c: &Check| c.values.iter().map(|v| v.relative).fold(0.0, f64::max);
    let mut shown: Vec<usize> = (0..checks.len()).collect();
    of_ir::sort::by(&mut shown, |a, b| {
        let key = |i: &usize| (checks[*i].is_wrong(), relative(&checks[*i]));
        let ((wrong_a, most_a), (wrong_b, most_b)) = (key(a), key(b));
        wrong_b.cmp(&wrong_a).then(most_b.total_cmp(&most_a)).then(a.cmp(b))
    });
    let wrong = checks.iter().filter(|c| c.is_wrong()).count();
    let skipped = checks.iter().filter(|c| matches!(c.problem, Some(Problem::Skipped(_)))).count();
    if !all {
        shown.truncate(SHOWN.max(wrong));
    }
    shown.sort_unstable();
    let mut out = format!(
        "{} checked alone: {wrong} differ, {skipped} skipped\n\n{:>10}  {:24} {}\n",
        count(checks.len(), "op"),
        "relative",
        "op",
        "location"
    );
    for check in shown.iter().map(|i| &checks[*i]) {
        let size = match &check.problem {
            Some(Problem::Fails(_)) => "fails".into(),
            Some(Problem::Skipped(_)) => "skipped".into(),
            None => number(relative(check)),
        };
        let mark = if check.is_wrong() { "  DIFFERS" } else { "" };
        let _ = writeln!(out, "{size:>10}  {:24} {}{mark}", check.op, check.location);
        match &check.problem {
            Some(Problem::Fails(why) | Problem::Skipped(why)) => {
                let _ = writeln!(out, "{:>12}{why}", "");
            }
            None if all => check.values.iter().for_each(|v| {
                let _ = writeln!(out, "{:>12}'{}' {}: {}", "", v.name, v.ty, compared_text(v));
            }),
            None => {}
        }
    }
    if checks.len() > shown.len() {
        let _ =
            writeln!(out, "{:>10}  {} more with smaller differences; -v shows all", "…", checks.len() - shown.len());
    }
    out
}

fn number(x: f64) -> String {
    if x == 0.0 { "0".into() } else { format!("{x:.2e}") }
}

fn compared_text(c: &Compared) -> String {
    match &c.difference {
        None => format!("agrees, {} of the largest number apart at most", number(c.relative)),
        Some(d) => difference_text(d),
    }
}

fn difference_text(d: &Difference) -> String {
    let Difference { index, got, expected, distance, allowed, wrong } = d;
    format!(
        "{} of {} differ; at {index:?} it is {got}, not {expected}: {} apart, {} allowed",
        wrong.0,
        count(wrong.1, "element"),
        number(*distance),
        number(*allowed)
    )
}

fn finding_text(f: &Finding) -> String {
    let mut out = format!("\n{}\n", kind_text(f));
    for (op, location) in &f.ops {
        let _ = writeln!(out, "  {op} at {location}");
    }
    if let FindingKind::InRegion(place) = &f.kind {
        let _ = writeln!(out, "  in {place}");
    }
    if let Some(why) = &f.failure {
        let _ = writeln!(out, "it does not run: {why}");
    }
    for value in &f.values {
        let _ = writeln!(out, "value '{}', {}\n  {}", value.name, value.ty, compared_text(value));
    }
    if !f.executors.is_empty() {
        let _ = writeln!(out, "computed by {}", f.executors.join(", "));
    }
    out += &format!("{}\n", cause_text(&f.cause));
    out
}

fn kind_text(f: &Finding) -> &'static str {
    match &f.kind {
        FindingKind::Op => "the first op that differs:",
        FindingKind::InRegion(_) => "the first op that differs, inside of control flow:",
        FindingKind::Fused { same_kernels: true } => {
            "each op alone is right; the first fused group of the model that differs:"
        }
        FindingKind::Fused { same_kernels: false } => {
            "each op alone is right; the first fused group that differs (its kernels alone are not quite the model's):"
        }
        FindingKind::Run => "each op and each fused group is right; the shortest run of ops that differs:",
        FindingKind::Model => "the difference appears in the whole model only; no part of it shows it. Its ops:",
    }
}

fn cause_text(cause: &Cause) -> String {
    match cause {
        Cause::Definition => {
            "cause: not code generation. The interpreter, which evaluates the op by its definition, differs from \
            the other runtime, too: that rounds more coarsely, or the import or the definition is wrong"
                .into()
        }
        Cause::Pass(pass) => format!("cause: pass '{pass}'. After it the interpreter computes something else"),
        Cause::Code => {
            "cause: code generation, a backend or the runtime. The interpreter is right after all passes".into()
        }
        Cause::Unknown => "cause: unknown. The interpreter fails on this part of the model".into(),
    }
}

// ---- JSON ----

fn as_json(r: &DebugReport) -> String {
    let checks: Vec<Value> = r
        .checks
        .iter()
        .map(|c| {
            let (fails, skipped) = match &c.problem {
                Some(Problem::Fails(why)) => (Some(why), None),
                Some(Problem::Skipped(why)) => (None, Some(why)),
                None => (None, None),
            };
            json!({
                "op": c.op, "location": c.location, "differs": c.is_wrong(), "fails": fails, "skipped": skipped,
                "values": values_json(&c.values),
            })
        })
        .collect();
    let reduced = r
        .reduced
        .as_ref()
        .map(|r| json!({"model": shown(&r.model), "inputs": shown(&r.inputs), "outputs": shown(&r.outputs), "shows": r.shows}));
    let all = json!({
        "against": r.against, "equal": r.is_clean(), "checks": checks, "outputs": values_json(&r.outputs),
        "failure": r.failure, "finding": r.finding.as_ref().map(finding_json), "reduced": reduced,
    });
    format!("{all:#}\n")
}

fn finding_json(f: &Finding) -> Value {
    let (kind, place, same_kernels) = match &f.kind {
        FindingKind::Op => ("op", None, None),
        FindingKind::InRegion(place) => ("op in a region", Some(place), None),
        FindingKind::Fused { same_kernels } => ("fused group", None, Some(same_kernels)),
        FindingKind::Run => ("run of ops", None, None),
        FindingKind::Model => ("model", None, None),
    };
    let (cause, pass) = match &f.cause {
        Cause::Definition => ("definition", None),
        Cause::Pass(pass) => ("pass", Some(pass)),
        Cause::Code => ("code generation", None),
        Cause::Unknown => ("unknown", None),
    };
    let ops: Vec<Value> = f.ops.iter().map(|(op, location)| json!({"op": op, "location": location})).collect();
    json!({
        "kind": kind, "region": place, "same_kernels": same_kernels, "ops": ops, "values": values_json(&f.values),
        "failure": f.failure, "executors": f.executors, "cause": cause, "pass": pass,
    })
}

fn values_json(values: &[Compared]) -> Vec<Value> {
    values
        .iter()
        .map(|c| {
            let difference = c.difference.as_ref().map(|d| {
                json!({
                    "index": d.index, "got": d.got, "expected": d.expected, "distance": finite(d.distance),
                    "allowed": d.allowed, "wrong": d.wrong.0, "elements": d.wrong.1,
                })
            });
            json!({"name": c.name, "type": c.ty, "relative": finite(c.relative), "difference": difference})
        })
        .collect()
}

/// JSON has no infinity: it is text there.
fn finite(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}
