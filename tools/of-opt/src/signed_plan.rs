//! The flags of commands that run only what a key signed.

use std::path::PathBuf;

use clap::Args;
use of_diag::Diagnostics;
use of_driver::{ModelOrPlan, signed_plan};

use crate::arguments::{InputFiles, ModelFile};
use crate::console::{Console, is_dash};
use crate::{exit, model_file};

/// Who must have signed a plan.
#[derive(Args, Debug, Clone, Default)]
pub struct Signed {
    /// Run only a plan that the holder of this key signed: a public key in PEM. The signature is checked before the plan is
    /// decoded
    #[arg(long, value_name = "PUB.pem", help_heading = "Signature")]
    pub require_signature: Option<PathBuf>,
    /// The signature for --require-signature [default: MODEL.sig]
    #[arg(long, value_name = "FILE.sig", requires = "require_signature", help_heading = "Signature")]
    pub signature: Option<PathBuf>,
}

impl Signed {
    /// Opens a model or plan. With --require-signature it is a plan with this signature.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, holds an unsupported op, or the signature is refused.
    pub fn open(&self, model: &ModelFile, inputs: &InputFiles, console: &Console) -> Result<ModelOrPlan, Diagnostics> {
        let Some(key) = &self.require_signature else { return model_file::open_for(model, &inputs.inputs, console) };
        if !model.initializer_input.is_empty() {
            return Err(exit::usage("--initializer-input has no effect on a signed plan").into());
        }
        if is_dash(&model.model) {
            return Err(exit::usage("a signed plan is read from a file, not from stdin").into());
        }
        let plan = signed_plan::open(&model.model, self.signature.as_deref(), key)?;
        Ok(ModelOrPlan::Plan(Box::new(plan)))
    }
}
