//! Low-rank adapters: which weights have them, and the files of PEFT.

use std::collections::HashMap;
use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_frontend::training::{Adapter, BaseStorage, LoraSpec, add_adapters};
use of_ir::{Module, Tensor};

use super::patterns::any_matches;
use super::{Trainer, snapshot};
use crate::error::{error, io_error};
use crate::session::run_error;

/// Which weights of a model get adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The rank of the matrices.
    pub rank: usize,
    /// Multiplies what an adapter adds, divided by the rank.
    pub alpha: f64,
    /// Names of weights; `*` stands for any text. Without any, every weight of a product gets an adapter.
    pub targets: Vec<String>,
    /// How the weights below adapters are stored.
    pub base: BaseStorage,
    /// Gives the first values of the adapters.
    pub seed: u64,
}

impl Lora {
    /// Adds the adapters to a model.
    pub(super) fn add_to(&self, module: &mut Module) -> Result<Vec<Adapter>, Diagnostics> {
        let spec = LoraSpec {
            rank: self.rank,
            alpha: self.alpha,
            is_target: &|name| self.targets.is_empty() || any_matches(&self.targets, name),
            base: self.base,
            seed: self.seed,
        };
        add_adapters(module, &spec)
    }

    fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

impl Trainer {
    /// The model without adapters, whose weights have the trained adapters added to them. Weights of a quantized base are what they
    /// were in training.
    ///
    /// # Errors
    /// When there are no adapters, or a step failed.
    pub fn merged_model(&self) -> Result<Module, Diagnostics> {
        self.merged_with(|name| self.evaluated(name))
    }

    /// As [`Trainer::merged_model`], of these values of parameters.
    pub(super) fn merged_with(
        &self,
        value: impl Fn(&str) -> Result<Tensor, Diagnostics>,
    ) -> Result<Module, Diagnostics> {
        let lora = self.lora.as_ref().ok_or_else(|| error(Code::INPUT, "the training has no adapters to merge"))?;
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
        snapshot::write_tensors(path, &tensors, HashMap::from([("format".to_string(), "pt".to_string())]))?;
        let modules: Vec<&str> = self.adapters.iter().map(Adapter::module).collect();
        let config = serde_json::json!({
            "peft_type": "LORA",
            "task_type": null,
            "base_model_name_or_path": model,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
            "modules_to_save": null,
            "target_modules": modules,
        });
        let config_path = path.with_file_name("adapter_config.json");
        let text = format!("{config:#}\n");
        of_files::write(&config_path, text.as_bytes()).map_err(|e| io_error(&config_path, "written", &e).into())
    }
}
