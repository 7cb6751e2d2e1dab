//! Training: a model, data and an optimizer to a trained model.
//!
//! A [`Trainer`] compiles the training step and the evaluation of a model to one plan whose programs share variables: parameters and
//! the state of the optimizer. They stay in the session from step to step, so a step takes a batch and gives its loss.

mod adapters;
mod arrow_file;
mod augmentation;
mod batch_rows;
mod batches;
mod checks;
mod class_names;
mod columns;
mod data;
mod encoded;
mod encoded_rows;
mod events;
mod example;
mod features;
mod formats;
mod ids;
mod idx;
mod image_folders;
mod interruption;
mod job;
mod lazy;
mod memory;
mod mixup;
mod monitor;
mod ofrecord;
mod order;
mod parquet_file;
mod patterns;
mod precision;
mod rank_plans;
mod schedule;
mod sessions;
mod snapshot;
mod stack;
mod step_ir;
mod table;
mod text;
mod tfrecord;
mod webdataset;
mod weights;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use adapters::Lora;
pub use augmentation::{Augmentation, Draw};
pub use batch_rows::BatchRows;
pub use batches::Batches;
pub use data::{ColumnSpec, DataOptions, Dataset};
pub use events::EventWriter;
pub use job::{EndedJob, EpochReport, Held, JobEvent, JobOptions, Rejoin, StepReport, TrainingJob, Waits};
pub use memory::{ExpectedMemory, PlannedMemory};
pub use monitor::{Best, Metric as WatchedMetric, Watch};
use of_codegen::Compiled;
use of_diag::{Code, Diagnostics};
use of_frontend::training::{
    Adapter, Metric, TrainingSpec, folded_norms, prune, scalar_parameters, to_evaluation, training,
};
pub use of_frontend::training::{
    BaseStorage, Clipping, Head, Hyperparameters, LABEL_LENGTH, LOSSES, Loss, LossScale, OPTIMIZERS, Optimizer,
    Parameter, Pruning, Role, Rule, named, reset_head,
};
use of_ir::{Attr, Func, Module, Tensor, Type};
use of_passes::specialize::Bindings;
use of_plan::PlanFile;
pub use of_runtime::{Note, Recovery};
use of_runtime::{RankVariables, StateCopies, Value};
pub use order::sample_order;
pub use rank_plans::RankPlans;
pub use schedule::{Schedule, ScheduleKind};
pub use sessions::Join;
pub use snapshot::{Notes, Progress, SnapshotFile, SnapshotFiles, SnapshotPlace};
pub use text::{TextOptions, TextSamples};
pub use weights::LoadedWeights;

use crate::backends::Backends;
use crate::compiler::{Job, compile_jobs, compile_jobs_on_mesh};
use crate::error::error;
use crate::model::Model;
use crate::name_patterns::matches;
use crate::observer::Observer;
use crate::options::{CompileOptions, Precision, SessionOptions};
use crate::prepare::{main_func, remove_placements, verify};
use crate::session::{SessionVariables, run_error};
use crate::tensor_files;
use ids::Ids;
use monitor::History;
use patterns::{any_matches, check_known};
use precision::in_precision;
use sessions::Sessions;
use snapshot::Snapshots;

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
    pub clipping: Clipping,
    /// Names of parameters that keep their values; `*` stands for any text.
    pub frozen: Vec<String>,
    /// Samples of a step.
    pub batch: usize,
    /// Names of parameters that weight decay does not apply to; `*` stands for any text.
    pub no_decay: Vec<String>,
    /// Decay of the running averages of parameters, which evaluations and trained models use.
    pub average: Option<f64>,
    /// Steps whose mean gradient makes one update.
    pub accumulate: usize,
    /// Products that stay f32 in a training of 16 bits: names or operators of ONNX nodes; `*` stands for any text.
    pub keep_f32: Vec<String>,
    /// Gives the random numbers of dropouts.
    pub seed: u64,
    /// Which weights are zero throughout the training.
    pub pruning: Option<Pruning>,
    /// Names of weights that are pruned; `*` stands for any text. Without any, all that are trained, or that adapters are added to.
    pub prune_targets: Vec<String>,
    /// Adapters, which are trained instead of the parameters.
    pub lora: Option<Lora>,
    /// Evaluation also counts the labels among the classes of so many largest scores, for losses with classes.
    pub top_k: Option<usize>,
    /// Extents of dimensions that only the data gives, such as the length of texts ([`Dataset::extents`]).
    pub extents: Bindings,
    /// Where the IR of the training step is written before it is compiled.
    pub step_ir: Option<PathBuf>,
}

