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
            let unchecked = Unchecked::of(&plan);
            if c.json {
                let (file, programs) = (path.to_string(), programs.len());
                let report = json!({
                    "file": file, "valid": true, "programs": programs, "tasks": tasks, "peak_bytes": peak,
                    "checked": CHECKED, "kernels_not_checked": unchecked.kernels,
                    "executables_not_checked": unchecked.executables,
                });
                return console.print(&format!("{report}\n"));
            }
            format!(
                "{path}: valid, {}, {}, peak memory {}\n  checked      {}\n  {}\n",
                count(programs.len(), "program"),
                count(tasks, "task"),
                bytes(peak),
                CHECKED.join(", "),
                unchecked.text()
            )
        }
    };
    console.print(&text)
}

/// What is known of a plan that verifies.
const CHECKED: [&str; 6] = [
    "checksums",
    "structure",
    "hashes of kernels",
    "arguments and loops of kernel calls against their declarations",
    "no deadlock",
    "no overlap of live registers",
];

/// What a plan runs and no proof covers.
struct Unchecked {
    /// Kernels of machine code.
    kernels: usize,
    /// Executables of backends.
    executables: usize,
}

impl Unchecked {
    fn of(plan: &PlanFile) -> Unchecked {
        let tasks = plan.plan().programs.iter().flat_map(|p| &p.tasks);
        let executables = tasks.filter(|t| matches!(t.exec, Some(of_plan::Exec::Backend(_)))).count();
        Unchecked { kernels: plan.plan().code.len(), executables }
    }

    fn text(&self) -> String {
        let kernels = format!("kernels not checked: the machine code of {}", count(self.kernels, "kernel"));
        let executables = match self.executables {
            1 => "1 executable of a backend".into(),
            n => format!("{n} executables of backends"),
        };
        let what = match (self.kernels, self.executables) {
            (0, 0) => return "not checked  nothing: the plan has neither machine code nor executables".into(),
            (0, _) => executables,
            (_, 0) => kernels,
            _ => format!("{kernels}, {executables}"),
        };
        format!("not checked  {what}; all of it can do what this user can: run plans of makers that you trust")
    }
}

/// Proves that a plan can run.
///
/// # Errors
/// Everything that is wrong.
pub fn prove(plan: &PlanFile) -> Result<(), Diagnostics> {
    plan.verify().map_err(|findings| {
        let one = |f: &of_plan::Finding| Diagnostic::error(Code::PLAN, Location::Unknown, f.to_string());
        Diagnostics(findings.iter().map(one).collect())
    })
}
