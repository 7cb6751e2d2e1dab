//! `of-opt inspect`: what is in a plan or model.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use of_diag::Diagnostics;
use of_ir::{Func, Graph, Module};
use serde_json::{Value, json};

use crate::arguments::ModelFile;
use crate::console::Console;
use crate::model_file;
use crate::page::{self, Kind, Page};
use crate::show::bytes;
use of_driver::ModelOrPlan;

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
        return html(&opened).write(path);
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

/// The page of `--html`.
fn html(opened: &ModelOrPlan) -> Page {
    match opened {
        ModelOrPlan::Plan(plan) => {
            let mut page = Page::new(&plan.plan().info.model);
            page::plan::add(&mut page, plan.plan());
            page
        }
        ModelOrPlan::Model(source) => {
            let mut page = Page::new(&source.module.name);
            let facts: Vec<Facts> = source.module.funcs.iter().map(|(n, f)| Facts::of(n, f)).collect();
            page.fact("functions", Kind::Number, facts.len(), "");
            page.fact("ops", Kind::Number, facts.iter().flat_map(|f| f.ops.values()).sum::<usize>(), "");
            page.fact("constants", Kind::Bytes, facts.iter().map(|f| f.constant_bytes).sum::<u64>(), "");
            let ports = facts.iter().flat_map(|f| {
                let list = |what: &'static str, ports: &[(String, String)]| {
                    ports.iter().map(|(name, ty)| json!([f.name, what, name, ty])).collect::<Vec<_>>()
                };
                [list("input", &f.inputs), list("output", &f.outputs)].concat()
            });
            let columns = [("function", Kind::Text), ("kind", Kind::Group), ("name", Kind::Text), ("type", Kind::Text)];
            page.table("Inputs and outputs", "", &columns, ports);
            source.module.funcs.values().for_each(|f| page::model::add(&mut page, f));
            page
        }
    }
}

/// What is worth knowing of a function.
struct Facts {
    name: String,
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
    symbols: Vec<String>,
    ops: BTreeMap<&'static str, usize>,
    constants: usize,
    constant_bytes: u64,
}

impl Facts {
    fn of(name: &str, f: &Func) -> Facts {
        let typed = |names: &[String], types: Vec<of_ir::Type>| {
            names.iter().cloned().zip(types.iter().map(ToString::to_string)).collect()
        };
        let mut ops = BTreeMap::new();
        for op in f.graph.walk() {
            *ops.entry(f.graph.op(op).name()).or_insert(0) += 1;
        }
        let (constants, constant_bytes) = constants(&f.graph);
        Facts {
            name: name.into(),
            inputs: typed(&f.inputs, f.input_types()),
            outputs: typed(&f.outputs, f.output_types()),
            symbols: of_passes::specialize::open_symbols(f),
            ops,
            constants,
            constant_bytes,
        }
    }
}

fn constants(g: &Graph) -> (usize, u64) {
    let mut total = (0, 0);
    for op in g.walk() {
        let data = g.op(op);
        if let Some(t) = data.def.constant(&data.attrs) {
            total.0 += 1;
            total.1 += t.bytes().map_or(0, |b| b.len() as u64);
        }
    }
    total
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