impl TrainOptions {
    /// A training of all parameters by the labels `labels`, without any of the options.
    pub fn new(loss: Loss, optimizer: Box<dyn Optimizer>, batch: usize) -> TrainOptions {
        TrainOptions {
            loss,
            output: None,
            labels: "labels".into(),
            optimizer,
            clipping: Clipping::default(),
            frozen: Vec::new(),
            batch,
            no_decay: Vec::new(),
            average: None,
            accumulate: 1,
            keep_f32: Vec::new(),
            seed: 0,
            pruning: None,
            prune_targets: Vec::new(),
            lora: None,
            top_k: None,
            extents: Bindings::new(),
            step_ir: None,
        }
    }
}

/// Trains a model.
pub struct Trainer {
    /// The model with its adapters.
    model: Module,
    /// The model without adapters.
    base: Module,
    adapters: Vec<Adapter>,
    lora: Option<Lora>,
    pruned: (usize, usize),
    parameters: Vec<Parameter>,
    origin: Origin,
    plan: Arc<PlanFile>,
    sessions: Sessions,
    /// Copies of the state, from which the training goes on without a rank that was lost.
    copies: StateCopies,
    /// What another session of the steps is opened with.
    reopen: (SessionOptions, Backends),
    snapshots: Snapshots,
    metrics: Vec<Metric>,
    batch: usize,
    accumulate: usize,
    /// Whether some labels may not count.
    has_ignored: bool,
    /// The numbers of the data that must be in a range.
    ids: Vec<Ids>,
    /// Scalars that look like parameters, and keep their values.
    scalars: Vec<String>,
    /// What snapshots say about this training.
    notes: Notes,
}

/// Where the plan of a step comes from.
enum Origin {
    Compiled(Box<Compiled>),
    File(RankPlans),
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f64,
    /// The part of labels that are right, for losses with classes and binary labels.
    pub accuracy: Option<f64>,
    /// The part of labels that are among the first classes ([`TrainOptions::top_k`]).
    pub top_k_accuracy: Option<f64>,
}

/// The columns that data must have: the inputs of a model, then the labels, if the loss has any.
///
/// # Errors
/// When the loss does not fit the model.
pub fn columns(model: &Model, options: &TrainOptions) -> Result<Vec<ColumnSpec>, Diagnostics> {
    let func = main_func(&model.module)?;
    let types = func.input_types();
    let mut out: Vec<ColumnSpec> =
        func.inputs.iter().zip(&types).map(|(name, ty)| ColumnSpec { name: name.clone(), ty: ty.clone() }).collect();
    let index = output_index(func, options.output.as_deref())?;
    let labels = options.loss.label_type(&func.output_types()[index])?;
    out.extend(labels.map(|ty| ColumnSpec { name: options.labels.clone(), ty }));
    Ok(out)
}

fn output_index(func: &Func, name: Option<&str>) -> Result<usize, Diagnostics> {
    let Some(name) = name else { return Ok(0) };
    func.outputs.iter().position(|output| output == name).ok_or_else(|| {
        let what = format!("the model has no output '{name}'; there are {}", func.outputs.join(", "));
        error(Code::NAME, what).into()
    })
}

/// A training that is compiled, and takes no memory for its steps yet.
pub struct CompiledTraining {
    /// Without sessions.
    trainer: Trainer,
    /// Samples of evaluations.
    sizes: Vec<usize>,
}

