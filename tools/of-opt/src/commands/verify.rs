//! `of-opt verify`: checks without running.

use clap::Args;
use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_driver::prepare;
use of_plan::PlanFile;
use serde_json::json;

use crate::arguments::ModelFile;
use crate::console::Console;
use crate::model_file;
use crate::show::bytes;
use of_driver::ModelOrPlan;
use of_driver::count;

/// Flags.
#[derive(Args, Debug)]
pub struct Verify {
    /// What to check.
    #[command(flatten)]
    pub model: ModelFile,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// Everything that is wrong.
pub fn verify(c: &Verify, console: &Console) -> Result<(), Diagnostics> {
    let path = c.model.model.display();
    let text = match model_file::open(&c.model, console)? {
        ModelOrPlan::Model(source) => {
            prepare::verify(&source.module)?;
            let ops: usize = source.module.funcs.values().map(|f| f.graph.walk().len()).sum();
            let functions = source.module.funcs.len();
            if c.json {
                format!("{}\n", json!({"file": path.to_string(), "valid": true, "functions": functions, "ops": ops}))
            } else {
                format!("{path}: valid, {}, {}\n", count(functions, "function"), count(ops, "op"))
            }
        }
        ModelOrPlan::Plan(plan) => {
            prove(&plan)?;
            let programs = &plan.plan().programs;
            let peak = programs.iter().map(|p| p.peak_bytes).max().unwrap_or(0);
            let tasks: usize = programs.iter().map(|p| p.tasks.len()).sum();
            if c.json {
                let (file, programs) = (path.to_string(), programs.len());
                let report = json!({
                    "file": file, "valid": true, "programs": programs, "tasks": tasks, "peak_bytes": peak,
                });
                return console.print(&format!("{report}\n"));
            }
            format!(
                "{path}: valid, {}, {}; checksums hold, no deadlock, memory is sound (peak {})\n",
                count(programs.len(), "program"),
                count(tasks, "task"),
                bytes(peak)
            )
        }
    };
    console.print(&text)
}

fn prove(plan: &PlanFile) -> Result<(), Diagnostics> {
    plan.verify().map_err(|findings| {
        let one = |f: &of_plan::Finding| Diagnostic::error(Code::PLAN, Location::Unknown, f.to_string());
        Diagnostics(findings.iter().map(one).collect())
    })
}
