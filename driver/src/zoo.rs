//! Models of the zoo, which are built instead of read: `zoo:NAME:KEY=VALUE,…` in the place of a file.
//!
//! Keys are the settings of the model ([`of_frontend::zoo`]), `weights`, a safetensors file with a state dict of PyTorch, and `seed`, which
//! gives the first values of parameters without it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics};
pub use of_frontend::zoo::{Columns, MODELS, Mode, Setting, Spec};
use of_ir::{Attr, Blob, DType, Elements, Module, Rewriter, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::error::{error, io_error};
use crate::model::{Model, hash};
use crate::name_patterns::matches;
use crate::training::{ColumnSpec, Dataset};

/// What the name of a model of the zoo begins with.
pub const PREFIX: &str = "zoo:";

/// A model of the zoo with settings and first values.
#[derive(Clone, Debug)]
pub struct ZooModel {
    /// The model with its settings.
    pub spec: Spec,
    /// The file with its parameters.
    pub weights: Option<PathBuf>,
    /// Gives parameters without a file.
    pub seed: u64,
}

/// What data begins with that a model of the zoo makes: `synthetic:SAMPLES` or `synthetic:SAMPLES:SEED`.
pub const SYNTHETIC: &str = "synthetic:";

/// The most samples of synthetic data, which are in memory.
const MOST_SAMPLES: usize = 1 << 24;

/// The model of the zoo that stands in the place of a file.
///
/// # Errors
/// When there is no such model, or it has no such setting.
pub fn named(path: &Path) -> Result<Option<ZooModel>, Diagnostics> {
    let Some(text) = path.to_str().and_then(|text| text.strip_prefix(PREFIX)) else { return Ok(None) };
    let (name, changes) = text.split_once(':').unwrap_or((text, ""));
    let (mut weights, mut seed, mut own) = (None, 0, Vec::new());
    for change in changes.split(',') {
        match change.split_once('=') {
            Some(("weights", file)) => weights = Some(PathBuf::from(file)),
            Some(("seed", number)) => {
                seed = number.parse().map_err(|_| error(Code::INPUT, format!("'{number}' is no seed, an integer")))?;
            }
            _ => own.push(change),
        }
    }
    Ok(Some(ZooModel { spec: format!("{name}:{}", own.join(",")).parse()?, weights, seed }))
}

impl ZooModel {
    /// Builds the model.
    ///
    /// # Errors
    /// When a setting does not fit, or the parameters of the file are not those of the model.
    pub fn model(&self, mode: Mode) -> Result<Model, Diagnostics> {
        let mut module = self.spec.build(mode, self.seed)?;
        let Some(path) = &self.weights else { return Ok(Model::from_module(module)) };
        self.load(path, &mut module, mode)?;
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Model { files: vec![(name, hash(path)?)], ..Model::from_module(module) })
    }

    /// The graph for inference with the parameters of a trained one.
    ///
    /// # Errors
    /// When a parameter is absent, as with adapters that are not merged.
    pub fn trained(&self, trained: &Module) -> Result<Module, Diagnostics> {
        let mut module = self.spec.build(Mode::Inference, self.seed)?;
        let values: Vec<(String, Tensor)> = parameters(trained);
        if let Some((name, _)) = values.iter().find(|(name, _)| name.ends_with(".lora_A.weight")) {
            let what = format!("the model has the adapter '{name}', which is no parameter of '{}'", self.spec);
            return Err(error(Code::UNSUPPORTED, what).hint("add --merge, or write .safetensors").into());
        }
        set_parameters(&mut module, |name| {
            let value = values.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
            value.ok_or_else(|| error(Code::NAME, format!("the trained model has no parameter '{name}'")).into())
        })?;
        Ok(module)
    }

    /// Data that the model makes, as `text` states it: its number of samples, and a seed. Labels depend on inputs by a rule, which is
    /// the same for all seeds.
    ///
    /// # Errors
    /// When the text does not state a number of samples, or `wanted` has another column than the model's.
    pub fn synthetic(&self, text: &str, wanted: &[ColumnSpec]) -> Result<Dataset, Diagnostics> {
        let numbers = text.strip_prefix(SYNTHETIC).unwrap_or(text);
        let (samples, seed) = numbers.split_once(':').unwrap_or((numbers, "0"));
        let samples: Option<usize> = samples.parse().ok().filter(|n| (1..=MOST_SAMPLES).contains(n));
        let (Some(samples), Ok(seed)) = (samples, seed.parse::<u64>()) else {
            let what = format!("'{text}': a number of samples is needed, 1 to {MOST_SAMPLES}, and a seed may follow");
            return Err(error(Code::INPUT, what).hint("write synthetic:512, or synthetic:512:1").into());
        };
        let columns = self.spec.synthetic(samples, seed)?;
        Dataset::of_columns(columns.into_iter().map(|(name, values)| (name.to_owned(), values)).collect(), wanted)
    }

    /// Sets parameters to those of a file.
    fn load(&self, path: &Path, module: &mut Module, mode: Mode) -> Result<(), Diagnostics> {
        let wrong = |what: String| Diagnostics::from(error(Code::INPUT, format!("'{}' {what}", path.display())));
        let bytes = std::fs::read(path).map_err(|e| io_error(path, "read", &e))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("is no safetensors file: {e}")))?;
        let mut left: BTreeSet<&str> = file.names().into_iter().collect();
        // What training adds, such as the head of a loss, need not be in the file.
        let inference = match mode {
            Mode::Inference => None,
            Mode::Training => Some(parameters(&self.spec.build(Mode::Inference, self.seed)?)),
        };
        let is_needed =
            |name: &str| inference.as_ref().is_none_or(|known| known.iter().any(|(known, _)| known == name));
        let initial = parameters(module);
        set_parameters(module, |name| {
            left.remove(name);
            let initial = initial.iter().find(|(known, _)| known == name).map(|(_, value)| value);
            let dims = initial.map_or(&[][..], Tensor::dims);
            let Ok(value) = file.tensor(name) else {
                return match initial {
                    Some(initial) if !is_needed(name) => Ok(initial.clone()),
                    _ => Err(wrong(format!("has no '{name}', a parameter of '{}'", self.spec))),
                };
            };
            if value.shape() != dims {
                let what = format!("has '{name}' with extents {:?}; '{}' has {dims:?}", value.shape(), self.spec);
                return Err(wrong(what));
            }
            as_f32(&value).ok_or_else(|| wrong(format!("has '{name}' as {:?}, which is no float", value.dtype())))
        })?;
        left.retain(|name| !self.spec.model.unused.iter().any(|pattern| matches(pattern, name)));
        match left.first() {
            // A graph for inference lacks what training adds.
            Some(name) if mode == Mode::Training || !self.is_parameter(name)? => {
                let what = format!("has '{name}', which is no parameter of '{}'", self.spec);
                Err(wrong(what))
            }
            _ => Ok(()),
        }
    }

    fn is_parameter(&self, name: &str) -> Result<bool, Diagnostics> {
        Ok(parameters(&self.spec.build(Mode::Training, self.seed)?).iter().any(|(known, _)| known == name))
    }
}

