//! From a module to a model.
//!
//! Ops that ONNX lacks are rewritten first (`legalize`); what is left is written op by op, by the ops' own
//! declarations and the tables in `ops/schema.rs` that the import reads in reverse (`graph`).

mod attribute;
mod attribute_mapping;
mod graph;
mod legalize;
mod names;
pub(crate) mod opset;
mod stream;
mod type_constraints;
mod weights;

use std::io;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_files::AtomicFile;
use of_ir::{Func, Module};
use prost::Message;

use crate::NEWEST_OPSET;
use crate::proto::{ModelProto, OperatorSetIdProto};
use crate::sharding;

pub(crate) use graph::PIPELINE_STAGE;
pub use opset::OLDEST_WRITTEN;

use graph::Writer;
use names::Names;
use weights::Weights;

/// How a model is written.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The newest operator set that may be used, from [`OLDEST_WRITTEN`] to [`NEWEST_OPSET`]. A composite that came
    /// later is expanded. The model gets the oldest set that its operators need.
    pub newest_opset: i64,
    /// Weights go to an external data file even if the model could hold them.
    pub external_data: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        ExportOptions { newest_opset: NEWEST_OPSET, external_data: false }
    }
}

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exported {
    /// The operator set of the model.
    pub opset: i64,
    /// Number of nodes of its graph.
    pub nodes: usize,
    /// The file of the weights if they are not in the model file.
    pub data: Option<PathBuf>,
}

/// Protocol buffers end at 2 GiB; this much of them is left for everything but weights.
const MAX_INLINE_BYTES: usize = (1 << 31) - (1 << 26);

/// Writes the entry function of `module` to `path`, and its weights to a file of that name with `.data` behind it where
/// a model cannot hold them or `options` say so.
///
/// Both files are complete before they get their names, so that a model may be written over the one it was read from. Memory holds no
/// copy of the weights.
/// The model names the data file in UTF-8: bytes of the name that are not UTF-8 become U+FFFD in both.
///
/// # Errors
/// Everything that ONNX lacks, and when a file cannot be written.
pub fn export_file(path: &Path, module: &Module, options: &ExportOptions) -> Result<Exported, Diagnostics> {
    let func = entry(module)?;
    let location = format!("{}.data", path.file_name().unwrap_or_default().to_string_lossy());
    let data = path.with_file_name(&location);
    let external = options.external_data || inline_bytes(func) > MAX_INLINE_BYTES;
    let weights = if external { Weights::external(location) } else { Weights::default() };
    let (model, weights) = model(module, func, options, weights)?;
    let write = || -> io::Result<()> {
        let model_file = AtomicFile::new(path)?;
        stream::write(&model, model_file.create()?)?;
        if !weights.is_empty() {
            let data_file = AtomicFile::new(&data)?;
            weights.write(data_file.create()?)?;
            data_file.keep()?;
        }
        model_file.keep()
    };
    write().map_err(|e| {
        let what = format!("'{}' cannot be written: {e}", path.display());
        Diagnostic::error(Code::IO, Location::Unknown, what)
    })?;
    Ok(Exported {
        opset: model.opset_import.first().map_or(0, OperatorSetIdProto::version),
        nodes: model.graph.map_or(0, |g| g.node.len()),
        data: (!weights.is_empty()).then_some(data),
    })
}

/// The entry function of `module` as a model that holds its weights.
///
/// # Errors
/// Everything that ONNX lacks, and more weights than a model can hold.
pub fn export_model(module: &Module, options: &ExportOptions) -> Result<ModelProto, Diagnostics> {
    let func = entry(module)?;
    if inline_bytes(func) > MAX_INLINE_BYTES {
        let what = "the weights have more than 2 GiB, which a model cannot hold";
        return Err(Diagnostic::error(Code::UNSUPPORTED, func.loc.clone(), what).hint("write it to a file").into());
    }
    Ok(model(module, func, options, Weights::default())?.0)
}

/// The bytes of an ONNX model.
///
/// # Errors
/// As [`export_model`].
pub fn export_bytes(module: &Module, options: &ExportOptions) -> Result<Vec<u8>, Diagnostics> {
    Ok(export_model(module, options)?.encode_to_vec())
}

fn entry(module: &Module) -> Result<&Func, Diagnostics> {
    // No op calls a function, so all but one would be dropped.
    module.main().filter(|_| module.funcs.len() == 1).ok_or_else(|| {
        let names: Vec<String> = module.funcs.keys().map(|name| format!("@{name}")).collect();
        let what =
            format!("the module has {} functions, and an ONNX model holds one: {}", names.len(), names.join(", "));
        Diagnostic::error(Code::NAME, Location::Unknown, what).hint("keep one function in a text").into()
    })
}

/// Bytes of all constants.
fn inline_bytes(func: &Func) -> usize {
    let g = &func.graph;
    let bytes = |op| g.op(op).def.constant(&g.op(op).attrs).and_then(|t| t.bytes().map(|b| b.len())).unwrap_or(0);
    g.walk().into_iter().map(bytes).sum()
}

fn model(
    module: &Module,
    func: &Func,
    options: &ExportOptions,
    weights: Weights,
) -> Result<(ModelProto, Weights), Diagnostics> {
    let newest = options.newest_opset;
    if !(OLDEST_WRITTEN..=NEWEST_OPSET).contains(&newest) {
        let what =
            format!("operator set {newest} cannot be written, those from {OLDEST_WRITTEN} to {NEWEST_OPSET} can");
        return Err(Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, what).into());
    }
    let mut func = func.clone();
    legalize::legalize(&mut func, newest)?;
    let mut writer = Writer {
        graph: &func.graph,
        meshes: &module.meshes,
        names: Names::default(),
        weights,
        opset: OLDEST_WRITTEN,
        newest,
        domains: Vec::new(),
        errors: Vec::new(),
    };
    let name = if module.name.is_empty() { "main" } else { &module.name };
    let graph = writer.main(name, &func.inputs, &func.outputs);
    let Writer { opset, domains, errors, weights, .. } = writer;
    if !errors.is_empty() {
        return Err(Diagnostics(errors));
    }
    if opset > newest {
        let what = format!("the types of values need operator set {opset}, {newest} is the newest that may be used");
        let error = Diagnostic::error(Code::UNSUPPORTED, func.loc.clone(), what);
        return Err(error.hint("allow a newer operator set").into());
    }
    if let Some((name, _)) = module.meshes.iter().find(|(_, mesh)| mesh.part.is_some()) {
        let what = format!("mesh @{name} is a part of a mesh, of which ONNX knows nothing");
        return Err(Diagnostic::error(Code::UNSUPPORTED, func.loc.clone(), what).into());
    }
    let set = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    let mut ir_version = opset::ir_version(opset);
    if !module.meshes.is_empty() {
        // Annotations for several devices came with this one.
        ir_version = ir_version.max(11);
    }
    let model = ModelProto {
        ir_version: Some(ir_version),
        producer_name: Some("of-opt".into()),
        producer_version: Some(env!("CARGO_PKG_VERSION").into()),
        graph: Some(graph),
        opset_import: std::iter::once(set("", opset))
            .chain(domains.into_iter().map(|d| set(d, opset::of_domain(d))))
            .collect(),
        configuration: module.meshes.iter().map(|(name, mesh)| sharding::configuration(name, mesh)).collect(),
        ..ModelProto::default()
    };
    Ok((model, weights))
}
