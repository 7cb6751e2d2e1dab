//! Models: reading them from files, bytes, text or a module.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics};
use of_ir::text::parse_module;
use of_ir::{Module, Tensor};
use of_plan::{OpenError, PlanFile};

use crate::error::{error, io_error};
use crate::input_files;
use crate::observer::{Observer, Silent};
use crate::zoo;

/// A model that is not compiled yet.
pub struct Model {
    /// The IR, not verified.
    pub module: Module,
    /// Names (without folders) and blake3 hashes of the files that the model was read from; a plan records them.
    pub files: Vec<(String, [u8; 32])>,
    /// Files with data of the model, such as weights; their hashes are taken when a plan is made.
    pub data_files: Vec<PathBuf>,
}

/// The content of a file: a model, or a plan.
pub enum ModelOrPlan {
    /// A model that is not compiled yet.
    Model(Box<Model>),
    /// A compiled plan.
    Plan(Box<PlanFile>),
}

/// Formats of files that hold a model or plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// IR text, or a StableHLO module.
    Text,
    /// An ONNX model.
    Onnx,
    /// A compiled plan.
    Plan,
}

impl Model {
    /// Reads a model file: ONNX, a StableHLO module or IR text, detected by name and content.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, is a plan, or holds an unsupported op.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Diagnostics> {
        let path = path.as_ref();
        match open(path, &Silent)? {
            ModelOrPlan::Model(model) => Ok(*model),
            ModelOrPlan::Plan(_) => Err(already_compiled(path).into()),
        }
    }

    /// A model from the bytes of an ONNX file without external data.
    ///
    /// # Errors
    /// When the bytes are damaged or hold an unsupported op.
    pub fn from_onnx(bytes: Vec<u8>) -> Result<Model, Diagnostics> {
        Ok(Model::from_module(of_onnx::import_bytes(bytes, &of_onnx::Options::default())?))
    }

    /// A model from IR text, or from a StableHLO module, which its functions tell apart. `file` names the text in
    /// diagnostics; `folder` contains the data files of IR text.
    ///
    /// # Errors
    /// When the text cannot be parsed.
    pub fn from_text(text: &str, file: &str, folder: Option<&Path>) -> Result<Model, Diagnostics> {
        if text.trim().is_empty() {
            return Err(error(Code::SYNTAX, format!("{file} is empty, not IR text"))
                .hint("export or write it again")
                .into());
        }
        if of_stablehlo::is_stablehlo(text) {
            return Ok(Model::from_module(of_stablehlo::import_text(text, file)?));
        }
        Ok(Model::from_module(parse_module(text, file, &of_ops::registry(), folder)?))
    }

    /// A model from a StableHLO module. Arguments with a value in `constants`, by number, are constants instead of inputs.
    ///
    /// # Errors
    /// When the text cannot be parsed, holds an unsupported operation, or a value does not fit its argument.
    pub fn from_stablehlo(text: &str, file: &str, constants: &BTreeMap<usize, Tensor>) -> Result<Model, Diagnostics> {
        Ok(Model::from_module(of_stablehlo::import_with_constants(text, file, constants)?))
    }

    /// A model from IR, such as that of `of_frontend`.
    pub fn from_module(module: Module) -> Model {
        Model { module, files: Vec::new(), data_files: Vec::new() }
    }

    /// The files that a plan records: [`Model::files`], and the data files with their hashes.
    ///
    /// # Errors
    /// When a data file cannot be read any more.
    pub fn hashed_files(&self) -> Result<Vec<(String, [u8; 32])>, Diagnostics> {
        let data = self.data_files.iter().map(|path| Ok((file_name(path), hash(path)?)));
        self.files.iter().cloned().map(Ok).chain(data).collect()
    }

    /// The same model; a module without a name gets that of the file.
    fn named_after(mut self, path: &Path) -> Model {
        if self.module.name.is_empty() {
            self.module.name = stem(path);
        }
        self
    }

    /// The same model, with the file that it was read from.
    fn read_from(mut self, path: &Path) -> Result<Model, Diagnostics> {
        self.files = vec![(file_name(path), hash(path)?)];
        Ok(self)
    }
}

