//! Models with the structure of their publications, for training and inference. One file for each family, one row of [`MODELS`] for
//! each model.
//!
//! A model is written as `NAME`, or `NAME:KEY=VALUE,…` with settings ([`Spec`]). Without settings it is the published one; `small` is
//! a narrow one of the same structure, for tests. Parameters have the names and shapes of a well-known implementation in PyTorch, so
//! its state dict fits.
//!
//! ```
//! use of_frontend::zoo::{Mode, Spec};
//!
//! let spec: Spec = "resnet50:small,classes=7".parse()?;
//! let module = spec.build(Mode::Inference, 0)?;
//! assert_eq!(module.main().unwrap().inputs, ["image"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arcface;
mod attention;
mod bert;
mod boxes;
mod default_boxes;
mod dlrm;
mod gpt2;
mod mask_rcnn;
mod mask_rcnn_heads;
mod mask_rcnn_proposals;
mod mask_rcnn_sampling;
mod multibox;
mod ncf;
mod net;
mod resnet;
mod settings;
mod ssd;
mod synthetic;
mod transformer;
mod wide_deep;

#[cfg(test)]
mod tests;

use net::Net;
use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Module, Tensor, ValueId};
pub use settings::{Setting, Settings, Spec};

/// What a graph is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Outputs are predictions.
    Inference,
    /// The first output is what the loss is of, or the loss itself. Dropouts are there.
    Training,
}

/// Outputs of a function, by name.
type Outputs = Result<Vec<(&'static str, ValueId)>, Diagnostic>;

/// Columns of a data set, by name; the first axis are the samples.
pub type Columns = Vec<(&'static str, Tensor)>;

/// A model of the zoo.
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// What it is, with its publication and the implementation that names its parameters.
    pub about: &'static str,
    /// The flags of `of-opt train` that state its loss.
    pub loss: &'static str,
    /// Its settings.
    pub settings: &'static [Setting],
    /// Names that a state dict may have in addition: copies of tied parameters, and constants. `*` stands for any text.
    pub unused: &'static [&'static str],
    /// Names of parameters that a training keeps, such as fixed statistics. `*` stands for any text.
    pub frozen: &'static [&'static str],
    build: fn(&mut Net, &Settings) -> Outputs,
    synthetic: fn(&Settings, &mut synthetic::Samples) -> Result<Columns, Diagnostic>,
}

/// Every model.
pub const MODELS: &[&Model] = &[
    &resnet::RESNET50,
    &bert::BERT,
    &gpt2::GPT2,
    &ncf::NCF,
    &wide_deep::WIDE_DEEP,
    &dlrm::DLRM,
    &transformer::TRANSFORMER,
    &arcface::ARCFACE,
    &ssd::SSD,
    &mask_rcnn::MASK_RCNN,
];

impl Spec {
    /// The function `main` of the model. A seed gives the same parameters in both modes.
    ///
    /// # Errors
    /// When a setting is no number in its range, or settings do not fit each other.
    pub fn build(&self, mode: Mode, seed: u64) -> Result<Module, Diagnostics> {
        let mut net = Net::new(self.model.name, mode, seed);
        let outputs = (self.model.build)(&mut net, &self.settings)?;
        net.b.finish(&outputs)
    }

    /// Samples for the inputs and labels of the training graph. They are made, not measured: labels depend on inputs by a simple rule,
    /// which a model can learn.
    ///
    /// # Errors
    /// As [`Spec::build`].
    pub fn synthetic(&self, samples: usize, seed: u64) -> Result<Columns, Diagnostics> {
        let mut made = synthetic::Samples::new(samples, seed);
        Ok((self.model.synthetic)(&self.settings, &mut made)?)
    }
}
