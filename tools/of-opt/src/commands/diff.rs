//! `of-opt diff`: what changed between two plans.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::plan_diff::{Change, ChangeKind, Fact, FactValue, Part, PlanDiff};
use of_driver::{ModelOrPlan, error};
use of_plan::PlanFile;
use serde_json::{Value, json};

use crate::arguments::ModelFile;
use crate::console::Console;
use crate::show::bytes;
use crate::{exit, model_file};

/// Flags.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes: 0 the plans are the same, 1 they differ, 2 an error.\n\n\
    Examples:\n  \
    of-opt diff old.plan new.plan              # a summary, and the first changes of each part\n  \
    of-opt diff old.plan new.plan -v           # every change\n  \
    of-opt diff old.plan new.plan --json | jq '.parts[] | select(.title == \"kernels\")'")]
pub struct Diff {
    /// The plan before
    #[arg(value_name = "A.plan")]
    pub before: PathBuf,
    /// The plan after
    #[arg(value_name = "B.plan")]
    pub after: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Changes of a part that the summary shows.
const SHOWN: usize = 4;
/// Characters of a line of the summary; `-v` cuts nothing.
const WIDTH: usize = 160;

/// Executes the subcommand.
///
/// # Errors
/// When a file cannot be read or is no plan; without diagnostics where the plans differ.
pub fn diff(c: &Diff, console: &Console) -> Result<(), Diagnostics> {
    let (a, b) = (open(&c.before, console)?, open(&c.after, console)?);
    let diff = PlanDiff::of(&a, &b);
    let text = if c.json { as_json(c, &diff) } else { as_text(c, &diff, console.verbose > 0) };
    console.print(&text)?;
    if diff.is_empty() { Ok(()) } else { Err(exit::different()) }
}

fn open(path: &Path, console: &Console) -> Result<PlanFile, Diagnostics> {
    let file = ModelFile { model: path.into(), initializer_input: Vec::new() };
    match model_file::open(&file, console)? {
        ModelOrPlan::Plan(plan) => Ok(*plan),
        ModelOrPlan::Model(_) => {
            let what = format!("'{}' is a model; diff compares compiled plans", path.display());
            let hint = format!("compile it first: of-opt compile {} -o MODEL.plan", path.display());
            Err(error(Code::INPUT, what).hint(hint).into())
        }
    }
}

fn as_text(c: &Diff, diff: &PlanDiff, all: bool) -> String {
    let (a, b) = (c.before.display(), c.after.display());
    if diff.is_empty() {
        return format!("{a} and {b} are the same\n");
    }
    let mut out = format!("--- {a}\n+++ {b}\n\n{:12}{:>8}", "", "equal");
    ChangeKind::ALL.iter().for_each(|k| out += &format!("{:>9}", k.name()));
    out.push('\n');
    for part in diff.parts.iter().filter(|p| p.equal > 0 || !p.changes.is_empty()) {
        let _ = write!(out, "{:12}{:>8}", part.title, part.equal);
        ChangeKind::ALL.iter().for_each(|k| out += &format!("{:>9}", part.count(*k)));
        out.push('\n');
    }
    diff.parts.iter().filter(|p| !p.changes.is_empty()).for_each(|p| out += &part_text(p, all));
    out
}

fn part_text(part: &Part, all: bool) -> String {
    let shown = if all { part.changes.len() } else { SHOWN };
    let mut out = format!("\n{}\n", part.title);
    for change in part.changes.iter().take(shown) {
        let line = change_text(change);
        if all || line.chars().count() <= WIDTH {
            out += &format!("  {line}\n");
        } else {
            out += &format!("  {}…\n", line.chars().take(WIDTH).collect::<String>());
        }
    }
    if part.changes.len() > shown {
        let _ = writeln!(out, "  … {} more; -v shows all", part.changes.len() - shown);
    }
    out
}

fn change_text(change: &Change) -> String {
    let mark = match change.kind {
        ChangeKind::Changed => '~',
        ChangeKind::Moved => '>',
        ChangeKind::New => '+',
        ChangeKind::Gone => '-',
    };
    let (before, after) = (facts_text(&change.before), facts_text(&change.after));
    let name = &change.name;
    match change.kind {
        ChangeKind::New => format!("{mark} {name}  {after}").trim_end().into(),
        ChangeKind::Gone => format!("{mark} {name}  {before}").trim_end().into(),
        _ if before.is_empty() && after.is_empty() => format!("{mark} {name}"),
        _ => format!("{mark} {name}: {before} -> {after}{}", growth(change)),
    }
}

fn facts_text(facts: &[Fact]) -> String {
    let value = |f: &Fact| match &f.value {
        FactValue::Text(text) => text.clone(),
        FactValue::Number(n) => n.to_string(),
        FactValue::Bytes(n) => bytes(*n),
    };
    let one = |f: &Fact| if f.label.is_empty() { value(f) } else { format!("{} {}", f.label, value(f)) };
    facts.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// By how much the first size of a change grew.
fn growth(change: &Change) -> String {
    let size =
        |facts: &[Fact]| facts.iter().find_map(|f| if let FactValue::Bytes(n) = f.value { Some(n) } else { None });
    match (size(&change.before), size(&change.after)) {
        (Some(before), Some(after)) if before > 0 => {
            format!(" ({:+.1} %)", (after as f64 / before as f64 - 1.0) * 100.0)
        }
        _ => String::new(),
    }
}

fn as_json(c: &Diff, diff: &PlanDiff) -> String {
    let parts: Vec<Value> = diff
        .parts
        .iter()
        .map(|p| {
            let changes: Vec<Value> = p.changes.iter().map(change_json).collect();
            json!({"title": p.title, "equal": p.equal, "changes": changes})
        })
        .collect();
    let (a, b) = (c.before.display().to_string(), c.after.display().to_string());
    format!("{:#}\n", json!({"before": a, "after": b, "equal": diff.is_empty(), "parts": parts}))
}

fn change_json(c: &Change) -> Value {
    json!({"kind": c.kind.name(), "name": c.name, "before": facts_json(&c.before), "after": facts_json(&c.after)})
}

fn facts_json(facts: &[Fact]) -> Vec<Value> {
    let value = |f: &Fact| match &f.value {
        FactValue::Text(text) => json!(text),
        FactValue::Number(n) => json!(n),
        FactValue::Bytes(n) => json!(n),
    };
    facts.iter().map(|f| json!({"label": f.label, "value": value(f)})).collect()
}
