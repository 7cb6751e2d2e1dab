//! Model files: what they are, and reading them.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics, Location};
use of_ir::Module;
use of_ir::text::{parse_module, read_module};
use of_plan::{OpenError, PlanFile};

use crate::console::{Console, is_dash};
use crate::exit;

/// What was in a file.
pub enum Model {
    /// A model that is not compiled yet.
    Module(Box<Source>),
    /// A plan.
    Plan(Box<PlanFile>),
}

/// A module and the file that it was read from.
pub struct Source {
    /// The module, not verified.
    pub module: Module,
    /// File name without folders.
    pub file: String,
    /// blake3 of the file.
    pub hash: [u8; 32],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Text,
    Onnx,
    Plan,
}

/// Reads a model file, whatever it is.
///
/// # Errors
/// When it cannot be read, is damaged, or holds what is not supported.
pub fn load(path: &Path, console: &mut Console) -> Result<Model, Diagnostics> {
    match kind(path)? {
        Kind::Plan => Ok(Model::Plan(Box::new(open_plan(path)?))),
        Kind::Onnx => Ok(Model::Module(Box::new(import(path, console)?))),
        Kind::Text => {
            let mut module = read_text(path, console)?;
            if module.name.is_empty() {
                module.name = stem(path);
            }
            let hash = if is_dash(path) { [0; 32] } else { hash(path)? };
            Ok(Model::Module(Box::new(Source { module, file: file_name(path), hash })))
        }
    }
}

/// Imports an ONNX model.
///
/// # Errors
/// When it cannot be read, is damaged, or holds what is not supported.
pub fn import(path: &Path, console: &Console) -> Result<Source, Diagnostics> {
    let progress = console.progress(&format!("importing {}", path.display()));
    let mut module = of_onnx::import_file(path, &of_onnx::Options::default())?;
    if module.name.is_empty() {
        module.name = stem(path);
    }
    let hash = hash(path)?;
    drop(progress);
    Ok(Source { module, file: file_name(path), hash })
}

/// Reads IR text, from stdin for `-`.
///
/// # Errors
/// When it cannot be read or parsed.
pub fn read_text(path: &Path, console: &mut Console) -> Result<Module, Diagnostics> {
    let registry = of_ops::registry();
    if !is_dash(path) {
        return read_module(path, &registry, &mut console.renderer.sources);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| exit::io(Path::new("<stdin>"), "read", &e))?;
    console.renderer.sources.add("<stdin>", text.clone());
    // Data files lie in the folder that the program runs in: a pipe has no other.
    parse_module(&text, "<stdin>", &registry, Some(Path::new("")))
}

/// Opens a plan.
///
/// # Errors
/// When it cannot be read or is damaged.
pub fn open_plan(path: &Path) -> Result<PlanFile, Diagnostics> {
    PlanFile::open(path).map_err(|e| {
        let code = if matches!(e, OpenError::Io { .. }) { Code::IO } else { Code::PLAN };
        of_diag::Diagnostic::error(code, Location::Unknown, format!("{}: {e}", path.display())).into()
    })
}

fn kind(path: &Path) -> Result<Kind, Diagnostics> {
    if is_dash(path) {
        return Ok(Kind::Text);
    }
    let by_name = match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("of" | "mlir") => Some(Kind::Text),
        Some("onnx") => Some(Kind::Onnx),
        Some("plan") => Some(Kind::Plan),
        _ => None,
    };
    match by_name {
        Some(k) => Ok(k),
        None => sniff(path),
    }
}

/// By content: text is IR, a plan says that it is one, and ONNX has no mark at all.
fn sniff(path: &Path) -> Result<Kind, Diagnostics> {
    let read = |e: &std::io::Error| Diagnostics::from(exit::io(path, "read", e));
    let mut head = Vec::new();
    File::open(path).map_err(|e| read(&e))?.take(4096).read_to_end(&mut head).map_err(|e| read(&e))?;
    let text = match std::str::from_utf8(&head) {
        Ok(_) => true,
        // A character may be cut off at the end.
        Err(e) => e.error_len().is_none(),
    };
    if text && !head.contains(&0) {
        return Ok(Kind::Text);
    }
    Ok(if matches!(PlanFile::open(path), Err(OpenError::NotAPlan)) { Kind::Onnx } else { Kind::Plan })
}

/// blake3 of a file.
///
/// # Errors
/// When it cannot be read.
pub fn hash(path: &Path) -> Result<[u8; 32], Diagnostics> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap_rayon(path).map_err(|e| exit::io(path, "read", &e))?;
    Ok(*hasher.finalize().as_bytes())
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

fn stem(path: &Path) -> String {
    PathBuf::from(path).file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_known_name_are_told_apart_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let p = dir.path().join(name);
            std::fs::write(&p, bytes).unwrap();
            kind(&p).unwrap()
        };
        assert_eq!(put("a", "func @main() { of.return } // é".as_bytes()), Kind::Text);
        assert_eq!(put("b", &[8, 7, 0, 255, 1]), Kind::Onnx);
        assert_eq!(put("c.ONNX", b"text"), Kind::Onnx);
        assert!(kind(&dir.path().join("none")).is_err());
    }
}
