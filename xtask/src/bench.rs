//! `cargo xtask bench`: this compiler beside others, in one run, as ratios.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{cargo, root, run};

/// Rounds in which every tool runs once; the fastest round counts, as noise only ever adds.
const ROUNDS: usize = 3;

/// A tool that is measured: its name, and its command with places for `{model}` (the file), `{inputs}` and `{dir}` (the
/// folders of inputs and of both), and `{threads}`.
struct Tool {
    name: String,
    command: String,
}

/// What is measured.
struct Plan {
    models: PathBuf,
    only: Vec<String>,
    threads: Vec<String>,
    tools: Vec<Tool>,
}

/// Measures every model folder (`NAME/model.onnx`, `NAME/b1/input_0.pb` …) and prints a table in Markdown.
///
/// # Errors
/// When the arguments are wrong or a tool cannot be started; a model that a tool fails on is marked in the table.
pub fn bench(args: &[&str]) -> Result<(), String> {
    let plan = parse(args)?;
    run(cargo().args(["build", "--release", "--package", "of-opt"]))?;
    let names: Vec<&str> = plan.tools.iter().map(|t| t.name.as_str()).collect();
    println!("| model | threads | {} ms | {} |", names.join(" ms | "), ratios(&names));
    println!("|---|---|{}", "---|".repeat(2 * names.len() - 1));
    for model in models(&plan)? {
        for threads in &plan.threads {
            let best = measure(&plan.tools, &model, threads)?;
            println!("| {} | {threads} | {} |", model.file_name().unwrap_or_default().to_string_lossy(), row(&best));
        }
    }
    Ok(())
}

fn ratios(names: &[&str]) -> String {
    names[1..].iter().map(|n| format!("{n} / ours")).collect::<Vec<_>>().join(" | ")
}

/// Times, then how many times slower each other tool is than ours.
fn row(best: &[Option<f64>]) -> String {
    let ms = |t: &Option<f64>| t.map_or("fails".into(), |t| format!("{t:.2}"));
    let ratio = |t: &Option<f64>| match (best[0], t) {
        (Some(ours), Some(t)) => format!("{:.2}", t / ours),
        _ => "-".into(),
    };
    best.iter().map(ms).chain(best[1..].iter().map(ratio)).collect::<Vec<_>>().join(" | ")
}

fn parse(args: &[&str]) -> Result<Plan, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let ours = target.join("release/of-opt");
    let flags = "bench {model} --inputs {inputs} --threads {threads} --max-seconds 5";
    let ours = Tool { name: "ours".into(), command: format!("{} {flags}", ours.display()) };
    let mut plan = Plan { models: PathBuf::new(), only: Vec::new(), threads: vec!["1".into()], tools: vec![ours] };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().copied().ok_or_else(|| format!("{arg} needs a value"));
        match *arg {
            "--models" => plan.models = value()?.into(),
            "--threads" => plan.threads = value()?.split(',').map(str::to_owned).collect(),
            "--peer" => {
                let (name, command) = value()?.split_once('=').ok_or("--peer takes NAME=COMMAND")?;
                plan.tools.push(Tool { name: name.into(), command: command.into() });
            }
            flag if flag.starts_with('-') => return Err(format!("'cargo xtask bench' does not know {flag}")),
            name => plan.only.push(name.into()),
        }
    }
    if plan.models.as_os_str().is_empty() {
        return Err("--models DIR is missing: a folder of NAME/model.onnx with inputs in NAME/b1".into());
    }
    if plan.tools.len() == 1 {
        return Err("--peer NAME='COMMAND {model} {inputs} {threads}' is missing: a time alone says little".into());
    }
    Ok(plan)
}

fn models(plan: &Plan) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(&plan.models).map_err(|e| format!("{}: {e}", plan.models.display()))?;
    let mut all: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    all.retain(|p| p.join("model.onnx").is_file() && p.join("b1").is_dir());
    all.retain(|p| plan.only.is_empty() || plan.only.iter().any(|n| p.ends_with(n)));
    all.sort();
    if all.is_empty() { Err(format!("no model in {}", plan.models.display())) } else { Ok(all) }
}

/// The best median of each tool.
fn measure(tools: &[Tool], model: &Path, threads: &str) -> Result<Vec<Option<f64>>, String> {
    let mut best: Vec<Option<f64>> = vec![None; tools.len()];
    for _ in 0..ROUNDS {
        for (tool, best) in tools.iter().zip(&mut best) {
            let time = once(tool, model, threads)?;
            *best = match (*best, time) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }
    Ok(best)
}

/// The `median_ms` in the last line that the tool prints; nothing where it fails on the model.
fn once(tool: &Tool, model: &Path, threads: &str) -> Result<Option<f64>, String> {
    let fill = |word: &str| {
        word.replace("{model}", &model.join("model.onnx").to_string_lossy())
            .replace("{dir}", &model.to_string_lossy())
            .replace("{inputs}", &model.join("b1").to_string_lossy())
            .replace("{threads}", threads)
    };
    let words: Vec<String> = tool.command.split_whitespace().map(fill).collect();
    let (program, args) = words.split_first().ok_or_else(|| format!("{} has no command", tool.name))?;
    let out = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let last: Option<serde_json::Value> = text.lines().last().and_then(|l| serde_json::from_str(l).ok());
    Ok(last.filter(|_| out.status.success()).and_then(|v| v["median_ms"].as_f64()))
}
