//! First values of parameters from a file: for fine-tuning.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_frontend::training::{first_values, set_first_values};
use of_ir::{Blob, DType, Elements, Tensor};
use of_plan::ElementType;
use safetensors::tensor::Dtype;

use super::patterns::any_matches;
use super::snapshot::{self, Parts, SnapshotBytes, SnapshotPlace};
use crate::error::{error, io_error};
use crate::model::{self, Model};
use crate::name_patterns::matches;
use crate::observer::Observer;
use crate::zoo::{Mode, ZooModel};

/// What became of the parameters of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedWeights {
    /// How many have values of the file.
    pub loaded: usize,
    /// Those that have the model's own.
    pub kept: Vec<String>,
    /// Tensors of the file that are no parameters of the model.
    pub unused: usize,
}

impl Model {
    /// Makes parameters begin with the values that a file has under their names: `.onnx`, or `.safetensors`, which may be a state dict of
    /// PyTorch, the result of a training or a snapshot. Those that one of the patterns `ignored` matches keep the values of the model. So do those
    /// that a model of the zoo has for its training alone, where the file does not have them.
    ///
    /// # Errors
    /// When the file cannot be read, lacks a parameter or has it with other extents, or a pattern matches none.
    pub fn load_weights(
        &mut self,
        path: &Path,
        ignored: &[String],
        zoo: Option<&ZooModel>,
        observer: &dyn Observer,
    ) -> Result<LoadedWeights, Diagnostics> {
        let own = first_values(&self.module);
        let parameters: BTreeSet<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(pattern) = ignored.iter().find(|pattern| !parameters.iter().any(|name| matches(pattern, name))) {
            let known: Vec<&str> = parameters.iter().copied().take(LISTED).collect();
            let what = format!("no parameter is called '{pattern}'; there are {}", known.join(", "));
            return Err(error(Code::NAME, what).into());
        }
        let inference = zoo.map(|zoo| zoo.spec.build(Mode::Inference, zoo.seed)).transpose()?;
        let inference = inference.map(|module| first_values(&module));
        let may_be_absent =
            |name: &str| inference.as_ref().is_some_and(|known| !known.iter().any(|(known, _)| known == name));
        let (mut values, names) = read(path, &parameters, observer)?;
        let (mut kept, mut absent, mut unfit) = (Vec::new(), Vec::new(), Vec::new());
        for (name, initial) in &own {
            let is_ignored = any_matches(ignored, name);
            match values.get(name).filter(|_| !is_ignored) {
                Some(value) if value.dims() == initial.dims() => {}
                Some(value) => unfit.push((name, format!("({:?}, not {:?})", value.dims(), initial.dims()))),
                None if is_ignored || may_be_absent(name) => kept.push(name.clone()),
                None => absent.push(name),
            }
        }
        if !unfit.is_empty() || !absent.is_empty() {
            return Err(misfit(path, &own, &names, &unfit, &absent));
        }
        let mut failed = None;
        kept.iter().for_each(|name| drop(values.remove(name)));
        let loaded = values.len();
        set_first_values(&mut self.module, |name| {
            let (value, (_, initial)) = (values.remove(name)?, own.iter().find(|(known, _)| known == name)?);
            let value = converted(value, initial.dtype());
            if value.is_none() {
                failed = Some(name.to_owned());
            }
            value
        });
        if let Some(name) = failed {
            let what = format!("'{}' has '{name}' in a type that is no float", path.display());
            return Err(error(Code::INPUT, what).into());
        }
        self.data_files.push(path.to_owned());
        let unused = names.iter().filter(|name| !parameters.contains(name.as_str())).count();
        Ok(LoadedWeights { loaded, kept, unused })
    }
}

/// As many names are in a message.
const LISTED: usize = 8;

