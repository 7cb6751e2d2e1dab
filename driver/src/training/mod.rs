//! Training: a model, data and an optimizer to a trained model.
//!
//! A [`Trainer`] compiles the training step and the evaluation of a model to one plan whose programs share variables: parameters and
//! the state of the optimizer. They stay in the session from step to step, so a step takes a batch and gives its loss.

mod data;
mod schedule;
mod snapshot;

use std::path::Path;
use std::sync::Arc;

pub use data::{ColumnSpec, Dataset};
use of_codegen::Compiled;
use of_diag::{Code, Diagnostics};
pub use of_frontend::training::{
    Clipping, Hyperparameters, LOSSES, Loss, OPTIMIZERS, Optimizer, Parameter, Role, named,
};
use of_frontend::training::{TrainingSpec, training};
use of_ir::{Attr, Func, Module, Tensor, Type};
use of_passes::specialize::Bindings;
use of_plan::PlanFile;
use of_runtime::{Value, Variables};
pub use schedule::{Schedule, ScheduleKind};
pub use snapshot::Progress;

use crate::backends::Backends;
use crate::compiler::compile_jobs;
use crate::error::error;
use crate::model::Model;
use crate::observer::Observer;
use crate::options::{CompileOptions, SessionOptions};
use crate::prepare::{main_func, verify};
use crate::session::run_error;
use crate::tensor_files;

/// What a model is trained for, and how.
pub struct TrainOptions {
    /// What is made small.
    pub loss: Loss,
    /// The output that the loss is of; `None` is the first.
    pub output: Option<String>,
    /// The name of the labels in the data.
    pub labels: String,
    /// How parameters change.
    pub optimizer: Box<dyn Optimizer>,
    /// Limits on gradients.
    pub clipping: Option<Clipping>,
    /// Names of parameters that keep their values; `*` stands for any text.
    pub frozen: Vec<String>,
    /// Samples of a step.
    pub batch: usize,
}

/// A program of a plan that has several.
pub(crate) struct Job {
    /// Its name.
    pub name: String,
    /// What it runs.
    pub func: Func,
    /// The extents of open dimensions.
    pub bindings: Bindings,
}

/// Trains a model.
pub struct Trainer {
    model: Module,
    parameters: Vec<Parameter>,
    compiled: Compiled,
    plan: Arc<PlanFile>,
    backends: Backends,
    session: SessionOptions,
    train: of_runtime::Session,
    /// Evaluations by the number of samples.
    evals: Vec<(usize, of_runtime::Session)>,
    variables: Arc<Variables>,
    has_classes: bool,
    batch: usize,
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f64,
    /// The part of labels that are right, for losses with classes.
    pub accuracy: Option<f64>,
}

/// The columns that data must have: the inputs of a model, then the labels.
///
/// # Errors
/// When the loss does not fit the model.
pub fn columns(model: &Model, options: &TrainOptions) -> Result<Vec<ColumnSpec>, Diagnostics> {
    let func = main_func(&model.module)?;
    let types = func.input_types();
    let mut out: Vec<ColumnSpec> =
        func.inputs.iter().zip(&types).map(|(name, ty)| ColumnSpec { name: name.clone(), ty: ty.clone() }).collect();
    let index = output_index(func, options.output.as_deref())?;
    out.push(ColumnSpec { name: options.labels.clone(), ty: options.loss.label_type(&func.output_types()[index])? });
    Ok(out)
}

fn output_index(func: &Func, name: Option<&str>) -> Result<usize, Diagnostics> {
    let Some(name) = name else { return Ok(0) };
    func.outputs.iter().position(|output| output == name).ok_or_else(|| {
        let what = format!("the model has no output '{name}'; there are {}", func.outputs.join(", "));
        error(Code::NAME, what).into()
    })
}

