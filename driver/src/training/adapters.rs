//! Low-rank adapters: which weights have them, and the files of PEFT.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_frontend::training::{Adapter, BaseStorage, LoraSpec, add_adapters};
use of_ir::{Attr, DType, Elements, Module, Rewriter, Tensor};
use safetensors::SafeTensors;

use super::patterns::any_matches;
use super::{Trainer, snapshot};
use crate::error::{error, io_error};
use crate::session::run_error;
use crate::zoo::as_f32;

/// Which weights of a model get adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The rank of the matrices.
    pub rank: usize,
    /// Multiplies what an adapter adds, divided by the rank.
    pub alpha: f64,
    /// Names of weights of products and convolutions; `*` stands for any text. Without any, every weight that one product alone reads gets
    /// an adapter.
    pub targets: Vec<String>,
    /// How the weights below adapters are stored.
    pub base: BaseStorage,
    /// Gives the first values of the adapters.
    pub seed: u64,
    /// The first values of matrices of adapters that a training goes on with, by the names of modules: `A` and `B`.
    pub values: HashMap<String, [Tensor; 2]>,
}

impl Lora {
    /// Fresh adapters of every weight of a product.
    pub fn new(rank: usize, alpha: f64) -> Lora {
        let (targets, values) = Default::default();
        Lora { rank, alpha, targets, base: BaseStorage::Model, seed: 0, values }
    }

    /// The adapters of a file in the layout of PEFT, whose `adapter_config.json` is in the same folder. PEFT's dropout of adapters is left out.
    ///
    /// # Errors
    /// When a file cannot be read, or has what is no pair of matrices next to a weight, such as trained biases.
    pub fn read(path: &Path) -> Result<Lora, Diagnostics> {
        let wrong =
            |path: &Path, what: &str| Diagnostics::from(error(Code::INPUT, format!("'{}' {what}", path.display())));
        let config_path = path.with_file_name(CONFIG);
        let read = |path: &Path| std::fs::read(path).map_err(|e| Diagnostics::from(io_error(path, "read", &e)));
        let config: serde_json::Value = serde_json::from_slice(&read(&config_path)?)
            .map_err(|e| wrong(&config_path, &format!("is no JSON: {e}")))?;
        let is_set = |key: &str| match &config[key] {
            serde_json::Value::Object(map) => !map.is_empty(),
            value => *value == true,
        };
        let refused = ["use_dora", "rank_pattern", "alpha_pattern", "lora_bias"].into_iter().find(|key| is_set(key));
        if let Some(key) = refused {
            let what = format!("'{}' sets '{key}', which adapters of a training do not have", config_path.display());
            return Err(error(Code::UNSUPPORTED, what).into());
        }
        let rank = config["r"].as_u64().and_then(|rank| usize::try_from(rank).ok()).filter(|rank| *rank > 0);
        let (Some(rank), Some(alpha)) = (rank, config["lora_alpha"].as_f64()) else {
            return Err(wrong(&config_path, "has no rank 'r' or no 'lora_alpha'"));
        };
        // There the scale is alpha divided by the root of the rank.
        let alpha = if is_set("use_rslora") { alpha * (rank as f64).sqrt() } else { alpha };
        let bytes = read(path)?;
        let file =
            SafeTensors::deserialize(&bytes).map_err(|e| wrong(path, &format!("is no safetensors file: {e}")))?;
        let mut pairs: HashMap<String, [Option<Tensor>; 2]> = HashMap::new();
        for (name, view) in file.iter() {
            let (module, part) = module_of(name)
                .ok_or_else(|| wrong(path, &format!("has '{name}', which is no matrix of an adapter")))?;
            let tensor =
                as_f32(&view).ok_or_else(|| wrong(path, &format!("has '{name}', whose elements are no floats")))?;
            pairs.entry(module.to_owned()).or_default()[part] = Some(tensor);
        }
        let mut values = HashMap::new();
        for (module, pair) in pairs {
            let [Some(a), Some(b)] = pair else {
                return Err(wrong(path, &format!("has one matrix of the adapter of '{module}', and not the other")));
            };
            values.insert(module, [a, b]);
        }
        if values.is_empty() {
            return Err(wrong(path, "has no adapters"));
        }
        Ok(Lora { values, ..Lora::new(rank, alpha) })
    }

    /// Adds the adapters to a model.
    pub(super) fn add_to(&self, module: &mut Module) -> Result<Vec<Adapter>, Diagnostics> {
        let has_values = !self.values.is_empty();
        let is_read = |name: &str| self.values.contains_key(module_name(name));
        let is_target = |name: &str| match has_values {
            true => is_read(name),
            false => self.targets.is_empty() || any_matches(&self.targets, name),
        };
        let spec = LoraSpec {
            rank: self.rank,
            alpha: self.alpha,
            is_target: &is_target,
            convolutions: has_values || !self.targets.is_empty(),
            skips_shared: !has_values && self.targets.is_empty(),
            base: self.base,
            seed: self.seed,
        };
        let adapters = add_adapters(module, &spec)?;
        if has_values {
            self.set_values(module, &adapters)?;
        }
        Ok(adapters)
    }

