//! From a model to its training step: parameters become variables, a loss and an optimizer are added.
//!
//! [`training`] makes two functions of a model that share their variables. `train` computes the loss and updates the parameters;
//! `eval` computes the loss and the outputs. Both keep the inputs of the model and add labels.

mod arithmetic;
mod contrastive;
mod ctc;
mod dropout;
mod evaluation;
mod first_values;
mod folded;
mod head;
mod lora;
mod loss;
mod metrics;
mod optimizer;
mod parameters;
mod pruning;
mod rule;
mod step;
mod update;
mod weights;

pub use arithmetic::Arithmetic;
pub use evaluation::to_evaluation;
pub use first_values::{first_values, set_first_values};
pub use folded::folded_norms;
pub use head::{Head, reset_head};
pub use lora::{Adapter, BaseStorage, LoraSpec, add_adapters};
pub use loss::{LABEL_LENGTH, LOSSES, Loss};
pub use metrics::Metric;
pub use optimizer::{
    Adadelta, Adagrad, Adam, Ftrl, Hyperparameters, Lamb, Lars, OPTIMIZERS, Optimizer, RmsProp, Sgd, StepNumbers, named,
};
pub use parameters::scalar_parameters;
pub use pruning::{Pruning, prune};
pub use rule::Rule;

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Module, Tensor};

/// The name of the input for the learning rate.
pub const RATE: &str = "learning_rate";
/// The name of the variable that counts updates.
pub const COUNT: &str = "step";
/// The name of the variable that counts the steps whose gradients are accumulated.
pub const ACCUMULATED: &str = "step.accumulated";
/// The name of the variable that the loss is multiplied by before it is differentiated.
pub const LOSS_SCALE: &str = "loss_scale";
/// The name of the variable that counts updates since the loss scale changed.
pub const LOSS_SCALE_AGE: &str = "loss_scale.updates";

/// How a model is trained.
pub struct TrainingSpec<'s> {
    /// What is made small.
    pub loss: Loss,
    /// The output that the loss is of; `None` is the first.
    pub output: Option<String>,
    /// The name of the input for labels.
    pub labels: String,
    /// How parameters change.
    pub optimizer: &'s dyn Optimizer,
    /// Which parameters change, by name; the others keep their values.
    pub is_trained: &'s dyn Fn(&str) -> bool,
    /// Limits on gradients.
    pub clipping: Clipping,
    /// Which parameters the optimizer's weight decay applies to, by name.
    pub is_decayed: &'s dyn Fn(&str) -> bool,
    /// Decay of the running averages of parameters, which evaluation uses; `None` for the parameters themselves.
    pub average: Option<f64>,
    /// Steps whose mean gradient makes one update; 1 updates in every step.
    pub accumulate: usize,
    /// Scaling of the loss, so that small gradients are in the range of f16.
    pub loss_scale: Option<LossScale>,
    /// Evaluation also counts the labels among the classes of so many largest scores, for losses with classes.
    pub top_k: Option<i64>,
    /// Gives the random numbers of dropouts.
    pub seed: u64,
    /// Elements of parameters that are always zero: i1 tensors of the parameters' shapes, true where an element is kept.
    pub masks: &'s HashMap<String, Tensor>,
}

impl<'s> TrainingSpec<'s> {
    /// All parameters are trained, by the labels `labels`, without any of the options.
    pub fn new(loss: Loss, optimizer: &'s dyn Optimizer, masks: &'s HashMap<String, Tensor>) -> Self {
        TrainingSpec {
            loss,
            output: None,
            labels: "labels".into(),
            optimizer,
            is_trained: &|_| true,
            clipping: Clipping::default(),
            is_decayed: &|_| true,
            average: None,
            accumulate: 1,
            loss_scale: None,
            top_k: None,
            seed: 0,
            masks,
        }
    }
}

/// A dynamic scale of the loss. A step whose gradients are not finite changes no parameter and lowers the scale. Source:
/// Micikevicius et al., "Mixed Precision Training" (2018); defaults as PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The scale at first.
    pub initial: f64,
    /// What it is multiplied by after `interval` updates with finite gradients.
    pub growth: f64,
    /// What it is multiplied by after gradients that are not finite.
    pub backoff: f64,
    /// Updates between two rises of the scale.
    pub interval: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { initial: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000 }
    }
}

/// Limits on gradients: first that of elements, then that of the norm, as a program of PyTorch that calls `clip_grad_value_` and
/// `clip_grad_norm_`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clipping {
    /// Every element is at most this large.
    pub value: Option<f64>,
    /// The norm of all gradients together is at most this; otherwise all are scaled down.
    pub norm: Option<f64>,
}

/// A model ready for training.
pub struct Training {
    /// Inputs of the model, labels, learning rate; gives the loss.
    pub train: Func,
    /// Inputs of the model and labels; gives the loss, the metrics and the outputs.
    pub eval: Func,
    /// What `eval` counts, in the order of its outputs behind the loss; sums of i64.
    pub metrics: Vec<Metric>,
    /// The parameters.
    pub parameters: Vec<Parameter>,
    /// Names of float constants that are no variables, because ops read them as configuration, or give no floats for them.
    pub constants: Vec<String>,
}

/// A parameter of a model: a constant that training changes.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name of the constant, which is that of the variable.
    pub name: String,
    /// Number of elements.
    pub elements: usize,
    /// What changes it.
    pub role: Role,
    /// The variable whose value evaluation uses: the parameter, or its running average.
    pub evaluated: String,
}

/// What changes a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The optimizer.
    Trained,
    /// Nothing.
    Frozen,
    /// Nothing but batch normalisation: a running mean or variance.
    Statistic,
}

/// Makes the training step and the evaluation of a model.
///
/// Parameters are the float initializers of an ONNX model, or the named float constants of other models, of rank 1 or more. Those that
/// ops read as configuration alone, such as the scales of a resize, stay constants.
/// Batch normalisations are by the statistics of the batch in `train`, whose running means are variables, and dropouts are random.
///
/// # Errors
/// When the model has no parameter to train, or the loss does not fit its output.
pub fn training(module: &Module, spec: &TrainingSpec<'_>) -> Result<Training, Diagnostics> {
    let func = module.main().ok_or_else(|| plain(Code::NAME, "the module has no function".into()))?;
    let index = output_index(func, spec.output.as_deref())?;
    let labels = (spec.loss != Loss::Output).then_some(spec.labels.as_str());
    for taken in labels.into_iter().chain([RATE, COUNT, ACCUMULATED, LOSS_SCALE, LOSS_SCALE_AGE]) {
        if func.inputs.iter().any(|input| input == taken) {
            let what = format!("the model has an input '{taken}', which training adds");
            let hint = "give labels another name, or the loss 'output' if the model computes its loss";
            return Err(plain(Code::NAME, what).hint(hint).into());
        }
    }
    let (train, parameters, constants) = step::train_func(module, func, index, spec)?;
    let (eval, metrics) = step::eval_func(module, func, index, spec)?;
    Ok(Training { train, eval, metrics, parameters, constants })
}

/// The number of an output, which is the first one without a name.
fn output_index(func: &Func, name: Option<&str>) -> Result<usize, Diagnostic> {
    let Some(name) = name else { return Ok(0) };
    func.outputs.iter().position(|output| output == name).ok_or_else(|| {
        let known = func.outputs.join(", ");
        plain(Code::NAME, format!("the model has no output '{name}'; there are {known}"))
    })
}

fn plain(code: Code, what: String) -> Diagnostic {
    Diagnostic::error(code, Location::Unknown, what)
}
