//! Passes on the text of a document: the command `of-opt.runPass`, and a code action for each pass.

use lsp_types::TextEdit;
use of_diag::{Diagnostics, Location};
use of_ir::text::{Constants, FuncSource, PrintOptions, Span, print_func, print_module};
use of_ir::{Attr, Func, Module, verify_module};
use of_passes::{Manager, PIPELINES, passes, unified_diff};
use serde_json::{Value, json};

use crate::analysis::Analysis;
use crate::edit::{Change, edits};
use crate::params;
use crate::transport::Failure;

/// The name of the command.
pub const RUN_PASS: &str = "of-opt.runPass";

/// The one argument of the command.
pub struct Arguments {
    /// The document.
    pub uri: String,
    /// Passes and pipelines, as `of-opt --passes` takes them.
    pub passes: String,
    /// The function that they run on; the whole module without it.
    pub function: Option<String>,
    /// Whether the client is asked to apply the edit.
    pub apply: bool,
}

impl Arguments {
    /// Reads the parameters of the command.
    ///
    /// # Errors
    /// When one is missing.
    pub fn of(params: &Value) -> Result<Arguments, Failure> {
        Ok(Arguments {
            uri: params::text(params, "/arguments/0/uri")?.to_owned(),
            passes: params::text(params, "/arguments/0/passes")?.to_owned(),
            function: params::text(params, "/arguments/0/function").ok().map(str::to_owned),
            apply: params["arguments"][0]["apply"] == true,
        })
    }
}

/// What the command returns.
pub struct Ran {
    /// What the passes change, as a unified diff of printed IR without large constants.
    pub diff: String,
    /// The same as an edit; `None` where nothing changes or `note` says why there is none.
    pub edit: Option<Value>,
    /// Why there is no edit.
    pub note: Option<String>,
    /// Warnings of the passes.
    pub warnings: Vec<String>,
}

impl Ran {
    /// The result of the command.
    pub fn as_json(&self) -> Value {
        json!({"diff": self.diff, "edit": self.edit, "note": self.note, "warnings": self.warnings})
    }
}

/// What an edit needs besides the text.
pub struct Target {
    /// The version of the document.
    pub version: i64,
    /// Whether the client knows edits of versions, which are not applied to another one.
    pub versioned: bool,
}

/// An action for every pass and pipeline, where the cursor is in a function without errors.
pub fn actions(analysis: &Analysis, uri: &str, at: usize) -> Vec<Value> {
    let Some(func) = analysis.func_at(at).filter(|f| f.in_module && !analysis.has_errors()) else { return Vec::new() };
    let names = passes().into_iter().map(|p| p.name()).chain(PIPELINES.iter().map(|p| p.name));
    let action = |name: &'static str| {
        let argument = json!({"uri": uri, "passes": name, "function": func.symbol, "apply": true});
        let title = format!("Run {name} on @{}", func.symbol);
        let command = json!({"title": title, "command": RUN_PASS, "arguments": [argument]});
        json!({"title": title, "kind": "refactor.rewrite", "command": command})
    };
    names.map(action).collect()
}

/// Constants of more bytes make no edit.
const MAX_CONSTANTS: usize = 16 << 20;