/// The error of a file that does not have all parameters.
fn misfit(
    path: &Path,
    own: &[(String, Tensor)],
    names: &BTreeSet<String>,
    unfit: &[(&String, String)],
    absent: &[&String],
) -> Diagnostics {
    let shown = |names: Vec<&str>| match names.len() {
        0..=LISTED => names.join(", "),
        n => format!("{} and {} more", names[..LISTED].join(", "), n - LISTED),
    };
    if absent.len() == own.len() {
        let what = format!(
            "'{}' has none of the parameters of the model: it has {}, and the model {}",
            path.display(),
            shown(names.iter().map(String::as_str).collect()),
            shown(own.iter().map(|(name, _)| name.as_str()).collect())
        );
        return error(Code::INPUT, what).hint("parameters are found by their names").into();
    }
    let (mut problems, mut ignored) = (Vec::new(), Vec::new());
    if !unfit.is_empty() {
        let list: Vec<String> = unfit.iter().map(|(name, what)| format!("{name} {what}")).collect();
        problems.push(format!("has other extents for {}", shown(list.iter().map(String::as_str).collect())));
        ignored.extend(unfit.iter().map(|(name, _)| name.as_str()));
    }
    if !absent.is_empty() {
        problems.push(format!("lacks {}", shown(absent.iter().map(|name| name.as_str()).collect())));
        ignored.extend(absent.iter().map(|name| name.as_str()));
    }
    let what = format!("'{}' {}", path.display(), problems.join(", and "));
    let hint = match ignored.len() {
        0..=LISTED => format!("--weights-ignore {} begins with the model's own values of these", ignored.join(",")),
        _ => "--weights-ignore PATTERN begins with the model's own values of parameters".into(),
    };
    error(Code::INPUT, what).hint(hint).into()
}

/// The tensors of a file that are `wanted`, and the names of all.
fn read(
    path: &Path,
    wanted: &BTreeSet<&str>,
    observer: &dyn Observer,
) -> Result<(BTreeMap<String, Tensor>, BTreeSet<String>), Diagnostics> {
    let has_extension = |wanted: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(wanted));
    if has_extension("onnx") || has_extension("of") {
        let all = first_values(&model::open_for_training(path, observer)?.module);
        let names = all.iter().map(|(name, _)| name.clone()).collect();
        return Ok((all.into_iter().filter(|(name, _)| wanted.contains(name.as_str())).collect(), names));
    }
    if !has_extension("safetensors") {
        let what = format!("'{}' ends in neither .safetensors nor .onnx", path.display());
        let hint = "of PyTorch, write them by safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')";
        return Err(error(Code::INPUT, what).hint(hint).into());
    }
    let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("'{}' {what}", path.display())));
    let place = SnapshotPlace::file(path);
    let bytes = match place.has_index() {
        // Ranks have written parts of it.
        true => snapshot::read(&place)?,
        false => {
            let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
            SnapshotBytes::new(snapshot::Progress::default(), vec![bytes])
        }
    };
    let parts = bytes.parts().map_err(|_| wrong("is no safetensors file".into()))?;
    let mut names = BTreeSet::new();
    let mut values = BTreeMap::new();
    for (name, dtype, dims) in parts.list() {
        names.insert(name.to_owned());
        if !wanted.contains(name) {
            continue;
        }
        let value = tensor(&parts, name, dtype, &dims).map_err(wrong)?;
        let value = value.ok_or_else(|| wrong(format!("has '{name}' as {dtype:?}, which is no float")))?;
        values.insert(name.to_owned(), value);
    }
    Ok((values, names))
}

/// A tensor of floats; `None` for another one.
fn tensor(parts: &Parts<'_>, name: &str, dtype: Dtype, dims: &[usize]) -> Result<Option<Tensor>, String> {
    let (element, own) = match dtype {
        Dtype::F64 => (ElementType::F64, DType::F64),
        Dtype::F32 => (ElementType::F32, DType::F32),
        Dtype::F16 => (ElementType::F16, DType::F16),
        Dtype::BF16 => (ElementType::Bf16, DType::BF16),
        _ => return Ok(None),
    };
    let extents: Vec<i64> = dims.iter().map(|n| *n as i64).collect();
    let bytes = parts.whole(name, element, &extents)?;
    Tensor::from_bytes(own, dims.to_vec(), Blob::new(bytes)).map(Some).map_err(|e| format!("has '{name}': {e}"))
}

/// A tensor of floats in another type.
fn converted(value: Tensor, dtype: DType) -> Option<Tensor> {
    if value.dtype() == dtype {
        return Some(value);
    }
    Tensor::from_elements(dtype, value.dims().to_vec(), Elements::Float(value.to_f64s()?)).ok()
}