/// Reads a model or a plan, detected by name and content; `zoo:NAME` is a model of the zoo ([`crate::zoo`]).
///
/// # Errors
/// When the file cannot be read, is damaged, or holds an unsupported op.
pub fn open(path: &Path, observer: &dyn Observer) -> Result<ModelOrPlan, Diagnostics> {
    open_for(path, &[], &[], observer)
}

/// As [`open`], for a run with values from `files`. An initializer of an ONNX model that is also an input is an input of
/// the result if `initializer_inputs` names it or `files` has a value for it; otherwise it is a constant.
///
/// # Errors
/// As [`open`], and when a name of `initializer_inputs` is no such initializer.
pub fn open_for(
    path: &Path,
    initializer_inputs: &[String],
    files: &[OsString],
    observer: &dyn Observer,
) -> Result<ModelOrPlan, Diagnostics> {
    if let Some(zoo) = zoo::named(path)? {
        return Ok(ModelOrPlan::Model(Box::new(zoo.model(zoo::Mode::Inference)?)));
    }
    match format(path)? {
        Format::Plan if !initializer_inputs.is_empty() => {
            let what = "a plan is compiled already: --initializer-input has no effect on it";
            Err(error(Code::INPUT, what).hint("give --initializer-input to 'compile', or give the model").into())
        }
        Format::Plan => Ok(ModelOrPlan::Plan(Box::new(open_plan(path)?))),
        Format::Onnx => {
            let mut names: BTreeSet<String> = initializer_inputs.iter().cloned().collect();
            if !files.is_empty() {
                names.extend(input_files::given_defaults(files, &of_onnx::model_inputs(path)?));
            }
            let options = of_onnx::Options { initializer_inputs: names, ..of_onnx::Options::default() };
            Ok(ModelOrPlan::Model(Box::new(import_with(path, &options, observer)?)))
        }
        Format::Text => Ok(ModelOrPlan::Model(Box::new(read_text(path, observer)?.named_after(path)))),
    }
}

/// Imports an ONNX file or a StableHLO module.
///
/// # Errors
/// When it cannot be read, is damaged, or holds an unsupported op.
pub fn import(path: &Path, observer: &dyn Observer) -> Result<Model, Diagnostics> {
    if let Some(zoo) = zoo::named(path)? {
        return zoo.model(zoo::Mode::Inference);
    }
    let is_text = format(path)? == Format::Text;
    if is_text && std::fs::read_to_string(path).is_ok_and(|text| of_stablehlo::is_stablehlo(&text)) {
        return Ok(read_text(path, observer)?.named_after(path));
    }
    import_with(path, &of_onnx::Options::default(), observer)
}

/// Opens a model for training: parameters that an ONNX file has once because their values are equal are separate.
///
/// # Errors
/// As [`Model::open`].
pub fn open_for_training(path: &Path, observer: &dyn Observer) -> Result<Model, Diagnostics> {
    if let Some(zoo) = zoo::named(path)? {
        return zoo.model(zoo::Mode::Training);
    }
    match format(path)? {
        Format::Onnx => {
            let options = of_onnx::Options { separate_copies: true, ..of_onnx::Options::default() };
            import_with(path, &options, observer)
        }
        Format::Plan => Err(already_compiled(path).into()),
        Format::Text => Ok(read_text(path, observer)?.named_after(path)),
    }
}

fn import_with(path: &Path, options: &of_onnx::Options, observer: &dyn Observer) -> Result<Model, Diagnostics> {
    let _activity = observer.begin(&format!("importing {}", path.display()));
    let imported = of_onnx::import_file_with_data(path, options)?;
    let model = Model { data_files: imported.data_files, ..Model::from_module(imported.module) };
    model.named_after(path).read_from(path)
}

/// Reads a file of IR text, or a StableHLO module. The module keeps its name, so that printing it gives the text back.
///
/// # Errors
/// When it cannot be read or parsed.
pub fn read_text(path: &Path, observer: &dyn Observer) -> Result<Model, Diagnostics> {
    if let Some(zoo) = zoo::named(path)? {
        return zoo.model(zoo::Mode::Inference);
    }
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| io_error(path, "read", &e))?;
    observer.source(&name, &text);
    Model::from_text(&text, &name, Some(path.parent().unwrap_or(Path::new(""))))?.read_from(path)
}

/// The error for a plan where a model is needed.
pub fn already_compiled(path: &Path) -> of_diag::Diagnostic {
    error(Code::INPUT, format!("'{}' is a compiled plan; a model is needed", path.display()))
}