    /// Sets the matrices of adapters to those that were read.
    fn set_values(&self, module: &mut Module, adapters: &[Adapter]) -> Result<(), Diagnostics> {
        let is_known = |module: &&String| adapters.iter().any(|adapter| adapter.module() == *module);
        if let Some(unknown) = self.values.keys().find(|module| !is_known(module)) {
            let known: Vec<&str> = adapters.iter().take(8).map(Adapter::module).collect();
            let what = format!("the adapters have one of '{unknown}', which is no product or convolution of the model");
            let hint = format!("of the adapters' modules the model has {}", known.join(", "));
            return Err(error(Code::NAME, what).hint(hint).into());
        }
        let mut values: HashMap<&str, &Tensor> = HashMap::new();
        for adapter in adapters {
            let [a, b] = &self.values[adapter.module()];
            for (name, value, dims) in [(&adapter.a, a, &adapter.a_dims), (&adapter.b, b, &adapter.b_dims)] {
                if *value.dims() != **dims {
                    let what = format!("'{name}' has extents {:?}, and the model needs {dims:?}", value.dims());
                    let hint = "matrices of a product are [rank, inputs] and [outputs, rank]";
                    return Err(error(Code::SHAPE, what).hint(hint).into());
                }
                values.insert(name, value);
            }
        }
        let func = module.main_mut().ok_or_else(|| error(Code::NAME, "the model has no function"))?;
        for op in func.graph.walk() {
            let name = func.graph.op(op).results.first().and_then(|v| func.graph.name(*v)).cloned();
            let Some(value) = name.and_then(|name| values.get(&*name).copied()) else { continue };
            let dtype = func.graph.constant(func.graph.op(op).results[0]).map(|old| old.dtype());
            let Some(value) = dtype.and_then(|dtype| as_dtype(value, dtype)) else { continue };
            Rewriter::new(&mut func.graph, "lora").set_attr(op, "value", Attr::Tensor(value));
        }
        Ok(())
    }

    fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

/// The file with the configuration of adapters.
const CONFIG: &str = "adapter_config.json";

/// The module of a weight, as PEFT calls it.
fn module_name(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

/// The module of a matrix by its name in PEFT's file, and 0 for `A`, 1 for `B`. A name may contain that of the adapter.
fn module_of(name: &str) -> Option<(&str, usize)> {
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    [".lora_A.", ".lora_B."].iter().enumerate().find_map(|(part, infix)| {
        let (module, rest) = name.split_once(infix)?;
        matches!(rest, "weight" | "default.weight").then_some((module, part))
    })
}

/// The tensor in another type of floats.
fn as_dtype(value: &Tensor, dtype: DType) -> Option<Tensor> {
    if value.dtype() == dtype {
        return Some(value.clone());
    }
    Tensor::from_elements(dtype, value.dims().to_vec(), Elements::Float(value.to_f64s()?)).ok()
}

impl Trainer {
    /// The model without adapters, whose weights have the trained adapters added to them. Weights of a quantized base are what they
    /// were in training.
    ///
    /// # Errors
    /// When there are no adapters, they would fill the zeros of pruned weights, or a step failed.
    pub fn merged_model(&self) -> Result<Module, Diagnostics> {
        self.merged_with(|name| self.evaluated(name))
    }

    /// As [`Trainer::merged_model`], of these values of parameters.
    pub(super) fn merged_with(
        &self,
        value: impl Fn(&str) -> Result<Tensor, Diagnostics>,
    ) -> Result<Module, Diagnostics> {
        let lora = self.lora.as_ref().ok_or_else(|| error(Code::INPUT, "the training has no adapters to merge"))?;
        if self.pruned.0 > 0 {
            let what = "adapters that are added to pruned weights fill their zeros";
            return Err(error(Code::UNSUPPORTED, what).hint("write the model with separate adapters").into());
        }
        let mut module = self.base.clone();
        self.set_parameters(&mut module, |name| match self.adapters.iter().find(|adapter| adapter.weight == name) {
            Some(adapter) => adapter.merged(&value(&adapter.a)?, &value(&adapter.b)?, lora.scale()),
            None => value(name),
        })?;
        Ok(module)
    }

    /// Writes the adapters as PEFT does: the matrices as safetensors, and `adapter_config.json` in the same folder. `model` is what
    /// the configuration calls the base model.
    ///
    /// # Errors
    /// When there are no adapters, or a file cannot be written.
    pub fn write_adapters(&self, path: &Path, model: &str) -> Result<(), Diagnostics> {
        let lora = self.lora.as_ref().ok_or_else(|| error(Code::INPUT, "the training has no adapters to write"))?;
        let mut tensors = Vec::with_capacity(2 * self.adapters.len());
        for adapter in &self.adapters {
            for (part, name) in [("A", &adapter.a), ("B", &adapter.b)] {
                let known = self.parameters.iter().find(|parameter| parameter.name == *name);
                let variable = known.map_or(name, |parameter| &parameter.evaluated);
                let value = self.variables()?.get(variable).map_err(|e| run_error(&e))?;
                tensors.push((format!("base_model.model.{}.lora_{part}.weight", adapter.module()), value));
            }
        }
        if !self.reports() {
            return Ok(());
        }
        snapshot::write_tensors(path, &tensors, BTreeMap::from([("format".to_string(), "pt".to_string())]))?;
        let modules: Vec<&str> = self.adapters.iter().map(Adapter::module).collect();
        // What PEFT calls so are weights `[inputs, outputs]`, as those of GPT-2's Conv1D. It decides each module for itself where they differ.
        let fan_in_fan_out = self.adapters.iter().all(|adapter| adapter.input_axis == 0);
        let config = serde_json::json!({
            "peft_type": "LORA",
            "task_type": null,
            "base_model_name_or_path": model,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": fan_in_fan_out,
            "init_lora_weights": true,
            "inference_mode": true,
            "modules_to_save": null,
            "target_modules": modules,
        });
        let config_path = path.with_file_name(CONFIG);
        let text = format!("{config:#}\n");
        of_files::write(&config_path, text.as_bytes()).map_err(|e| io_error(&config_path, "written", &e).into())
    }
}
