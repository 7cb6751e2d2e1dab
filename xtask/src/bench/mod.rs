//! `cargo xtask bench`: compares this compiler with other tools in one run, as ratios.

mod machine;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::workspace::{cargo, of_opt, run};
use report::{Measured, Sample, Tool};

/// Rounds in which every tool runs once, consecutively, so that a slow phase of the machine affects all of them.
const ROUNDS: usize = 5;

/// What is measured.
struct Plan {
    models: PathBuf,
    only: Vec<String>,
    threads: Vec<String>,
    sets: Vec<String>,
    rounds: usize,
    tools: Vec<Tool>,
    json: Option<PathBuf>,
    markdown: Option<PathBuf>,
}

/// Measures every model folder (`NAME/model.onnx`, `NAME/b1/input_0.pb` …) with every tool, prints a line for each as it
/// is done, and writes all of it as JSON and Markdown where that is asked for.
///
/// # Errors
/// When the arguments are wrong or a tool cannot be started; a model that a tool fails on is marked.
pub fn bench(args: &[&str]) -> Result<(), String> {
    let mut plan = parse(args)?;
    run(cargo().args(["build", "--release", "--package", "of-opt"]))?;
    let machine = machine::describe();
    let models = models(&plan)?;
    let mut all: Vec<Measured> = Vec::new();
    print!("{}", report::head(&plan.tools));
    for model in &models {
        for (set, threads) in plan.sets.iter().flat_map(|s| plan.threads.iter().map(move |t| (s, t))) {
            if !model.join(set).is_dir() {
                continue;
            }
            let measured = measure(&mut plan.tools, model, set, threads, plan.rounds)?;
            print!("{}", report::row(&measured));
            all.push(measured);
            // Long runs are interrupted; finished measurements are kept.
            for (path, text) in [
                (&plan.json, report::json(&machine, &plan.tools, plan.rounds, &all)),
                (&plan.markdown, report::markdown(&machine, &plan.tools, plan.rounds, &all)),
            ] {
                if let Some(path) = path {
                    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
                }
            }
        }
    }
    print!("\n{}", report::summary(&plan.tools, &all));
    Ok(())
}

fn parse(args: &[&str]) -> Result<Plan, String> {
    let ours = of_opt("release");
    let ours = ours.display();
    let ours = Tool {
        name: "ours".into(),
        prepare: Some(format!("{ours} compile {{model}} --inputs {{inputs}} --threads {{threads}} -o {{plan}}")),
        command: format!("{ours} bench {{plan}} --inputs {{inputs}} --threads {{threads}} --max-seconds 3"),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
    };
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut plan = Plan {
        models: PathBuf::new(),
        only: Vec::new(),
        threads: vec!["1".into()],
        sets: vec!["b1".into()],
        rounds: ROUNDS,
        tools: vec![ours],
        json: None,
        markdown: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().copied().ok_or_else(|| format!("{arg} needs a value"));
        match *arg {
            "--models" => plan.models = value()?.into(),
            "--threads" => plan.threads = list(value()?),
            "--sets" => plan.sets = list(value()?),
            "--rounds" => {
                plan.rounds = value()?.parse().ok().filter(|n| *n > 0).ok_or("--rounds takes a number above 0")?;
            }
            "--json" => plan.json = Some(value()?.into()),
            "--markdown" => plan.markdown = Some(value()?.into()),
            "--peer" => {
                let (name, command) = value()?.split_once('=').ok_or("--peer takes NAME=COMMAND")?;
                plan.tools.push(Tool { name: name.into(), prepare: None, command: command.into(), version: None });
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
    all.retain(|p| p.join("model.onnx").is_file() && plan.sets.iter().any(|s| p.join(s).is_dir()));
    let known = |name: &String| all.iter().any(|p| p.ends_with(name));
    if let Some(name) = plan.only.iter().find(|n| !known(n)) {
        return Err(format!("no model '{name}' with such inputs in {}", plan.models.display()));
    }
    all.retain(|p| plan.only.is_empty() || plan.only.iter().any(|n| p.ends_with(n)));
    all.sort();
    if all.is_empty() { Err(format!("no model in {}", plan.models.display())) } else { Ok(all) }
}

/// What each tool says in each round.
fn measure(tools: &mut [Tool], model: &Path, set: &str, threads: &str, rounds: usize) -> Result<Measured, String> {
    let mut samples: Vec<Vec<Option<Sample>>> = vec![Vec::new(); tools.len()];
    let plan = std::env::temp_dir().join(format!("xtask-bench-{}.plan", std::process::id()));
    let task = Task { model, set, threads, plan: &plan };
    let mut prepared = Vec::with_capacity(tools.len());
    for tool in tools.iter() {
        prepared.push(match &tool.prepare {
            Some(command) => task.run(command)?.status.success(),
            None => true,
        });
    }
    for _ in 0..rounds {
        for ((tool, samples), prepared) in tools.iter_mut().zip(&mut samples).zip(&prepared) {
            // What fails once fails again.
            let failed = !prepared || matches!(samples.last(), Some(None));
            samples.push(if failed { None } else { once(tool, &task)? });
        }
    }
    let _ = std::fs::remove_file(&plan);
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Measured { model: name, set: set.into(), threads: threads.into(), samples })
}

/// What a command is run for.
struct Task<'a> {
    model: &'a Path,
    set: &'a str,
    threads: &'a str,
    /// A file for what is made of the model before it is measured.
    plan: &'a Path,
}

impl Task<'_> {
    fn run(&self, command: &str) -> Result<Output, String> {
        let fill = |word: &str| {
            word.replace("{model}", &self.model.join("model.onnx").to_string_lossy())
                .replace("{dir}", &self.model.to_string_lossy())
                .replace("{inputs}", &self.model.join(self.set).to_string_lossy())
                .replace("{set}", self.set)
                .replace("{threads}", self.threads)
                .replace("{plan}", &self.plan.to_string_lossy())
        };
        let words: Vec<String> = command.split_whitespace().map(fill).collect();
        let (program, args) = words.split_first().ok_or("a tool has no command")?;
        Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))
    }
}

/// The last line that the tool prints, which is JSON with `median_ms`; nothing where it fails on the model.
fn once(tool: &mut Tool, task: &Task<'_>) -> Result<Option<Sample>, String> {
    let out = task.run(&tool.command)?;
    let text = String::from_utf8_lossy(&out.stdout);
    let last: Option<Value> = text.lines().last().and_then(|l| serde_json::from_str(l).ok());
    let Some(last) = last.filter(|_| out.status.success()) else { return Ok(None) };
    if let Some(version) = last["version"].as_str() {
        tool.version = Some(version.to_owned());
    }
    let Some(median_ms) = last["median_ms"].as_f64() else { return Ok(None) };
    Ok(Some(Sample { median_ms, load_ms: last["load_ms"].as_f64(), peak_mb: last["peak_rss_mb"].as_f64() }))
}
