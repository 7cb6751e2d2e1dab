//! `of-opt inspect`: what is in a plan or model.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use of_diag::Diagnostics;
use of_ir::Module;
use of_page::{Facts, Page};
use serde_json::{Value, json};

use crate::arguments::ModelFile;
use crate::console::Console;
use crate::model_file;
use crate::show::bytes;
use of_driver::{ModelOrPlan, io_error};

/// Flags.
#[derive(Args, Debug)]
pub struct Inspect {
    /// What to look at.
    #[command(flatten)]
    pub model: ModelFile,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a page for a browser: the graph and ops of a model, or the tasks of a plan
    #[arg(long, value_name = "FILE.html", conflicts_with = "json")]
    pub html: Option<PathBuf>,
}

/// Executes the subcommand.
///
/// # Errors
/// When the file cannot be read.
pub fn inspect(c: &Inspect, console: &Console) -> Result<(), Diagnostics> {
    let opened = model_file::open(&c.model, console)?;
    if let Some(path) = &c.html {
        return write_page(&page(&opened), path);
    }
    let text = match opened {
        ModelOrPlan::Plan(plan) if c.json => of_plan::json(&plan) + "\n",
        ModelOrPlan::Plan(plan) => of_plan::text(&plan),
        ModelOrPlan::Model(source) => {
            let facts: Vec<Facts> = source.module.funcs.iter().map(|(n, f)| Facts::of(n, f)).collect();
            if c.json { as_json(&source.module, &facts) } else { as_text(&source.module, &facts) }
        }
    };
    console.print(&text)
}

/// The page of a model or plan.
pub fn page(opened: &ModelOrPlan) -> Page {
    match opened {
        ModelOrPlan::Plan(plan) => of_page::plan::page(plan.plan()),
        ModelOrPlan::Model(source) => of_page::model::page(&source.module),
    }
}

/// Writes a page to a file.
///
/// # Errors
/// When the file cannot be written.
pub fn write_page(page: &Page, path: &Path) -> Result<(), Diagnostics> {
    of_files::write(path, page.to_html()).map_err(|e| io_error(path, "written", &e).into())
}

fn as_text(module: &Module, facts: &[Facts]) -> String {
    let mut out = format!("model       {}\n", module.name);
    for (name, mesh) in &module.meshes {
        let _ = writeln!(out, "mesh        @{name} {:?}", mesh.shape);
    }
    for f in facts {
        let _ = writeln!(out, "\nfunction    @{}", f.name);
        for (head, list) in [("input", &f.inputs), ("output", &f.outputs)] {
            for (name, ty) in list {
                let _ = writeln!(out, "{head:10}  {name}: {ty}");
            }
        }
        if !f.symbols.is_empty() {
            let _ = writeln!(out, "open        {}", f.symbols.join(", "));
        }
        let _ = writeln!(out, "constants   {}, {}", f.constants, bytes(f.constant_bytes));
        let _ = writeln!(out, "ops         {}", f.ops.values().sum::<usize>());
        let mut by_count: Vec<_> = f.ops.iter().collect();
        of_ir::sort::by_key(&mut by_count, |(name, n)| (std::cmp::Reverse(**n), **name));
        for (name, n) in by_count {
            let _ = writeln!(out, "  {n:8}  {name}");
        }
    }
    out
}

fn as_json(module: &Module, facts: &[Facts]) -> String {
    let ports = |list: &[(String, String)]| list.iter().map(|(n, t)| json!({"name": n, "type": t})).collect::<Vec<_>>();
    let funcs: Vec<Value> = facts
        .iter()
        .map(|f| {
            json!({
                "name": f.name, "inputs": ports(&f.inputs), "outputs": ports(&f.outputs), "open_dimensions": f.symbols,
                "constants": f.constants, "constant_bytes": f.constant_bytes, "ops": f.ops,
            })
        })
        .collect();
    format!("{:#}\n", json!({"model": module.name, "functions": funcs}))
}