/// Opens a plan.
///
/// # Errors
/// When it cannot be read or is damaged.
pub fn open_plan(path: &Path) -> Result<PlanFile, Diagnostics> {
    PlanFile::open(path).map_err(|e| plan_error(path, &e))
}

/// Opens what a rank needs of a plan for several ranks ([`PlanFile::open_for_rank`]). `None` for another file.
///
/// # Errors
/// When it cannot be read or is damaged.
pub fn open_plan_for_rank(path: &Path, rank: usize) -> Result<Option<PlanFile>, Diagnostics> {
    if format(path)? != Format::Plan {
        return Ok(None);
    }
    let plan = PlanFile::open_for_rank(path, rank).map_err(|e| plan_error(path, &e))?;
    Ok(Some(plan).filter(|plan| !plan.plan().meshes.is_empty()))
}

fn plan_error(path: &Path, e: &OpenError) -> Diagnostics {
    let code = if matches!(e, OpenError::Io { .. }) { Code::IO } else { Code::PLAN };
    error(code, format!("{}: {e}", path.display())).into()
}

fn format(path: &Path) -> Result<Format, Diagnostics> {
    let by_name = match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("of" | "mlir") => Some(Format::Text),
        Some("onnx") => Some(Format::Onnx),
        Some("plan") => Some(Format::Plan),
        _ => None,
    };
    match by_name {
        Some(k) => Ok(k),
        None => match sniff(path)? {
            // Models are data and plans are code: which of them a file is must not be its own choice.
            Format::Plan => {
                let what = format!("'{}' holds a compiled plan, and its name does not end in .plan", path.display());
                Err(error(Code::INPUT, what)
                    .hint("a plan is machine code; if you know who made it, give the file this ending")
                    .into())
            }
            other => Ok(other),
        },
    }
}

/// By content: text is IR, a plan begins with a magic number, and everything else is ONNX, which has none.
fn sniff(path: &Path) -> Result<Format, Diagnostics> {
    let read = |e: &std::io::Error| Diagnostics::from(io_error(path, "read", e));
    let mut head = Vec::new();
    File::open(path).map_err(|e| read(&e))?.take(4096).read_to_end(&mut head).map_err(|e| read(&e))?;
    Ok(format_of_bytes(&head))
}

/// The format of a file that begins with `head`.
pub fn format_of_bytes(head: &[u8]) -> Format {
    let text = match std::str::from_utf8(head) {
        Ok(_) => true,
        // A character may be cut off at the end.
        Err(e) => e.error_len().is_none(),
    };
    if head.starts_with(&of_plan::MAGIC) {
        Format::Plan
    } else if text && !head.is_empty() && !head.contains(&0) {
        Format::Text
    } else {
        Format::Onnx
    }
}

/// A plan from bytes that messages call `name`.
///
/// # Errors
/// When they are damaged.
pub fn plan_from_bytes(bytes: &[u8], name: &str) -> Result<PlanFile, Diagnostics> {
    PlanFile::from_bytes(bytes).map_err(|e| error(Code::PLAN, format!("{name}: {e}")).into())
}

/// blake3 of a file.
///
/// # Errors
/// When it cannot be read.
pub fn hash(path: &Path) -> Result<[u8; 32], Diagnostics> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap_rayon(path).map_err(|e| io_error(path, "read", &e))?;
    Ok(*hasher.finalize().as_bytes())
}

/// blake3 of bytes.
pub fn hash_of_bytes(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
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
    fn format_is_detected_by_content_without_an_extension() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let p = dir.path().join(name);
            std::fs::write(&p, bytes).unwrap();
            format(&p).unwrap()
        };
        assert_eq!(put("a", "func @main() { of.return } // é".as_bytes()), Format::Text);
        assert_eq!(put("b", &[8, 7, 0, 255, 1]), Format::Onnx);
        assert_eq!(put("c.ONNX", b"text"), Format::Onnx);
        std::fs::write(dir.path().join("d"), of_plan::MAGIC).unwrap();
        assert!(format(&dir.path().join("d")).unwrap_err().to_string().contains("does not end in .plan"));
        assert_eq!(put("d.plan", &of_plan::MAGIC), Format::Plan);
        assert!(format(&dir.path().join("none")).is_err());
    }
}