/// A tensor of floats as f32.
pub(crate) fn as_f32(value: &TensorView<'_>) -> Option<Tensor> {
    let dtype = match value.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        _ => return None,
    };
    let own = Tensor::from_bytes(dtype, value.shape().to_vec(), Blob::new(value.data().to_vec())).ok()?;
    if dtype == DType::F32 {
        return Some(own);
    }
    Tensor::from_elements(DType::F32, own.dims().to_vec(), Elements::Float(own.to_f64s()?)).ok()
}

/// The parameters of a model of the zoo, which are its named constants.
pub fn parameters(module: &Module) -> Vec<(String, Tensor)> {
    let Some(graph) = module.main().map(|func| &func.graph) else { return Vec::new() };
    let ops = graph.walk().into_iter().filter(|op| graph.op(*op).name() == "of.constant");
    let named = ops.filter_map(|op| {
        let name = graph.name(*graph.op(op).results.first()?)?.to_string();
        match graph.op(op).attrs.get("value") {
            Some(Attr::Tensor(value)) => Some((name, value.clone())),
            _ => None,
        }
    });
    named.collect()
}

/// Sets the named constants of a model.
fn set_parameters(
    module: &mut Module,
    mut value: impl FnMut(&str) -> Result<Tensor, Diagnostics>,
) -> Result<(), Diagnostics> {
    let func = module.main_mut().ok_or_else(|| error(Code::NAME, "the model has no function"))?;
    for op in func.graph.walk() {
        let result = func.graph.op(op).results.first().copied();
        let Some(name) = result.and_then(|v| func.graph.name(v)).map(|name| name.to_string()) else { continue };
        if func.graph.op(op).name() == "of.constant" {
            Rewriter::new(&mut func.graph, "zoo").set_attr(op, "value", Attr::Tensor(value(&name)?));
        }
    }
    Ok(())
}