impl Trainer {
    /// Compiles a model for training. `rests` are further numbers of samples that evaluations will have.
    ///
    /// # Errors
    /// When an op has no gradient, the loss does not fit, or no parameter would change.
    pub fn new(
        model: Model,
        options: &TrainOptions,
        rests: &[usize],
        compile: &CompileOptions,
        session: SessionOptions,
        observer: &dyn Observer,
    ) -> Result<Trainer, Diagnostics> {
        verify(&model.module)?;
        let is_trained = |name: &str| !options.frozen.iter().any(|pattern| matches(pattern, name));
        let spec = TrainingSpec {
            loss: options.loss,
            output: options.output.clone(),
            labels: options.labels.clone(),
            optimizer: &*options.optimizer,
            is_trained: &is_trained,
            clipping: options.clipping,
        };
        let made = training(&model.module, &spec)?;
        for pattern in &options.frozen {
            if !made.parameters.iter().any(|parameter| matches(pattern, &parameter.name)) {
                let known: Vec<&str> = made.parameters.iter().take(8).map(|p| p.name.as_str()).collect();
                let what = format!("no parameter is called '{pattern}'; there are {}", known.join(", "));
                return Err(error(Code::NAME, what).into());
            }
        }
        let func = main_func(&model.module)?;
        let mut sizes = vec![options.batch];
        sizes.extend(rests.iter().copied().filter(|rest| *rest > 0 && *rest != options.batch));
        sizes.dedup();
        let mut jobs = vec![Job { name: "train".into(), func: made.train, bindings: bindings(func, options.batch)? }];
        for samples in &sizes {
            let name = if *samples == options.batch { "eval".to_string() } else { format!("eval {samples}") };
            jobs.push(Job { name, func: made.eval.clone(), bindings: bindings(func, *samples)? });
        }
        let backends = Backends::new(compile)?;
        let compiled = compile_jobs(&model, &jobs, compile, &backends, observer)?;
        let plan = Arc::new(compiled.open()?);
        let train = crate::session::program_session(Arc::clone(&plan), 0, &session, &backends)?;
        let variables =
            Arc::clone(train.variables().ok_or_else(|| error(Code::PLAN, "a training plan has no variables"))?);
        let mut out = Trainer {
            model: model.module,
            parameters: made.parameters,
            compiled,
            plan,
            backends,
            session,
            train,
            evals: Vec::new(),
            variables,
            has_classes: options.loss.has_classes(),
            batch: options.batch,
        };
        for (samples, program) in sizes.into_iter().zip(1..) {
            let session = out.sharing(program)?;
            out.evals.push((samples, session));
        }
        Ok(out)
    }

    /// A session of another program of the plan.
    fn sharing(&self, program: usize) -> Result<of_runtime::Session, Diagnostics> {
        crate::session::sharing_session(&self.plan, program, &self.session, &self.backends, &self.variables)
    }

    /// The parameters of the model.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The plan: programs `train` and `eval`.
    pub fn plan(&self) -> &PlanFile {
        &self.plan
    }

    /// Writes the plan to a file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_plan(&self, path: &Path) -> Result<(), Diagnostics> {
        Ok(self.compiled.write(path)?)
    }

    /// Samples of a step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// One step on a batch in the order of [`columns`]; returns its loss before the update.
    ///
    /// # Errors
    /// When the batch does not fit, or a task fails.
    pub fn step(&mut self, mut batch: Vec<Value>, rate: f64) -> Result<f64, Diagnostics> {
        let rate = of_runtime::Tensor::from_elements(Vec::new(), &[rate as f32])
            .map_err(|e| error(Code::RUN, e.to_string()))?;
        batch.push(rate.into());
        let outputs = self.train.run(batch).map_err(|e| run_error(&e))?;
        number(&outputs[0])
    }

    /// The mean loss over a data set, and the part of right labels.
    ///
    /// # Errors
    /// When the data does not fit, or a task fails.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Evaluation, Diagnostics> {
        let (mut loss, mut correct, mut labels) = (0.0, 0.0, 0usize);
        let mut start = 0;
        while start < data.len() {
            let samples = self.batch.min(data.len() - start);
            let batch = data.batch(&(start..start + samples).collect::<Vec<_>>())?;
            labels += batch.last().and_then(Value::as_tensor).map_or(0, |t| t.dims().iter().product::<i64>() as usize);
            let session = self.evals.iter_mut().find(|(size, _)| *size == samples).map(|(_, session)| session);
            let session = session.ok_or_else(|| {
                error(Code::INPUT, format!("the evaluation of {samples} samples was not compiled: name it in `rests`"))
            })?;
            let outputs = session.run(batch).map_err(|e| run_error(&e))?;
            loss += number(&outputs[0])? * samples as f64;
            if self.has_classes {
                let count = outputs[1].as_tensor().and_then(of_runtime::Tensor::to_elements::<i64>);
                correct += count.and_then(|c| c.first().copied()).unwrap_or(0) as f64;
            }
            start += samples;
        }
        let accuracy = self.has_classes.then(|| correct / labels.max(1) as f64);
        Ok(Evaluation { loss: loss / data.len() as f64, accuracy })
    }

    /// The model with the parameters as they are now.
    ///
    /// # Errors
    /// When a parameter has no value, because a step failed.
    pub fn trained_model(&self) -> Result<Module, Diagnostics> {
        let mut module = self.model.clone();
        let Some(func) = module.main_mut() else { return Err(error(Code::NAME, "the model has no function").into()) };
        let ops: Vec<_> = func.graph.walk();
        for op in ops {
            let result = func.graph.op(op).results.first().copied();
            let name = result.and_then(|v| func.graph.name(v)).map(|name| name.to_string());
            let Some(parameter) = self.parameters.iter().find(|p| Some(&p.name) == name.as_ref()) else { continue };
            if func.graph.op(op).name() != "of.constant" {
                continue;
            }
            let value = self.parameter(&parameter.name)?;
            of_ir::Rewriter::new(&mut func.graph, "train").set_attr(op, "value", Attr::Tensor(value));
        }
        Ok(module)
    }

    /// The value of a variable: a parameter, or a state of the optimizer.
    ///
    /// # Errors
    /// When there is no such variable.
    pub fn parameter(&self, name: &str) -> Result<Tensor, Diagnostics> {
        let value = self.variables.get(name).map_err(|e| run_error(&e))?;
        match tensor_files::from_runtime(&value.into())? {
            of_ops::Value::Tensor(tensor) => Ok(tensor),
            _ => Err(error(Code::RUN, format!("variable '{name}' is no tensor")).into()),
        }
    }

    /// Writes a snapshot: all variables, and how far the training is.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn snapshot(&self, path: &Path, progress: Progress) -> Result<(), Diagnostics> {
        snapshot::write(path, &self.variables, None, progress)
    }

    /// Goes back to a snapshot, and returns how far the training was.
    ///
    /// # Errors
    /// When the file cannot be read, or is of another model or optimizer. Then nothing changes.
    pub fn restore(&mut self, path: &Path) -> Result<Progress, Diagnostics> {
        snapshot::read(path, &self.variables)
    }

    /// Writes the parameters alone, as safetensors.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_parameters(&self, path: &Path, progress: Progress) -> Result<(), Diagnostics> {
        let names: Vec<String> = self.parameters.iter().map(|parameter| parameter.name.clone()).collect();
        snapshot::write(path, &self.variables, Some(&names), progress)
    }

    /// The variables: parameters, states of the optimizer, the number of the step.
    pub fn variables(&self) -> &Arc<Variables> {
        &self.variables
    }
}