impl CompiledTraining {
    /// As [`Trainer::write_plan`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_plan(&self, path: &Path) -> Result<(), Diagnostics> {
        self.trainer.write_plan(path)
    }

    /// Takes memory for steps and evaluations. `join` makes this process a rank, where ranks are processes.
    ///
    /// # Errors
    /// When there is not enough memory, or ranks do not come.
    pub fn open(mut self, join: Join<'_>) -> Result<Trainer, Diagnostics> {
        let (session, backends) = &self.trainer.reopen;
        self.trainer.sessions = Sessions::open(&self.trainer.plan, &self.sizes, session, backends, join)?;
        Ok(self.trainer)
    }
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
        Trainer::compile(model, options, rests, compile, session, observer, None)?.open(&|_| Ok(None))
    }

    /// Compiles a model for training, without the memory that steps take. Ranks that are processes share their plan in `plans`; `None` where
    /// this process compiles it for itself. All ranks must do the same with the trainer, in the same order.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn compile(
        model: Model,
        options: &TrainOptions,
        rests: &[usize],
        compile: &CompileOptions,
        session: SessionOptions,
        observer: &dyn Observer,
        plans: Option<&RankPlans>,
    ) -> Result<CompiledTraining, Diagnostics> {
        verify(&model.module)?;
        check_supported(compile)?;
        let mut model = model;
        to_evaluation(&mut model.module)?;
        folded_norms(&model.module).iter().for_each(|warning| observer.diagnostic(warning));
        // Adapters are added to what pruning leaves.
        let masks = pruned(&mut model.module, options)?;
        let base = model.module.clone();
        let func = main_func(&base)?;
        let ids = Ids::of(func, options.loss, output_index(func, options.output.as_deref())?);
        let scalars = scalar_parameters(&base);
        let adapters = match &options.lora {
            Some(lora) => lora.add_to(&mut model.module)?,
            None => Vec::new(),
        };
        let is_trained = |name: &str| match adapters.is_empty() {
            true => !any_matches(&options.frozen, name),
            false => adapters.iter().any(|adapter| adapter.a == name || adapter.b == name),
        };
        let spec = TrainingSpec {
            output: options.output.clone(),
            labels: options.labels.clone(),
            is_trained: &is_trained,
            clipping: options.clipping,
            is_decayed: &|name| !any_matches(&options.no_decay, name),
            average: options.average,
            accumulate: options.accumulate,
            seed: options.seed,
            loss_scale: (compile.precision == Precision::F16).then(LossScale::default),
            top_k: options.top_k.map(|k| k as i64),
            ..TrainingSpec::new(options.loss, &*options.optimizer, &masks)
        };
        let made = training(&model.module, &spec)?;
        check_known(&options.frozen, &made)?;
        check_known(&options.no_decay, &made)?;
        let pruned = masks.values().fold((0, 0), |(zeros, all), mask| {
            let kept: i64 = mask.to_i64s().unwrap_or_default().iter().sum();
            (zeros + mask.len() - kept.unsigned_abs() as usize, all + mask.len())
        });
        let func = main_func(&model.module)?;
        let mut sizes = vec![options.batch];
        sizes.extend(rests.iter().copied().filter(|rest| *rest > 0 && *rest != options.batch));
        sizes.dedup();
        let extents = bindings(func, options.batch, &options.extents)?;
        let train = Job { name: "train".into(), func: made.train, bindings: extents };
        let train = in_precision(train, &model.module, compile.precision, &options.keep_f32, observer)?;
        if let Some(path) = &options.step_ir {
            step_ir::write(&train, &model.module, path)?;
        }
        let mut jobs = vec![train];
        for samples in &sizes {
            let name = if *samples == options.batch { "eval".to_string() } else { format!("eval {samples}") };
            jobs.push(Job { name, func: made.eval.clone(), bindings: bindings(func, *samples, &options.extents)? });
        }
        // The jobs are in their precision already.
        let compile = &CompileOptions { precision: Precision::Model, ..compile.clone() };
        let backends = Backends::new(compile)?;
        let compiled = || match &compile.mesh {
            None => compile_jobs(&model, &jobs, compile, &backends, observer),
            Some(mesh) => Ok(compile_jobs_on_mesh(&model, &jobs, mesh, compile, &backends, observer)?.code),
        };
        let (origin, plan) = match plans.filter(|_| compile.mesh.is_some()) {
            Some(shared) => (Origin::File(shared.clone()), shared.open(compiled)?),
            None => {
                let compiled = compiled()?;
                let plan = compiled.open()?;
                (Origin::Compiled(Box::new(compiled)), plan)
            }
        };
        let plan = Arc::new(plan);
        let unplaced = |mut module: Module| {
            remove_placements(&mut module);
            module
        };
        let trainer = Trainer {
            model: unplaced(model.module),
            base: unplaced(base),
            adapters,
            lora: options.lora.clone(),
            pruned,
            parameters: made.parameters,
            origin,
            plan,
            sessions: Sessions::default(),
            copies: StateCopies::default(),
            reopen: (session, backends),
            snapshots: Snapshots::default(),
            metrics: made.metrics,
            accumulate: options.accumulate,
            has_ignored: matches!(options.loss, Loss::CrossEntropy { .. }),
            ids,
            scalars,
            notes: settings(options),
            batch: options.batch,
        };
        Ok(CompiledTraining { trainer, sizes })
    }

    /// The parameters of the model.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The plan: programs `train` and `eval`, or meshes of these names.
    pub fn plan(&self) -> &PlanFile {
        &self.plan
    }

    /// Writes the plan to a file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_plan(&self, path: &Path) -> Result<(), Diagnostics> {
        match &self.origin {
            Origin::Compiled(compiled) => Ok(compiled.write(path)?),
            Origin::File(plans) => plans.copy(path),
        }
    }

    /// Samples of a step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Steps of an update.
    pub fn accumulate(&self) -> usize {
        self.accumulate
    }

    /// The names of scalars that look like parameters of the model. They keep their values.
    pub fn scalars(&self) -> &[String] {
        &self.scalars
    }

    /// Checks the whole numbers of a data set that are in memory: classes, and rows of tables. `what` is training or validation.
    fn check_data(&self, data: &Dataset, what: &str) -> Result<(), Diagnostics> {
        self.ids.iter().try_for_each(|ids| ids.check(data, what))
    }

    /// Checks the other ones, of a batch of samples.
    fn check_batch(&self, data: (&Dataset, &str), batch: &[Value], samples: &[usize]) -> Result<(), Diagnostics> {
        let checked = self.ids.iter().try_for_each(|ids| ids.check_batch(data, batch, samples));
        // The other ranks may not read what is wrong.
        checked.inspect_err(|why| self.fail(why))
    }

    /// The rows of a batch that [`Trainer::step`] reads in this process.
    pub fn rows(&self) -> BatchRows {
        self.rows_of(0)
    }

    /// The rows of the inputs of an entry point that this process reads.
    fn rows_of(&self, entry_point: usize) -> BatchRows {
        match (self.sessions.of_rank(), self.plan.plan().meshes.get(entry_point)) {
            (Some(own), Some(mesh)) => BatchRows::of_rank(mesh, own.rank()),
            _ => BatchRows::all(),
        }
    }

    /// Ends the other ranks, where they are processes, because this one cannot go on.
    pub fn fail(&self, why: &Diagnostics) {
        self.sessions.fail(why);
    }

    /// One step on a batch in the order of [`columns`], of which the [`rows`](Trainer::rows) of this process count; returns its loss before
    /// the update.
    ///
    /// # Errors
    /// When the batch does not fit, or a task fails.
    pub fn step(&mut self, mut batch: Vec<Value>, rate: f64) -> Result<f64, Diagnostics> {
        let rate = of_runtime::Tensor::from_elements(Vec::new(), &[rate as f32])
            .map_err(|e| error(Code::RUN, e.to_string()))?;
        batch.push(rate.into());
        number(&self.sessions.step(batch)?[0])
    }

    /// Whether the tasks of the steps from now on are timed. Forgets earlier times.
    pub fn set_profiling(&self, on: bool) {
        self.sessions.set_profiling(on);
    }

    /// The times of the tasks of steps since [`Trainer::set_profiling`], of each rank in this process.
    pub fn timings(&self) -> Vec<(Option<usize>, Vec<of_runtime::TaskTiming>)> {
        self.sessions.timings()
    }

    /// The mean loss over a data set, and the part of right labels. The mean is over all labels that count, as that of one batch.
    ///
    /// # Errors
    /// When the data does not fit, has a class or a row of a table that does not exist, or a task fails.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Evaluation, Diagnostics> {
        self.check_data(data, "validation").inspect_err(|why| self.fail(why))?;
        let (mut loss, mut weights, mut counts) = (0.0, 0.0, vec![0; self.metrics.len()]);
        let labels = self.metrics.iter().position(|metric| *metric == Metric::Labels).filter(|_| self.has_ignored);
        let mut start = 0;
        while start < data.len() {
            let samples = self.batch.min(data.len() - start);
            let rows = self.rows_of(self.sessions.evaluation(samples)?);
            let numbers: Vec<usize> = (start..start + samples).collect();
            // The other ranks may not read what is damaged.
            let batch = data.batch_of_rows(&numbers, None, &rows).inspect_err(|why| self.fail(why))?;
            self.check_batch((data, "validation"), &batch, &numbers)?;
            let outputs = self.sessions.evaluate(samples, batch)?;
            let mut own = vec![0; counts.len()];
            for (count, counted) in own.iter_mut().zip(&outputs[1..]) {
                let list = counted.as_tensor().and_then(of_runtime::Tensor::to_elements::<i64>);
                *count = list.and_then(|list| list.first().copied()).unwrap_or(0);
            }
            counts.iter_mut().zip(&own).for_each(|(sum, count)| *sum += count);
            let weight = labels.map_or(samples as f64, |at| own[at] as f64);
            // The mean of a batch without labels that count is no number, and has no part.
            if weight > 0.0 {
                loss += number(&outputs[0])? * weight;
                weights += weight;
            }
            start += samples;
        }
        let count = |metric| Some(counts[self.metrics.iter().position(|known| *known == metric)?] as f64);
        let part = |metric| Some(count(metric)? / count(Metric::Labels)?.max(1.0));
        let (accuracy, top_k_accuracy) = (part(Metric::Correct), part(Metric::CorrectOfTopK));
        Ok(Evaluation { loss: loss / weights, accuracy, top_k_accuracy })
    }

    /// The model with the parameters as they are now.
    ///
    /// # Errors
    /// When a parameter has no value, because a step failed.
    pub fn trained_model(&self) -> Result<Module, Diagnostics> {
        let mut module = self.model.clone();
        self.set_parameters(&mut module, |name| self.evaluated(name))?;
        Ok(module)
    }

    /// Passes the model with the parameters as they are now to `take`. They stay in their places: nothing is copied on one rank. With `merged` it
    /// is [`Trainer::merged_model`].
    ///
    /// # Errors
    /// When a parameter has no value, because a step failed, and what `take` returns.
    pub fn lend_model<T>(
        &self,
        merged: bool,
        take: impl FnOnce(&Module) -> Result<T, Diagnostics>,
    ) -> Result<T, Diagnostics> {
        let lent = |name: &str| {
            let value = self.variables()?.lend(self.variable_of(name)).map_err(|e| run_error(&e))?;
            tensor_files::shared_from_runtime(value)
        };
        if merged {
            return take(&self.merged_with(lent)?);
        }
        let mut module = self.model.clone();
        self.set_parameters(&mut module, lent)?;
        take(&module)
    }

    /// Sets the parameters of a model to values by their names.
    fn set_parameters(
        &self,
        module: &mut Module,
        value: impl Fn(&str) -> Result<Tensor, Diagnostics>,
    ) -> Result<(), Diagnostics> {
        let func = module.main_mut().ok_or_else(|| error(Code::NAME, "the model has no function"))?;
        for op in func.graph.walk() {
            let result = func.graph.op(op).results.first().copied();
            let Some(name) = result.and_then(|v| func.graph.name(v)).map(|name| name.to_string()) else { continue };
            let known =
                self.parameters.iter().any(|p| p.name == name) || self.adapters.iter().any(|a| a.weight == name);
            if known && func.graph.op(op).name() == "of.constant" {
                of_ir::Rewriter::new(&mut func.graph, "train").set_attr(op, "value", Attr::Tensor(value(&name)?));
            }
        }
        Ok(())
    }

    /// Whether adapters are trained instead of the parameters.
    pub fn has_adapters(&self) -> bool {
        self.lora.is_some()
    }

    /// The number of pruned weights, and of all weights of pruned tensors.
    pub fn pruned(&self) -> (usize, usize) {
        self.pruned
    }

    /// The value of a parameter that evaluation uses.
    fn evaluated(&self, name: &str) -> Result<Tensor, Diagnostics> {
        self.parameter(self.variable_of(name))
    }

    /// The variable that has the value of a parameter that evaluation uses.
    fn variable_of<'s>(&'s self, name: &'s str) -> &'s str {
        let known = self.parameters.iter().find(|parameter| parameter.name == name);
        known.map_or(name, |parameter| &parameter.evaluated)
    }

    /// The value of a variable: a parameter, or a state of the optimizer.
    ///
    /// # Errors
    /// When there is no such variable.
    pub fn parameter(&self, name: &str) -> Result<Tensor, Diagnostics> {
        let value = self.variables()?.get(name).map_err(|e| run_error(&e))?;
        match tensor_files::from_runtime(&value.into())? {
            of_ops::Value::Tensor(tensor) => Ok(tensor),
            _ => Err(error(Code::RUN, format!("variable '{name}' is no tensor")).into()),
        }
    }

    /// Writes a snapshot: all variables, and how far the training is. All ranks must do it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn snapshot(&mut self, place: &SnapshotPlace, progress: Progress) -> Result<(), Diagnostics> {
        self.begin_snapshot(place, progress, true)?;
        self.finish_snapshots()
    }

    /// Begins to write a snapshot, and goes on while it is written. Where an earlier one is still being written, `waits` says whether to
    /// wait for it, rather than to leave this one out. All ranks must do it. Returns whether it was begun.
    ///
    /// # Errors
    /// When a variable has no value, or an earlier snapshot could not be written.
    pub fn begin_snapshot(
        &mut self,
        place: &SnapshotPlace,
        progress: Progress,
        waits: bool,
    ) -> Result<bool, Diagnostics> {
        self.snapshots.begin(place, self.sessions.variables()?, (progress, &self.notes), waits)
    }

    /// Before the first step: ranks that are processes find out whether each can write snapshots where the others see them.
    fn prepare_snapshots(&mut self, place: &SnapshotPlace) -> Result<(), Diagnostics> {
        self.snapshots.prepare(place, self.sessions.variables()?)
    }

    /// Waits for the snapshots that were begun.
    ///
    /// # Errors
    /// When one could not be written.
    pub fn finish_snapshots(&mut self) -> Result<(), Diagnostics> {
        self.snapshots.finish()
    }

    /// Goes back to a snapshot, and returns how far the training was. It may be of another mesh.
    ///
    /// # Errors
    /// When there is none, it is damaged, or is of another model, optimizer, `--ema` or `--accumulate`. Then nothing changes.
    pub fn restore(&mut self, place: &SnapshotPlace) -> Result<Progress, Diagnostics> {
        Ok(self.restore_noted(place)?.0)
    }

    /// As [`Trainer::restore`], with what the snapshot says about the training.
    fn restore_noted(&mut self, place: &SnapshotPlace) -> Result<(Progress, Notes), Diagnostics> {
        self.finish_snapshots()?;
        let check = |notes: &Notes| check_settings(place.shown(), notes, &self.notes);
        snapshot::restore(place, self.sessions.variables()?, check)
    }

    /// Gives ranks that came back the values of evaluations that the others know; `epoch` is the last one.
    fn agree_on(&self, history: &mut History, epoch: usize) -> Result<(), Diagnostics> {
        let Some(ranks) = self.sessions.of_rank() else { return Ok(()) };
        let tell = |word: u64| ranks.tell_all(word).map_err(|e| run_error(&e));
        let known = tell(history.known() as u64)?;
        if known.iter().all(|count| *count == known[0]) {
            return Ok(());
        }
        // No float has these bits here: an evaluation gives one of f32.
        const UNKNOWN: u64 = u64::MAX;
        for epoch in 0..=epoch {
            let values = tell(history.get(epoch).map_or(UNKNOWN, f64::to_bits))?;
            if let Some(value) = values.into_iter().find(|bits| *bits != UNKNOWN) {
                history.set(epoch, f64::from_bits(value));
            }
        }
        Ok(())
    }

    /// Sets what the next snapshots say about the training.
    fn note(&mut self, name: &str, value: String) {
        self.notes.insert(name.into(), value);
    }

    /// Copies the state after a step in memory, on all ranks: each keeps its own, and the next rank what no other one has.
    ///
    /// # Errors
    /// When the ranks are threads, or one was lost.
    pub fn copy_state(&mut self, step: usize, note: Note) -> Result<(), Diagnostics> {
        let variables = self.sessions.of_rank().ok_or_else(no_processes)?;
        self.copies.take(variables, step as u64, note).map_err(|e| run_error(&e))
    }

    /// Bytes that this rank copies, and those of them that another rank gets; `None` without copies.
    pub fn copied_bytes(&self) -> Option<(usize, usize)> {
        self.copies.sizes()
    }

    /// The rank that this process is; `None` where the ranks are threads.
    fn of_rank(&self) -> Option<&RankVariables> {
        self.sessions.of_rank()
    }

    /// Whether another rank ended the job: it failed, or was lost.
    pub fn is_ended_by_another(&self) -> bool {
        self.sessions.of_rank().is_some_and(RankVariables::is_ended_by_another)
    }

    /// After another rank ended the job: joins the ranks that are there now. Variables have their initial values.
    ///
    /// # Errors
    /// When ranks do not come.
    pub fn rejoin(&mut self, join: Join<'_>) -> Result<(), Diagnostics> {
        self.copies.begin_session();
        self.snapshots.begin_session();
        self.sessions.rejoin(&self.plan, &self.reopen.0, &self.reopen.1, join)
    }

    /// On all ranks: goes back to the newest step that every rank has a copy of, or gets one from others. `fresh` and `mark` are those
    /// of [`StateCopies::recover`].
    ///
    /// # Errors
    /// When another rank is lost meanwhile.
    pub fn recover(&mut self, fresh: bool, mark: u64) -> Result<Recovery, Diagnostics> {
        let variables = self.sessions.of_rank().ok_or_else(no_processes)?;
        self.copies.recover(variables, fresh, mark).map_err(|e| run_error(&e))
    }

    /// Waits until all ranks do the same.
    ///
    /// # Errors
    /// When the ranks are threads, or one was lost.
    pub fn wait_for_all(&self) -> Result<(), Diagnostics> {
        StateCopies::wait_for_all(self.sessions.of_rank().ok_or_else(no_processes)?).map_err(|e| run_error(&e))
    }

    /// Writes the parameters alone, as safetensors.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_parameters(&self, path: &Path, progress: Progress) -> Result<(), Diagnostics> {
        let variables = self.sessions.variables()?;
        let mut values = Vec::with_capacity(self.parameters.len());
        for parameter in &self.parameters {
            let value = variables.lend_reported(&parameter.evaluated).map_err(|e| run_error(&e))?;
            values.extend(value.map(|value| (parameter.name.clone(), value)));
        }
        if self.reports() { snapshot::write_tensors(path, &values, progress.fields()) } else { Ok(()) }
    }

    /// About the bytes of a file of the results, and of a snapshot, whose files have all variables.
    fn file_bytes(&self) -> Result<(u64, u64), Diagnostics> {
        let bytes = |dims: &[i64], bits: u32| dims.iter().product::<i64>().unsigned_abs() * u64::from(bits) / 8;
        let types = self.variables()?.types().into_iter();
        let sizes: HashMap<&str, u64> = types.map(|(name, dtype, dims)| (name, bytes(dims, dtype.bits()))).collect();
        // Adapters alone are small, and a merged model has another size.
        let parameters = self.parameters.iter().filter(|_| !self.has_adapters());
        let each = parameters.filter_map(|parameter| sizes.get(&*parameter.evaluated)).sum();
        Ok((each, sizes.values().sum()))
    }

    /// Whether this process reports results: of ranks that are processes, the first one does.
    pub fn reports(&self) -> bool {
        self.sessions.reports()
    }

    /// The variables: parameters, states of the optimizer, the number of the step.
    ///
    /// # Errors
    /// When there are none, which is a bug.
    pub fn variables(&self) -> Result<SessionVariables<'_>, Diagnostics> {
        self.sessions.variables()
    }
}

