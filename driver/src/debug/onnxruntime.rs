//! Values of a model by onnxruntime, in a Python process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use of_diag::{Code, Diagnostics};
use of_ir::Func;
use of_ops::Value;

use crate::error::{error, io_error};
use crate::tensor_files;

/// The program that runs in Python.
const SCRIPT: &str = include_str!("onnxruntime.py");
/// The modules that it imports.
const MODULES: &str = "import numpy, onnx, onnxruntime";

/// What onnxruntime computed.
pub(super) struct Observed {
    /// Tensors of the main graph by name.
    pub values: HashMap<String, Value>,
    /// The version of onnxruntime.
    pub version: String,
}

/// Every tensor of the main graph of an ONNX model, for inputs in the order of `func`.
///
/// # Errors
/// When there is no Python with onnxruntime, or onnxruntime does not run the model.
pub(super) fn observe(
    model: &Path,
    func: &Func,
    inputs: &[Value],
    python: Option<&Path>,
) -> Result<Observed, Diagnostics> {
    let python = find(python)?;
    let folder = Folder::new()?;
    let script = folder.0.join("values.py");
    std::fs::write(&script, SCRIPT).map_err(|e| io_error(&script, "written", &e))?;
    for (i, (name, value)) in func.inputs.iter().zip(inputs).enumerate() {
        tensor_files::write_pb(&folder.0.join(format!("input_{i}.pb")), name, value)?;
    }
    let out = Command::new(&python).arg(&script).arg(model).arg(&folder.0).output();
    let out = out.map_err(|e| io_error(&python, "run", &e))?;
    if !out.status.success() {
        let why = last_line(&out.stderr);
        let what = format!("onnxruntime does not run '{}': {why}", model.display());
        return Err(error(Code::INPUT, what).hint("--against reference compares with the interpreter instead").into());
    }
    let mut values = HashMap::new();
    let entries = std::fs::read_dir(&folder.0).map_err(|e| io_error(&folder.0, "read", &e))?;
    for entry in entries {
        let path = entry.map_err(|e| io_error(&folder.0, "read", &e))?.path();
        if path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("value_")) {
            // A copy: the file goes away with the folder.
            let named = tensor_files::read(&path, None)?;
            values.extend(named.name.map(|n| (n, named.value)));
        }
    }
    Ok(Observed { values, version: last_line(&out.stdout) })
}

/// The Python that is given, else `$OF_PYTHON`, else that of `cargo xtask python-packages`, else `python3`.
///
/// # Errors
/// When it lacks onnxruntime, onnx or numpy.
fn find(given: Option<&Path>) -> Result<PathBuf, Diagnostics> {
    let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|d| d.join(".cache")));
    let made = || cache().map(|d| d.join("of-opt/python/bin/python3")).filter(|p| p.is_file());
    let python = given.map(PathBuf::from).or_else(|| var("OF_PYTHON")).or_else(made);
    let python = python.unwrap_or_else(|| "python3".into());
    let why = match Command::new(&python).args(["-c", MODULES]).output() {
        Ok(out) if out.status.success() => return Ok(python),
        Ok(out) => last_line(&out.stderr),
        Err(e) => e.to_string(),
    };
    let what = format!("'{}' has no onnxruntime: {why}", python.display());
    let hint = "pip install onnxruntime onnx numpy, or --python names a Python that has them";
    Err(error(Code::INPUT, what).hint(hint).into())
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or_default().trim().to_string()
}

/// A temporary folder of this process, deleted at the end.
pub(super) struct Folder(pub PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Folder, Diagnostics> {
        let path = std::env::temp_dir().join(format!("of-opt-debug-{}-{:x}", std::process::id(), fastrand::u64(..)));
        std::fs::create_dir(&path).map_err(|e| io_error(&path, "created", &e))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("'{}' is left behind: {e}", self.0.display());
        }
    }
}