/// Runs passes on the module or on one function of it.
///
/// # Errors
/// When the text has errors, there is no such pass or function, or a pass fails.
pub fn run(analysis: &Analysis, arguments: &Arguments, target: &Target) -> Result<Ran, Failure> {
    if analysis.has_errors() {
        return Err(Failure::failed("the text has errors; passes run on text without errors"));
    }
    let failed = |d: Diagnostics| Failure::failed(d.to_string());
    verify_module(&analysis.module).map_err(failed)?;
    let manager = Manager::parse(&arguments.passes).map_err(failed)?;
    let source = match &arguments.function {
        None => None,
        Some(name) => {
            let found = analysis.index.funcs.iter().find(|f| f.in_module && f.symbol == *name);
            Some(found.ok_or_else(|| Failure::parameters(format!("the text has no function @{name}")))?)
        }
    };
    let mut module = analysis.module.clone();
    if let Some(f) = source {
        module.funcs.retain(|name, _| *name == f.symbol);
    }
    let before = print_module(&module, &ELIDED);
    let report = manager.run(&mut module, &mut |_| {}).map_err(failed)?;
    let diff = unified_diff(&before, &print_module(&module, &ELIDED));
    let warnings = report.warnings.0.iter().map(ToString::to_string).collect();
    let mut ran = Ran { diff, edit: None, note: None, warnings };
    if ran.diff.is_empty() {
        return Ok(ran);
    }
    match replacement(analysis, source, &module) {
        Ok(change) => ran.edit = Some(workspace_edit(&arguments.uri, target, &edits(&analysis.text, &change))),
        Err(why) => ran.note = Some(why),
    }
    Ok(ran)
}

const ELIDED: PrintOptions<'_> = PrintOptions { generic: false, locations: false, constants: Constants::Elided };

/// What changes in the text when the module becomes `module`; or why text cannot hold it.
fn replacement(analysis: &Analysis, source: Option<&FuncSource>, module: &Module) -> Result<Change, String> {
    let instead = "of-opt IN.of --passes=… -o OUT.of";
    if analysis.text.as_str().contains("#of.data<") {
        return Err(format!("the module has constants in a data file, which an edit cannot write; use {instead}"));
    }
    if module.funcs.values().map(bytes_of_constants).sum::<usize>() > MAX_CONSTANTS {
        return Err(format!("the constants are too large for an edit; use {instead}"));
    }
    let located = module.funcs.values().any(|f| has_locations(f, &analysis.file));
    let options = PrintOptions { generic: false, locations: located, constants: Constants::Inline };
    let whole = Span { start: 0, end: analysis.text.as_str().len() };
    let Some(source) = source else {
        let (before, after) = (print_module(&analysis.module, &options), print_module(module, &options));
        return Ok(Change { span: whole, before, after });
    };
    let (Some(func), Some(old), 1) = (module.funcs.get(&source.symbol), analysis.func(source), module.funcs.len())
    else {
        return Err(format!("the passes renamed @{}; run them on the module", source.symbol));
    };
    if module.meshes != analysis.module.meshes {
        return Err("the passes changed the meshes; run them on the module".into());
    }
    // As deep as the function was.
    let line = analysis.text.line_of(source.whole.start);
    let before = analysis.text.get(Span { start: analysis.text.line_start(line), end: source.whole.start });
    let indent = if before.trim().is_empty() { before } else { "" };
    let print = |f: &Func| {
        let printed = print_func(&source.symbol, f, &options);
        printed.trim_end().replace('\n', &format!("\n{indent}"))
    };
    Ok(Change { span: source.whole, before: print(old), after: print(func) })
}

/// Whether ops say where they come from, other than by their place in the text.
fn has_locations(func: &Func, file: &str) -> bool {
    let elsewhere = |l: &Location| match l {
        Location::Unknown => false,
        Location::Source { file: f, .. } => **f != *file,
        Location::Onnx { .. } => true,
        Location::Derived { .. } => false,
    };
    let g = &func.graph;
    g.walk().iter().any(|op| g.op(*op).loc.roots().into_iter().any(elsewhere))
}

fn bytes_of_constants(func: &Func) -> usize {
    let g = &func.graph;
    let of = |a: &Attr| match a {
        Attr::Tensor(t) => t.bytes().map_or(0, |b| b.len()),
        _ => 0,
    };
    g.walk().iter().map(|op| g.op(*op).attrs.iter().map(|(_, a)| of(a)).sum::<usize>()).sum()
}

fn workspace_edit(uri: &str, target: &Target, edits: &[TextEdit]) -> Value {
    if target.versioned {
        let document = json!({"uri": uri, "version": target.version});
        return json!({"documentChanges": [{"textDocument": document, "edits": edits}]});
    }
    json!({"changes": {uri: edits}})
}
