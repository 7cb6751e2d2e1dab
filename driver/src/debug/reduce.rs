//! Reduction of a model to the ops that show a difference, and files for it.

use std::path::{Path, PathBuf};

use of_diag::Diagnostics;
use of_ir::text::{Constants, PrintOptions, write_module};
use of_ir::{Graph, Module, OpId};
use of_onnx::{ExportOptions, export_file};

use super::case::{Case, Values};
use crate::error::io_error;
use crate::prepare::module_of;
use crate::tensor_files;

/// The most attempts of a reduction: each compiles and runs.
const MAX_ATTEMPTS: usize = 120;

/// The smallest set of `ops` found that still shows the difference, by delta debugging (Zeller and Hildebrandt, 2002): parts
/// are left out, first large ones. `ops` must show it.
pub(super) fn smallest(graph: &Graph, ops: Vec<OpId>, values: &Values, shows: &dyn Fn(&Case) -> bool) -> Vec<OpId> {
    let (mut ops, mut parts, mut attempts) = (ops, 2, 0);
    while ops.len() > 1 && attempts < MAX_ATTEMPTS {
        let size = ops.len().div_ceil(parts);
        let without = |i: usize| -> Vec<OpId> {
            let kept = ops.iter().enumerate().filter(|(at, _)| at / size != i);
            kept.map(|(_, op)| *op).collect()
        };
        let mut candidates = (0..ops.len().div_ceil(size)).map(without).filter(|c| !c.is_empty());
        let found = candidates.find(|candidate| {
            attempts += 1;
            Case::of(graph, candidate, values).is_some_and(|c| shows(&c))
        });
        match found {
            Some(fewer) => {
                ops = fewer;
                parts = 2.max(parts - 1);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(ops.len()),
        }
    }
    ops
}

/// The files of a reduced model.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// The model.
    pub model: PathBuf,
    /// The folder of its inputs.
    pub inputs: PathBuf,
    /// The folder of its expected outputs.
    pub outputs: PathBuf,
    /// Whether the written model, read again, still shows the difference.
    pub shows: bool,
}

/// Writes a case: an ONNX model, or IR text where the name ends in `.of`, and next to it the folder `NAME-data` with
/// `inputs/input_I.pb` and `outputs/output_I.pb`.
///
/// # Errors
/// When ONNX has no such op, or a file cannot be written.
pub(super) fn write(case: &Case, module: &Module, path: &Path) -> Result<Reduced, Diagnostics> {
    let reduced = module_of(case.func.clone(), module);
    if is_text(path) {
        let options = PrintOptions { generic: false, locations: false, constants: Constants::Inline };
        write_module(path, &reduced, &options)?;
    } else {
        export_file(path, &reduced, &ExportOptions::default())?;
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let data = path.with_file_name(format!("{stem}-data"));
    let (inputs, outputs) = (data.join("inputs"), data.join("outputs"));
    for folder in [&inputs, &outputs] {
        std::fs::create_dir_all(folder).map_err(|e| io_error(folder, "created", &e))?;
    }
    for (i, (name, value)) in case.func.inputs.iter().zip(&case.inputs).enumerate() {
        tensor_files::write_pb(&inputs.join(format!("input_{i}.pb")), name, value)?;
    }
    for (i, (name, value)) in case.func.outputs.iter().zip(&case.expected).enumerate() {
        tensor_files::write_pb(&outputs.join(format!("output_{i}.pb")), name, value)?;
    }
    Ok(Reduced { model: path.into(), inputs, outputs, shows: false })
}

/// Whether a file of this name is IR text.
pub fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("of"))
}