/// Prunes the weights of a model. Returns a mask for each of them.
fn pruned(module: &mut Module, options: &TrainOptions) -> Result<HashMap<String, Tensor>, Diagnostics> {
    let Some(pruning) = options.pruning else { return Ok(HashMap::new()) };
    let targets = &options.prune_targets;
    // Adapters keep all weights as they are, so all may be pruned before.
    let stays = |name: &str| options.lora.is_none() && any_matches(&options.frozen, name);
    let masks = prune(module, pruning, &|name| !stays(name) && (targets.is_empty() || any_matches(targets, name)))?;
    match targets.iter().find(|target| !masks.keys().any(|name| matches(target, name))) {
        None => Ok(masks),
        Some(target) => {
            let what =
                format!("pruning {pruning} fits no weight of a product or convolution that is called '{target}'");
            Err(error(Code::NAME, what).into())
        }
    }
}

/// What must be the same when a training goes on: names of flags, and their values.
fn settings(options: &TrainOptions) -> Notes {
    let average = options.average.map_or_else(|| NO_AVERAGE.to_owned(), |decay| decay.to_string());
    let optimizer = match &options.optimizer.states()[..] {
        [] => options.optimizer.name().to_owned(),
        states => format!("{} (with {} of each parameter)", options.optimizer.name(), states.join(" and ")),
    };
    let known = [("optimizer", optimizer), ("ema", average), ("accumulate", options.accumulate.to_string())];
    known.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The value of `ema` in a snapshot of a training without averages.
const NO_AVERAGE: &str = "none";

/// Rejects a snapshot of a training with other settings. One of an older version does not say them.
fn check_settings(place: &str, snapshot: &Notes, own: &Notes) -> Result<(), Diagnostics> {
    let shown = |name: &str, value: &str| match (name, value) {
        ("ema", NO_AVERAGE) => "no --ema".to_owned(),
        _ => format!("--{name} {value}"),
    };
    for name in ["optimizer", "ema", "accumulate"] {
        let Some((other, value)) = snapshot.get(name).zip(own.get(name)).filter(|(other, own)| other != own) else {
            continue;
        };
        let what =
            format!("'{place}' is of a training with {}; this one has {}", shown(name, other), shown(name, value));
        let hint = "go on with the same flags; leave out --resume, or give --weights the snapshot, to begin anew with its parameters";
        return Err(error(Code::INPUT, what).hint(hint).into());
    }
    Ok(())
}

fn no_processes() -> Diagnostics {
    error(Code::RUN, "the ranks are threads of one process, which end together").into()
}

/// Rejects what a training does not do.
fn check_supported(compile: &CompileOptions) -> Result<(), Diagnostics> {
    if compile.precision == Precision::Int8 {
        let what = "products of a training step are in f32, bf16 or f16, not in int8";
        return Err(error(Code::UNSUPPORTED, what).hint("train first, then compile with --precision int8").into());
    }
    Ok(())
}

/// The extents of the dimensions that a batch gives, and those that are known.
fn bindings(func: &Func, samples: usize, known: &Bindings) -> Result<Bindings, Diagnostics> {
    let mut out = known.clone();
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