/// The extents of the dimensions that a batch gives.
fn bindings(func: &Func, samples: usize) -> Result<Bindings, Diagnostics> {
    let mut out = Bindings::new();
    for (name, ty) in func.inputs.iter().zip(func.input_types()) {
        let Type::Tensor(tensor) = ty else {
            return Err(
                error(Code::UNSUPPORTED, format!("input '{name}' is no tensor, which data cannot be for")).into()
            );
        };
        let Some(first) = tensor.shape.as_ref().and_then(|shape| shape.first()) else {
            let what = format!("input '{name}' has no first axis for the samples of a batch");
            return Err(error(Code::UNSUPPORTED, what).into());
        };
        match (first.as_const(), first.as_symbol()) {
            (Some(fixed), _) if fixed == samples as i64 => {}
            (Some(fixed), _) => {
                let what = format!("input '{name}' takes batches of {fixed} samples, and {samples} are to run at once");
                let hint = "give this number as --batch, with data whose length is a multiple of it, or export the model with an open batch";
                return Err(error(Code::INPUT, what).hint(hint).into());
            }
            (None, Some(symbol)) => {
                out.insert(symbol.to_string(), samples as i64);
            }
            (None, None) => {
                let what = format!("the first extent of input '{name}' is {first}, which is no name");
                return Err(error(Code::UNSUPPORTED, what).hint("bind it with --shape").into());
            }
        }
    }
    Ok(out)
}

fn number(value: &Value) -> Result<f64, Diagnostics> {
    let tensor = value.as_tensor();
    let single = tensor.and_then(of_runtime::Tensor::to_elements::<f32>).and_then(|v| v.first().map(|x| f64::from(*x)));
    let double = || tensor.and_then(of_runtime::Tensor::to_elements::<f64>).and_then(|v| v.first().copied());
    single.or_else(double).ok_or_else(|| error(Code::RUN, "the loss is no f32 or f64").into())
}

/// Whether a name is that of a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(between) = last.replace(part) {
            match rest.find(between) {
                Some(at) => rest = &rest[at + between.len()..],
                None => return false,
            }
        }
    }
    match last {
        None => rest.is_empty(),
        Some(end) => rest.ends_with(end),
    }
}

/// The order of samples in an epoch: the same for one seed on every machine.
pub fn sample_order(samples: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    fastrand::Rng::with_seed(seed ^ (epoch as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("fc.weight", "fc.weight", true),
            ("fc.weight", "fc.weight2", false),
            ("*.bias", "fc.bias", true),
            ("*.bias", "fc.bias.x", false),
            ("layer*", "layer1.w", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn sample_order_depends_on_seed_and_epoch_alone() {
        assert_eq!(sample_order(100, 3, 1), sample_order(100, 3, 1));
        assert_ne!(sample_order(100, 3, 1), sample_order(100, 3, 2));
        assert_ne!(sample_order(100, 3, 1), sample_order(100, 4, 1));
    }
}
