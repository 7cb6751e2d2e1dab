//! Model-level fields: operator sets, functions, metadata.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Attrs, Func, Graph, Module, Rewriter};

use super::body::model_inputs;
use super::report::Report;
use super::scope::Scope;
use super::{
    Context, FunctionKey, Imported, Importer, NEWEST_OPSET, OLDEST_OPSET, declared, domain, inlining, placement,
};
use crate::external::External;
use crate::proto::{FunctionProto, GraphProto, ModelProto, OperatorSetIdProto};
use crate::tensor::invalid;
use crate::{Options, types};

/// Imports a model.
pub(crate) fn model(model: &ModelProto, options: &Options) -> Result<Imported, Diagnostics> {
    let Some(graph) = &model.graph else {
        return Err(invalid("the model has no graph".into()).hint("is this an ONNX model?").into());
    };
    let opsets = opsets(&model.opset_import)?;
    let functions = functions(model)?;
    let max_nodes = inlining::check(graph, &functions, options.max_nodes)?;
    check_initializer_inputs(graph, options)?;
    let external = External::new(options.folder.clone());
    let meshes = placement::meshes(&model.configuration)?;
    let mut out = Graph::new();
    let mut rw = Rewriter::new(&mut out, "import");
    rw.number_symbols_from(declared_symbols(model, graph));
    let region = rw.graph().entry();
    let mut importer = Importer {
        rw,
        region,
        location: Location::Unknown,
        external: &external,
        functions: &functions,
        context: Context { opsets, ..Context::default() },
        scope: Scope::default(),
        meshes: &meshes,
        report: Report::default(),
        map_keys: HashMap::default(),
        unseeded: 0,
        nodes_left: Some(max_nodes),
        initializer_inputs: &options.initializer_inputs,
        separate_copies: options.separate_copies,
        depth: 0,
    };
    let (inputs, outputs) = importer.main(graph);
    let warnings = importer.report.finish()?;
    let func = Func { graph: out, inputs, outputs, attrs: Attrs::new(), loc: Location::Unknown };
    let mut module = Module { name: graph.name().to_owned(), meshes, ..Module::default() };
    module.funcs.insert("main".into(), func);
    // Ops were checked one by one; what the model declares of sizes was not.
    of_ir::verify_module(&module)?;
    Ok(Imported { module, warnings, data_files: external.files() })
}

/// Only an initializer that is an input may be given by a run.
fn check_initializer_inputs(graph: &GraphProto, options: &Options) -> Result<(), Diagnostic> {
    let inputs = model_inputs(graph);
    let may_be: Vec<&str> = inputs.iter().filter(|i| i.has_default).map(|i| i.name.as_str()).collect();
    let Some(other) = options.initializer_inputs.iter().find(|n| !may_be.contains(&n.as_str())) else { return Ok(()) };
    let message = format!("'{other}' is not an input with a default value");
    let hint = match may_be.as_slice() {
        [] => "the model has none".into(),
        names => format!("these are: {}", names.join(", ")),
    };
    Err(Diagnostic::error(Code::INPUT, Location::Unknown, message).hint(hint))
}

/// The functions of a model.
fn functions(model: &ModelProto) -> Result<HashMap<FunctionKey<'_>, &FunctionProto>, Diagnostic> {
    let mut all = HashMap::new();
    for f in &model.functions {
        if all.insert((domain(f.domain()), f.name(), f.overload()), f).is_some() {
            return Err(invalid(format!("function '{}' of domain '{}' is defined twice", f.name(), f.domain())));
        }
    }
    Ok(all)
}

/// Versions by domain.
pub(super) fn opsets(imports: &[OperatorSetIdProto]) -> Result<HashMap<&str, i64>, Diagnostic> {
    let opsets: HashMap<&str, i64> = imports.iter().map(|o| (domain(o.domain()), o.version())).collect();
    let unsupported =
        |message: String, hint: &str| Err(Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, message).hint(hint));
    match opsets.get("").copied() {
        Some(v) if v < OLDEST_OPSET => unsupported(
            format!("opset {v} of ai.onnx is not supported: the first is {OLDEST_OPSET}"),
            "is the version of the operator set what its exporter wrote?",
        ),
        Some(v) if v > NEWEST_OPSET => unsupported(
            format!("opset {v} of ai.onnx is newer than {NEWEST_OPSET}, the newest that is known"),
            "export the model for an older opset",
        ),
        _ => Ok(opsets),
    }
}

/// The largest number of a symbol that looks like those that inference invents.
fn declared_symbols(model: &ModelProto, graph: &GraphProto) -> u32 {
    let of_graph = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
    let of_functions = model.functions.iter().flat_map(|f| &f.value_info);
    let types = of_graph.chain(of_functions).filter_map(declared::ty);
    // Far from the end of the range, so that counting on cannot overflow.
    types.map(|t| types::largest_fresh(&t)).max().unwrap_or(0).min(1 << 30)
}
